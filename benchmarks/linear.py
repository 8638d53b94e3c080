"""`python -m benchmarks.linear`: times and errors of linear layers with what follows them on the GPU."""

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
from benchmarks.map_operators import MapOperator, truth_by

METHODS = {
    "linear": "msda.linear",
    "separate": "msda.linear without the normalisation, then torch.nn.functional.layer_norm if there is one",
    "eager": "torch.nn.functional.linear, then the activation, the sum, the product and layer_norm",
    "int8": "msda.quantized_linear in int8, not normalised; 8-bit results behind an activation, else 16-bit",
    "fp8": "the same in E4M3",
    "cublas_int8": "torch._int_mm: the product alone, with an int32 result",
    "cublas_fp8": "torch._scaled_mm: the product and the bias, with a scale for each matrix",
}
EIGHT_BITS = {"int8": torch.int8, "fp8": torch.float8_e4m3fn}


class Inputs(NamedTuple):
    """The arguments of `msda.linear`."""

    x: Tensor
    weight: Tensor
    bias: Tensor
    residual: Tensor | None
    activation: str
    mask: Tensor | None = None
    norm_weight: Tensor | None = None
    norm_bias: Tensor | None = None


@dataclass(frozen=True)
class LinearProblem:
    """Sizes of one call of the operator, and what follows the product."""

    name: str
    rows: int
    inputs_of_row: int
    outputs_of_row: int
    activation: str = "none"
    residual: bool = False
    masked: bool = False
    normed: bool = False

    def bytes_moved(self, dtype: torch.dtype) -> int:
        """Returns the bytes of all tensors, each once."""
        columns = self.inputs_of_row + self.outputs_of_row * (1 + self.residual) + self.masked
        parameters = self.outputs_of_row * (self.inputs_of_row + 1 + 2 * self.normed)
        return dtype.itemsize * (self.rows * columns + parameters)

    def inputs(self, dtype: torch.dtype, device: str = "cuda", seed: int = 0) -> Inputs:
        """Draws normal numbers, with which x weight^T has a variance of 1; the mask is 0 or 1."""
        generator = torch.Generator(device).manual_seed(seed)
        draw = functools.partial(torch.randn, generator=generator, device=device)
        x = draw(self.rows, self.inputs_of_row)
        weight = draw(self.outputs_of_row, self.inputs_of_row) / self.inputs_of_row**0.5
        residual = draw(self.rows, self.outputs_of_row).to(dtype) if self.residual else None
        bias = draw(self.outputs_of_row)
        mask = (draw(self.rows, 1) < 1).to(dtype) if self.masked else None
        norm = [draw(self.outputs_of_row).to(dtype) for _ in range(2)] if self.normed else []
        return Inputs(x.to(dtype), weight.to(dtype), bias.to(dtype), residual, self.activation, mask, *norm)


def _block(stage: int) -> tuple[LinearProblem, ...]:
    """The layers of a block of Swin-L at 768x1152."""
    rows, channels, name = (192 >> stage) * (288 >> stage), 192 << stage, f"swin_l_768x1152_stage{stage}"
    return (
        LinearProblem(f"{name}_qkv", rows, channels, 3 * channels),
        LinearProblem(f"{name}_proj", rows, channels, channels, residual=True),
        LinearProblem(f"{name}_fc1", rows, channels, 4 * channels, "gelu"),
        LinearProblem(f"{name}_fc2", rows, 4 * channels, channels, residual=True),
    )


CELLS = sum((192 >> level) * (288 >> level) for level in range(5))  # of the encoder at 768x1152
_summed = functools.partial(LinearProblem, residual=True, normed=True)
PROBLEMS = (
    *(problem for stage in range(4) for problem in _block(stage)),
    LinearProblem("encoder_768x1152_value", CELLS, 256, 256),
    LinearProblem("encoder_768x1152_value_masked", CELLS, 256, 256, masked=True),
    LinearProblem("encoder_768x1152_fc1", CELLS, 256, 2048, "relu"),
    LinearProblem("encoder_768x1152_fc2", CELLS, 2048, 256, residual=True),
    _summed("encoder_768x1152_output_norm", CELLS, 256, 256),
    _summed("encoder_768x1152_fc2_norm", CELLS, 2048, 256),
    LinearProblem("proposals_768x1152_norm", CELLS, 256, 256, normed=True),
    _summed("decoder_output_norm", 900, 256, 256),
    _summed("decoder_fc2_norm", 900, 2048, 256),
    _summed("demo_encoder_640x640_output_norm", 34_100, 192, 192),
    _summed("demo_encoder_640x640_fc2_norm", 34_100, 512, 192),
)


