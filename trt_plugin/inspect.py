"""The command that shows the layers and times of an engine: codetr inspect."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Group, Parameter
from cyclopts.types import NonNegativeInt, PositiveInt

from codetr.cli.argument_types import InputFile, OutputFile, parsed_by
from codetr.cli.program import complain, run_program
from codetr.errors import ArgumentError, UsageError
from trt_plugin.atomic_files import atomic_write, write_json
from trt_plugin.engine_error import EngineError
from trt_plugin.inspection import engine_layers, engine_summary, text_report
from trt_plugin.inspection.engine_layers import LayerList
from trt_plugin.inspection.engine_summary import EngineSummary, EngineTimes
from trt_plugin.metadata import ArtifactMetadata
from trt_plugin.run import read_arrays

SLOWEST = 15
"""Layers that a profile lists without --table."""

WRITTEN = Group("Files to write", sort_key=1)
TIMED = Group("Times", sort_key=2)


def _picture(text: str) -> Path:
    if Path(text).suffix.lower() not in (".svg", ".png", ".pdf"):
        raise ValueError(f"expected a name that ends in .svg, .png or .pdf, got {text!r}")
    return Path(text)


PictureFile = Annotated[Path, parsed_by(_picture, "FILE")]


@dataclasses.dataclass(frozen=True)
class InspectionReport:
    """Everything that is known of an engine.

    Attributes:
        source: the engine, or the file of layers.
        summary: size, memory, inputs and outputs; None for a file of layers.
        layers: with times where they were measured; None with profiling verbosity NONE.
        times: None without a profile.
        metadata: content of the file beside the engine, if there is one.
    """

    source: Path
    summary: EngineSummary | None
    layers: LayerList | None
    times: EngineTimes | None
    metadata: ArtifactMetadata | None

    @property
    def precision(self) -> str | None:
        """The narrowest floating-point type in the engine."""
        return self.layers.precision if self.layers else None

    @property
    def title(self) -> str:
        """Title of pictures: model, precision, input size and GPU, as far as they are known."""
        name = self.source.name if self.summary else self.source.stem
        words = [self.metadata.model if self.metadata else name]
        words += [self.precision] if self.precision else []
        if self.summary and self.summary.inputs:
            first = max(self.summary.inputs, key=lambda tensor: len(tensor.shape))
            words.append("x".join("?" if size < 0 else str(size) for size in first.shape))
        return ", ".join(words) + (f": {self.summary.gpu}" if self.summary else "")

    def as_dict(self) -> dict[str, Any]:
        """Returns all of it for JSON."""
        layers = self.layers.layers if self.layers else ()
        kinds = {}
        for kind, members in engine_layers.layers_by_kind(layers).items():
            time = engine_layers.total_ms(members)
            kinds[kind] = {"layers": len(members), **({} if time is None else {"ms": time})}
        return {
            "source": str(self.source),
            "summary": dataclasses.asdict(self.summary) if self.summary else None,
            "precision": self.precision,
            "build_seconds": self.metadata.build_seconds if self.metadata else None,
            "gpu_ms": self.times.gpu_ms if self.times else None,
            "kinds": kinds,
            "layers": [
                dataclasses.asdict(layer) | {"kind": layer.kind, "module": ".".join(layer.origin.path)}
                for layer in layers
            ],
        }


def inspect(
    engine: Annotated[InputFile | None, Parameter(metavar="ENGINE")] = None,
    /,
    *,
    plugins: Annotated[tuple[InputFile, ...], Parameter(consume_multiple=True)] = (),
    device: NonNegativeInt = 0,
    layer_info: InputFile | None = None,
    times: InputFile | None = None,
    table: bool = False,
    json: Annotated[OutputFile | None, Parameter(group=WRITTEN)] = None,
    save_layer_info: Annotated[OutputFile | None, Parameter(group=WRITTEN)] = None,
    graph: Annotated[PictureFile | None, Parameter(group=WRITTEN)] = None,
    chart: Annotated[PictureFile | None, Parameter(group=WRITTEN)] = None,
    profile: Annotated[bool, Parameter(group=TIMED)] = False,
    runs: Annotated[PositiveInt, Parameter(group=TIMED)] = 50,
    inputs: Annotated[InputFile | None, Parameter(group=TIMED)] = None,
    nvtx: Annotated[bool, Parameter(group=TIMED)] = False,
) -> int:
    """Show the layers, memory and times of a TensorRT engine.

    Prints the engine's size, memory, inputs and outputs, and its layers by kind: MSDA, matrix products,
    attention and so on. With --profile, also the time of each. Needs a GPU, or a file of trtexec
    --exportLayerInfo.

    Example: codetr inspect model.engine --profile --chart times.svg --graph graph.svg

    Args:
        engine: the engine file
        plugins: libraries of other plugins
        device: number of the GPU
        layer_info: file of trtexec --exportLayerInfo, in place of an engine
        times: file of trtexec --exportProfile, for --layer-info
        table: also print every layer
        json: write the whole report to this file
        save_layer_info: write the JSON of TensorRT's inspector to this file
        graph: draw the layers and tensors: .svg, .png or .pdf
        chart: draw the times: .svg, .png or .pdf
        profile: time the engine and each of its layers
        runs: number of timed runs
        inputs: .npz file with the inputs of timed runs; default: noise, and whole pictures for detectors
        nvtx: name the steps for Nsight Systems
    """
    if (engine is None) == (layer_info is None):
        raise UsageError("expected either an engine or --layer-info FILE")
    if layer_info:
        needs_engine = {"profile": profile, "plugins": plugins, "save_layer_info": save_layer_info}
        for name in (name for name, given in needs_engine.items() if given):
            raise ArgumentError(name, "expected an engine, got --layer-info")
    elif times:
        raise ArgumentError("times", "expected --layer-info, got an engine, which --profile measures")
    if chart and not (profile or times):
        raise ArgumentError("chart", "expected --profile, or --layer-info with --times: it shows times")
    for name in (name for name, given in {"inputs": inputs, "nvtx": nvtx}.items() if given and not profile):
        raise ArgumentError(name, "expected --profile with it")
    if json and engine and json.absolute() == engine.with_suffix(".json").absolute():
        raise ArgumentError("json", f"expected another file than the engine's metadata, got {json}")

    if layer_info:
        found = engine_layers.read_file(layer_info)
        found = found.with_times(engine_layers.read_times(times)) if times else found
        report = InspectionReport(layer_info, None, found, None, None)
    else:
        arrays = read_arrays(inputs) if inputs else None
        summary, found, information = engine_summary.read_engine(engine, device, plugins)
        measured = None
        if profile:
            measured = engine_summary.measure(engine, device=device, runs=runs, inputs=arrays, nvtx=nvtx)
            found = found.with_times(measured.layer_ms) if found else None
        report = InspectionReport(engine, summary, found, measured, _metadata(engine))
        if save_layer_info:
            with atomic_write(save_layer_info) as temporary:
                temporary.write_text(information, encoding="utf-8")
            print(f"wrote {save_layer_info}")
    if found is None or not found.detailed:
        tells = "nothing" if found is None else "only the names"
        message = (
            f"{report.source} tells {tells} of its layers: build it with profiling verbosity DETAILED "
            "(trtexec --profilingVerbosity=detailed)"
        )
        if graph or (found is None and chart):
            raise EngineError(message)
        complain("warning", message)
    _print(report, table)
    if json:
        write_json(json, report.as_dict())
        print(f"wrote {json}")
    if graph:
        from trt_plugin.inspection.layer_graph import write_graph

        write_graph(graph, found, report.title)
        print(f"wrote {graph}")
    if chart:
        from trt_plugin.inspection.time_chart import write_chart

        write_chart(chart, found, report.title, report.times.gpu_ms if report.times else None)
        print(f"wrote {chart}")
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Runs `python -m trt_plugin.inspect` and returns its exit status."""
    return run_program(inspect, argv, "python -m trt_plugin.inspect")


def _metadata(engine: Path) -> ArtifactMetadata | None:
    """Reads the metadata beside an engine. A file with other content is a warning."""
    path = engine.with_suffix(".json")
    try:
        return ArtifactMetadata.load(path) if path.is_file() else None
    except EngineError as error:
        complain("warning", str(error))
        return None


def _print(report: InspectionReport, whole_table: bool) -> None:
    console, found = text_report.make_console(), report.layers
    console.print(report.source)
    if report.summary:
        build_seconds = report.metadata.build_seconds if report.metadata else None
        console.print(text_report.summary_table(report.summary, report.precision, build_seconds))
    if found is None:
        return
    parts = [text_report.layers_line(found)]
    parts += [text_report.kinds_table(found)] if found.detailed else []
    parts += [text_report.times_line(report.times, found)] if report.times else []
    if whole_table:
        parts.append(text_report.layers_table(found.layers))
    elif found.time_ms is not None:
        parts.append(text_report.slowest_table(found, SLOWEST))
    for part in parts:
        console.print()
        console.print(part)


if __name__ == "__main__":
    sys.exit(main())
