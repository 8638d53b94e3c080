"""`python -m benchmarks.sanitize`: every edge case of the operators on the GPU, for compute-sanitizer."""

from __future__ import annotations

import itertools
import os
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Annotated

import torch

import msda
from benchmarks import feed_forward as feed_forwards
from benchmarks import group_norm as norms
from benchmarks import image_input as images
from benchmarks import linear as linears
from benchmarks import linear_max as largest
from benchmarks import linear_of_sum as linears_of_sums
from benchmarks import operator_errors, timing
from benchmarks import quantized_feed_forward as quantized_feed_forwards
from benchmarks import quantized_layer_norm as quantized_norms
from benchmarks import top_k_indices as searches
from benchmarks import window_attention as windows
from benchmarks.map_operators import truth_by
from benchmarks.problems import SMALL, AttentionInputs, FusedInputs, Problem, QuantizedFusedInputs
from codetr.cli.argument_types import Parameter, compile_patterns
from codetr.cli.program import run_program
from codetr.errors import ArgumentError

MapProblem = (
    windows.WindowProblem
    | norms.NormProblem
    | linears.LinearProblem
    | largest.LinearMaxProblem
    | linears_of_sums.LinearOfSumProblem
    | feed_forwards.FeedForwardProblem
    | quantized_feed_forwards.FeedForwardProblem
    | searches.TopKProblem
)
DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


def run_edge_cases(*, only: Annotated[str, Parameter(metavar="REGEX")] = "") -> int:
    """Run every edge case of the operators once on the GPU, for compute-sanitizer.

    Both MSDA operators run in all types, forward and backward: borders, locations that are non-finite or out
    of range, empty and ragged problems, odd head sizes, unaligned tensors, and wrong level sizes. The results
    are compared with the reference on the CPU, which detects a kernel that did not run.

    Window attention runs with padding, shift, and every compiled window and head size, with results in int8
    and in qkv's type. Group normalisation runs with maps of one cell to many parts, with one and with several
    levels, and with groups of whole vectors and of odd sizes. Linear layers run
    with every activation, with residuals and masks, and with sizes that end within a tile. So do those with
    8-bit inputs, with results in 8 and 16 bits. Layer normalisation in 8 bits runs with rows of whole vectors
    and of odd sizes. Feed-forward blocks run with the sizes of all kernels, and so do those in int8 and
    linear layers of a sum. The largest outputs of linear layers run with every compiled size and others, the
    search for the largest numbers with rows of one part and of several. Image input runs with images of one
    pixel to sizes that end within a block.

    MSDA_FORWARD, MSDA_BACKWARD, MSDA_WINDOW, MSDA_GROUP_NORM, MSDA_LINEAR, MSDA_QUANTIZED_LINEAR,
    MSDA_QUANTIZED_LAYER_NORM, MSDA_FEED_FORWARD, MSDA_QUANTIZED_FEED_FORWARD, MSDA_LINEAR_MAX,
    MSDA_LINEAR_OF_SUM and MSDA_TOP_K force a kernel (kernels/include/msda/forward_choice.h). Cases that it
    cannot run are counted as left out.

    ```
    compute-sanitizer --tool memcheck --error-exitcode 1 python -m benchmarks.sanitize
    compute-sanitizer --tool racecheck --error-exitcode 1 python -m benchmarks.sanitize --only 'window|norm'
    ```

    initcheck does not see stores by TMA, so it reports the results of linear layers as uninitialised.

    Args:
        only: run the cases whose name has a match of this regular expression.
    """
    (wanted,) = compile_patterns("only", [only])
    timing.require_gpu()
    started = time.monotonic()
    count = left_out = failed = 0
    for what, tolerance, run in cases():
        if not wanted.search(what):
            continue
        count += 1
        try:
            error = run()
        except RuntimeError as reason:
            operators = "FORWARD", "BACKWARD", "WINDOW", "GROUP_NORM", "LINEAR", "QUANTIZED_LINEAR"
            blocks = "QUANTIZED_LAYER_NORM", "FEED_FORWARD", "QUANTIZED_FEED_FORWARD"
            variables = *operators, *blocks, "LINEAR_MAX", "LINEAR_OF_SUM", "TOP_K"
            forced = any(f"MSDA_{kernel}" in os.environ for kernel in variables)
            if not (forced and "operation not supported" in str(reason)):  # cudaErrorNotSupported
                raise
            left_out += 1
            continue
        if not error <= tolerance:
            failed += 1
            print(f"{what}: relative error {error:.1e}")
    if not count:
        raise ArgumentError("only", f"expected a match in the name of a case, got {only!r}")
    torch.cuda.synchronize()
    print(f"{count} cases, {left_out} left out, {failed} failed, {time.monotonic() - started:.1f} s")
    return 1 if failed else 0


