"""`python -m benchmarks.msda`: times and errors of multi-scale deformable attention on the GPU."""

from __future__ import annotations

import functools
import itertools
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Annotated, Literal

import torch
from cyclopts.types import PositiveInt
from torch._functorch import config as functorch_config

import msda
from benchmarks import operator_errors, timing, trt_engines
from benchmarks.option_types import OneOrMore
from benchmarks.problems import (
    BATCHED,
    DISTRIBUTIONS,
    PEERS,
    REAL,
    AttentionInputs,
    FusedInputs,
    Problem,
    QuantizedFusedInputs,
)
from benchmarks.result_files import ResultFile
from codetr.cli.argument_types import OutputFile
from codetr.cli.program import run_program
from codetr.errors import one_line

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}

METHODS = {
    "attention": "msda.attention",
    "fused_attention": "msda.fused_attention, softmax and locations included",
    "fused_attention_int8": "msda.quantized_fused_attention; the error includes that of the value in int8",
    "attention_backward": "torch.ops.msda.attention_backward, all three gradients",
    "deterministic_backward": "the same with torch.use_deterministic_algorithms(True)",
    "fused_attention_backward": "torch.ops.msda.fused_attention_backward, all four gradients",
    "plugin": "our attention plugin in a TensorRT engine",
    "fused_plugin": "our fused plugin in a TensorRT engine, softmax and locations included",
    "nvidia_plugin": "NVIDIA's MultiscaleDeformableAttnPlugin_TRT version 1 in a TensorRT engine",
    "reference": "grid_sample level by level, eager PyTorch",
    "reference_backward": "autograd through the reference, all three gradients, eager PyTorch",
    "reference_compiled": "the reference under torch.compile: default mode, static shapes",
    "reference_compiled_backward": "autograd through the compiled reference, all three gradients",
}

PROBLEMS = (*REAL, *BATCHED, *PEERS)

NO_RAGGED = ("plugin", "fused_plugin", "nvidia_plugin")
"""Methods that need the same number of points in every level. Only the engines of this file limit ours."""

REFERENCES = ("reference", "reference_backward", "reference_compiled", "reference_compiled_backward")
"""Slow baselines. They wait for the GPU, so they are timed call by call."""

NO_BFLOAT16 = ("nvidia_plugin", *REFERENCES)
"""NVIDIA's plugin has no bfloat16. The reference takes as long in it as in fp16."""

REFERENCE_SECONDS = 0.4
"""Limit of the time for samples of a slow baseline."""

LEAST_CALLS = 10
"""Calls in one CUDA graph."""

LARGEST_GRADIENT_TRUTH = 100_000
"""Largest number of queries for which the gradient of value is computed in float64. It holds every sample at
once."""

ProblemName = Literal[tuple(problem.name for problem in PROBLEMS)]
Distribution = Literal[DISTRIBUTIONS]
DtypeName = Literal[tuple(DTYPES)]
Method = Literal[tuple(METHODS)]
GetEngine = Callable[[str, torch.dtype], trt_engines.PluginEngine]


def measure_operators(
    *,
    out: OutputFile | None = None,
    problems: Annotated[tuple[ProblemName, ...], OneOrMore] = tuple(problem.name for problem in REAL),
    distributions: Annotated[tuple[Distribution, ...], OneOrMore] = DISTRIBUTIONS,
    dtypes: Annotated[tuple[DtypeName, ...], OneOrMore] = tuple(DTYPES),
    methods: Annotated[tuple[Method, ...], OneOrMore] = tuple(METHODS),
    iterations: PositiveInt = 100,
) -> int:
    """Time the operators in PyTorch and in TensorRT, and compare them with the reference.

    Every method gets the same inputs: our Torch operators, our TensorRT plugins, NVIDIA's plugin, and
    grid_sample level by level, eager and compiled. The L2 cache is cold. Problems that fit into it, such as
    decoders, are timed with a warm cache too: in an engine, the value projection has just written the input.
    The default takes some minutes.

    Args:
        out: result file. Default: benchmarks/results/msda_GPU.json.
        problems: sizes of the operator. Default: Co-DINO's for one image.
        iterations: samples of each measurement.
    """
    result = ResultFile("benchmarks.msda", out)
    bandwidth = timing.copy_bandwidth()
    print(f"{result.head['gpu']['name']}: copies at {bandwidth / 1e12:.2f} TB/s", flush=True)
    chosen = [problem for problem in PROBLEMS if problem.name in problems]
    get_engine = engine_maker(chosen)
    for problem in chosen:
        # The next problem needs none of the compiled references. They hold memory, and they count towards the
        # limit of compilations after which torch.compile silently runs eagerly.
        torch.compiler.reset()
        for distribution, dtype in itertools.product(distributions, dtypes):
            for row in measure(problem, distribution, dtype, methods, get_engine, bandwidth, iterations):
                result.add(row, summary(row))
    return finish(result, bandwidth, {name: METHODS[name] for name in methods})


