"""The command that shows the layers and times of an engine: codetr inspect."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Group
from cyclopts.types import NonNegativeInt, PositiveInt

from codetr.cli.argument_types import InputFile, OutputFile, Parameter, parsed_by
from codetr.cli.program import complain, run_program
from codetr.errors import ArgumentError, UsageError
from codetr.export.output_folder import check_output
from trt_plugin.atomic_files import atomic_write, write_json
from trt_plugin.engine_error import EngineError
from trt_plugin.inspection import engine_layers, engine_summary, text_report
from trt_plugin.inspection.eight_bits import EightBitReport, find_eight_bits
from trt_plugin.inspection.engine_layers import Layer
from trt_plugin.metadata import ArtifactMetadata
from trt_plugin.run import read_arrays

SLOWEST = 15
"""Layers that a list has without --table."""
RUNS = 50

WRITTEN = Group("Files to write", sort_key=1)
TIMED = Group("Times", sort_key=2)


def _picture(text: str) -> Path:
    if Path(text).suffix.lower() not in (".svg", ".png", ".pdf"):
        raise ValueError(f"expected a name that ends in .svg, .png or .pdf, got {text!r}")
    return Path(text)


PictureFile = Annotated[Path, parsed_by(_picture, "FILE")]


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
    runs: Annotated[PositiveInt, Parameter(group=TIMED)] = RUNS,
    inputs: Annotated[InputFile | None, Parameter(group=TIMED)] = None,
    nvtx: Annotated[bool, Parameter(group=TIMED)] = False,
) -> int:
    """Show the layers, memory and times of a TensorRT engine.

    Prints the engine's size, memory, inputs and outputs, and its layers by kind: MSDA, matrix products,
    window attention and so on. With --profile, also the time of each. For a quantised engine it also prints
    the products that fell back from 8 bits, and why. Needs a GPU, or a file of trtexec --exportLayerInfo.

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
    for name, wrong, expected in (
        ("profile", profile and layer_info, "an engine, got --layer-info"),
        ("plugins", plugins and layer_info, "an engine, got --layer-info"),
        ("save_layer_info", save_layer_info and layer_info, "an engine, got --layer-info"),
        ("times", times and engine, "--layer-info, got an engine, which --profile measures"),
        ("chart", chart and not (profile or times), "--profile, or --layer-info with --times"),
        ("runs", runs != RUNS and not profile, "--profile with it"),
        ("inputs", inputs and not profile, "--profile with it"),
        ("nvtx", nvtx and not profile, "--profile with it"),
    ):
        if wrong:
            raise ArgumentError(name, f"expected {expected}")
    taken = [engine, engine and engine.with_suffix(".json"), layer_info, times, inputs]
    outputs = {"json": json, "save_layer_info": save_layer_info, "graph": graph, "chart": chart}
    for name, path in outputs.items():
        check_output(name, path, taken)
        taken.append(path)

    source = engine or layer_info
    summary = measured = metadata = None
    if layer_info:
        found = engine_layers.read_file(layer_info)
        found = found.with_times(engine_layers.read_times(times)) if times else found
    else:
        arrays = read_arrays(inputs) if inputs else None
        summary, found, information = engine_summary.read_engine(engine, device, plugins)
        metadata = _metadata(engine)
        if profile:
            measured = engine_summary.measure(engine, device=device, runs=runs, inputs=arrays, nvtx=nvtx)
            found = found.with_times(measured.layer_ms) if found.layers else found
        if save_layer_info:
            with atomic_write(save_layer_info) as temporary:
                temporary.write_text(information, encoding="utf-8")
            print(f"wrote {save_layer_info}")
    if not found.detailed:
        message = (
            f"{source} tells {'only the names' if found.layers else 'nothing'} of its layers: "
            "build it with profiling verbosity DETAILED (trtexec --profilingVerbosity=detailed)"
        )
        if graph or (chart and not found.layers):
            raise EngineError(message)
        complain("warning", message)

    eight_bits = find_eight_bits(found.layers)
    parts: list[Any] = [str(source)]
    build_seconds = metadata.build_seconds if metadata else None
    types = " and ".join(found.precisions)
    parts += [text_report.summary_table(summary, types, build_seconds)] if summary else []
    parts += ["", text_report.layers_line(found)] if found.layers else []
    parts += ["", text_report.kinds_table(found)] if found.detailed else []
    if eight_bits:
        parts += ["", text_report.eight_bits_table(eight_bits, found.time_ms)]
    if eight_bits and eight_bits.fallen:
        most = len(eight_bits.fallen) if table else SLOWEST
        parts += ["", text_report.fallen_table(eight_bits, most)]
    parts += ["", text_report.times_line(measured, found)] if measured and found.layers else []
    if table and found.layers:
        parts += ["", text_report.layers_table(found.layers)]
    elif found.time_ms:
        parts += ["", text_report.slowest_table(found, SLOWEST)]
    console = text_report.make_console()
    for part in parts:
        console.print(part)

    if json:
        content = {
            "source": str(source),
            "summary": dataclasses.asdict(summary) if summary else None,
            "precision": found.precision,
            "build_seconds": build_seconds,
            "gpu_ms": measured.gpu_ms if measured else None,
            "eight_bits": _eight_bits_content(eight_bits, found.time_ms > 0) if eight_bits else None,
            **_layers_content(found.layers),
        }
        write_json(json, content)
        print(f"wrote {json}")
    if graph or chart:
        words = [metadata.model if metadata else source.name]
        words += [found.precision] if found.precision else []
        if summary and summary.inputs:
            first = max(summary.inputs, key=lambda tensor: len(tensor.shape))
            words.append("x".join("?" if size < 0 else str(size) for size in first.shape))
        title = ", ".join(words) + (f": {summary.gpu}" if summary else "")
    if graph:
        from trt_plugin.inspection.layer_graph import write_graph

        write_graph(graph, found, title)
        print(f"wrote {graph}")
    if chart:
        from trt_plugin.inspection.time_chart import write_chart

        write_chart(chart, found, title, measured.gpu_ms if measured else None)
        print(f"wrote {chart}")
    return 0


