"""`python -m onnx_path.compare`: an ONNX file in onnxruntime against an engine in TensorRT. Needs a GPU.

Both get the same inputs, given or random. An output is within the tolerance if its relative error, the norm
of the difference over the norm of onnxruntime's output, is at most that. Comparison is element by element:
where rows stand in the order of their scores, two that swap places differ. Scores that are equal but for
roundings swap places in a right engine too. So an engine of `onnx_path.build --tell-selections` gives what it
selects; onnxruntime then selects the same, and what both select from is compared with the outputs.

Where outputs differ, `--layers` tells where that begins: it builds engines that also give some of the tensors
between the nodes (`onnx_path.comparison.first_difference` says which), and compares these. For this it takes the file
that the engine was built of: where that is another than MODEL.onnx, `onnx_path.build` wrote it beside the
engine, else --parsed names it. Tensors of one name in both files are compared.

Exit status: 0 all outputs are within the tolerance; 1 one is not, or something failed; 2 wrong arguments, a
file that will not do, or a machine without TensorRT or GPU.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from codetr.cli.command import (
    ArgumentParser,
    UsageError,
    check_file,
    check_writable,
    run_command,
    to_path,
)
from codetr.export.output_folder import stage
from onnx_path import requirements

if __name__ == "__main__":
    requirements.stop_without_graph_packages("onnxruntime", "tensorrt", "cuda", engines=True)

import onnx

from onnx_path import engine_report
from onnx_path import model_for_tensorrt as preparation
from onnx_path import optimization_profiles as profiles
from onnx_path.arguments import add_json, add_plugins, check_no_metadata, usage_errors, write_report
from onnx_path.build import PRECISIONS
from onnx_path.comparison import marked_engines as engine
from onnx_path.comparison.comparable_tensors import Tensors, names_of
from onnx_path.comparison.comparison_report import Comparison, Input
from onnx_path.comparison.first_difference import Found, first_difference
from onnx_path.comparison.input_arrays import BadInput, choose_shapes, make_inputs, read_inputs
from onnx_path.comparison.onnxruntime_reference import Reference
from onnx_path.comparison.tensor_errors import TOLERANCES, TensorError, Tolerance
from onnx_path.engine_report import EngineReport
from onnx_path.surgery import files, runtime, selections
from trt_plugin.metadata import ArtifactMetadata


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command with `argv` (default: sys.argv[1:]) and returns its exit status."""
    return run_command(lambda: _main(argv))


def _main(argv: Sequence[str] | None) -> int:
    arguments = _parser().parse_args(argv)
    _check_arguments(arguments)
    with usage_errors(arguments.model, BadInput, runtime.CannotRun):
        model = preparation.load(arguments.model)
        parsed = _parsed_file(arguments)
        built = _load_parsed(parsed, model) if arguments.layers else None
        given = read_inputs(model, arguments.input, arguments.inputs)
        asked = profiles.parse_shapes("--shapes", arguments.shapes)
        profiles.check_shapes("--shapes", profiles.inputs_of(model), asked)
        engine.check_machine(arguments.plugins, built)
        report = engine_report.read_engine(arguments.engine)
        tolerance = _tolerance(arguments, report, parsed)
        known = selections.of(model)
        gives = {x.name for x in report.outputs}
        told = [name for name in known if selections.choice_name(name) in gives]
        names = _outputs(model, report, told)
        takes = {x.name: x for x in report.inputs}
        shapes = choose_shapes(profiles.inputs_of(model), given, asked, takes)
        inputs = make_inputs(model, shapes, given, arguments.seed)
    with stage("run TensorRT"):
        found = engine.run(arguments.engine, inputs)
    with usage_errors(arguments.model, runtime.CannotRun):
        choices = {name: found[name][0] for name in map(selections.choice_name, told)}
        reference_model = selections.told(model, told) if told else model
        run_reference = Reference(reference_model, arguments.model.parent, inputs | choices)
        with stage("run onnxruntime"):
            expected = run_reference(names)
    errors = tuple(tolerance.error(name, expected[name], found[name]) for name in names)
    del expected, found
    random = f"random, seed {arguments.seed}"
    sources = [
        Input(name, x.shape, x.dtype.name, given[name].source if name in given else random)
        for name, x in inputs.items()
    ]
    result = Comparison(
        arguments.model,
        arguments.engine,
        report.tensorrt_version,
        report.gpu,
        tolerance,
        tuple(sources),
        errors,
        tuple(told),
    )
    print("\n".join(result.lines()))
    if known and not told and not result.within:
        print(
            f"scores that nearly tie may be why: TopK or a threshold selects {len(known)} times, and an "
            "engine of onnx_path.build --tell-selections tells what"
        )
    if built is not None and not result.within:
        tensors = Tensors(built, names_of(model))
        with engine.MarkedEngines(
            built, parsed, tensors, inputs, tf32=tolerance.precision == "tf32"
        ) as engines:
            result = result.with_layers(
                parsed, _search(tensors, result.differing, run_reference, engines, tolerance, parsed)
            )
        print("\n".join(result.layer_lines()))
    elif built is not None:
        print("no output differs, so there is no layer to look for")
    if arguments.json is not None:
        write_report(arguments.json, result.content())
    return 0 if result.within else 1


