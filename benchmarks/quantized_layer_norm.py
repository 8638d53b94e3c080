"""`python -m benchmarks.quantized_layer_norm`: times and errors of layer normalisation in 8 bits."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

import msda
from benchmarks.linear import CELLS
from benchmarks.map_operators import MapOperator

METHODS = {
    "int8": "msda.quantized_layer_norm with an int8 result",
    "plain": "the same with MSDA_QUANTIZED_LAYER_NORM=plain",
    "fp8": "the same with a result in E4M3",
    "layer_norm": "torch.nn.functional.layer_norm with a 16-bit result",
    "eager": "torch.nn.functional.layer_norm, then a division, rounding and a cast to int8",
}


class Inputs(NamedTuple):
    """The arguments of `msda.quantized_layer_norm`."""

    x: Tensor
    weight: Tensor
    bias: Tensor
    eps: float
    scale: float
    dtype: torch.dtype


@dataclass(frozen=True)
class LayerNormProblem:
    """Sizes of one call of the operator."""

    name: str
    rows: int
    channels: int

    def bytes_moved(self, dtype: torch.dtype) -> int:
        """Returns the bytes of all tensors, each once."""
        return self.channels * (dtype.itemsize * (self.rows + 2) + self.rows)

    def inputs(self, dtype: torch.dtype, device: str = "cuda", seed: int = 0) -> Inputs:
        """Draws normal numbers, for a result in int8."""
        generator = torch.Generator(device).manual_seed(seed)
        sizes = (self.rows, self.channels), (self.channels,), (self.channels,)
        tensors = (torch.randn(size, generator=generator, device=device).to(dtype) for size in sizes)
        return Inputs(*tensors, 1e-5, 6 / 127, torch.int8)


def _stage(stage: int, batch: int = 1) -> LayerNormProblem:
    """The norms of a block of Swin-L at 768x1152."""
    rows, name = batch * (192 >> stage) * (288 >> stage), f"swin_l_768x1152_stage{stage}"
    return LayerNormProblem(name if batch == 1 else f"{name}_batch{batch}", rows, 192 << stage)


PROBLEMS = (
    *(_stage(stage) for stage in range(4)),
    *(
        LayerNormProblem(
            f"swin_l_768x1152_merging{stage}", (96 >> stage) * (144 >> stage), 4 * (192 << stage)
        )
        for stage in range(3)
    ),
    LayerNormProblem("encoder_768x1152", CELLS, 256),
    *(_stage(stage, batch=8) for stage in range(4)),
)


def make_call(method: str, inputs: Inputs) -> Callable[[], Tensor]:
    """Returns a call of a method. Its result is [M, C]."""
    x, weight, bias, eps, scale, _ = inputs
    if method == "layer_norm":
        return lambda: F.layer_norm(x, weight.shape, weight, bias, eps)
    if method == "eager":
        quantize = functools.partial(msda.quantized_linear_reference.quantize, dtype=torch.int8)
        return lambda: quantize(F.layer_norm(x, weight.shape, weight, bias, eps) / scale)
    if method == "fp8":
        inputs = inputs._replace(dtype=torch.float8_e4m3fn)
    return lambda: msda.quantized_layer_norm(*inputs)


def truth(inputs: Inputs) -> Tensor:
    """Returns the reference's result in float64."""
    return msda.quantized_layer_norm_reference.quantized_layer_norm(*inputs).double()


OPERATOR = MapOperator(
    "benchmarks.quantized_layer_norm",
    METHODS,
    PROBLEMS,
    make_call,
    truth,
    variable="MSDA_QUANTIZED_LAYER_NORM",
    kernels=("plain",),
    other_results=("fp8", "layer_norm"),
)

main = OPERATOR.program(
    """Time layer normalisation in 8 bits at the sizes of Swin-L, and compare it with the reference.

    The L2 cache is cold. Problems that fit into it are timed with a warm cache too. Bytes are those of a
    result in 8 bits.
    """,
    choices=("fp16", "bf16"),
    about_dtypes="types of x.",
)

if __name__ == "__main__":
    sys.exit(main())