def cases() -> Iterator[tuple[str, float, Callable[[], float]]]:
    """Yields the name of each case, the largest error that passes, and a function that returns the error."""
    for problem, dtype, unaligned in itertools.product(SMALL, DTYPES, (False, True)):
        index_dtype = torch.int32 if unaligned else torch.int64
        for build in (problem.attention_inputs, problem.fused_inputs):
            inputs = spoil(build(dtype, "cpu", "uniform", seed=1))
            what = f"{problem.name} {dtype} {type(inputs).__name__} unaligned={unaligned}"
            yield what, operator_errors.TOLERANCE[dtype], partial(check, inputs, unaligned, index_dtype)
    for problem, dtype, unaligned in itertools.product(SMALL, DTYPES[1:3], (False, True)):
        inputs = QuantizedFusedInputs.of(spoil(problem.fused_inputs(dtype, "cpu", "uniform", seed=1)), 0.025)
        what = f"{problem.name} {dtype} int8 value unaligned={unaligned}"
        yield what, operator_errors.TOLERANCE[dtype], partial(check_int8_value, inputs, unaligned)
    for dtype in DTYPES:
        yield f"wrong levels {dtype}", 0.0, partial(wrong_levels, dtype)
    sizes = itertools.product(DTYPES, (5, 7, 8, 12, 16), (16, 20, 32, 64), (False, True))
    for dtype, window, head_dim, unaligned in sizes:
        problem = windows.WindowProblem(
            "edge", window + 3, 3 * window, 2, window, window // 2, head_dim, batch=2
        )
        what = f"window {window} head {head_dim} {dtype} unaligned={unaligned}"
        run = partial(check_map, msda.window_attention, windows.truth, problem, dtype, unaligned)
        yield what, operator_errors.TOLERANCE[dtype], run
        operator = partial(msda.window_attention, output_scale=0.01)
        truth = truth_by(partial(msda.window_reference.window_attention, output_scale=0.01))
        # A step between the numbers that the sums round to.
        yield f"{what} to int8", 2e-2, partial(check_map, operator, truth, problem, dtype, unaligned)
    maps = itertools.product(DTYPES, ((1, 1), (9, 31), (96, 144)), (1, 5, 8, 24), (1, 3, 32), (False, True))
    for dtype, (height, width), group_size, num_groups, unaligned in maps:
        problem = norms.NormProblem("edge", height, width, group_size * num_groups, num_groups, batch=2)
        what = f"norm {height}x{width} groups {num_groups}x{group_size} {dtype} unaligned={unaligned}"
        run = partial(check_map, msda.group_norm, norms.truth, problem, dtype, unaligned)
        yield what, operator_errors.TOLERANCE[dtype], run
        operator = partial(two_levels, msda.group_norm_levels)
        truth = truth_by(partial(two_levels, msda.group_norm_reference.group_norm_levels))
        run = partial(check_map, operator, truth, problem, dtype, unaligned)
        yield f"{what} of two levels", operator_errors.TOLERANCE[dtype], run
    forms = (("none",), ("gelu",), ("relu",), ("none", True), ("gelu", True), ("none", False, True))
    sizes = (3, 8, 8), (63, 20, 33), (130, 64, 192), (864, 1544, 264)
    layers = [*itertools.product(sizes, forms)]
    forms = ("none", False, False, True), ("none", True, False, True)
    sizes = (63, 20, 33), (130, 64, 192), (129, 72, 256), (864, 1544, 256)
    layers += itertools.product(sizes, forms)
    for dtype, (size, form), unaligned in itertools.product(DTYPES, layers, (False, True)):
        problem = linears.LinearProblem("edge", *size, *form)
        what = f"linear {'x'.join(map(str, size))} {form} {dtype} unaligned={unaligned}"
        run = partial(check_map, linear_kernel, linears.truth, problem, dtype, unaligned)
        yield what, operator_errors.TOLERANCE[dtype], run
    forms = (("none",), ("gelu",), ("relu",), ("none", True), ("relu", True), ("none", False, True))
    sizes = (3, 16, 16), (63, 20, 33), (130, 64, 192), (300, 768, 128), (20000, 144, 192), (864, 1552, 272)
    types = itertools.product(linears.EIGHT_BITS.values(), DTYPES[1:3])
    for (eight_bits, dtype), size, form, unaligned in itertools.product(types, sizes, forms, (False, True)):
        problem = linears.LinearProblem("edge", *size, *form)
        what = f"linear {'x'.join(map(str, size))} {form} {eight_bits} {dtype} unaligned={unaligned}"
        tolerance = operator_errors.TOLERANCE[dtype]
        yield what, tolerance, partial(check_quantized, problem, eight_bits, dtype, unaligned, None)
        # A step between the numbers that GELU and the sums round to.
        tolerance = 1e-2 if eight_bits == torch.int8 else 2e-2
        yield (
            f"{what} to 8 bits",
            tolerance,
            partial(check_quantized, problem, eight_bits, dtype, unaligned, 0.05),
        )
    sizes = itertools.product((1, 33, 3000), (8, 20, 96, 128, 192, 384, 768, 1536, 4096, 4104))
    types = itertools.product(DTYPES[:3], linears.EIGHT_BITS.values())
    for size, (dtype, eight_bits), unaligned in itertools.product(sizes, types, (False, True)):
        problem = quantized_norms.LayerNormProblem("edge", *size)
        what = f"layer norm {'x'.join(map(str, size))} {dtype} to {eight_bits} unaligned={unaligned}"
        # A step between the numbers that float32 rounds to.
        yield what, 2e-2, partial(check_quantized_norm, problem, dtype, eight_bits, unaligned)
    sizes = (1, 1, 1), (5, 20, 33), (3, 1024, 8192), (129, 256, 64), (300, 256, 2048), (17000, 256, 192)
    for dtype, size, unaligned in itertools.product(DTYPES[:3], sizes, (False, True)):
        problem = feed_forwards.FeedForwardProblem("edge", *size)
        what = f"feed-forward {'x'.join(map(str, size))} {dtype} unaligned={unaligned}"
        run = partial(check_map, msda.feed_forward, feed_forwards.truth, problem, dtype, unaligned)
        yield what, operator_errors.TOLERANCE[dtype], run
    for dtype, size, unaligned in itertools.product(DTYPES[1:3], sizes, (False, True)):
        problem = quantized_feed_forwards.FeedForwardProblem("edge", *size)
        what = f"feed-forward int8 {'x'.join(map(str, size))} {dtype} unaligned={unaligned}"
        operator, truth = quantized_feed_forward, quantized_feed_forwards.truth
        run = partial(check_map, operator, truth, problem, dtype, unaligned)
        yield what, operator_errors.TOLERANCE[dtype], run
    sizes = (1, 1, 1), (5, 20, 33), (129, 64, 32), (300, 200, 288), (17000, 256, 480)
    for dtype, size, unaligned in itertools.product(DTYPES[:3], sizes, (False, True)):
        problem = linears_of_sums.LinearOfSumProblem("edge", *size)
        what = f"linear of a sum {'x'.join(map(str, size))} {dtype} unaligned={unaligned}"
        run = partial(check_map, msda.linear_of_sum, linears_of_sums.truth, problem, dtype, unaligned)
        yield what, operator_errors.TOLERANCE[dtype], run
    sizes = itertools.product((5, 33, 3000), (20, 64, 192, 256), (1, 32, 80, 90))
    for dtype, size, unaligned in itertools.product(DTYPES, sizes, (False, True)):
        problem = largest.LinearMaxProblem("edge", *size)
        what = f"largest output {'x'.join(map(str, size))} {dtype} unaligned={unaligned}"
        yield what, 1e-6, partial(check_largest, problem, dtype, unaligned)
    for size in ((2, 7, 3), (3, 4096, 1024), (2, 16385, 300), (8, 73656, 900), (1, 1100, 1025)):
        problem = searches.TopKProblem("edge", *size)
        run = partial(
            check_map, msda.top_k_indices, searches.truth, problem, torch.float32, unaligned=size[0] == 2
        )
        yield f"top k {'x'.join(map(str, size))}", 0.0, run
    sizes = ((1, 1, 64, 96), (50, 301, 33, 130), (96, 64, 48, 32), (480, 640, 96, 200))
    for dtype, size in itertools.product(DTYPES[:3], sizes):
        problem = images.ImageProblem("edge", *size)
        what = f"image {size} {dtype}"
        yield what, operator_errors.TOLERANCE[dtype], partial(check_image, problem, dtype)


