"""`python -m onnx_path.export`: exports a detector through torch.onnx to an ONNX file and a TensorRT engine.

model.onnx has every MSDA, window attention and group normalisation as one node of domain `msda`, and so the
linear layers of Swin and of MSDA's values with what follows them. model.json describes model.onnx and
model.engine to the programs that run them.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from codetr.cli.program import run_program
from codetr.errors import ArgumentError
from codetr.export.output_folder import stage, staged_folder
from codetr.export.quiet_logs import quiet
from codetr.export.request import INPUT_NAMES, OUTPUT_NAMES, ExportRequest

if TYPE_CHECKING:
    import torch

    from onnx_path.quantization.quantizer import Quantizer

LARGEST_CONSTANT = 2**27  # elements of a folded tensor


def export(request: ExportRequest, *, onnx_only: bool = False, no_function_body: bool = False) -> int:
    """Export a detector through torch.onnx, build its engine, and compare the engine with PyTorch.

    Writes model.onnx, model.engine and model.json. Without a GPU there is no engine.

    Args:
        onnx_only: build no engine.
        no_function_body: leave out the standard operators that let any runtime run the file. Tools
            other than ours need this with TensorRT up to 10.6, which prefers these operators to the plugin.
    """
    from codetr.export.artifact_metadata import write_metadata
    from codetr.export.engine_check import compare_engine
    from codetr.export.traced_model import (
        dynamic_shapes,
        example_inputs,
        export_program,
        pick_device,
        prepare,
    )
    from onnx_path.nodes.attention import MAP_OPERATORS, OPERATORS

    builds = not onnx_only and pick_device(request.device).type == "cuda"
    older = request.out / "model.engine"
    if not builds and older.exists():
        problem = (
            f"expected a folder without an engine, got {older}, which the new model.json would not match"
        )
        raise ArgumentError("out", problem)
    if builds:
        import polygraphy  # noqa: F401

        import trt_plugin
        from onnx_path.tensorrt.model_for_tensorrt import parsed_file
        from onnx_path.tensorrt.tensorrt_engine import Settings, serialize_engine
        from trt_plugin.engine_error import import_cudart

        import_cudart()
        trt_plugin.load()
    pictures = calibration_pictures(request) if request.quantized else []  # before the export, for errors
    with staged_folder(request.out) as folder:
        subject, model, build_seconds = prepare(request), folder / "model.onnx", None
        with stage("export model.onnx"):
            program = export_program(subject.module(), example_inputs(request), dynamic_shapes(request))
            # The calibration runs the function bodies.
            bodies = request.quantized or not no_function_body
            counts = write_onnx(program, model, bodies, request.output_names)
            del program
        own = {"MSDA": sum(counts[name] for name in OPERATORS)} | {x: counts[x] for x in MAP_OPERATORS}
        listed = ", ".join(f"{count} {name}" for name, count in own.items() if count)
        print(f"model.onnx: {counts.total()} nodes, of them {listed}", flush=True)
        if request.quantized:
            quantize_file(model, request, pictures, function_bodies=not no_function_body)
        if builds:
            settings = Settings(
                profiles=profiles_of(request),
                tf32=request.precision == "tf32",
                timing_cache=request.timing_cache,
                optimization_level=request.optimization_level,
                refittable=request.refittable,
            )
            with stage("build model.engine with TensorRT") as seconds, parsed_file(model) as parsed:
                engine = serialize_engine(parsed, settings, "model.onnx")
            (folder / "model.engine").write_bytes(engine)
            del engine
            build_seconds = seconds[0]
        write_metadata(subject, request, folder, build_seconds)
        if builds:
            with stage("compare with PyTorch"):
                compare_engine(subject.checks, request, folder / "model.engine")
    if builds:
        print(f"wrote model.onnx, model.engine and model.json in {request.out}")
    else:
        reason = "" if onnx_only else "; stopped there: no GPU to build a TensorRT engine for"
        print(f"wrote model.onnx and model.json in {request.out}{reason}")
    return 0


def calibration_pictures(request: ExportRequest) -> list[Path]:
    """Returns the pictures of the request's calibration data.

    Raises:
        ArgumentError: there are none.
    """
    from onnx_path.quantization.calibration_data import find_pictures

    folder, count = request.calibration_data, request.calibration_images
    return find_pictures(folder, "train", count, argument="calibration_data")


def calibrate_file(model: Path, request: ExportRequest, pictures: Sequence[Path]) -> Quantizer:
    """Measures the ranges of an exported detector on pictures.

    Args:
        model: an ONNX file of the request's `model_precision`, with function bodies.
        pictures: of `calibration_pictures`.

    Returns:
        The detector, ready to be quantised.
    """
    import onnx
    import onnx_ir

    from codetr.cli.console import progress
    from codetr.detector.preprocess import Preprocessor
    from codetr.weights import cache_folder
    from onnx_path.quantization.calibration_data import picture_data
    from onnx_path.quantization.quantizer import DEFAULT_METHODS, Quantizer

    original = onnx.load(model)
    config, sizes = request.config, request.sizes
    preprocessor = Preprocessor(config.mean, config.std, height=sizes.height.opt, width=sizes.width.opt)
    data = picture_data(onnx_ir.from_proto(original), pictures, preprocessor)
    quantizer = Quantizer(original, request.precision)
    method = DEFAULT_METHODS[request.precision]
    with stage(f"calibrate with {data.images} pictures"), progress(data.runs, "calibrating") as advance:
        quantizer.calibrate(data, method, cache_folder() / "ranges", advance=advance)
    kept = ", ".join(f"{count} ({reason})" for reason, count in quantizer.kept.items())
    print(f"{len(quantizer.layers)} layers in {request.precision}; layers kept: {kept}", flush=True)
    return quantizer


def quantize_file(
    model: Path, request: ExportRequest, pictures: Sequence[Path], function_bodies: bool
) -> None:
    """Quantises an exported detector in place, see `calibrate_file`.

    Args:
        function_bodies: leave the function bodies in the file.
    """
    import onnx

    from onnx_path.nodes.attention import remove_function_bodies
    from onnx_path.tensorrt.model_for_tensorrt import save_model

    quantizer = calibrate_file(model, request, pictures)
    result = quantizer.quantize(quantizer.layers)
    if not function_bodies:
        remove_function_bodies(result)
    save_model(result, model, model.parent)
    onnx.checker.check_model(model, full_check=True)


def profiles_of(request: ExportRequest) -> dict:
    """Returns the optimization profile of each input with a dynamic size."""
    from onnx_path.tensorrt.optimization_profiles import ShapeRange

    return {
        name: ShapeRange(*(tuple(shapes[which]) for which in ShapeRange._fields))
        for name, shapes in request.sizes.profiles().items()
    }


def write_onnx(
    exported: torch.export.ExportedProgram,
    path: Path,
    function_bodies: bool = True,
    output_names: Sequence[str] = OUTPUT_NAMES,
) -> Counter[str]:
    """Writes a traced detector as an ONNX file, calls of `torch.ops.msda` as nodes of domain `msda`.

    The weights are in the file, or in <path>.data beside it if a protobuf cannot hold them. Dynamic sizes get
    the names batch, height and width.

    Args:
        exported: result of `codetr.export.traced_model.export_program` on the CPU.
        path: file to write.
        function_bodies: give nodes of domain `msda` a body of standard operators, for any ONNX runtime.
        output_names: names of the model's outputs, in order.

    Returns:
        The number of nodes by operator, without those in bodies.

    Raises:
        ImportError: onnx or onnxscript is missing.
    """
    import onnx
    import onnx_ir
    import torch
    from onnxscript import optimizer

    from onnx_path import node_names
    from onnx_path.nodes import attention
    from onnx_path.tensorrt.shape_arithmetic import remove_shape_arithmetic

    # The exporter warns of its own deprecations, and names every constant that it does not fold.
    with quiet("onnxscript.optimizer._constant_folding"), torch.no_grad():
        program = torch.onnx.export(
            exported,
            input_names=INPUT_NAMES,
            output_names=output_names,
            opset_version=attention.OPSET_VERSION,
            custom_translation_table=attention.translation_table(),
            dynamo=True,
            verbose=False,
        )
        # The exporter folds small constants only.
        limits = {"input_size_limit": LARGEST_CONSTANT, "output_size_limit": LARGEST_CONSTANT}
        optimizer.fold_constants(program.model, onnx_shape_inference=False, **limits)
    if exported.range_constraints:  # sizes that are symbols
        remove_shape_arithmetic(program.model)
        _name_sizes(program.model.graph)
    optimizer.remove_unused_nodes(program.model)
    node_names.name_by_modules(program.model.graph)
    node_names.remove_stack_traces(program.model.graph)
    counts = Counter(node.op_type for node in program.model.graph)
    if function_bodies:
        for body in attention.function_bodies(counts):
            function = onnx_ir.serde.deserialize_function(body)
            program.model.functions[function.identifier()] = function
    program.save(path)
    onnx.checker.check_model(path)
    return counts


def _name_sizes(graph) -> None:
    """Gives the dynamic sizes of inputs and outputs names in place of the trace's symbols."""
    import onnx_ir

    names = {"images": ("batch", None, "height", "width")}
    for value in (*graph.inputs, *graph.outputs):
        said = names.get(value.name, ("batch",) + (None,) * (len(value.shape) - 1))
        value.shape = onnx_ir.Shape(
            [size if isinstance(size, int) else name for size, name in zip(value.shape, said)]
        )


main = partial(run_program, export, program="python -m onnx_path.export")

if __name__ == "__main__":
    sys.exit(main())
