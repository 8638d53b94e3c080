"""Times and checks the operators on the GPU: `python -m benchmarks.msda [--out FILE]`.

Problems x distributions x types x methods. Methods: our Torch operators (forward, fused, backward), our
TensorRT plugins and NVIDIA's `MultiscaleDeformableAttnPlugin_TRT` in engines, and the reference, grid_sample
level by level, in eager PyTorch and under `torch.compile`. All get the same inputs. The L2 cache is cold: a
CUDA graph of several calls goes round copies of the inputs that are together three times larger. Problems
that fit in it, decoders for instance, are timed warm as well, over one copy again and again: in an engine the
value projection has just written what its decoder reads. The default problems take some minutes; compiling
the reference adds to them, but is in no measurement.
"""

from __future__ import annotations

import functools
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict

import torch
from torch._functorch import config as functorch_config

import msda
from benchmarks import environment, errors, timing, trt_engines
from benchmarks.arguments import check_out, result_file, run_benchmark
from benchmarks.problems import BATCHED, DISTRIBUTIONS, PEERS, REAL, AttentionInputs, FusedInputs, Problem
from codetr.cli.command import ArgumentParser, positive, to_path

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}

METHODS = {
    "attention": "msda.attention",
    "fused_attention": "msda.fused_attention, softmax and locations included",
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
"""Levels with unlike numbers of points: our plugins' engines are built for equal ones here, NVIDIA's has no
such."""

REFERENCES = ("reference", "reference_backward", "reference_compiled", "reference_compiled_backward")
"""Slow baselines, timed call by call, as they wait for the GPU inside."""

NO_BFLOAT16 = ("nvidia_plugin", *REFERENCES)
"""NVIDIA's plugin has no bfloat16; the reference takes as long in it as in fp16."""

REFERENCE_SECONDS = 0.4
"""Of sampling a slow baseline, so that the whole run stays short."""

LEAST_CALLS = 10
"""In one graph."""

LARGEST_GRADIENT_TRUTH = 100_000
"""Queries of all images up to which the float64 gradient of value is computed to compare with: it holds every
sample at once.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; returns the exit status."""
    return run_benchmark(_main, arguments, "benchmarks.msda")


def _main(arguments: list[str]) -> int:
    parser = ArgumentParser(prog="python -m benchmarks.msda", description=__doc__.split("\n")[0])
    names = [problem.name for problem in PROBLEMS]
    parser.add_argument(
        "--out", type=to_path, help="result file; benchmarks/results/msda_<gpu>.json by default"
    )
    parser.add_argument(
        "--problems",
        nargs="+",
        choices=names,
        default=[problem.name for problem in REAL],
        metavar="NAME",
        help=f"default: Co-DINO's, one image; of {', '.join(names)}",
    )
    parser.add_argument("--distributions", nargs="+", choices=DISTRIBUTIONS, default=list(DISTRIBUTIONS))
    parser.add_argument("--dtypes", nargs="+", choices=list(DTYPES), default=list(DTYPES))
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS))
    parser.add_argument("--iterations", type=positive, default=100, help="samples of each measurement")
    options = parser.parse_args(arguments)
    check_out(options.out)
    timing.require_gpu()
    started = time.monotonic()
    head = environment.describe("benchmarks.msda", arguments)
    out = result_file(options.out, "msda", environment.slug(head["gpu"]["name"]))
    bandwidth = timing.copy_bandwidth()
    print(f"{head['gpu']['name']}: copies at {bandwidth / 1e12:.2f} TB/s", flush=True)
    problems = [problem for problem in PROBLEMS if problem.name in options.problems]
    engines = Engines(problems)
    results = []
    for problem in problems:
        # A problem's compiled references are of no use to the next: they would hold memory, and count towards
        # the number of compilations after which torch.compile falls back to eager PyTorch without an error.
        torch.compiler.reset()
        for distribution in options.distributions:
            for dtype in options.dtypes:
                rows = measure(
                    problem, distribution, dtype, options.methods, engines, bandwidth, options.iterations
                )
                for row in rows:
                    results.append(row)
                    print(summary(row), flush=True)
    content = {
        **head,
        "kind": "msda",
        "copy_bandwidth_bytes_per_second": bandwidth,
        "methods": {name: METHODS[name] for name in options.methods},
        "seconds": round(time.monotonic() - started, 1),
        "results": results,
    }
    environment.write_json(out, content)
    failed = [row for row in results if "failure" in row]
    print(f"{len(results)} measurements, {len(failed)} failed, {content['seconds']} s: {out}")
    return 1 if failed else 0