def finish(result: ResultFile, bandwidth: float, methods: Mapping[str, str]) -> int:
    """Writes the result file of an operator, and returns the exit status."""
    content = result.write(copy_bandwidth_bytes_per_second=bandwidth, methods=methods)
    failed = sum("failure" in row for row in result.rows)
    print(f"{len(result.rows)} measurements, {failed} failed, {content['seconds']} s: {result.path}")
    return 1 if failed else 0


def engine_maker(problems: Sequence[Problem]) -> GetEngine:
    """Returns a function of operator and type that builds an engine for the sizes of all problems, once."""

    def limits(size: str) -> tuple[int, int, int]:
        ordered = sorted(getattr(problem, size) for problem in problems)
        return ordered[0], ordered[len(ordered) // 2], ordered[-1]

    sizes = ("batch", "num_cells", "num_heads", "head_dim", "num_levels", "num_queries", "num_points")
    all_limits = trt_engines.Limits(*map(limits, (*sizes, "reference_dim")))

    @functools.cache
    def get(operator: str, dtype: torch.dtype) -> trt_engines.PluginEngine:
        index_dtype = torch.int32 if operator == trt_engines.NVIDIA else torch.int64
        return trt_engines.PluginEngine(
            trt_engines.EngineKey(operator, dtype, dtype, index_dtype), all_limits
        )

    return get


def measure(
    problem: Problem,
    distribution: str,
    dtype_name: str,
    methods: Sequence[str],
    get_engine: GetEngine,
    bandwidth: float,
    iterations: int,
) -> Iterator[dict]:
    """Yields the row of each method that has the type: times, bytes and error, or the failure."""
    dtype = DTYPES[dtype_name]
    copies = timing.copies_for_cold_cache(problem.bytes_moved(dtype))
    seeds = range(copies)
    given = [problem.attention_inputs(dtype, "cuda", distribution, seed) for seed in seeds]
    fused = [problem.fused_inputs(dtype, "cuda", distribution, seed) for seed in seeds]
    truths = {"given": operator_errors.truth(given[0]), "fused": operator_errors.truth(fused[0])}
    for method in methods:
        if dtype == torch.bfloat16 and method in NO_BFLOAT16:
            continue
        if problem.points_per_level is not None and method in NO_RAGGED:
            continue
        if dtype == torch.float32 and method == "fused_attention_int8":
            continue
        backward, is_fused = method.endswith("_backward"), method.startswith("fused")
        moved = problem.bytes_moved(dtype, fused=is_fused, backward=backward)
        if method == "fused_attention_int8":
            moved -= given[0].value.nbytes // 2
        row = {
            "problem": {**asdict(problem), "num_cells": problem.num_cells},
            "distribution": distribution,
            "dtype": dtype_name,
            "method": method,
            "bytes_moved": moved,
            "floor_us": moved / bandwidth * 1e6,
        }
        try:
            inputs = fused if is_fused else given
            calls = make_calls(method, inputs, get_engine, dtype)
            truth = truths["fused" if is_fused else "given"]
            if backward:
                truth = None if is_fused else gradient_truth(given[0])
            result = calls[0]()[0] if backward else calls[0]()
            error = None if truth is None else operator_errors.relative_error(result, truth)
            if error == math.inf:
                raise RuntimeError("the result is wrong: it has another shape, or other non-finite values")
            row["relative_error"] = error
            del result, truth
            if method in REFERENCES:
                sampled = timing.time_eager(calls[0], iterations, seconds=REFERENCE_SECONDS)
            else:
                sampled = time_graphs(row, calls, iterations)
            add_time(row, sampled)
            del calls
        except Exception as error:  # those of Triton have classes of their own
            row["failure"] = one_line(error)
        torch.cuda.empty_cache()
        yield row


def time_graphs(row: dict, calls: Sequence[Callable[[], object]], iterations: int) -> timing.Timing:
    """Times the calls of a row with a cold cache; where they fit into it, adds the time with a warm one."""
    moved = row["bytes_moved"]
    sampled = timing.time_graph(calls, moved, iterations, seconds=1.0, least_calls=LEAST_CALLS)
    if moved <= timing.l2_bytes():
        warm = timing.time_graph(calls[:1], 0, iterations, seconds=0.5, least_calls=LEAST_CALLS)
        row["warm_timing"] = warm.as_dict()
    return sampled


def add_time(row: dict, sampled: timing.Timing) -> None:
    """Adds a time to a row, and what it means for the bytes moved."""
    seconds = sampled.median_ms * 1e-3
    row["bytes_per_second"] = row["bytes_moved"] / seconds
    row["ratio_to_floor"] = seconds * 1e6 / row["floor_us"]
    row["timing"] = sampled.as_dict()


def make_calls(
    method: str,
    inputs: Sequence[AttentionInputs | FusedInputs],
    get_engine: GetEngine,
    dtype: torch.dtype,
) -> list[Callable[[], object]]:
    """Returns one call of a method for each set of inputs."""
    operators = {
        "plugin": trt_engines.ATTENTION,
        "fused_plugin": trt_engines.FUSED_ATTENTION,
        "nvidia_plugin": trt_engines.NVIDIA,
    }
    if method in operators:
        engine = get_engine(operators[method], dtype)
        prepared = [engine.prepare(one[:-1]) for one in inputs]
        return [lambda tensors=tensors: engine(tensors) for tensors in prepared]
    if method == "fused_attention_int8":
        scales = [one.value.abs().max().item() / 127 for one in inputs]
        quantized = [QuantizedFusedInputs.of(*pair) for pair in zip(inputs, scales, strict=True)]
        return [functools.partial(msda.quantized_fused_attention, *one) for one in quantized]
    backwards = {
        "attention_backward": torch.ops.msda.attention_backward,
        "deterministic_backward": functools.partial(torch.ops.msda.attention_backward, deterministic=True),
        "fused_attention_backward": torch.ops.msda.fused_attention_backward,
    }
    if method in backwards:
        pairs = [(output_gradient(one), one) for one in inputs]
        return [lambda pair=pair: backwards[method](pair[0], *pair[1]) for pair in pairs]
    if method.startswith("reference_compiled"):
        operator = compiled_reference()
        # The backward pass overwrites donated buffers, so it could run only once.
        with functorch_config.patch(donated_buffer=False):
            if method.endswith("_backward"):
                call = backward_of_reference(inputs[0], operator)
            else:
                call = functools.partial(operator, *inputs[0])
            call()  # compiles
        return [call]
    if method == "reference_backward":
        return [backward_of_reference(inputs[0])]
    if method == "reference":
        return [lambda: msda.reference.attention(*inputs[0])]
    operator = {"attention": msda.attention, "fused_attention": msda.fused_attention}[method]
    return [lambda one=one: operator(*one) for one in inputs]


def output_gradient(inputs: AttentionInputs | FusedInputs) -> torch.Tensor:
    """Draws a gradient of the result, [N, Q, M * D], the same for every method."""
    batch, _, num_heads, head_dim = inputs.value.shape
    device = inputs.value.device
    generator = torch.Generator(device).manual_seed(0)
    num_queries = inputs[-2].shape[1]
    shape = (batch, num_queries, num_heads * head_dim)
    return torch.randn(shape, generator=generator, device=device).to(inputs.value.dtype)


@functools.cache
def compiled_reference() -> Callable[..., torch.Tensor]:
    """Returns `msda.reference.attention` under `torch.compile`.

    It compiles at a call, once for each type and set of sizes, with and without gradients. The operator reads
    numbers of `spatial_shapes` and `level_start_index`, which ends a graph. So there are two graphs: the
    locations, and all levels with their sum.
    """
    return torch.compile(msda.reference.attention, dynamic=False)


def backward_of_reference(
    inputs: AttentionInputs, operator: Callable[..., torch.Tensor] = msda.reference.attention
) -> Callable[[], tuple[torch.Tensor, ...]]:
    """Returns a call of the backward pass alone. The forward pass has run."""
    names = ("value", "sampling_locations", "attention_weights")
    leaves = [getattr(inputs, name).detach().requires_grad_() for name in names]
    output = operator(*inputs._replace(**dict(zip(names, leaves, strict=True))))
    gradient = output_gradient(inputs).to(output.dtype)
    return lambda: torch.autograd.grad(output, leaves, gradient, retain_graph=True)


def gradient_truth(inputs: AttentionInputs) -> torch.Tensor | None:
    """Returns the gradient of value in float64, or None if it is too large.

    The other gradients jump where a sample crosses a cell centre, so they are not compared.
    """
    if math.prod(inputs.sampling_locations.shape[:2]) > LARGEST_GRADIENT_TRUTH:
        return None
    wide = operator_errors.in_float64(inputs)
    wide.value.requires_grad_()
    (gradient,) = torch.autograd.grad(
        msda.reference.attention(*wide), [wide.value], output_gradient(inputs).double()
    )
    return gradient


def summary(row: dict) -> str:
    """Describes a row on one line."""
    name = f"{row['problem']['name']:28} {row['distribution']:8} {row['dtype']} {row['method']:27}"
    if "failure" in row:
        return f"{name} failed: {row['failure']}"
    timed = row["timing"]
    error = "" if row["relative_error"] is None else f"error {row['relative_error']:.1e}"
    low, middle, high = (timed[key] * 1e3 for key in ("p05_ms", "median_ms", "p95_ms"))
    speed = f"{row['bytes_per_second'] / 1e12:5.2f} TB/s {row['ratio_to_floor']:6.1f} x floor"
    warm = f", {row['warm_timing']['median_ms'] * 1e3:.1f} us warm" if "warm_timing" in row else ""
    return f"{name} {middle:9.1f} us ({low:.1f} to {high:.1f}) {speed} {timed['cache']}{warm} {error}"


main = functools.partial(run_program, measure_operators, program="python -m benchmarks.msda")

if __name__ == "__main__":
    sys.exit(main())
