"""Runs every edge case of the operators once on the GPU, for compute-sanitizer:

    compute-sanitizer --tool memcheck --error-exitcode 1 python -m benchmarks.sanitize

Both operators, all types, forward and backward, over small problems: borders, NaN and infinite locations, out
of range, empty, ragged, one-cell levels, odd head sizes, unaligned and strided tensors, and level sizes that
lie. Results are held against the reference on the CPU, so that a kernel that did not run is noticed.

`MSDA_FORWARD` and `MSDA_BACKWARD` force a kernel (kernels/include/msda/forward_choice.h); what it cannot run is
counted as left out.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
import time
from collections.abc import Iterator, Sequence

import torch

import msda
from benchmarks import errors, timing
from benchmarks.problems import SMALL, AttentionInputs, FusedInputs, Problem
from codetr.cli.command import ArgumentParser, run_command

DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; returns the exit status."""
    return run_command(lambda: _main(arguments), "benchmarks.sanitize")


def _main(arguments: Sequence[str] | None) -> int:
    ArgumentParser(prog="python -m benchmarks.sanitize", description=__doc__.split(",")[0]).parse_args(
        arguments
    )
    timing.require_gpu()
    started = time.monotonic()
    failures: list[str] = []
    left_out: list[str] = []
    count = 0
    for problem, dtype, unaligned in itertools.product(SMALL, DTYPES, (False, True)):
        index_dtype = torch.int32 if unaligned else torch.int64
        for build in (problem.attention_inputs, problem.fused_inputs):
            inputs = spoil(build(dtype, "cpu", "uniform", seed=1))
            count += 1
            what = f"{problem.name} {dtype} {type(inputs).__name__} unaligned={unaligned}"
            with noting_refusal(left_out, what):
                error = check(inputs, unaligned, index_dtype)
                if not error <= errors.TOLERANCE[dtype]:
                    failures.append(f"{what}: relative error {error:.1e}")
    for dtype in DTYPES:
        count += 1
        with noting_refusal(left_out, f"lying {dtype}"):
            lying_levels(dtype)
    torch.cuda.synchronize()
    print("\n".join(failures))
    seconds = time.monotonic() - started
    print(f"{count} cases, {len(left_out)} left out, {len(failures)} failed, {seconds:.1f} s")
    return 1 if failures else 0


@contextlib.contextmanager
def noting_refusal(left_out: list[str], what: str) -> Iterator[None]:
    """Adds `what` to `left_out` where a forced kernel cannot run a problem (cudaErrorNotSupported)."""
    try:
        yield
    except RuntimeError as reason:
        forced = "MSDA_FORWARD" in os.environ or "MSDA_BACKWARD" in os.environ
        if not (forced and "operation not supported" in str(reason)):
            raise
        left_out.append(what)


def spoil(inputs: AttentionInputs | FusedInputs) -> AttentionInputs | FusedInputs:
    """Sends some samples onto borders, out of range, and to NaN and infinity, in place."""
    places = inputs[-3]
    values = (0.0, 1.0, 0.5, -0.3, 1.4, -1e4, 6e4, float("nan"), float("inf"), -float("inf"))
    flat = places.view(-1)
    for index, number in enumerate(values):
        flat[index :: 3 * len(values) + 1] = number
    return inputs


def check(inputs: AttentionInputs | FusedInputs, unaligned: bool, index_dtype: torch.dtype) -> float:
    """Forward and backward on the GPU; returns the forward's error against the reference on the CPU."""
    expected = errors.truth(inputs)
    moved = [to_gpu(x, unaligned, index_dtype) if isinstance(x, torch.Tensor) else x for x in inputs]
    leaves = [x.requires_grad_() for x in moved if isinstance(x, torch.Tensor) and x.is_floating_point()]
    operator = msda.fused_attention if isinstance(inputs, FusedInputs) else msda.attention
    output = operator(*moved)
    torch.autograd.grad(output, leaves, torch.ones_like(output))
    torch.cuda.synchronize()
    # One sample of many may only just touch a level: nothing below a hundredth of a usual result is relative.
    floor = 0.01 * expected.numel() ** 0.5
    return errors.relative_error(output.cpu(), expected, floor)


def to_gpu(tensor: torch.Tensor, unaligned: bool, index_dtype: torch.dtype) -> torch.Tensor:
    """A copy on the GPU; an unaligned one begins one element into its storage and ends with it."""
    if not tensor.is_floating_point():
        return tensor.to("cuda", index_dtype)
    if not unaligned:
        return tensor.cuda()
    late = torch.empty(tensor.numel() + 1, dtype=tensor.dtype, device="cuda")
    late[1:] = tensor.reshape(-1).cuda()
    return late[1:].view(tensor.shape)


def lying_levels(dtype: torch.dtype) -> None:
    """Level sizes on the GPU that do not fit the value tensor: nothing outside of it may be touched."""
    problem = Problem("lying", 1, ((4, 4), (2, 2)), 8, num_heads=2, head_dim=32)
    inputs = problem.attention_inputs(dtype, "cuda", "uniform")
    for shapes in ([[400, 400], [2, 2]], [[-4, -4], [2, 2]], [[4, 4], [0, 2]], [[2**40, 2**40], [2, 2]]):
        wrong = inputs._replace(spatial_shapes=torch.tensor(shapes, device="cuda"))
        wrong.value.requires_grad_()
        output = msda.attention(*wrong)
        torch.autograd.grad(output, [wrong.value], torch.ones_like(output))
    for starts in ([0, 17], [0, 10**12], [-5, 16]):
        msda.attention(*inputs._replace(level_start_index=torch.tensor(starts, device="cuda")))


if __name__ == "__main__":
    sys.exit(main())