class Engines:
    """The plugins' engines, each built when it is first wanted, for the range of sizes of all problems."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        def limits(sizes: Iterator[int]) -> tuple[int, int, int]:
            ordered = sorted(sizes)
            return ordered[0], ordered[len(ordered) // 2], ordered[-1]

        self._limits = trt_engines.Limits(
            N=limits(problem.batch for problem in problems),
            S=limits(problem.num_cells for problem in problems),
            M=limits(problem.num_heads for problem in problems),
            D=limits(problem.head_dim for problem in problems),
            L=limits(problem.num_levels for problem in problems),
            Q=limits(problem.num_queries for problem in problems),
            P=limits(problem.num_points for problem in problems),
            B=limits(problem.reference_dim for problem in problems),
        )
        self._engines: dict[trt_engines.EngineKey, trt_engines.PluginEngine] = {}

    def get(self, operator: str, dtype: torch.dtype) -> trt_engines.PluginEngine:
        """The engine of an operator and a type; NVIDIA's takes int32 shapes only."""
        index_dtype = torch.int32 if operator == trt_engines.NVIDIA else torch.int64
        key = trt_engines.EngineKey(operator, dtype, dtype, index_dtype)
        if key not in self._engines:
            self._engines[key] = trt_engines.PluginEngine(key, self._limits)
        return self._engines[key]


def measure(
    problem: Problem,
    distribution: str,
    dtype_name: str,
    methods: Sequence[str],
    engines: Engines,
    bandwidth: float,
    iterations: int,
) -> Iterator[dict]:
    """Yields one result for every method that has the type: times, bytes, error; or why it failed."""
    dtype = DTYPES[dtype_name]
    copies = timing.copies_for_cold_cache(problem.bytes_moved(dtype))
    seeds = range(copies)
    given = [problem.attention_inputs(dtype, "cuda", distribution, seed) for seed in seeds]
    fused = [problem.fused_inputs(dtype, "cuda", distribution, seed) for seed in seeds]
    truths = {"given": errors.truth(given[0]), "fused": errors.truth(fused[0])}
    for method in methods:
        if dtype == torch.bfloat16 and method in NO_BFLOAT16:
            continue
        if problem.points_per_level is not None and method in NO_RAGGED:
            continue
        backward, is_fused = method.endswith("_backward"), method.startswith("fused")
        moved = problem.bytes_moved(dtype, fused=is_fused, backward=backward)
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
            calls = make_calls(method, inputs, engines, dtype)
            truth = truths["fused" if is_fused else "given"]
            if backward:
                truth = None if is_fused else gradient_truth(given[0])
            result = calls[0]()
            row["relative_error"] = relative_error(result[0] if backward else result, truth)
            del result, truth
            if method in REFERENCES:
                sampled = timing.time_eager(calls[0], iterations, seconds=REFERENCE_SECONDS)
            else:
                sampled = timing.time_graph(calls, moved, iterations, seconds=1.0, least_calls=LEAST_CALLS)
                if moved <= timing.l2_bytes():
                    one = calls[:1]
                    warm = timing.time_graph(one, 0, iterations, seconds=0.5, least_calls=LEAST_CALLS)
                    row["warm_timing"] = warm.as_dict()
            seconds = sampled.median_ms * 1e-3
            row["bytes_per_second"] = moved / seconds
            row["ratio_to_floor"] = seconds * 1e6 / row["floor_us"]
            row["timing"] = sampled.as_dict()
            del calls
        except (RuntimeError, ValueError, ImportError, OSError) as error:
            row["failure"] = " ".join(str(error).split())[:500]
        torch.cuda.empty_cache()
        yield row


def relative_error(result: torch.Tensor, truth: torch.Tensor | None) -> float | None:
    """The error against the truth, None without one.

    Raises:
        RuntimeError: where the result has another shape, or NaN or infinities that the truth has not.
    """
    if truth is None:
        return None
    error = errors.relative_error(result, truth)
    if math.isinf(error):
        raise RuntimeError("the result is wrong: its shape, or NaN and infinities that the truth has not")
    return error


def make_calls(
    method: str,
    inputs: Sequence[AttentionInputs | FusedInputs],
    engines: Engines,
    dtype: torch.dtype,
) -> list[Callable[[], object]]:
    """One call of a method for every set of inputs."""
    operators = {
        "plugin": trt_engines.ATTENTION,
        "fused_plugin": trt_engines.FUSED_ATTENTION,
        "nvidia_plugin": trt_engines.NVIDIA,
    }
    if method in operators:
        engine = engines.get(operators[method], dtype)
        prepared = [engine.prepare(one[:-1]) for one in inputs]
        return [lambda tensors=tensors: engine(tensors) for tensors in prepared]
    backwards = {
        "attention_backward": torch.ops.msda.attention_backward,
        "deterministic_backward": functools.partial(torch.ops.msda.attention_backward, deterministic=True),
        "fused_attention_backward": torch.ops.msda.fused_attention_backward,
    }
    if method in backwards:
        pairs = [(output_gradient(one), one) for one in inputs]
        return [lambda pair=pair: backwards[method](pair[0], *pair[1]) for pair in pairs]
    if method in ("reference_compiled", "reference_compiled_backward"):
        return [call_of_compiled(inputs[0], backward=method.endswith("_backward"))]
    if method == "reference_backward":
        return [backward_of_reference(inputs[0])]
    if method == "reference":
        return [lambda: msda.reference.attention(*inputs[0])]
    operator = {"attention": msda.attention, "fused_attention": msda.fused_attention}[method]
    return [lambda one=one: operator(*one) for one in inputs]


