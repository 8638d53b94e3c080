"""The line of the lab for one kernel: its times and its error."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch

from benchmarks import operator_errors, timing

Inputs = TypeVar("Inputs")


def print_line(
    title: str,
    run: Callable[[Inputs], torch.Tensor],
    inputs: Sequence[Inputs],
    expected: torch.Tensor,
    moved: int,
) -> None:
    """Times and checks a kernel, and prints median, 5th and 95th percentile of its times, and its error.

    Args:
        inputs: of one call each, which run in turn.
        expected: the result of the first.
        moved: bytes that a call moves; 0 for a warm cache.
    """
    error = operator_errors.relative_error(run(inputs[0]), expected)
    calls = [functools.partial(run, one) for one in inputs]
    timed = timing.time_graph(calls, moved, least_calls=10).summary
    low, middle, high = (timed[key] * 1e3 for key in ("p05_ms", "median_ms", "p95_ms"))
    print(f"{title:70} {middle:8.1f} us  ({low:.1f} to {high:.1f})  error {error:.1e}", flush=True)
