"""`python -m dynamo_path.export`: exports a detector through torch.export and Torch-TensorRT to one engine.

model.pt2 holds the program of torch.export, in PyTorch's operators. Torch-TensorRT makes model.engine of it,
one TensorRT engine that needs neither of them, with model.json beside it. model.ep (an exported program) and
model.ts (a TorchScript module) hold the same engine for programs that run it by Torch-TensorRT.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from codetr.cli.program import complain, run_program
from codetr.errors import ArgumentError
from codetr.export.output_folder import stage, staged_folder
from codetr.export.request import ExportRequest

if TYPE_CHECKING:
    import torch

    from codetr.export.traced_model import ExportSubject


def export(request: ExportRequest, *, allow_fallback: bool = False) -> int:
    """Export a detector through torch.export and Torch-TensorRT, and compare it with PyTorch.

    Writes model.pt2, model.engine, model.ep, model.ts and model.json. Without a GPU it ends after model.pt2.

    Args:
        allow_fallback: leave operators that TensorRT lacks to PyTorch. model.ep and model.ts then hold
            several engines, and there is no model.engine. Default: fail and name them.
    """
    from codetr.export.traced_model import (
        dynamic_shapes,
        example_inputs,
        export_program,
        pick_device,
        prepare,
    )
    from dynamo_path.saved_modules import write_program

    if request.quantized and allow_fallback:
        problem = f"expected fp32, tf32, fp16 or bf16 with it, got {request.precision}"
        raise ArgumentError("allow_fallback", problem)
    device = pick_device(request.device)
    if device.type == "cuda":
        import_requirements()
    with staged_folder(request.out) as folder:
        subject, ranges = prepare(request), None
        if request.quantized and device.type == "cuda":
            ranges = measure_ranges(subject, request)
        model, inputs = subject.module().to(device), example_inputs(request, device)
        with stage("export model.pt2"):
            program = export_program(model, inputs, dynamic_shapes(request))
            write_program(program, folder / "model.pt2")
        if device.type == "cuda":
            _compile(program, subject, request, folder, allow_fallback, ranges)
        written = sorted(file.name for file in folder.iterdir())
    if device.type != "cuda":
        print(f"wrote {request.out / 'model.pt2'}; stopped there: no GPU to build a TensorRT engine for")
    else:
        print(f"wrote {', '.join(written)} in {request.out}")
    return 0


def _compile(
    program: torch.export.ExportedProgram,
    subject: ExportSubject,
    request: ExportRequest,
    folder: Path,
    allow_fallback: bool,
    ranges: Mapping[str, float] | None,
) -> None:
    """Builds once, writes model.engine, model.ep, model.ts and model.json, and compares all with PyTorch."""
    from codetr.export.artifact_metadata import write_metadata
    from codetr.export.engine_check import compare_engine, compare_with_torch
    from codetr.export.traced_model import example_inputs
    from dynamo_path.engine import UnsupportedOperators, build_engine, build_with_fallback
    from dynamo_path.saved_modules import save_program, save_torchscript, saved_runner

    inputs = example_inputs(request, "cuda")
    engine, compiled, script = (folder / name for name in ("model.engine", "model.ep", "model.ts"))
    try:
        with stage("build model.engine with Torch-TensorRT") as seconds:
            plan = build_engine(program, inputs, request, ranges)
            engine.write_bytes(plan)
    except UnsupportedOperators as error:
        if not allow_fallback:
            raise
        complain("warning", f"{error}; PyTorch runs them, and there is no model.engine")
        with stage("build model.ep and model.ts with Torch-TensorRT") as seconds:
            build_with_fallback(program, inputs, request, compiled, script)
    else:
        with stage("save model.ep and model.ts"):
            save_program(plan, program, inputs, request, compiled)
            save_torchscript(plan, request.output_names, script)
    write_metadata(subject, request, folder, seconds[0])
    with stage("compare with PyTorch"):
        if engine.is_file():
            compare_engine(subject.checks, request, engine)
        for path in (compiled, script):
            compare_with_torch(subject.checks, request, path.name, saved_runner(path, request))


def measure_ranges(subject: ExportSubject, request: ExportRequest) -> dict[str, float]:
    """Returns the ranges of the layers that become 8 bits, see `quantized_layers.quantize_layers`.

    Onnxruntime measures them on an ONNX file of the same model, so that both paths quantise alike.
    """
    from codetr.export.traced_model import dynamic_shapes, example_inputs, export_program
    from onnx_path.export import calibrate_file, calibration_pictures, write_onnx

    pictures = calibration_pictures(request)  # before the export, for errors
    with tempfile.TemporaryDirectory(prefix="codetr-ranges-") as folder:
        file = Path(folder) / "model.onnx"
        with stage("export an ONNX file for the calibration"):
            program = export_program(subject.module(), example_inputs(request), dynamic_shapes(request))
            write_onnx(program, file, output_names=request.output_names)
            del program
        quantizer = calibrate_file(file, request, pictures)
    return quantizer.ranges_by_weights()


def import_requirements() -> None:
    """Imports the packages of a build, and registers the converters and the plugins.

    Raises:
        ImportError: Torch-TensorRT is missing. The message names the command that installs it.
        trt_plugin.EngineError: TensorRT, cuda-python or the plugin library is missing or cannot be loaded.
    """
    import trt_plugin
    from dynamo_path import converter
    from trt_plugin.engine_error import import_cudart

    converter.register()
    import_cudart()
    trt_plugin.load()


main = partial(run_program, export, program="python -m dynamo_path.export")

if __name__ == "__main__":
    sys.exit(main())
