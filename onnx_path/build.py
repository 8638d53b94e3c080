"""`python -m onnx_path.build`: a TensorRT engine of any ONNX file of a DETR. Needs a GPU.

The network is strongly typed: the types in the file are the types in the engine, so fp16 and bf16 are a
conversion of the graph (`onnx_path.precision`). Dynamic sizes that the profile leaves no choice of become
fixed ones. What TensorRT parses is written beside the engine where it differs from the file given. Exit
status: 0 done; 1 failed; 2 wrong arguments, a file that will not do, or a machine without TensorRT or GPU.
"""

from __future__ import annotations

import argparse
import dataclasses
import re
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from codetr.cli.command import (
    ArgumentParser,
    UsageError,
    check_file,
    check_writable,
    one_line,
    run_command,
    to_path,
)
from codetr.export.output_folder import stage, staged_folder
from onnx_path import requirements
from trt_plugin.atomic_files import atomic_write

if __name__ == "__main__":
    requirements.stop_without_graph_packages(*requirements.BUILD, engines=True)

from onnx_path import custom_operators as plugins
from onnx_path import engine_report
from onnx_path import model_for_tensorrt as preparation
from onnx_path import optimization_profiles as profiles
from onnx_path.arguments import add_json, add_plugins, check_no_metadata, usage_errors, write_report
from onnx_path.equivalent_commands import polygraphy_line, trtexec_line
from onnx_path.model_for_tensorrt import CONVERTED
from onnx_path.tensorrt_engine import Settings, parsed_file, serialize_engine

if TYPE_CHECKING:
    import onnx