def _parser() -> argparse.ArgumentParser:
    parser = ArgumentParser(
        prog="python -m onnx_path.compare",
        description="Compare the outputs of an ONNX file in onnxruntime with those of an engine in TensorRT.",
    )
    parser.add_argument("model", metavar="MODEL.onnx", type=to_path, help="the reference, run in float32")
    parser.add_argument("engine", metavar="ENGINE", type=to_path, help="built of it, in any precision")
    parser.add_argument(
        "--input",
        metavar="NAME=FILE.npy",
        action="append",
        default=[],
        help="an array for one input; may be repeated. Inputs without an array are random",
    )
    parser.add_argument("--inputs", metavar="FILE.npz", type=to_path, help="arrays by names of inputs")
    parser.add_argument(
        "--seed", type=_seed, default=0, metavar="N", help="of random inputs (default: %(default)s)"
    )
    parser.add_argument(
        "--shapes",
        metavar="NAME:SHAPE",
        action="append",
        default=[],
        help="shape of a random input, such as images:1x3x640x640; more after commas, or repeated (default: "
        "the optimum of the engine's profile 0)",
    )
    parser.add_argument(
        "--precision",
        choices=PRECISIONS,
        help="of the engine, which decides the tolerance (default: what engine and files say; they do not "
        "say tf32)",
    )
    defaults = ", ".join(f"{number:g} for {name}" for name, number in TOLERANCES.items())
    parser.add_argument(
        "--tolerance",
        metavar="R",
        type=_tolerance_value,
        help="largest relative error of an output, norm of the difference over norm of the reference "
        f"(default: {defaults})",
    )
    parser.add_argument(
        "--layers", action="store_true", help="if an output differs, find the first node that does"
    )
    parser.add_argument(
        "--parsed",
        metavar="FILE.onnx",
        type=to_path,
        help="what the engine was built of, for --layers (default: what onnx_path.build wrote beside the "
        "engine, else MODEL.onnx)",
    )
    add_plugins(parser, "of the engine")
    add_json(parser)
    return parser


def _seed(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"expected a whole number from 0 on, got {text!r}")
    return int(text)


