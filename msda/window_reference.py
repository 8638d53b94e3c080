"""Window attention in plain PyTorch: the definition of correct results, and the gradients.

It runs on any device, in every type of the operator, with autograd. Tests compare every other implementation
with it in float64. Padding, cyclic shift and mask are those of Swin Transformer (arXiv 2103.14030, section
3.2). This module imports `torch`, `msda.checks` and `msda.quantized_linear_reference` only.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from msda import checks
from msda.quantized_linear_reference import quantize_by

MASK = -100.0  # kWindowMask of kernels/include/msda/window_params.h


def window_attention(
    qkv: Tensor,
    bias: Tensor,
    padding: Tensor | None,
    window_size: int,
    shift: int,
    output_scale: float | None = None,
) -> Tensor:
    """Computes :func:`msda.window_attention` by padding, rolling and cutting; 16-bit values in float32.

    A result in int8 is rounded to float32 before it is scaled.
    """
    checks.check_window_attention(qkv, bias, padding, window_size, shift, output_scale)
    query, key, value, bias = _heads(qkv, bias, padding, window_size, shift)
    attended = _weights(query, key, bias, qkv, window_size, shift) @ value
    joined = join(attended.unsqueeze(0), qkv, window_size, shift)
    result = joined[:, : qkv.shape[1], : qkv.shape[2]]
    if output_scale is None:
        return result.to(qkv.dtype).contiguous()
    return quantize_by(result.float(), output_scale, torch.int8).contiguous()


def window_attention_backward(
    grad_output: Tensor, qkv: Tensor, bias: Tensor, padding: Tensor | None, window_size: int, shift: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Computes the gradients of `window_attention` in its tensors; an empty one for no padding.

    Args:
        grad_output: [N, H, W, C] in qkv's type; the others as for `window_attention`.
    """
    query, key, value, wide_bias = _heads(qkv, bias, padding, window_size, shift)
    weights = _weights(query, key, wide_bias, qkv, window_size, shift)
    grad_windows = cut(pad(grad_output.to(value.dtype), None, window_size), window_size, shift)
    (grad,) = _split(grad_windows, 1, bias.shape[0])
    grad_weights = grad @ value.transpose(-2, -1)
    grad_logits = weights * (grad_weights - (grad_weights * weights).sum(-1, keepdim=True))
    scale = query.shape[-1] ** -0.5
    parts = (
        grad_logits @ key * scale,
        grad_logits.transpose(-2, -1) @ query * scale,
        weights.transpose(-2, -1) @ grad,
    )
    grad_padded = join(torch.stack(parts), qkv, window_size, shift)
    grad_qkv = grad_padded[:, : qkv.shape[1], : qkv.shape[2]].to(qkv.dtype).contiguous()
    grad_bias = grad_logits.sum((0, 2)).to(bias.dtype)
    if padding is None:
        return grad_qkv, grad_bias, qkv.new_empty(0)
    outside = torch.where(_inside(qkv, window_size), 0, grad_padded)
    return grad_qkv, grad_bias, outside.sum((0, 1, 2)).to(padding.dtype)


def _heads(
    qkv: Tensor, bias: Tensor, padding: Tensor | None, window_size: int, shift: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Returns queries, keys and values [N, heads, B, L, d] and the bias [heads, 1, L, L], widened.

    B is the number of windows of a map.
    """
    wide = torch.promote_types(qkv.dtype, torch.float32)
    windows = cut(pad(qkv.to(wide), padding, window_size), window_size, shift)
    return *_split(windows, 3, bias.shape[0]), bias.to(wide).unsqueeze(1)


def _weights(query: Tensor, key: Tensor, bias: Tensor, qkv: Tensor, window_size: int, shift: int) -> Tensor:
    """The attention weights [N, heads, B, L, L]."""
    logits = (query @ key.transpose(-2, -1)) * query.shape[-1] ** -0.5 + bias
    if shift:
        down, across = _counts(qkv, window_size)
        logits = logits + mask(down, across, window_size, shift, logits.dtype, qkv.device)
    return logits.softmax(-1)


def mask(
    down: int, across: int, window_size: int, shift: int, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """Masks the pairs of cells that only the cyclic shift made neighbours.

    The rolled map has three bands along each axis: all windows but the last, the last window's first cells,
    and the `shift` cells that came around. Cells attend within their band only.

    Returns:
        [B, L, L], 0 or -100, for the B = down * across windows of a map.
    """
    bands = []
    for count in (down, across):
        place = torch.arange(count * window_size, device=device) - (count - 1) * window_size
        bands.append((place >= 0).int() + (place >= window_size - shift).int())
    region = 3 * bands[0].reshape(down, 1, window_size, 1) + bands[1].reshape(across, 1, window_size)
    region = region.reshape(down * across, window_size**2)
    return (region[:, :, None] != region[:, None]).to(dtype) * MASK


def _counts(qkv: Tensor, window_size: int) -> tuple[int, ...]:
    """The numbers of windows down and across."""
    # Not -(-side // window_size): PyTorch's older ONNX exporter rounds that down.
    return tuple((side + window_size - 1) // window_size for side in qkv.shape[1:3])


def _sides(qkv: Tensor, window_size: int) -> tuple[int, ...]:
    """The padding of [N, H, W, C], as `torch.nn.functional.pad` takes it."""
    return 0, 0, 0, -qkv.shape[2] % window_size, 0, -qkv.shape[1] % window_size


def _inside(qkv: Tensor, window_size: int) -> Tensor:
    """Whether the cells of the padded map lie in the map, [N, H, W, 1]."""
    return F.pad(torch.ones_like(qkv[..., :1], dtype=torch.bool), _sides(qkv, window_size))


def pad(qkv: Tensor, padding: Tensor | None, window_size: int) -> Tensor:
    """Pads [N, H, W, C] at the bottom and right to multiples of the window size."""
    padded = F.pad(qkv, _sides(qkv, window_size))
    if padding is None:
        return padded
    return torch.where(_inside(qkv, window_size), padded, padding.to(qkv.dtype))


def cut(x: Tensor, window_size: int, shift: int) -> Tensor:
    """Rolls a padded map [N, H, W, C] and cuts it into windows [N, B, L, C]."""
    x = x.roll((-shift, -shift), (1, 2)) if shift else x
    n, height, width, channels = x.shape
    down, across = height // window_size, width // window_size
    x = x.reshape(n, down, window_size, across, window_size, channels).transpose(2, 3)
    return x.reshape(n, down * across, window_size**2, channels)


def _split(windows: Tensor, parts: int, num_heads: int) -> tuple[Tensor, ...]:
    """[N, B, L, parts * C] -> `parts` tensors [N, heads, B, L, d]."""
    return windows.unflatten(-1, (parts, num_heads, -1)).permute(3, 0, 4, 1, 2, 5).unbind()


def join(parts: Tensor, qkv: Tensor, window_size: int, shift: int) -> Tensor:
    """Inverts `cut` and `_split`: [parts, N, heads, B, L, d] -> the padded map [N, H, W, parts * C]."""
    down, across = _counts(qkv, window_size)
    x = parts.permute(1, 3, 4, 0, 2, 5).flatten(3)  # [N, B, L, parts * C]
    n, _, _, channels = x.shape
    x = x.reshape(n, down, across, window_size, window_size, channels).transpose(2, 3)
    x = x.reshape(n, down * window_size, across * window_size, channels)
    return x.roll((shift, shift), (1, 2)) if shift else x
