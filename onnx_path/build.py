"""`python -m onnx_path.build`: builds a TensorRT engine of any ONNX file."""

from __future__ import annotations

import dataclasses
import shlex
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, get_args

from cyclopts import Group
from cyclopts.types import PositiveFloat

from codetr.cli.argument_types import InputFile, OutputFile, Parameter, compile_patterns
from codetr.cli.program import complain, run_program
from codetr.errors import ArgumentError
from codetr.export.output_folder import check_output, stage, staged_folder
from onnx_path.tensorrt.equivalent_commands import equivalent_commands
from onnx_path.tensorrt.optimization_profiles import fit_profiles, inputs_of, parse_shapes
from onnx_path.tensorrt.tensorrt_engine import Settings, serialize_engine
from trt_plugin.atomic_files import write_json
from trt_plugin.engine_error import EngineError
from trt_plugin.metadata import ArtifactMetadata, EightBits, Precision

if TYPE_CHECKING:
    import onnx

    from trt_plugin.inspection.engine_summary import EngineSummary

CONVERTED = ("fp16", "bf16")
"""Precisions for which the graph is converted. The other ones are settings of TensorRT."""
ENGINE_SUFFIXES = (".engine", ".plan", ".trt")

_SHAPES = Group("Shapes of dynamic inputs", sort_key=1)
_TENSORRT = Group("TensorRT", sort_key=2)


def build(
    model: Annotated[InputFile, Parameter(metavar="MODEL.onnx")],
    /,
    *,
    out: OutputFile,
    precision: Precision | None = None,
    keep_fp32: Annotated[tuple[str, ...], Parameter(metavar="REGEX")] = (),
    smallest: Annotated[tuple[str, ...], Parameter(name="--min", metavar="NAME:SHAPE", group=_SHAPES)] = (),
    best: Annotated[tuple[str, ...], Parameter(name="--opt", metavar="NAME:SHAPE", group=_SHAPES)] = (),
    largest: Annotated[tuple[str, ...], Parameter(name="--max", metavar="NAME:SHAPE", group=_SHAPES)] = (),
    timing_cache: Annotated[OutputFile | None, Parameter(group=_TENSORRT)] = None,
    workspace: Annotated[PositiveFloat | None, Parameter(metavar="GIB", group=_TENSORRT)] = None,
    optimization_level: Annotated[Literal[0, 1, 2, 3, 4, 5] | None, Parameter(group=_TENSORRT)] = None,
    plugins: Annotated[tuple[InputFile, ...], Parameter(group=_TENSORRT)] = (),
    tell_selections: bool = False,
    json: OutputFile | None = None,
) -> int:
    """Build a strongly typed TensorRT engine of an ONNX file. Needs a GPU.

    The types in the file are the types in the engine, so fp16 and bf16 are a conversion of the graph. If
    TensorRT parses another file than MODEL.onnx, that file is written beside the engine. The engine of an
    exported detector, whose metadata lie beside MODEL.onnx, gets metadata too.

    ```
    codetr build model.onnx --out engines --precision fp16 --opt images:1x3x640x640
    ```

    Args:
        model: file to build.
        out: engine to write if it ends in .engine, .plan or .trt, else the folder of MODEL.engine.
        precision: fp16 and bf16 convert the graph and write MODEL.fp16.onnx beside the engine. tf32 is
            float32 with matrix products of 10 mantissa bits. Default: the types in the file.
        keep_fp32: with fp16 or bf16: nodes that stay float32 in addition to the exceptions of
            `onnx_path.fp16_exceptions`. May be repeated.
        smallest: smallest shape, such as images:1x3x640x640. Several inputs need commas, or repeated options.
        best: shape to tune for. Without --min and --max it is the only shape.
        largest: largest shape.
        timing_cache: TensorRT's timing cache, read and updated. It makes a second build quick.
        workspace: most memory for intermediate results of layers. Default: all of the GPU.
        optimization_level: TensorRT's builder optimization level. Default: 3.
        plugins: library with operators of the file. The project's own needs no mention. May be repeated.
        tell_selections: for onnx_path.compare: the engine also outputs what TopK and thresholds select, and
            onnxruntime then selects the same. Scores that nearly tie are no difference any more.
        json: also write the report to this file.
    """
    engine = out if out.suffix in ENGINE_SUFFIXES and not out.is_dir() else out / f"{model.stem}.engine"
    parsed = engine.with_name(f"{model.stem}.{precision or 'trt'}.onnx")
    taken = [model, engine, parsed, engine.with_suffix(".json")]  # the last has the metadata of an engine
    check_output("timing_cache", timing_cache, taken)
    check_output("json", json, [*taken, timing_cache])
    if keep_fp32 and precision not in CONVERTED:
        raise ArgumentError("keep_fp32", f"expected --precision {' or '.join(CONVERTED)} with it")
    compile_patterns("keep_fp32", keep_fp32)

    import onnx

    from onnx_path.precision import convert_precision
    from onnx_path.tensorrt import model_for_tensorrt
    from trt_plugin.inspection import engine_summary, text_report

    network = model_for_tensorrt.load_model(model)
    texts = {"min": smallest, "opt": best, "max": largest}
    profiles = fit_profiles(inputs_of(network), {name: parse_shapes(name, texts[name]) for name in texts})
    narrow = model_for_tensorrt.sixteen_bit_tensor(network)
    if precision is not None and narrow is not None:
        raise ArgumentError("precision", f"expected none for a model that has 16 bits already ({narrow})")
    loaded = check_machine(plugins, network)
    _note_surgery(network, model)
    profiles, changes = model_for_tensorrt.fix_sizes(network, profiles)
    settings = Settings(
        profiles=profiles,
        tf32=precision == "tf32",
        workspace_bytes=None if workspace is None else int(workspace * 2**30),
        optimization_level=optimization_level,
        timing_cache=timing_cache,
        plugins=tuple(loaded),
    )
    if tell_selections:
        network, changes = model_for_tensorrt.tell_selections(network), 1
    conversion = None
    with staged_folder(engine.parent) as folder:
        if precision in CONVERTED:
            with stage(f"convert to {precision}"):
                onnx.load_external_data_for_model(network, str(model.parent))
                conversion = str(convert_precision(network, precision, keep_fp32))
        path = folder / parsed.name
        if model_for_tensorrt.fit_to_tensorrt(network, model.parent) or conversion is not None or changes:
            model_for_tensorrt.save_model(network, path, model.parent)
        else:
            path = parsed = model
        del network  # as large as the weights
        with stage(f"build {engine.name} with TensorRT") as seconds:
            plan = serialize_engine(path, settings, model.name)
        (folder / engine.name).write_bytes(plan)
        del plan
        summary, layers, _ = engine_summary.read_engine(folder / engine.name)
        metadata = None if tell_selections else _metadata(model, precision, summary, seconds[0])
        if metadata is not None:
            metadata.save((folder / engine.name).with_suffix(".json"))
    commands = equivalent_commands(parsed, engine, settings)
    console = text_report.make_console()
    written = [engine, *[parsed] * (parsed != model), *[engine.with_suffix(".json")] * (metadata is not None)]
    console.print("wrote " + " and ".join(map(str, written)))
    console.print(text_report.summary_table(summary, precision or "the file's own", seconds[0]))
    console.print(text_report.layers_line(layers))
    if conversion is not None:
        console.print(f"conversion: {conversion}")
    console.print("other tools build the same engine:", *commands.values(), sep="\n")
    if json is not None:
        content = dataclasses.asdict(summary)
        content["plugin_layers"] = [layer.name for layer in layers.plugins]
        report = {
            "model": str(model),
            "parsed": str(parsed),
            "engine": str(engine),
            "precision": precision or "the file's own",
            "conversion": conversion,
            "build_seconds": round(seconds[0], 3),
            "report": content,
            "commands": commands,
        }
        write_json(json, report, indent=2, allow_nan=False)
    return 0


