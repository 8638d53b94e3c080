"""`python -m onnx_path.compare`: compares an engine in TensorRT with its ONNX file in onnxruntime."""

from __future__ import annotations

import dataclasses
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Group
from cyclopts.types import NonNegativeFloat, NonNegativeInt

from codetr.cli.argument_types import InputFile, OutputFile, Parameter
from codetr.cli.program import run_program
from codetr.errors import ArgumentError, UsageError, one_line
from codetr.export.output_folder import check_output, stage
from onnx_path.build import check_machine
from onnx_path.tensorrt.optimization_profiles import check_shapes, inputs_of, parse_shapes
from trt_plugin.atomic_files import write_json
from trt_plugin.metadata import AnyPrecision

if TYPE_CHECKING:
    import numpy as np
    import onnx

    from onnx_path.comparison.comparison_report import EngineComparison
    from onnx_path.comparison.onnxruntime_reference import OnnxruntimeReference
    from trt_plugin.inspection.engine_summary import EngineSummary

_INPUTS = Group("Inputs", sort_key=1)
_LAYERS = Group("Search for the first difference", sort_key=2)


def compare(
    model: Annotated[InputFile, Parameter(metavar="MODEL.onnx")],
    engine: Annotated[InputFile, Parameter(metavar="ENGINE")],
    /,
    *,
    input: Annotated[tuple[str, ...], Parameter(metavar="NAME=FILE.npy", group=_INPUTS)] = (),
    inputs: Annotated[InputFile | None, Parameter(group=_INPUTS)] = None,
    seed: Annotated[NonNegativeInt, Parameter(group=_INPUTS)] = 0,
    shapes: Annotated[tuple[str, ...], Parameter(metavar="NAME:SHAPE", group=_INPUTS)] = (),
    precision: AnyPrecision | None = None,
    tolerance: NonNegativeFloat | None = None,
    layers: Annotated[bool, Parameter(group=_LAYERS)] = False,
    parsed: Annotated[InputFile | None, Parameter(group=_LAYERS)] = None,
    plugins: tuple[InputFile, ...] = (),
    json: OutputFile | None = None,
) -> int:
    """Compare the outputs of an engine with those of its ONNX file, layer by layer on request. Needs a GPU.

    TensorRT and onnxruntime get the same inputs. An output is within the tolerance if the norm of the
    difference over the norm of onnxruntime's output is at most that. Rows in the order of scores differ if
    two of them swap places, and scores that nearly tie swap places in a correct engine too. An engine of
    `codetr build --tell-selections` outputs its selections, and onnxruntime then selects the same. Exit
    status: 0 if all outputs are within the tolerance, else 1.

    ```
    codetr compare model.onnx engines/model.engine --layers
    ```

    Args:
        model: the reference, run in float32.
        engine: engine of this model, in any precision.
        input: array for one input. May be repeated. Inputs without an array are random.
        inputs: .npz file with arrays by names of inputs.
        seed: seed of random inputs.
        shapes: shape of a random input, such as images:1x3x640x640. Default: the best one of the engine's
            profile 0.
        precision: precision of the engine, which decides the tolerance. Default: as its metadata, its
            layers or MODEL tell, in this order. Layers do not tell tf32.
        tolerance: largest relative error of an output. Default: 1e-4 for fp32, 1e-2 for tf32 and fp16, 8e-2
            for bf16 and int8, 0.2 for fp8.
        layers: if an output differs, build engines with tensors between layers as outputs, and find the first
            node that differs.
        parsed: file that the engine was built of. Default: the file that onnx_path.build wrote beside the
            engine, else MODEL.
        plugins: library with plugins of the engine. May be repeated.
        json: also write the report to this file.
    """
    metadata = engine.with_suffix(".json")
    check_output("json", json, [model, engine, metadata, inputs, parsed, *plugins])

    from onnx_path.comparison import marked_engines
    from onnx_path.comparison.comparable_tensors import names_of
    from onnx_path.comparison.comparison_report import EngineComparison
    from onnx_path.comparison.input_arrays import read_inputs, with_random_inputs
    from onnx_path.comparison.onnxruntime_reference import OnnxruntimeReference
    from onnx_path.comparison.tensor_errors import TOLERANCES, Tolerance
    from onnx_path.surgery.graph.onnx_session import CannotRun
    from onnx_path.surgery.verify import selections
    from onnx_path.tensorrt.model_for_tensorrt import load_model
    from trt_plugin.inspection import engine_summary, text_report

    original = load_model(model)
    given = read_inputs(original, input, inputs)
    asked = parse_shapes("shapes", shapes)
    check_shapes("shapes", inputs_of(original), asked)
    check_machine(plugins, None)
    summary, engine_layers, _ = engine_summary.read_engine(engine)
    kind, why = _find_precision(original, engine, precision, engine_layers.precision)
    if layers:
        parsed = parsed or _parsed_file(model, engine, kind)
        built = load_model(parsed)
        expected, found = ([one.name for one in inputs_of(x)] for x in (original, built))
        if set(expected) != set(found):
            text = f"expected a file with the inputs {', '.join(expected)}, got {', '.join(found)}"
            raise ArgumentError("parsed", text)
        check_machine((), built)
    limit = Tolerance(TOLERANCES[kind] if tolerance is None else tolerance, kind, why, tolerance is not None)
    known, gives = selections.of(original), {x.name for x in summary.outputs}
    told = [name for name in known if selections.choice_name(name) in gives]
    names = _compared_outputs(original, summary, told)
    sources = with_random_inputs(original, given, asked, {x.name: x for x in summary.inputs}, seed)
    arrays = {name: one.array for name, one in sources.items()}
    with stage("run TensorRT"):
        found = marked_engines.run_engine(engine, arrays)
    choices = {name: found[name][0] for name in map(selections.choice_name, told)}
    try:
        selecting = selections.told(original, told) if told else original
        reference = OnnxruntimeReference(selecting, model.parent, arrays | choices)
        with stage("run onnxruntime"):
            expected = reference(names)
    except CannotRun as error:
        raise UsageError(f"{model}: {one_line(error)}") from error
    result = EngineComparison(
        model,
        engine,
        summary.tensorrt_version,
        summary.gpu,
        limit,
        sources,
        tuple(limit.error(name, expected[name], *found[name]) for name in names),
        tuple(told),
    )
    del expected, found
    console = text_report.make_console()
    result.print_outputs(console)
    if result.differing and known and not told:
        console.print(
            f"scores that nearly tie may be the reason: TopK or thresholds select {len(known)} times; "
            "compare an engine of codetr build --tell-selections"
        )
    if result.differing and layers:
        result = _search(result, reference, names_of(original), built, parsed, arrays)
        result.print_layers(console)
    if json is not None:
        write_json(json, result.as_dict(), indent=2, allow_nan=False)
    return 1 if result.differing else 0


