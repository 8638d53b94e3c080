"""`python -m benchmarks.quantized_feed_forward`: times and errors of feed-forward blocks in int8."""

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
    "feed_forward": "msda.quantized_feed_forward",
    "with_int8": "the same with a next_scale; y is compared",
    "plain": "the first with MSDA_QUANTIZED_FEED_FORWARD=plain",
    "two_layers": "x quantised by PyTorch, msda.quantized_linear twice, then torch.nn.functional.layer_norm",
}


class Inputs(NamedTuple):
    """The arguments of `msda.quantized_feed_forward`."""

    x: Tensor
    weight1: Tensor
    scale1: Tensor
    bias1: Tensor
    weight2: Tensor
    scale2: Tensor
    bias2: Tensor
    norm_weight: Tensor
    norm_bias: Tensor
    x_scale: float
    hidden_scale: float
    eps: float
    next_scale: float | None = None


_quantize = functools.partial(msda.quantized_linear_reference.quantize, dtype=torch.int8)


@dataclass(frozen=True)
class FeedForwardProblem:
    """Sizes of one call of the operator."""

    name: str
    rows: int
    channels: int = 256
    hidden: int = 2048

    def bytes_moved(self, dtype: torch.dtype) -> int:
        """Returns the bytes of all tensors, each once."""
        weights = 2 * self.channels * self.hidden + 8 * (self.channels + self.hidden)
        return 2 * dtype.itemsize * self.channels * (self.rows + 1) + weights

    def inputs(self, dtype: torch.dtype, device: str = "cuda", seed: int = 0) -> Inputs:
        """Draws normal numbers, with which the products have a variance of about 1. Quantises each row of a
        weight up to its largest magnitude, x up to 4 and hidden numbers up to 6.
        """
        generator = torch.Generator(device).manual_seed(seed)
        draw = functools.partial(torch.randn, generator=generator, device=device)
        x_scale, hidden_scale = 4 / 127, 6 / 127

        def draw_layer(inputs: int, outputs: int, scale: float) -> tuple[Tensor, Tensor, Tensor]:
            weight = draw(outputs, inputs) / inputs**0.5
            steps = weight.abs().amax(1) / 127
            return _quantize(weight / steps[:, None]), steps * scale, draw(outputs)

        return Inputs(
            draw(self.rows, self.channels).to(dtype),
            *draw_layer(self.channels, self.hidden, x_scale),
            *draw_layer(self.hidden, self.channels, hidden_scale),
            *(draw(self.channels).to(dtype) for _ in range(2)),
            x_scale,
            hidden_scale,
            1e-5,
        )


PROBLEMS = (
    FeedForwardProblem("encoder_768x1152", CELLS),
    FeedForwardProblem("encoder_800x1333_4_levels", 22_223),
    *(FeedForwardProblem(f"rows_{rows}", rows) for rows in (16_384, 8192, 1024)),
    FeedForwardProblem("decoder", 900),
    FeedForwardProblem("encoder_768x1152_batch8", 8 * CELLS),
)


def make_call(method: str, inputs: Inputs) -> Callable[[], Tensor]:
    """Returns a call of a method. Its result is [M, C]."""
    if method == "two_layers":
        return lambda: two_layers(inputs)
    if method == "with_int8":
        return lambda: msda.quantized_feed_forward(*inputs._replace(next_scale=4 / 127))[0]
    return lambda: msda.quantized_feed_forward(*inputs)


def two_layers(block: Inputs) -> Tensor:
    """Computes the operator by others, with a sum that is rounded to 16 bits before it is normalised."""
    x, scale = block.x, block.hidden_scale
    narrow = _quantize(x.float() / block.x_scale)
    first, second = (block.weight1, block.scale1, block.bias1), (block.weight2, block.scale2, block.bias2)
    hidden = msda.quantized_linear(narrow, *first, None, "relu", output_scale=scale)
    y = msda.quantized_linear(hidden, *second, residual=x, dtype=x.dtype)
    return F.layer_norm(y, block.norm_weight.shape, block.norm_weight, block.norm_bias, block.eps)


def truth(inputs: Inputs) -> Tensor:
    """Returns the reference's result in float64. It takes the rows in parts, to save memory."""
    reference = msda.quantized_feed_forward_reference.quantized_feed_forward
    return torch.cat([reference(x, *inputs[1:]) for x in inputs.x.split(CELLS)]).double()


OPERATOR = MapOperator(
    "benchmarks.quantized_feed_forward",
    METHODS,
    PROBLEMS,
    make_call,
    truth,
    variable="MSDA_QUANTIZED_FEED_FORWARD",
    kernels=("plain",),
)

main = OPERATOR.program(
    """Time feed-forward blocks in int8 at the sizes of encoders and of a decoder.

    Compares them with the reference. The L2 cache is cold. Problems that fit into it are timed with a warm
    cache too.
    """,
    choices=("fp16", "bf16"),
    about_dtypes="types of x.",
)

if __name__ == "__main__":
    sys.exit(main())
