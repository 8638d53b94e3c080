"""`python -m onnx_path.export`: a detector as model.onnx, model.engine and model.json, compared with PyTorch.

Without a GPU there is no engine; model.json then tells those who run model.onnx with onnxruntime the rest.
Exit status: 0 done, 1 failed, 2 wrong arguments.
"""

from __future__ import annotations

import importlib
import logging
import sys
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from codetr.cli.command import run_command
from codetr.export.engine_check import INPUT_NAMES, OUTPUT_NAMES, compare_engine
from codetr.export.request import (
    Request,
    Subject,
    dynamic_shapes,
    example_inputs,
    exported_module,
    make_parser,
    pick_device,
    prepare,
    request_from,
    stage,
    staged_folder,
    write_metadata,
)
from onnx_path import requirements
from onnx_path.optimization_profiles import Profile

if TYPE_CHECKING:
    import torch

LARGEST_CONSTANT = 2**27  # numbers that a folded tensor may have


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command with `argv` (default: sys.argv[1:]) and returns its exit status."""
    return run_command(lambda: _main(argv))


def _main(argv: Sequence[str] | None) -> int:
    parser = make_parser("python -m onnx_path.export", __doc__.partition("\n")[0].partition(": ")[2])
    parser.add_argument("--onnx-only", action="store_true", help="build no engine")
    parser.add_argument(
        "--no-function-body",
        action="store_true",
        help="leave out the standard operators that let any runtime run the MSDA nodes: for other tools with "
        "TensorRT up to 10.6, which prefers them to the plugin (our own build takes them out)",
    )
    arguments = parser.parse_args(argv)
    request = request_from(arguments)
    import_exporter()
    if not arguments.onnx_only and pick_device(request.device).type == "cuda":
        return _export_engine(request, function_bodies=not arguments.no_function_body)
    with staged_folder(request.out) as folder:
        subject = prepare(request)
        _write_onnx(subject, request, folder, not arguments.no_function_body)
        write_metadata(subject, request, folder, engine=False)
    reason = "" if arguments.onnx_only else "; stopped there: no GPU to build a TensorRT engine for"
    print(f"wrote model.onnx and model.json in {request.out}{reason}")
    return 0


def _export_engine(request: Request, function_bodies: bool) -> int:
    from onnx_path.build import build_engine, import_requirements
    from onnx_path.tensorrt_engine import Settings

    import_requirements()
    with staged_folder(request.out) as folder:
        subject = prepare(request)
        _write_onnx(subject, request, folder, function_bodies)
        with stage("build model.engine with TensorRT") as seconds:
            build_engine(
                folder / "model.onnx",
                folder / "model.engine",
                Settings(
                    profiles=profiles_of(request),
                    tf32=request.precision == "tf32",
                    timing_cache=request.timing_cache,
                    optimization_level=request.optimization_level,
                    refittable=request.refittable,
                ),
            )
        write_metadata(subject, request, folder, build_seconds=seconds[0])
        with stage("compare with PyTorch"):
            compare_engine(subject.checks, request, folder / "model.engine")
    print(f"wrote model.onnx, model.engine and model.json in {request.out}")
    return 0


def profiles_of(request: Request) -> dict[str, Profile]:
    """The profile of each input with a dynamic size."""
    return {
        name: Profile(*(tuple(shapes[which]) for which in Profile._fields))
        for name, shapes in request.sizes.profiles().items()
    }


def _write_onnx(subject: Subject, request: Request, folder: Path, function_bodies: bool) -> None:
    model, inputs = exported_module(subject), example_inputs(request)
    with stage("export model.onnx"):
        counts = export_onnx(
            model,
            inputs,
            folder / "model.onnx",
            function_bodies,
            request.output_names,
            dynamic_shapes(request),
        )
    print(
        f"model.onnx: {counts.total()} nodes, {sum(counts[name] for name in _operators())} of them MSDA",
        flush=True,
    )


def _operators() -> tuple[str, ...]:
    from onnx_path.operator import OPERATORS

    return OPERATORS


def import_exporter() -> None:
    """Imports what `export_onnx` needs.

    Raises:
        ImportError: naming what to install.
    """
    try:
        for name in requirements.GRAPH:
            importlib.import_module(name)
    except ImportError as error:
        raise ImportError(f"{error.name} is not installed: pip install 'codetr-tensorrt[onnx]'") from error


def export_onnx(
    model,
    inputs: tuple,
    path: Path,
    function_bodies: bool = True,
    output_names: Sequence[str] = OUTPUT_NAMES,
    dynamic: tuple[dict, dict] | None = None,
) -> Counter[str]:
    """Writes a detector as an ONNX file, its MSDA calls as nodes of domain `msda`.

    Weights lie in the file, or in <path>.data beside it when they exceed what protobuf can hold.

    Args:
        model: a `codetr.CoDino` or `codetr.export.graph_nms.CoDinoWithNms` on the CPU, in the file's precision.
        inputs: example images and image_shapes; their sizes are the file's where they are not dynamic.
        path: the file to write.
        function_bodies: give MSDA nodes a body of standard operators, so that any ONNX runtime can run them.
        output_names: of the model's outputs, in order.
        dynamic: of `codetr.export.request.dynamic_shapes`; these sizes have the names batch, height and width.

    Returns:
        How many nodes of each operator the file has, bodies not counted.

    Raises:
        ImportError: onnx or onnxscript is missing.
    """
    import_exporter()
    import torch

    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # the exporter's own deprecations
        exported = torch.export.export(model, inputs, dynamic_shapes=dynamic, strict=True)
    return write_onnx(exported, path, function_bodies, output_names)


def write_onnx(
    exported: torch.export.ExportedProgram,
    path: Path,
    function_bodies: bool = True,
    output_names: Sequence[str] = OUTPUT_NAMES,
) -> Counter[str]:
    """`export_onnx` of a model that is traced already."""
    import_exporter()
    import onnx
    import onnx_ir
    import torch
    from onnxscript import optimizer

    from onnx_path import constant_reshapes as shapes
    from onnx_path import node_names, operator

    with warnings.catch_warnings(), torch.no_grad(), _quiet_folding():
        warnings.simplefilter("ignore")  # the exporter's own deprecations
        program = torch.onnx.export(
            exported,
            input_names=INPUT_NAMES,
            output_names=output_names,
            opset_version=operator.OPSET_VERSION,
            custom_translation_table=operator.translation_table(),
            dynamo=True,
            verbose=False,
        )
        # The exporter folds small constants only; Swin's masks and position biases have millions of numbers.
        limits = {"input_size_limit": LARGEST_CONSTANT, "output_size_limit": LARGEST_CONSTANT}
        optimizer.fold_constants(program.model, onnx_shape_inference=False, **limits)
    if exported.range_constraints:  # sizes that are symbols
        shapes.simplify(program.model)
        _name_sizes(program.model.graph)
    optimizer.remove_unused_nodes(program.model)
    node_names.name_by_modules(program.model.graph)
    node_names.remove_stack_traces(program.model.graph)
    if function_bodies:
        for body in operator.function_bodies():
            function = onnx_ir.serde.deserialize_function(body)
            program.model.functions[function.identifier()] = function
    program.save(path)
    onnx.checker.check_model(path)
    return Counter(node.op_type for node in program.model.graph)


@contextmanager
def _quiet_folding() -> Iterator[None]:
    """Keeps away onnxscript's lines about constants that it leaves as they are, while the block runs."""

    def is_wanted(record: logging.LogRecord) -> bool:
        return not record.getMessage().startswith("Skipping constant folding")

    logger = logging.getLogger("onnxscript.optimizer._constant_folding")
    logger.addFilter(is_wanted)
    try:
        yield
    finally:
        logger.removeFilter(is_wanted)


def _name_sizes(graph) -> None:
    """Calls the dynamic sizes of inputs and outputs by what they are, not by symbols of the trace."""
    import onnx_ir

    names = {"images": ("batch", None, "height", "width")}
    for value in (*graph.inputs, *graph.outputs):
        said = names.get(value.name, ("batch",) + (None,) * (len(value.shape) - 1))
        value.shape = onnx_ir.Shape(
            [size if isinstance(size, int) else name for size, name in zip(value.shape, said)]
        )


if __name__ == "__main__":
    sys.exit(main())