def make_call(method: str, inputs: Inputs) -> Callable[[], Tensor]:
    """Returns a call of a method. Its result is [M, N]."""
    if method == "linear":
        return lambda: msda.linear(*inputs)
    if method == "separate":
        layer, norm = inputs[:6], inputs[6:]
        if inputs.norm_weight is None:
            return lambda: msda.linear(*layer)
        return lambda: F.layer_norm(msda.linear(*layer), norm[0].shape, *norm)
    if method in EIGHT_BITS:
        eight_bits = quantized(inputs, EIGHT_BITS[method])
        return lambda: msda.quantized_linear(*eight_bits)
    if method.startswith("cublas"):
        return make_product(quantized(inputs, EIGHT_BITS[method.removeprefix("cublas_")]))
    x, weight, bias, *others = inputs
    return lambda: msda.linear_reference.finish(F.linear(x, weight, bias), *others)


class QuantizedInputs(NamedTuple):
    """The arguments of `msda.quantized_linear`."""

    x: Tensor
    weight: Tensor
    scale: Tensor
    bias: Tensor
    residual: Tensor | None
    activation: str
    mask: Tensor | None
    output_scale: float | None
    dtype: torch.dtype


def quantized(inputs: Inputs, eight_bits: torch.dtype) -> QuantizedInputs:
    """Quantises x and weight up to their largest magnitudes, and a result behind an activation up to 6."""
    most = 127 if eight_bits == torch.int8 else 448
    x, weight = inputs.x.float(), inputs.weight.float()
    per_row = eight_bits == torch.int8  # as `codetr quantize` does
    scale = x.abs().max() / most
    weight_scale = (weight.abs().amax(1) if per_row else weight.abs().max().expand(len(weight))) / most
    quantize = functools.partial(msda.quantized_linear_reference.quantize, dtype=eight_bits)
    return QuantizedInputs(
        quantize(x / scale),
        quantize(weight / weight_scale[:, None]),
        (scale * weight_scale).contiguous(),
        inputs.bias.float(),
        inputs.residual,
        inputs.activation,
        inputs.mask,
        None if inputs.activation == "none" else 6 / most,
        inputs.x.dtype,
    )


def make_product(inputs: QuantizedInputs) -> Callable[[], Tensor]:
    """Returns a call of cuBLASLt by PyTorch, which computes less than the operator."""
    x, columns = inputs.x, inputs.weight.T
    if x.dtype == torch.int8:
        return lambda: torch._int_mm(x, columns)
    one, scale, bias = torch.ones_like(inputs.scale[0]), inputs.scale[0].clone(), inputs.bias.to(inputs.dtype)
    return lambda: torch._scaled_mm(x, columns, scale, one, bias=bias, out_dtype=inputs.dtype)


truth = truth_by(msda.linear_reference.linear)
OTHER_RESULTS = (*EIGHT_BITS, "cublas_int8", "cublas_fp8")
OPERATOR = MapOperator(
    "benchmarks.linear",
    METHODS,
    PROBLEMS,
    make_call,
    truth,
    variable="MSDA_LINEAR",
    other_results=OTHER_RESULTS,
)

main = OPERATOR.program(
    """Time linear layers at the sizes of Swin-L and of Co-DETR; compare them with the reference.

    The L2 cache is cold. Problems that fit into it are timed with a warm cache too. MSDA_LINEAR and
    MSDA_QUANTIZED_LINEAR force a kernel. Errors are those of 16-bit layers, and so are the bytes of all
    methods.
    """,
)

if __name__ == "__main__":
    sys.exit(main())
