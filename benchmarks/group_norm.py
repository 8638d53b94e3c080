"""`python -m benchmarks.group_norm`: times and errors of group normalisation on the GPU."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

import msda
from benchmarks.map_operators import MapOperator, truth_by

METHODS = {
    "group_norm": "msda.group_norm",
    "plain": "msda.group_norm with MSDA_GROUP_NORM=plain",
    "eager": "torch.nn.functional.group_norm of the same memory, as [N, C, H, W] with channels innermost",
    "eager_nchw": "torch.nn.functional.group_norm of [N, C, H, W] with channels outermost: another layout",
}


class Inputs(NamedTuple):
    """The arguments of `msda.group_norm`."""

    x: Tensor
    weight: Tensor
    bias: Tensor
    num_groups: int
    eps: float = 1e-5


@dataclass(frozen=True)
class NormProblem:
    """Sizes of one call of the operator."""

    name: str
    height: int
    width: int
    channels: int = 256
    num_groups: int = 32
    batch: int = 1

    def bytes_moved(self, dtype: torch.dtype) -> int:
        """Returns the bytes of map and result, each once."""
        return 2 * dtype.itemsize * self.batch * self.height * self.width * self.channels

    def inputs(self, dtype: torch.dtype, device: str = "cuda", seed: int = 0) -> Inputs:
        """Draws normal numbers."""
        generator = torch.Generator(device).manual_seed(seed)
        sizes = (self.batch, self.height, self.width, self.channels), (self.channels,), (self.channels,)
        tensors = (torch.randn(size, generator=generator, device=device).to(dtype) for size in sizes)
        return Inputs(*tensors, self.num_groups)


PROBLEMS = (
    *(NormProblem(f"neck_768x1152_level{level}", 192 >> level, 288 >> level) for level in range(5)),
    NormProblem("neck_768x1152_level0_batch4", 192, 288, batch=4),
)


def make_call(method: str, inputs: Inputs) -> Callable[[], Tensor]:
    """Returns a call of a method. Its result is [N, H, W, C]."""
    if method in ("group_norm", "plain"):
        return lambda: msda.group_norm(*inputs)
    x, weight, bias, num_groups, eps = inputs
    layout = torch.contiguous_format if method == "eager_nchw" else torch.channels_last
    x = x.permute(0, 3, 1, 2).contiguous(memory_format=layout)
    return lambda: F.group_norm(x, num_groups, weight, bias, eps).permute(0, 2, 3, 1)


truth = truth_by(msda.group_norm_reference.group_norm)
OPERATOR = MapOperator(
    "benchmarks.group_norm",
    METHODS,
    PROBLEMS,
    make_call,
    truth,
    variable="MSDA_GROUP_NORM",
    kernels=("plain",),
)

main = OPERATOR.program(
    """Time group normalisation at the sizes of Co-DETR's neck, and compare it with the reference.

    The L2 cache is cold. Problems that fit into it are timed with a warm cache too.
    """,
    dtypes=("fp16", "bf16", "fp32"),
)

if __name__ == "__main__":
    sys.exit(main())
