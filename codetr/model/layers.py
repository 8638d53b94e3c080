"""Modules and functions that several parts of the model share."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import msda
from msda.module import arguments_of_norm


class Float32Linear(nn.Linear):
    """A linear layer that runs in fp32 at every precision of the model, also under autocast.

    Class logits and box deltas come from such layers. 16-bit logits near the selection threshold tie (bf16
    has steps of 0.03 at -4), and the order of the cells would decide a tie.
    """

    def forward(self, x: Tensor) -> Tensor:
        device = x.device.type  # torch.is_autocast_enabled knows no others, such as meta
        if device in ("cpu", "cuda") and torch.is_autocast_enabled(device):
            with torch.autocast(device, enabled=False):
                return F.linear(x.float(), self.weight, self.bias)
        return F.linear(x.float(), self.weight, self.bias)


class FrozenBatchNorm2d(nn.Module):
    """Batch normalisation by stored statistics; upstream trains and runs its ResNets with it.

    The statistics stay fp32. `forward` is one multiplication and one addition in the activations' type, and
    `fold_into` removes both.
    """

    def __init__(self, channels: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        self.register_buffer("weight", torch.ones(channels))
        self.register_buffer("bias", torch.zeros(channels))
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))

    def forward(self, x: Tensor) -> Tensor:
        scale, shift = self._scale_and_shift()
        return x * scale.to(x.dtype)[:, None, None] + shift.to(x.dtype)[:, None, None]

    @torch.no_grad()
    def fold_into(self, convolution: nn.Conv2d) -> None:
        """Folds the norm into the convolution before it, which has no bias; in place."""
        scale, shift = self._scale_and_shift()
        convolution.weight.mul_(scale[:, None, None, None])
        convolution.bias = nn.Parameter(shift.to(convolution.weight.dtype), requires_grad=False)

    def _scale_and_shift(self) -> tuple[Tensor, Tensor]:
        scale = self.weight * torch.rsqrt(self.running_var + self.eps)
        return scale, self.bias - self.running_mean * scale


@torch.no_grad()
def thaw_batch_norms(model: nn.Module) -> None:
    """Replaces every frozen batch norm by a trainable one with the same values and names; in place."""
    for parent in list(model.modules()):
        for name, norm in list(parent.named_children()):
            if isinstance(norm, FrozenBatchNorm2d):
                thawed = nn.BatchNorm2d(len(norm.weight), norm.eps).to(norm.weight.device)
                for values in ("weight", "bias", "running_mean", "running_var"):
                    getattr(thawed, values).copy_(getattr(norm, values))
                setattr(parent, name, thawed.train(norm.training))


class GroupNorm(nn.GroupNorm):
    """Group normalisation that becomes one node of exports, `msda.group_norm`.

    Exporters turn PyTorch's own form into an InstanceNormalization between reshapes. TensorRT 10.6 runs
    InstanceNormalization in fp32 and fp16 only, and computes the reshapes' dynamic shapes at run time.
    """

    written_out = False  # whether `forward` uses the form for exports

    def forward(self, x: Tensor) -> Tensor:
        """Normalises a map [N, C, H, W], or in the form for exports cells [N, S, C]."""
        if not self.written_out:
            return super().forward(x)
        return msda.group_norm(x, self.weight, self.bias, self.num_groups, self.eps)


class DropPath(nn.Module):
    """Stochastic depth (arXiv 1603.09382): in training, drops a residual branch for some of the images.

    Args:
        rate: share of images without the branch; the branch of the others is scaled by 1 / (1 - rate).
    """

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        """[N, ...] -> [N, ...]."""
        if not self.training or self.rate == 0.0:
            return x
        keep = torch.rand((x.shape[0],) + (1,) * (x.dim() - 1), device=x.device) >= self.rate
        return x * (keep.to(x.dtype) / (1.0 - self.rate))


class MultiheadAttention(nn.Module):
    """Self-attention with positions on queries and keys but not on values."""

    def __init__(self, embed_dims: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.in_proj_weight = nn.Parameter(torch.empty(3 * embed_dims, embed_dims))
        self.in_proj_bias = nn.Parameter(torch.zeros(3 * embed_dims))
        self.out_proj = Linear(embed_dims, embed_dims)
        nn.init.xavier_uniform_(self.in_proj_weight)

    def forward(
        self,
        x: Tensor,
        position: Tensor,
        attention_mask: Tensor | None = None,
        residual: Tensor | None = None,
        norm: nn.LayerNorm | None = None,
    ) -> Tensor:
        """x, position: [N, Q, C] -> [N, Q, C], with the residual and the norm behind it if there are any.

        attention_mask: [Q, Q] bool, True where a query (row) must not attend to another.
        """
        channels = x.shape[-1]
        weight, bias = self.in_proj_weight, self.in_proj_bias
        query_key = F.linear(x + position, weight[: 2 * channels], bias[: 2 * channels])
        query, key = query_key.split(channels, dim=-1)
        value = F.linear(x, weight[2 * channels :], bias[2 * channels :])
        query, key, value = (
            t.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for t in (query, key, value)
        )
        allowed = None if attention_mask is None else ~attention_mask
        out = F.scaled_dot_product_attention(query, key, value, allowed)  # [N, heads, Q, C / heads]
        return self.out_proj(out.transpose(1, 2).flatten(2), residual, norm=norm)


class Linear(nn.Linear):
    """A linear layer that becomes one node of exports with what follows it, `msda.linear`."""

    written_out = False  # whether `forward` uses the form for exports

    def forward(
        self,
        x: Tensor,
        residual: Tensor | None = None,
        activation: str = "none",
        norm: nn.LayerNorm | None = None,
    ) -> Tensor:
        """[..., K] -> [..., N]. Applies the activation, adds the residual [..., N], and normalises, as
        `msda.linear`."""
        if self.written_out:
            return msda.linear(x, self.weight, self.bias, residual, activation, **arguments_of_norm(norm))
        result = msda.linear_reference.finish(super().forward(x), residual, activation)
        return result if norm is None else norm(result)


class FeedForward(nn.Module):
    """Two linear layers with an activation between them, "gelu" or "relu"."""

    def __init__(self, in_channels: int, hidden_channels: int, out_channels: int, activation: str) -> None:
        super().__init__()
        self.activation = activation
        self.fc1 = Linear(in_channels, hidden_channels)
        self.fc2 = Linear(hidden_channels, out_channels)

    def forward(self, x: Tensor, residual: Tensor | None = None, norm: nn.LayerNorm | None = None) -> Tensor:
        """[..., C] -> [..., C], with the residual and the norm behind it if there are any."""
        return self.fc2(self.fc1(x, activation=self.activation), residual, norm=norm)


def inverse_sigmoid(x: Tensor) -> Tensor:
    """Returns log(x / (1 - x)) with both sides of the fraction clamped to at least 1e-3, as DINO does."""
    x = x.clamp(0.0, 1.0)
    return torch.log(x.clamp(min=1e-3) / (1.0 - x).clamp(min=1e-3))


def device_size(size: int, device: torch.device) -> Tensor:
    """Returns a size, which may be a symbol of an export, as a tensor [1] fp32.

    Compilers turn symbols into vectors of integers, whatever type is requested. The conversion to fp32
    follows.
    """
    return torch.scalar_tensor(size, dtype=torch.int64, device=device).reshape(1).float()


def device_constant(values: list[int] | list[float], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Makes a 1-D tensor on the device. `torch.tensor` copies from the host, which no CUDA graph captures."""
    return torch.cat([torch.full((1,), value, dtype=dtype, device=device) for value in values])