PRECISIONS = ("fp32", "tf32", *CONVERTED)
ENGINE_SUFFIXES = (".engine", ".plan", ".trt")
GIB = 2**30


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command with `argv` (default: sys.argv[1:]) and returns its exit status."""
    return run_command(lambda: _main(argv))


def import_requirements() -> None:
    """Imports what a build and running its engine need, and registers the plugins.

    Raises:
        trt_plugin.EngineError: packages or the plugin library are missing, or cannot be loaded.
    """
    import trt_plugin

    requirements.require([*requirements.packages(*requirements.BUILD), *requirements.plugin_library()])
    trt_plugin.load()


def build_engine(
    onnx_path: Path,
    engine_path: Path,
    settings: Settings | None = None,
) -> None:
    """Builds a strongly typed engine of our own export.

    Args:
        onnx_path: the file; external weights lie beside it.
        engine_path: the engine is written here.
        settings: of the build; by default one without profile and TF32.

    Raises:
        trt_plugin.EngineError: as `import_requirements`.
        RuntimeError: TensorRT cannot parse the file or build the engine; with its own words.
    """
    import_requirements()
    with parsed_file(onnx_path) as parsed:
        engine = serialize_engine(parsed, settings or Settings(), onnx_path.name)
    with atomic_write(engine_path) as temporary:
        temporary.write_bytes(engine)


def _main(argv: Sequence[str] | None) -> int:
    arguments = _parser().parse_args(argv)
    source, precision = arguments.model, arguments.precision
    engine, parsed = _targets(arguments)
    _check_arguments(arguments, engine, parsed)
    with usage_errors(source):
        model, settings = _check_model(arguments)
        settings = _check_machine(arguments.plugins, model, settings)
    _note_surgery(model, source)
    dynamic, written = preparation.fix_sizes(model, settings.profiles)
    if arguments.tell_selections:
        model, written = preparation.tell_selections(model), True
    settings = dataclasses.replace(settings, profiles=dynamic)
    conversion = None
    with staged_folder(engine.parent) as folder:
        if precision in CONVERTED:
            with stage(f"convert to {precision}"):
                conversion = _convert(model, arguments)
        if preparation.fit_plugins(model, source.parent) or conversion is not None or written:
            preparation.save(model, folder / parsed.name, source.parent)
            path = folder / parsed.name
        else:
            path = parsed = source
        del model  # as large as the weights
        started = time.perf_counter()
        with stage(f"build {engine.name} with TensorRT"):
            content = serialize_engine(path, settings, source.name)
        seconds = time.perf_counter() - started
        (folder / engine.name).write_bytes(content)
        del content
        report = engine_report.read_engine(folder / engine.name)
    facts = {
        "model": str(source),
        "parsed": str(parsed),
        "engine": str(engine),
        "precision": precision or "the file's own",
        "conversion": conversion,
        "build_seconds": round(seconds, 3),
    }
    lines = {
        "polygraphy": polygraphy_line(parsed, engine, settings),
        "trtexec": trtexec_line(parsed, engine, settings),
    }
    if arguments.json is not None:
        write_report(arguments.json, facts | {"report": dataclasses.asdict(report), "commands": lines})
    _print(facts, report, lines)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = ArgumentParser(
        prog="python -m onnx_path.build",
        description="Build a strongly typed TensorRT engine of an ONNX file.",
    )
    parser.add_argument("model", metavar="MODEL.onnx", type=to_path, help="the file to build")
    parser.add_argument(
        "--out",
        metavar="DIR_OR_ENGINE",
        type=to_path,
        required=True,
        help="the engine to write if it ends in .engine, .plan or .trt, else a folder for MODEL.engine",
    )
    parser.add_argument(
        "--precision",
        choices=PRECISIONS,
        help="fp16 and bf16 convert the graph and write it beside the engine (MODEL.fp16.onnx); tf32 keeps "
        "float32 and multiplies with 10 bits of mantissa (default: the types in the file)",
    )
    parser.add_argument(
        "--keep-fp32",
        metavar="REGEX",
        action="append",
        default=[],
        help="with fp16 or bf16: nodes that stay in float32, beside those that always do; may be repeated",
    )
    for option, which in (("--min", "smallest"), ("--opt", "usual"), ("--max", "largest")):
        parser.add_argument(
            option,
            metavar="NAME:SHAPE",
            action="append",
            default=[],
            help=f"{which} shape of a dynamic input, such as images:1x3x640x640; more after commas, or "
            "repeated" + ("; without --min and --max the only shape" if option == "--opt" else ""),
        )
    parser.add_argument(
        "--timing-cache",
        metavar="FILE",
        type=to_path,
        help="TensorRT's timing cache: read if there, and updated",
    )
    parser.add_argument(
        "--workspace",
        metavar="GIB",
        type=_gib,
        help="memory that layers may use beside their inputs and outputs (default: all of the GPU)",
    )
    parser.add_argument(
        "--optimization-level",
        type=int,
        choices=range(6),
        metavar="0..5",
        help="TensorRT's effort (TensorRT's default: 3)",
    )
    parser.add_argument(
        "--tell-selections",
        action="store_true",
        help="for a check: the engine also gives what it selects, by TopK or thresholds, and "
        "onnx_path.compare lets onnxruntime select the same, so that near ties are no differences",
    )
    add_plugins(parser, "for operators of the file")
    add_json(parser)
    return parser


def _gib(text: str) -> int:
    """Bytes of a number of GiB."""
    try:
        size = float(text) * GIB
    except ValueError:
        size = 0
    if not 1 <= size < 2**63:
        raise argparse.ArgumentTypeError(f"expected a number of GiB above 0, got {text!r}")
    return int(size)


def _targets(arguments: argparse.Namespace) -> tuple[Path, Path]:
    """The engine, and the file that TensorRT parses if it is not the one given."""
    source, out = arguments.model, arguments.out
    engine = out if out.suffix in ENGINE_SUFFIXES and not out.is_dir() else out / f"{source.stem}.engine"
    return engine, engine.with_name(f"{source.stem}.{arguments.precision or 'trt'}.onnx")


def _check_arguments(arguments: argparse.Namespace, engine: Path, parsed: Path) -> None:
    """Raises `UsageError` for whatever is wrong before a file is read."""
    check_file("MODEL.onnx", arguments.model)
    for path in (engine, parsed):
        check_writable("--out", path)
    taken = [arguments.model, engine, parsed]
    for option, path in (("--timing-cache", arguments.timing_cache), ("--json", arguments.json)):
        if path is None:
            continue
        check_writable(option, path)
        if path.absolute() in [other.absolute() for other in taken]:
            raise UsageError(f"{option} {path}: is read or written for something else; name another file")
        taken.append(path)
    if arguments.json:
        check_no_metadata(arguments.json, engine)
    for library in arguments.plugins:
        check_file("--plugins", library)
    if arguments.keep_fp32 and arguments.precision not in CONVERTED:
        raise UsageError(f"--keep-fp32: expected with --precision {' or '.join(CONVERTED)} only")
    for pattern in arguments.keep_fp32:
        try:
            re.compile(pattern)
        except re.error as error:
            raise UsageError(f"--keep-fp32 {pattern}: expected a regular expression ({error})") from error


def _check_model(arguments: argparse.Namespace) -> tuple[onnx.ModelProto, Settings]:
    """Reads the file and fits the profile to it, without TensorRT."""
    shapes = [profiles.parse_shapes(f"--{x}", getattr(arguments, x)) for x in profiles.Profile._fields]
    model = preparation.load(arguments.model)
    narrow = preparation.sixteen_bit_tensor(model) if arguments.precision else None
    if narrow is not None:
        raise UsageError(
            f"--precision {arguments.precision}: expected a model in float32, {arguments.model.name} has 16 "
            f"bits already ({narrow}); leave the option out to build it as it is"
        )
    return model, Settings(
        profiles=profiles.fit(profiles.inputs_of(model), *shapes),
        tf32=arguments.precision == "tf32",
        workspace_bytes=arguments.workspace,
        optimization_level=arguments.optimization_level,
        timing_cache=arguments.timing_cache,
    )


def _check_machine(libraries: Sequence[Path], model: onnx.ModelProto, settings: Settings) -> Settings:
    """Checks packages, plugins and the GPU: without a GPU, creating a builder would end the process.

    Returns:
        The settings, with the libraries that the file needs.

    Raises:
        plugins.PluginMissing: a library cannot be loaded, or an operator has no plugin.
        trt_plugin.EngineError: packages, our plugin library or a GPU are missing; names all that is.
    """
    missing = requirements.packages(*requirements.BUILD)
    if plugins.needs_ours(model):
        missing += requirements.plugin_library()
    loaded = [] if missing else plugins.register(libraries, model)
    requirements.require([*missing, *requirements.gpu()])
    unique = {path.resolve(): path for path in loaded}
    return dataclasses.replace(settings, plugins=tuple(unique.values()))


def _note_surgery(model: onnx.ModelProto, source: Path) -> None:
    """Says, before a build of many minutes, that a file may hold attention in pieces.

    One with nodes of ours, or for NVIDIA's plugin, has been through the surgeon; what sampling is left in it
    is something else.
    """
    nodes = list(plugins.nodes_of(model))
    samplers = sum(node.op_type == "GridSample" for node in nodes)
    if samplers and not any(node.domain in plugins.OWN_DOMAINS for node in nodes):
        command = shlex.join(
            ["python", "-m", "onnx_path.surgeon", str(source), str(source.with_suffix(".msda.onnx"))]
        )
        print(
            f"note: {source} has {samplers} GridSample nodes. Where they are deformable attention, TensorRT "
            f"builds and runs them slowly, and this makes plugins of them: {command}",
            file=sys.stderr,
        )


def _convert(model: onnx.ModelProto, arguments: argparse.Namespace) -> str:
    try:
        return preparation.convert(model, arguments.model.parent, arguments.precision, arguments.keep_fp32)
    except ValueError as error:
        raise UsageError(
            f"--precision {arguments.precision}: {arguments.model.name}: {one_line(error)}"
        ) from error


def _print(facts: dict, report: engine_report.EngineReport, lines: dict[str, str]) -> None:
    rows = [("precision", facts["precision"])]
    rows += [("conversion", facts["conversion"])] if facts["conversion"] else []
    rows += [("build", f"{facts['build_seconds']:.1f} s"), *report.rows()]
    width = max(len(name) for name, _ in rows)
    print(
        f"wrote {facts['engine']}" + (f" and {facts['parsed']}" if facts["parsed"] != facts["model"] else "")
    )
    for name, value in rows:
        print(f"  {name:{width}}  {value}")
    print("the same by other tools:")
    for line in lines.values():
        print(line)


if __name__ == "__main__":
    sys.exit(main())