def check_largest(problem: largest.LinearMaxProblem, dtype: torch.dtype, unaligned: bool) -> float:
    """Runs `msda.linear_max`, whose weights are float64 with a float64 x, as `check_map`."""

    def operator(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        wide = torch.promote_types(x.dtype, torch.float32)
        return msda.linear_max(x, *(weight.to(wide) for weight in weights))

    return check_map(operator, largest.truth, problem, dtype, unaligned)


def check_image(problem: images.ImageProblem, dtype: torch.dtype) -> float:
    """Runs image input on the GPU, and returns its error against the CPU's reference."""
    inputs = problem.inputs(dtype, "cpu")
    moved = [x.cuda() if isinstance(x, torch.Tensor) else x for x in inputs]
    msda.image_input(*moved)
    return operator_errors.relative_error(moved[1].cpu(), images.truth(inputs))


def spoil(inputs: AttentionInputs | FusedInputs) -> AttentionInputs | FusedInputs:
    """Moves some samples to borders, out of range, and to NaN and infinity, in place."""
    places = inputs[-3]
    values = (0.0, 1.0, 0.5, -0.3, 1.4, -1e4, 6e4, float("nan"), float("inf"), -float("inf"))
    flat = places.view(-1)
    for index, number in enumerate(values):
        flat[index :: 3 * len(values) + 1] = number
    return inputs


def check(inputs: AttentionInputs | FusedInputs, unaligned: bool, index_dtype: torch.dtype) -> float:
    """Runs forward and backward on the GPU, and returns the forward's error against the CPU's reference."""
    expected = operator_errors.truth(inputs)
    moved = [to_gpu(x, unaligned, index_dtype) if isinstance(x, torch.Tensor) else x for x in inputs]
    leaves = [x.requires_grad_() for x in moved if isinstance(x, torch.Tensor) and x.is_floating_point()]
    operator = msda.fused_attention if isinstance(inputs, FusedInputs) else msda.attention
    output = operator(*moved)
    torch.autograd.grad(output, leaves, torch.ones_like(output))
    torch.cuda.synchronize()
    # A sample may only just touch a level. Errors of results below a hundredth of a usual one are absolute.
    floor = 0.01 * expected.numel() ** 0.5
    return operator_errors.relative_error(output.cpu(), expected, floor)


def check_int8_value(inputs: QuantizedFusedInputs, unaligned: bool) -> float:
    """Runs `msda.quantized_fused_attention` on the GPU; returns its error against the CPU's reference."""
    moved = (to_gpu(x, unaligned, x.dtype) if isinstance(x, torch.Tensor) else x for x in inputs)
    found = msda.quantized_fused_attention(*moved).cpu()
    expected = operator_errors.truth(inputs.dequantized())
    return operator_errors.relative_error(found, expected, 0.1 * expected.numel() ** 0.5)


def check_map(
    operator: Callable[..., torch.Tensor],
    truth: Callable[..., torch.Tensor],
    problem: MapProblem,
    dtype: torch.dtype,
    unaligned: bool,
) -> float:
    """Runs an operator on a map on the GPU, and returns its error against the CPU's reference."""
    inputs = problem.inputs(dtype, "cpu")
    moved = (to_gpu(x, unaligned, torch.int64) if isinstance(x, torch.Tensor) else x for x in inputs)
    return operator_errors.relative_error(operator(*moved).cpu(), truth(inputs))


def two_levels(
    operator: Callable[..., tuple[torch.Tensor, torch.Tensor]],
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    *numbers: float,
) -> torch.Tensor:
    """Normalises a map and its first cell with a result in int8 too, and returns the other."""
    cells = x.flatten(1, 2)
    levels = [cells, cells[:, :1]]
    return operator(levels, [weight, weight], [bias, bias], *numbers, next_scale=0.03)[0]


def quantized_feed_forward(x: torch.Tensor, *others: object) -> torch.Tensor:
    """Computes a feed-forward block in int8 with a result in int8 too, and returns the other."""
    return msda.quantized_feed_forward(x, *others[:-1], next_scale=4 / 127)[0]


def check_quantized(
    problem: linears.LinearProblem,
    eight_bits: torch.dtype,
    dtype: torch.dtype,
    unaligned: bool,
    output_scale: float | None,
) -> float:
    """Runs a linear layer with 8-bit inputs on the GPU, and returns its error against the reference."""
    inputs = linears.quantized(problem.inputs(dtype, "cpu"), eight_bits)._replace(output_scale=output_scale)
    moved = (to_gpu(x, unaligned, x.dtype) if isinstance(x, torch.Tensor) else x for x in inputs)
    expected = msda.quantized_linear_reference.quantized_linear(*inputs)
    return operator_errors.relative_error(
        msda.quantized_linear(*moved).float().cpu(), expected.float().double()
    )


def check_quantized_norm(
    problem: quantized_norms.LayerNormProblem, dtype: torch.dtype, eight_bits: torch.dtype, unaligned: bool
) -> float:
    """Runs layer normalisation in 8 bits on the GPU, and returns its error against the reference."""
    inputs = problem.inputs(dtype, "cpu")._replace(dtype=eight_bits)
    moved = (to_gpu(x, unaligned, x.dtype) if isinstance(x, torch.Tensor) else x for x in inputs)
    found = msda.quantized_layer_norm(*moved).cpu()
    return operator_errors.relative_error(found, quantized_norms.truth(inputs))


def linear_kernel(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    residual: torch.Tensor | None,
    activation: str,
    mask: torch.Tensor | None = None,
    *norm: torch.Tensor | None,
) -> torch.Tensor:
    """Runs a kernel of the library also where `msda.linear` calls cuBLAS, whose races racecheck reports."""
    return torch.ops.msda.linear_kernel(x, weight, bias, residual, mask, *norm, activation, 1e-5)


def to_gpu(tensor: torch.Tensor, unaligned: bool, index_dtype: torch.dtype) -> torch.Tensor:
    """Copies a tensor to the GPU. An unaligned copy begins one element after its storage."""
    if not tensor.is_floating_point() and tensor.dtype != torch.int8:
        return tensor.to("cuda", index_dtype)
    if not unaligned:
        return tensor.cuda()
    late = torch.empty(tensor.numel() + 1, dtype=tensor.dtype, device="cuda")
    late[1:] = tensor.reshape(-1).cuda()
    return late[1:].view(tensor.shape)


def wrong_levels(dtype: torch.dtype) -> float:
    """Runs with wrong level sizes on the GPU. The kernel may touch nothing outside of the value tensor.

    compute-sanitizer finds the errors, so the error that it returns is 0.
    """
    problem = Problem("wrong", 1, ((4, 4), (2, 2)), 8, num_heads=2, head_dim=32)
    inputs = problem.attention_inputs(dtype, "cuda", "uniform")
    for shapes in ([[400, 400], [2, 2]], [[-4, -4], [2, 2]], [[4, 4], [0, 2]], [[2**40, 2**40], [2, 2]]):
        wrong = inputs._replace(spatial_shapes=torch.tensor(shapes, device="cuda"))
        wrong.value.requires_grad_()
        output = msda.attention(*wrong)
        torch.autograd.grad(output, [wrong.value], torch.ones_like(output))
    for starts in ([0, 17], [0, 10**12], [-5, 16]):
        msda.attention(*inputs._replace(level_start_index=torch.tensor(starts, device="cuda")))
    return 0.0


main = partial(run_program, run_edge_cases, program="python -m benchmarks.sanitize")

if __name__ == "__main__":
    sys.exit(main())
