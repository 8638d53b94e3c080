"""Shows what is inside an engine: python -m trt_plugin.inspect model.engine --profile --graph graph.svg

Prints size, memory, inputs and outputs, and the layers by kind (MSDA, matrix products, attention and so on);
with --profile what each of them takes. Needs a GPU, or a file of trtexec --exportLayerInfo.

Exit status: 0, done; 1, it failed; 2, wrong arguments; 130, interrupted. Every failure is one line on stderr.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

from trt_plugin.atomic_files import atomic_write
from trt_plugin.command import ArgumentParser, UsageError, run_command, to_count, to_path, warn
from trt_plugin.engine_error import EngineError
from trt_plugin.inspection import engine_layers, layer_graph, text_report, time_chart
from trt_plugin.inspection.engine_layers import LayerList
from trt_plugin.inspection.engine_summary import Summary, Times, measure, read_engine
from trt_plugin.inspection.layer_kinds import KINDS
from trt_plugin.metadata import ArtifactMetadata
from trt_plugin.run import read_arrays

PICTURES = (".svg", ".png")
SLOWEST = 15
"""Layers that a profile lists without --table."""


@dataclasses.dataclass(frozen=True)
class Report:
    """Everything that is known of an engine.

    Attributes:
        source: the engine, or the file of layers.
        summary: of the engine; None for a file of layers.
        layers: with times where they were measured; None if the engine tells nothing of them.
        times: None without a profile.
        metadata: of the file beside the engine, if there is one.
    """

    source: Path
    summary: Summary | None
    layers: LayerList | None
    times: Times | None
    metadata: ArtifactMetadata | None

    @property
    def precision(self) -> str | None:
        """The narrowest floating-point type in the engine."""
        return self.layers.precision if self.layers else None

    @property
    def title(self) -> str:
        """For pictures: model, precision, size and GPU, as far as they are known."""
        name = self.source.name if self.summary else self.source.stem
        words = [self.metadata.model if self.metadata else name]
        words += [self.precision] if self.precision else []
        if self.summary and self.summary.inputs:
            first = max(self.summary.inputs, key=lambda tensor: len(tensor.shape))
            words.append("x".join("?" if size < 0 else str(size) for size in first.shape))
        return ", ".join(words) + (f": {self.summary.gpu}" if self.summary else "")


def main(arguments: list[str] | None = None) -> int:
    """The command; returns its exit status."""
    parser = _parser()
    return run_command(lambda: _run(parser.parse_args(arguments)))


def _parser() -> ArgumentParser:
    parser = ArgumentParser(
        prog="python -m trt_plugin.inspect", description="Show layers, memory and times of a TensorRT engine."
    )
    parser.add_argument("engine", nargs="?", type=to_path, help="the engine file")
    parser.add_argument(
        "--layer-info", type=to_path, metavar="FILE", help="read trtexec --exportLayerInfo's file, no engine"
    )
    parser.add_argument("--times", type=to_path, metavar="FILE", help="times of trtexec --exportProfile")
    parser.add_argument("--table", action="store_true", help="also print every layer")
    parser.add_argument("--json", type=to_path, metavar="FILE", help="write all of it to this file")
    parser.add_argument("--save-layer-info", type=to_path, metavar="FILE", help="write TensorRT's own words")
    parser.add_argument(
        "--graph", type=to_path, metavar="FILE", help="draw the layers and tensors: .svg or .png"
    )
    parser.add_argument("--profile", action="store_true", help="time the engine and each of its layers")
    parser.add_argument("--chart", type=to_path, metavar="FILE", help="draw the times: .svg or .png")
    parser.add_argument(
        "--runs", type=to_count, default=50, metavar="N", help="runs of --profile (default: 50)"
    )
    parser.add_argument(
        "--inputs", type=to_path, metavar="FILE", help=".npz to profile on (default: noise, whole pictures)"
    )
    parser.add_argument("--nvtx", action="store_true", help="name the steps of --profile for Nsight Systems")
    parser.add_argument(
        "--plugins", type=to_path, nargs="+", default=[], metavar="LIB", help="libraries of other plugins"
    )
    parser.add_argument(
        "--device", type=to_count, default=0, metavar="N", help="number of the GPU (default: 0)"
    )
    return parser


def _check(options: argparse.Namespace) -> None:
    """Raises `UsageError` for options that do not go together."""
    if (options.engine is None) == (options.layer_info is None):
        raise UsageError("expected either an engine or --layer-info FILE (see --help)")
    for name in ("graph", "chart"):
        path = getattr(options, name)
        if path is not None and path.suffix.lower() not in PICTURES:
            raise UsageError(f"--{name} {path}: expected a name that ends in .svg or .png")
    if options.layer_info is not None:
        for name in ("profile", "inputs", "nvtx", "plugins", "save_layer_info"):
            if getattr(options, name):
                option = name.replace("_", "-")
                raise UsageError(f"--{option}: needs an engine, and --layer-info is none")
    elif options.times is not None:
        raise UsageError("--times: goes with --layer-info; --profile measures an engine")
    if options.chart is not None and not (options.profile or options.times):
        raise UsageError("--chart: shows times, so it needs --profile, or --layer-info with --times")
    for name in ("inputs", "nvtx"):
        if getattr(options, name) and not options.profile:
            raise UsageError(f"--{name}: goes with --profile")
    if options.runs < 1:
        raise UsageError("--runs: expected at least 1, got 0")
    if (
        options.json
        and options.engine
        and options.json.absolute() == options.engine.with_suffix(".json").absolute()
    ):
        raise UsageError(f"--json {options.json}: is where the engine's metadata lie; name another file")


def _run(options: argparse.Namespace) -> None:
    _check(options)
    report = _read_layers(options) if options.layer_info else _read_engine(options)
    if report.layers is None or not report.layers.detailed:
        tells = "nothing" if report.layers is None else "names only"
        message = (
            f"{report.source} tells {tells} of its layers: build it with profiling verbosity DETAILED "
            "(trtexec --profilingVerbosity=detailed)"
        )
        if options.graph or (report.layers is None and options.chart):
            raise EngineError(message)
        warn(message)
    _print(report, options.table)
    if options.json:
        _write(options.json, json.dumps(as_dict(report), indent=1, ensure_ascii=False) + "\n")
    if options.graph and report.layers:
        layer_graph.draw(report.layers, report.title).save(options.graph)
        print(f"wrote {options.graph}")
    if options.chart and report.layers:
        gpu_ms = report.times.gpu_ms if report.times else None
        time_chart.draw(report.layers, report.title, gpu_ms).save(options.chart)
        print(f"wrote {options.chart}")


def _read_layers(options: argparse.Namespace) -> Report:
    """From files of trtexec."""
    found = engine_layers.read_file(options.layer_info)
    if options.times:
        found = found.with_times(engine_layers.read_times(options.times))
    return Report(options.layer_info, None, found, None, None)


def _read_engine(options: argparse.Namespace) -> Report:
    inputs = read_arrays(options.inputs) if options.inputs else None
    summary, found, information = read_engine(options.engine, options.device, options.plugins)
    beside = options.engine.with_suffix(".json")
    metadata = None
    if beside.is_file():
        try:
            metadata = ArtifactMetadata.load(beside)
        except EngineError as error:  # it may belong to something else
            warn(str(error))
    if options.save_layer_info:
        _write(options.save_layer_info, information)
    times = None
    if options.profile:
        times = measure(
            options.engine, device=options.device, runs=options.runs, inputs=inputs, nvtx=options.nvtx
        )
        found = found.with_times(times.layer_ms) if found else None
    return Report(options.engine, summary, found, times, metadata)


def _print(report: Report, whole_table: bool) -> None:
    print(report.source)
    if report.summary:
        build = report.metadata.build_seconds if report.metadata else None
        for line in text_report.summary_lines(report.summary, report.precision, build):
            print(f"  {line}")
    found = report.layers
    if found is None:
        return
    print(f"\n{text_report.layers_line(found)}")
    if found.detailed:
        print("\n".join(["", *text_report.kind_lines(found)]))
    if report.times:
        print("\n".join(["", *text_report.times_lines(report.times, found)]))
    if whole_table:
        print("\n".join(["", *text_report.layer_lines(found.layers)]))
    elif found.time_ms is not None:
        print("\n".join(["", *text_report.slowest_lines(found, SLOWEST)]))
    sys.stdout.flush()


def as_dict(report: Report) -> dict[str, Any]:
    """All of a report, for JSON."""
    found = report.layers
    entries = []
    for layer in found.layers if found else ():
        fields = dataclasses.asdict(layer) | {"kind": layer.kind, "module": ".".join(layer.origin.path)}
        entries.append(fields)
    kinds = {}
    for kind in KINDS:
        members = [layer for layer in found.layers if layer.kind == kind] if found else []
        time = layer_graph.total_ms(members)
        kinds[kind] = {"layers": len(members), **({} if time is None else {"ms": time})}
    return {
        "source": str(report.source),
        "summary": dataclasses.asdict(report.summary) if report.summary else None,
        "precision": report.precision,
        "build_seconds": report.metadata.build_seconds if report.metadata else None,
        "gpu_ms": report.times.gpu_ms if report.times else None,
        "kinds": kinds,
        "layers": entries,
    }


def _write(path: Path, content: str) -> None:
    with atomic_write(path) as temporary:
        temporary.write_text(content, encoding="utf-8")
    print(f"wrote {path}")


if __name__ == "__main__":
    sys.exit(main())