def check_machine(libraries: Sequence[Path], model: onnx.ModelProto | None) -> list[Path]:
    """Checks packages, plugins and the GPU before TensorRT ends the process for want of a GPU.

    Without a model, an engine only runs.

    Returns:
        The libraries of plugins that a build needs, see `custom_operators.register_plugins`.

    Raises:
        ArgumentError, UsageError: a library cannot be loaded, or an operator has no plugin.
        trt_plugin.EngineError, ModuleNotFoundError: a package, the plugin library or the GPU is missing.
    """
    from onnx_path.nodes.custom_operators import register_plugins
    from trt_plugin.cuda_runtime import require_gpu

    if model is not None:
        import polygraphy  # noqa: F401
    loaded = register_plugins(libraries, model)
    require_gpu()
    return loaded


def _metadata(
    model: Path, precision: str | None, summary: EngineSummary, build_seconds: float
) -> ArtifactMetadata | None:
    """Returns the metadata of the engine of an exported detector, None for a file without metadata."""
    try:
        metadata = ArtifactMetadata.load(model.with_suffix(".json"))
    except EngineError:
        return None  # a JSON file of the same name may hold anything
    tensors = {
        field: [{"name": x.name, "shape": list(x.shape), "dtype": x.dtype} for x in getattr(summary, field)]
        for field in ("inputs", "outputs")
    }
    images = next(x for x in summary.inputs if x.name == "images")
    batch, _, height, width = images.opt or images.shape
    profiles = {x.name: {"min": x.min, "opt": x.opt, "max": x.max} for x in summary.inputs if x.opt}
    eight_bits = metadata.precision in get_args(EightBits)
    return dataclasses.replace(
        metadata,
        **tensors,
        resize=metadata.resize | {"height": height, "width": width},
        precision=metadata.precision if eight_bits or precision is None else precision,
        batch=batch,
        profiles={name: {key: list(x) for key, x in shapes.items()} for name, shapes in profiles.items()},
        tensorrt_version=summary.tensorrt_version,
        gpu=summary.gpu,
        build_seconds=round(build_seconds, 1),
    )


def _note_surgery(model: onnx.ModelProto, source: Path) -> None:
    """Names the surgeon, before a build of many minutes, for a file that may hold attention in pieces.

    A file with nodes of the surgeon's plugins has been through it. Its other samplers are no such attention.
    """
    from onnx_path.nodes.custom_operators import OWN_DOMAINS, nodes_of

    nodes = list(nodes_of(model))
    samplers = sum(node.op_type == "GridSample" for node in nodes)
    if samplers and not any(node.domain in OWN_DOMAINS for node in nodes):
        command = shlex.join(["codetr", "surgeon", str(source), str(source.with_suffix(".msda.onnx"))])
        complain(
            "note",
            f"{source} has {samplers} GridSample nodes. If they are deformable attention, this command "
            f"replaces them by plugins, which build and run faster: {command}",
        )


main = partial(run_program, build, program="python -m onnx_path.build")

if __name__ == "__main__":
    sys.exit(main())
