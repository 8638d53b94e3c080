"""Puts engines side by side: GPU time, time by kind of layer, size, build time, layers, plugins and memory:

    python -m benchmarks.engines --engine onnx=onnx/model.engine --engine dynamo=dynamo/model.engine

A run is timed as a CUDA graph without the copies of inputs and outputs, the layers one after the other by
TensorRT's profiler. Inputs are noise of the engine's best size; build times come from the metadata beside the
engines.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks import environment, timing
from benchmarks.arguments import add_engines, add_out, check_engines, check_out, result_file, run_benchmark
from codetr.cli.command import (
    ArgumentParser,
    UsageError,
    positive,
    to_path,
)
from trt_plugin import ArtifactMetadata
from trt_plugin.inspection.engine_layers import LayerList, total_ms
from trt_plugin.inspection.engine_summary import EngineSummary, EngineTimes, measure, read_engine
from trt_plugin.inspection.layer_kinds import LAYER_KINDS
from trt_plugin.inspection.text_report import format_bytes, plugin_name

WARMUP = 20


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; returns the exit status."""
    return run_benchmark(_main, arguments, "benchmarks.engines")


def _main(arguments: list[str]) -> int:
    options = parse(arguments)

    def measured(label: str, path: Path) -> dict:
        return measure_engine(label, path, options.iterations, options.plugins)

    measure_all("benchmarks.engines", arguments, options, measured, line)
    return 0


def measure_all(
    module: str,
    arguments: list[str],
    options: argparse.Namespace,
    measured: Callable[[str, Path], dict],
    line: Callable[[dict], str],
    **facts: object,
) -> None:
    """Measures engines in turn, prints a line for each, and writes the result file.

    Args:
        module: the benchmark, as in `python -m module`; the result's kind is its last name.
        arguments: its command line.
        options: read from that: `engine`, of `add_engines`, and `out`, of `add_out`.
        measured: an engine's row, by label and path.
        line: a row in one line.
        facts: what the result file says beside the rows.
    """
    timing.require_gpu()
    kind = module.rpartition(".")[2]
    head = environment.describe(module, arguments)
    out = result_file(options.out, kind, environment.slug(head["gpu"]["name"]))
    started = time.monotonic()
    rows = []
    for label, path in options.engine:
        rows.append(measured(label, path))
        print(line(rows[-1]), flush=True)
    seconds = round(time.monotonic() - started, 1)
    environment.write_json(out, {**head, "kind": kind, **facts, "seconds": seconds, "results": rows})
    print(out)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Reads the command line.

    Raises:
        UsageError: a wrong argument, or a file that is none.
    """
    parser = ArgumentParser(prog="python -m benchmarks.engines", description=__doc__.split(":")[0])
    add_engines(parser, "an engine", required=True)
    parser.add_argument(
        "--plugins", nargs="+", type=to_path, default=[], metavar="LIB", help="libraries of other plugins"
    )
    parser.add_argument("--iterations", type=positive, default=100, help="samples of each measurement")
    add_out(parser)
    options = parser.parse_args(arguments)
    check_engines(options.engine)
    labels = Counter(label for label, _ in options.engine)
    if repeated := [label for label, count in labels.items() if count > 1]:
        raise UsageError(f"--engine {repeated[0]}: is the name of two engines")
    check_out(options.out)
    return options


def measure_engine(label: str, path: Path, iterations: int, plugins: Sequence[Path] = ()) -> dict:
    """One engine's row of the result file.

    Raises:
        ValueError: it tells nothing of its layers.
        trt_plugin.EngineError: it cannot be loaded, or does not run.
    """
    summary, layers, _ = read_engine(path, libraries=plugins)
    if layers is None or not layers.detailed:
        raise ValueError(f"--engine {label}: was built without detailed profiling verbosity")
    beside = path.with_suffix(".json")
    metadata = ArtifactMetadata.load(beside) if beside.is_file() else None
    times = measure(path, runs=iterations, warmup=WARMUP)
    return row(label, summary, layers.with_times(times.layer_ms), times, metadata)


def row(
    label: str,
    summary: EngineSummary,
    layers: LayerList,
    times: EngineTimes,
    metadata: ArtifactMetadata | None,
) -> dict:
    """What a result file says of an engine, see `measure_engine`."""
    kinds = {kind: [layer for layer in layers.layers if layer.kind == kind] for kind in LAYER_KINDS}
    timed = timing.Timing(times.samples_ms, 1, WARMUP, "warm")
    return {
        "variant": label,
        "model": metadata.model if metadata else None,
        "precision": layers.precision,
        "inputs": {tensor.name: list(tensor.opt or tensor.shape) for tensor in summary.inputs},
        "tensorrt_built_with": summary.built_with,
        "engine_bytes": summary.engine_bytes,
        "build_seconds": metadata.build_seconds if metadata else None,
        "layers": len(layers.layers),
        "plugins": dict(Counter(map(plugin_name, layers.plugins))),
        "loaded_bytes": summary.loaded_bytes,
        "device_memory_bytes": summary.device_memory_bytes,
        "cuda_graph": times.cuda_graph,
        "kinds": {
            kind: {"layers": len(members), "ms": round(total_ms(members) or 0.0, 4)}
            for kind, members in kinds.items()
            if members
        },
        "timing": timed.as_dict(),
    }


def line(found: dict) -> str:
    """A row in one line."""
    return (
        f"{found['variant']}: {found['timing']['median_ms']:.3f} ms, {found['layers']} layers, "
        f"{format_bytes(found['engine_bytes'])}"
    )


if __name__ == "__main__":
    sys.exit(main())
