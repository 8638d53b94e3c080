"""`python -m benchmarks.feed_forward`: times and errors of feed-forward blocks on the GPU."""

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
    "feed_forward": "msda.feed_forward",
    "plain": "the same with MSDA_FEED_FORWARD=plain",
    "two_layers": "msda.linear with a ReLU, then with the sum and the normalisation",
    "eager": "torch.nn.functional.linear, relu, linear, the sum, and layer_norm",
}


class Inputs(NamedTuple):
    """The arguments of `msda.feed_forward`."""

    x: Tensor
    weight1: Tensor
    bias1: Tensor
    weight2: Tensor
    bias2: Tensor
    norm_weight: Tensor
    norm_bias: Tensor
    eps: float


@dataclass(frozen=True)
class FeedForwardProblem:
    """Sizes of one call of the operator."""

    name: str
    rows: int
    channels: int = 256
    hidden: int = 2048

    def bytes_moved(self, dtype: torch.dtype) -> int:
        """Returns the bytes of all tensors, each once."""
        parameters = 2 * self.channels * self.hidden + 3 * self.channels + self.hidden
        return dtype.itemsize * (2 * self.channels * self.rows + parameters)

    def inputs(self, dtype: torch.dtype, device: str = "cuda", seed: int = 0) -> Inputs:
        """Draws normal numbers, with which the products have a variance of about 1."""
        generator = torch.Generator(device).manual_seed(seed)

        def draw(*shape: int, inputs: int = 1) -> Tensor:
            return (torch.randn(shape, generator=generator, device=device) / inputs**0.5).to(dtype)

        channels, hidden = self.channels, self.hidden
        return Inputs(
            draw(self.rows, channels),
            draw(hidden, channels, inputs=channels),
            draw(hidden),
            draw(channels, hidden, inputs=hidden),
            *(draw(channels) for _ in range(3)),
            1e-5,
        )


PROBLEMS = (
    FeedForwardProblem("encoder_768x1152", CELLS),
    FeedForwardProblem("encoder_800x1333_4_levels", 22_223),
    *(FeedForwardProblem(f"rows_{rows}", rows) for rows in (16_896, 8192, 2048)),
    FeedForwardProblem("decoder", 900),
)


def make_call(method: str, inputs: Inputs) -> Callable[[], Tensor]:
    """Returns a call of a method. Its result is [M, C]."""
    computed_by = {"two_layers": two_layers, "eager": eager}
    return functools.partial(computed_by.get(method, msda.feed_forward), *inputs)


def two_layers(
    x: Tensor, weight1: Tensor, bias1: Tensor, weight2: Tensor, bias2: Tensor, *norm: Tensor | float
) -> Tensor:
    """Computes the operator by linear layers."""
    hidden = msda.linear(x, weight1, bias1, activation="relu")
    norm_weight, norm_bias, eps = norm
    return msda.linear(hidden, weight2, bias2, x, norm_weight=norm_weight, norm_bias=norm_bias, eps=eps)


def eager(
    x: Tensor, weight1: Tensor, bias1: Tensor, weight2: Tensor, bias2: Tensor, *norm: Tensor | float
) -> Tensor:
    """Computes the operator by PyTorch, which rounds every result to x's type."""
    y = x + F.linear(F.linear(x, weight1, bias1).relu(), weight2, bias2)
    return F.layer_norm(y, y.shape[-1:], *norm)


def truth(inputs: Inputs) -> Tensor:
    """Returns the reference's result in float64, with hidden numbers rounded to x's type."""
    return msda.feed_forward_reference.compute(*inputs, torch.float64)


OPERATOR = MapOperator(
    "benchmarks.feed_forward",
    METHODS,
    PROBLEMS,
    make_call,
    truth,
    variable="MSDA_FEED_FORWARD",
    kernels=("plain",),
)

main = OPERATOR.program(
    """Time feed-forward blocks at the sizes of encoders; compare them with the reference.

    The L2 cache is cold. Problems that fit into it are timed with a warm cache too.
    """,
    dtypes=("fp16",),
    choices=("fp32", "fp16", "bf16"),
    about_dtypes="types of all tensors.",
)

if __name__ == "__main__":
    sys.exit(main())
