"""`python -m benchmarks.window_attention`: times and errors of window attention on the GPU."""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

import msda
from benchmarks.map_operators import MapOperator, truth_by

METHODS = {
    "window_attention": "msda.window_attention",
    "plain": "msda.window_attention with MSDA_WINDOW=plain",
    "rows": "msda.window_attention with MSDA_WINDOW=rows",
    "eager": "windows cut and joined, two products and a softmax in the type, eager PyTorch",
    "sdpa": "windows cut and joined, scaled_dot_product_attention with bias and mask as attn_mask",
    "sdpa_no_bias": "the same without bias and mask, by FlashAttention or cuDNN: another result",
}


class Inputs(NamedTuple):
    """The arguments of `msda.window_attention`."""

    qkv: Tensor
    bias: Tensor
    padding: Tensor
    window_size: int
    shift: int


@dataclass(frozen=True)
class WindowProblem:
    """Sizes of one call of the operator."""

    name: str
    height: int
    width: int
    num_heads: int
    window_size: int
    shift: int
    head_dim: int = 32
    batch: int = 1

    @property
    def channels(self) -> int:
        """C."""
        return self.num_heads * self.head_dim

    def bytes_moved(self, dtype: torch.dtype) -> int:
        """Returns the bytes of qkv, bias and result, each once."""
        cells = self.batch * self.height * self.width
        return dtype.itemsize * (4 * cells * self.channels + self.num_heads * self.window_size**4)

    def inputs(self, dtype: torch.dtype, device: str = "cuda", seed: int = 0) -> Inputs:
        """Draws normal numbers."""
        generator = torch.Generator(device).manual_seed(seed)
        cells = self.window_size**2
        shapes = (
            (self.batch, self.height, self.width, 3 * self.channels),
            (self.num_heads, cells, cells),
            (3 * self.channels,),
        )
        tensors = (torch.randn(shape, generator=generator, device=device).to(dtype) for shape in shapes)
        return Inputs(*tensors, self.window_size, self.shift)


def stages(name: str, height: int, width: int, num_heads: int, window_size: int) -> Iterator[WindowProblem]:
    """Yields the problems of a Swin's four stages, not shifted and shifted, for an image of some size."""
    for stage, shift in itertools.product(range(4), (0, window_size // 2)):
        stride = 4 << stage
        yield WindowProblem(
            name=f"{name}_stage{stage}" + ("_shifted" if shift else ""),
            height=math.ceil(height / stride),
            width=math.ceil(width / stride),
            num_heads=num_heads << stage,
            window_size=window_size,
            shift=shift,
        )


PROBLEMS = (*stages("swin_l_768x1152", 768, 1152, 6, 12), *stages("swin_t_800x1344", 800, 1344, 3, 7))


def make_call(method: str, inputs: Inputs) -> Callable[[], Tensor]:
    """Returns a call of a method."""
    if method in ("window_attention", "plain", "rows"):
        return lambda: msda.window_attention(*inputs)
    # The mask belongs to a stage, so no block of a model computes it.
    qkv, bias, padding, window_size, shift = inputs
    images, height, width, _ = qkv.shape
    down, across = -(-height // window_size), -(-width // window_size)
    mask = msda.window_reference.mask(down, across, window_size, shift, qkv.dtype, qkv.device)
    mask = mask.repeat(images, 1, 1)[:, None]  # [B, 1, L, L]
    added = bias[None] + mask if shift else bias[None]  # [B or 1, heads, L, L]
    attend = {
        "eager": attend_eagerly,
        "sdpa": F.scaled_dot_product_attention,
        "sdpa_no_bias": lambda q, k, v, _: F.scaled_dot_product_attention(q, k, v),
    }[method]
    backends = [SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION]
    if method == "sdpa":
        added = added.expand(len(mask), -1, -1, -1)
        backends = [SDPBackend.CUDNN_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]

    def call() -> Tensor:
        padded = height % window_size or width % window_size
        cells = msda.window_reference.pad(qkv, padding, window_size) if padded else qkv
        windows = msda.window_reference.cut(cells, window_size, shift).flatten(0, 1)  # [B, L, 3 * C]
        query, key, value = windows.unflatten(-1, (3, bias.shape[0], -1)).unbind(2)
        with sdpa_kernel(backends):
            attended = attend(*(x.transpose(1, 2) for x in (query, key, value)), added)
        parts = attended.unflatten(0, (images, -1)).transpose(1, 2).unsqueeze(0)  # [1, N, heads, B / N, L, d]
        return msda.window_reference.join(parts, qkv, window_size, shift)[:, :height, :width]

    return call


def attend_eagerly(query: Tensor, key: Tensor, value: Tensor, added: Tensor) -> Tensor:
    """Two products and a softmax."""
    logits = (query * query.shape[-1] ** -0.5) @ key.transpose(-2, -1) + added
    return logits.softmax(-1) @ value


truth = truth_by(msda.window_reference.window_attention)
OPERATOR = MapOperator(
    "benchmarks.window_attention",
    METHODS,
    PROBLEMS,
    make_call,
    truth,
    variable="MSDA_WINDOW",
    kernels=("plain", "rows"),
    other_results=("sdpa_no_bias",),
)

main = OPERATOR.program(
    """Time window attention at the sizes of Swin's stages, and compare it with the reference.

    Every method gets the same qkv as a linear layer makes it, and gives a map. PyTorch's methods cut windows
    and join them. The L2 cache is cold. Problems that fit into it are timed with a warm cache too.
    """,
)

if __name__ == "__main__":
    sys.exit(main())