def _tolerance_value(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 <= number < math.inf:
        raise argparse.ArgumentTypeError(f"expected a number from 0 on, got {text!r}")
    return number


def _check_arguments(arguments: argparse.Namespace) -> None:
    """Raises `UsageError` for whatever is wrong before a file is read."""
    check_file("MODEL.onnx", arguments.model)
    check_file("ENGINE", arguments.engine)
    if arguments.inputs is not None:
        check_file("--inputs", arguments.inputs)
    if arguments.parsed is not None:
        check_file("--parsed", arguments.parsed)
    for library in arguments.plugins:
        check_file("--plugins", library)
    report = arguments.json
    if report is None:
        return
    check_writable("--json", report)
    read = [arguments.model, arguments.engine, arguments.inputs, arguments.parsed, *arguments.plugins]
    if any(report.absolute() == path.absolute() for path in read if path is not None):
        raise UsageError(f"--json {report}: is read for something else; name another file")
    check_no_metadata(report, arguments.engine)


def _parsed_file(arguments: argparse.Namespace) -> Path:
    """What the engine was built of: --parsed, or what a build wrote beside the engine, or MODEL.onnx."""
    if arguments.parsed is not None:
        return arguments.parsed
    beside = [path for path in _written_by_build(arguments) if path.is_file()]
    if len(beside) > 1 and arguments.layers:
        raise UsageError(
            f"--layers: {' and '.join(map(str, beside))} lie beside the engine; say by --parsed which of "
            "them it was built of"
        )
    return beside[0] if len(beside) == 1 else arguments.model


def _written_by_build(arguments: argparse.Namespace) -> list[Path]:
    """Names of `onnx_path.build` for what it makes of MODEL.onnx, beside the engine."""
    kinds = PRECISIONS if arguments.precision is None else (arguments.precision,)
    return [arguments.engine.with_name(f"{arguments.model.stem}.{kind}.onnx") for kind in (*kinds, "trt")]


def _load_parsed(parsed: Path, model: onnx.ModelProto) -> onnx.ModelProto:
    built = preparation.load(parsed)
    expected, names = ([x.name for x in profiles.inputs_of(x)] for x in (model, built))
    if set(expected) != set(names):
        raise UsageError(
            f"--parsed {parsed}: expected the inputs of MODEL.onnx ({', '.join(expected)}), got "
            f"{', '.join(names)}"
        )
    return built


def _tolerance(arguments: argparse.Namespace, report: EngineReport, parsed: Path) -> Tolerance:
    precision, why = _precision(arguments, report, parsed)
    wrong = [kind for kind in preparation.CONVERTED if parsed.name == f"{arguments.model.stem}.{kind}.onnx"]
    if arguments.layers and arguments.parsed is None and wrong and wrong != [precision]:
        raise UsageError(
            f"--layers: {parsed} lies beside the engine, which is {precision} ({why}); say by --parsed "
            "what it was built of"
        )
    given = arguments.tolerance is not None
    return Tolerance(arguments.tolerance if given else TOLERANCES[precision], precision, why, given)


def _precision(arguments: argparse.Namespace, report: EngineReport, parsed: Path) -> tuple[str, str]:
    """The engine's precision, and what says so."""
    if arguments.precision is not None:
        return arguments.precision, "--precision"
    metadata = arguments.engine.with_suffix(".json")
    if metadata.is_file():
        return ArtifactMetadata.load(metadata).precision, f"as {metadata.name} says"
    if report.precision is not None:
        return report.precision, "as the engine's layers say"
    narrow = preparation.sixteen_bit_tensor(files.load(parsed))
    if narrow is not None:
        return "bf16" if narrow.endswith("bfloat16") else "fp16", f"as {parsed.name} says: {narrow}"
    return "fp32", "nothing says otherwise"


def _outputs(model: onnx.ModelProto, report: EngineReport, told: Sequence[str]) -> list[str]:
    """What is compared: the model's outputs, and what else the engine gives of the model's tensors.

    Of the selections that it tells, the scores.
    """
    own, choices = [x.name for x in model.graph.output], set(map(selections.choice_name, told))
    there = [x.name for x in report.outputs if x.name not in choices]
    known = {*own, *names_of(model), *map(selections.scores_name, told)}
    if not set(own) <= set(there) or not set(there) <= known:
        raise BadInput(
            f"expected an engine with the outputs of the ONNX file ({', '.join(own)}), got one with "
            f"{', '.join(there)}"
        )
    return own + [name for name in there if name not in own]


def _search(
    tensors: Tensors,
    differing: Sequence[str],
    run_reference: Reference,
    engines: engine.MarkedEngines,
    tolerance: Tolerance,
    parsed: Path,
) -> Found:
    targets = [name for name in differing if name in tensors.types]
    if not targets:
        raise UsageError(f"--layers: {parsed} does not compute {differing[0]}, which differs")

    def measure(marks: Sequence[str]) -> Mapping[str, TensorError]:
        with stage(f"build and run an engine with {len(set(marks))} tensors as outputs"):
            expected, found = run_reference(marks), engines(marks)
        return {
            name: tolerance.error(name, expected[name], array)
            for name, array in found.items()
            if name in expected
        }

    return first_difference(tensors, targets, measure)


if __name__ == "__main__":
    sys.exit(main())