def _metadata(engine: Path) -> ArtifactMetadata | None:
    """Reads the metadata beside an engine. A file with other content is a warning."""
    path = engine.with_suffix(".json")
    try:
        return ArtifactMetadata.load(path) if path.is_file() else None
    except EngineError as error:
        complain("warning", str(error))
        return None


def _eight_bits_content(found: EightBitReport, timed: bool) -> dict[str, Any]:
    """Returns the layers of a quantised engine for JSON."""
    groups = {name: _group_content(members, timed) for name, members in found.groups.items()}
    return {"groups": groups, "fell_back": {product.layer.name: product.why for product in found.fallen}}


def _group_content(layers: Sequence[Layer], timed: bool) -> dict[str, Any]:
    return {"layers": len(layers)} | ({"ms": engine_layers.total_ms(layers)} if timed else {})


def _layers_content(layers: Sequence[Layer]) -> dict[str, Any]:
    """Returns the layers and their kinds for JSON."""
    timed = engine_layers.total_ms(layers) > 0
    by_kind = engine_layers.layers_by_kind(layers)
    kinds, rows = {kind: _group_content(members, timed) for kind, members in by_kind.items()}, []
    for layer in layers:
        told = {"kind": layer.kind, "module": ".".join(layer.origin.path), "eight_bits": layer.eight_bits}
        rows.append(dataclasses.asdict(layer) | told | {"time_ms": layer.time_ms if timed else None})
    return {"kinds": kinds, "layers": rows}


main = partial(run_program, inspect, program="python -m trt_plugin.inspect")

if __name__ == "__main__":
    sys.exit(main())