def output_gradient(inputs: AttentionInputs | FusedInputs) -> torch.Tensor:
    """A gradient of the result, [N, Q, M * D], the same for every method."""
    batch, _, num_heads, head_dim = inputs.value.shape
    device = inputs.value.device
    generator = torch.Generator(device).manual_seed(0)
    places = inputs.sampling_offsets if isinstance(inputs, FusedInputs) else inputs.sampling_locations
    shape = (batch, places.shape[1], num_heads * head_dim)
    return torch.randn(shape, generator=generator, device=device).to(inputs.value.dtype)


@functools.cache
def compiled_reference() -> Callable[..., torch.Tensor]:
    """`msda.reference.attention` under `torch.compile`. It compiles at a call, once for each type and set of
    sizes, with and without gradients.

    Reading `spatial_shapes` and `level_start_index` ends a graph (they are numbers on the GPU), so there are
    two graphs: the locations, and all levels with their sum.
    """
    return torch.compile(msda.reference.attention, dynamic=False)


def call_of_compiled(
    inputs: AttentionInputs, backward: bool
) -> Callable[[], torch.Tensor | tuple[torch.Tensor, ...]]:
    """A call of the compiled reference, or of the backward pass through it, with nothing left to compile.

    Raises:
        RuntimeError: where it cannot be compiled, without a compiler for instance. Errors of Triton and of
            inductor's worker processes are no RuntimeErrors by themselves.
    """
    operator = compiled_reference()
    try:
        # Donated buffers are overwritten by the backward pass, which could then run only once.
        with functorch_config.patch(donated_buffer=False):
            if backward:
                call = backward_of_reference(inputs, operator)
            else:
                call = functools.partial(operator, *inputs)
            call()
    except Exception as error:
        raise RuntimeError(f"torch.compile: {type(error).__name__}: {error}") from error
    return call


def backward_of_reference(
    inputs: AttentionInputs, operator: Callable[..., torch.Tensor] = msda.reference.attention
) -> Callable[[], tuple[torch.Tensor, ...]]:
    """A call of the backward pass alone, its forward done before, by the reference or a compiled form."""
    names = ("value", "sampling_locations", "attention_weights")
    leaves = [getattr(inputs, name).detach().requires_grad_() for name in names]
    output = operator(*inputs._replace(**dict(zip(names, leaves, strict=True))))
    gradient = output_gradient(inputs).to(output.dtype)
    return lambda: torch.autograd.grad(output, leaves, gradient, retain_graph=True)


def gradient_truth(inputs: AttentionInputs) -> torch.Tensor | None:
    """The gradient of value in float64 (the others jump where a sample crosses a cell centre), or None if too
    large.
    """
    if math.prod(inputs.sampling_locations.shape[:2]) > LARGEST_GRADIENT_TRUTH:
        return None
    wide = errors.in_float64(inputs)
    wide.value.requires_grad_()
    (gradient,) = torch.autograd.grad(
        msda.reference.attention(*wide), [wide.value], output_gradient(inputs).double()
    )
    return gradient


def summary(row: dict) -> str:
    """A result in one line."""
    name = f"{row['problem']['name']:28} {row['distribution']:8} {row['dtype']} {row['method']:27}"
    if "failure" in row:
        return f"{name} failed: {row['failure']}"
    spread = row["timing"]
    error = "" if row["relative_error"] is None else f"error {row['relative_error']:.1e}"
    low, middle, high = (spread[key] * 1e3 for key in ("p05_ms", "median_ms", "p95_ms"))
    speed = f"{row['bytes_per_second'] / 1e12:5.2f} TB/s {row['ratio_to_floor']:6.1f} x floor"
    warm = f", {row['warm_timing']['median_ms'] * 1e3:.1f} us warm" if "warm_timing" in row else ""
    return f"{name} {middle:9.1f} us ({low:.1f} to {high:.1f}) {speed} {spread['cache']}{warm} {error}"


if __name__ == "__main__":
    sys.exit(main())