def _find_precision(
    model: onnx.ModelProto, engine: Path, given: AnyPrecision | None, of_layers: str | None
) -> tuple[str, str]:
    """Returns the engine's precision and the source that tells it."""
    from onnx_path.tensorrt.model_for_tensorrt import sixteen_bit_tensor
    from trt_plugin.metadata import ArtifactMetadata

    metadata = engine.with_suffix(".json")
    if given is not None:
        return given, "--precision"
    if metadata.is_file():
        return ArtifactMetadata.load(metadata).precision, f"as {metadata.name} tells"
    if of_layers is not None:
        return of_layers, "as the engine's layers tell"
    narrow = sixteen_bit_tensor(model)
    if narrow is not None:
        return "bf16" if narrow.endswith("bfloat16") else "fp16", f"as the model tells: {narrow}"
    return "fp32", "nothing tells another, see --precision"


def _parsed_file(model: Path, engine: Path, precision: str) -> Path:
    """Returns the file that `onnx_path.build` wrote beside an engine of a precision, or MODEL.onnx."""
    others = {"fp32": ("tf32",), "int8": ("fp16",), "fp8": ("fp16",)}  # --precision fp16 of a quantised file
    kinds = (precision, *others.get(precision, ()), "trt")
    beside = (engine.with_name(f"{model.stem}.{kind}.onnx") for kind in kinds)
    return next((path for path in beside if path.is_file()), model)


def _compared_outputs(model: onnx.ModelProto, summary: EngineSummary, told: Sequence[str]) -> list[str]:
    """Returns the model's outputs, and the engine's other outputs that are tensors of the model.

    The scores of selections are among them, the choices are not.
    """
    from onnx_path.comparison.comparable_tensors import names_of
    from onnx_path.surgery.verify import selections

    own, choices = [x.name for x in model.graph.output], set(map(selections.choice_name, told))
    there = [x.name for x in summary.outputs if x.name not in choices]
    known = {*own, *names_of(model), *map(selections.scores_name, told)}
    if not set(own) <= set(there) or not set(there) <= known:
        raise UsageError(
            f"expected an engine with the outputs of the ONNX file ({', '.join(own)}), got one with "
            f"{', '.join(there)}"
        )
    return own + [name for name in there if name not in own]


def _search(
    result: EngineComparison,
    reference: OnnxruntimeReference,
    others: set[str],
    built: onnx.ModelProto,
    parsed: Path,
    inputs: dict[str, np.ndarray],
) -> EngineComparison:
    """Returns the result with the first tensor that differs.

    Args:
        others: names of the model's tensors.
        built: model of the file `parsed`, modified.
    """
    from onnx_path.comparison.comparable_tensors import ComparableTensors
    from onnx_path.comparison.first_difference import first_difference
    from onnx_path.comparison.marked_engines import MarkedEngines
    from onnx_path.comparison.tensor_errors import TensorError

    tensors = ComparableTensors(built, others)
    targets = [name for name in result.differing if name in tensors.types]
    if not targets:
        raise UsageError(f"--layers: {parsed} does not compute {result.differing[0]}, which differs")
    tf32 = result.tolerance.precision == "tf32"
    with tempfile.TemporaryDirectory(prefix="onnx-path-compare-") as folder:
        engines = MarkedEngines(built, parsed, tensors, inputs, tf32, Path(folder))

        def measure(marks: Sequence[str]) -> dict[str, TensorError]:
            with stage(f"build and run an engine with {len(set(marks))} tensors as outputs"):
                expected, found = reference(marks), engines(marks)
            common = expected.keys() & found.keys()
            return {name: result.tolerance.error(name, expected[name], *found[name]) for name in common}

        return dataclasses.replace(result, parsed=parsed, layers=first_difference(tensors, targets, measure))


main = partial(run_program, compare, program="python -m onnx_path.compare")

if __name__ == "__main__":
    sys.exit(main())
