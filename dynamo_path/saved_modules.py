"""Saves an engine in files that PyTorch runs: model.ep (torch.export) and model.ts (TorchScript).

A program imports torch_tensorrt and calls `trt_plugin.load()` before it loads one of them. Both take images
and image_shapes on the GPU and return a tuple of the outputs. Writing and running them needs a GPU.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from codetr.detector.torch_backend import allow_tf32
from codetr.export.engine_check import Runner
from codetr.export.quiet_logs import quiet
from codetr.export.request import INPUT_NAMES, ExportRequest
from codetr.export.traced_model import dynamic_shapes
from trt_plugin.atomic_files import atomic_write


def save_torchscript(engine: bytes, output_names: Sequence[str], path: Path) -> None:
    """Writes a TorchScript module that runs an engine by Torch-TensorRT's runtime."""
    from torch_tensorrt.ts import embed_engine_in_new_module

    module = embed_engine_in_new_module(
        engine, input_binding_names=list(INPUT_NAMES), output_binding_names=list(output_names)
    )
    with atomic_write(path) as temporary:
        torch.jit.save(module, str(temporary))


def write_program(program: torch.export.ExportedProgram, path: Path) -> None:
    """Saves an exported program under any name. torch.export.save accepts a path only if it ends in .pt2.

    Raises:
        OSError: the file cannot be written. Torch's own writer would end the process on a full disk.
    """
    buffer = io.BytesIO()
    torch.export.save(program, buffer)
    path.write_bytes(buffer.getbuffer())


class _EngineModule(torch.nn.Module):
    """Calls an engine once, for torch.export."""

    def __init__(self, engine: torch.ScriptObject) -> None:
        super().__init__()
        self.engine = engine

    def forward(self, images: torch.Tensor, image_shapes: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(torch.ops.tensorrt.execute_engine([images, image_shapes], self.engine))


def save_program(
    engine: bytes,
    source: torch.export.ExportedProgram,
    inputs: tuple[torch.Tensor, ...],
    request: ExportRequest,
    path: Path,
) -> None:
    """Writes an exported program that runs an engine by Torch-TensorRT's runtime.

    `source` is the program that the engine was made of, with its example inputs.
    """
    from torch_tensorrt.dynamo.conversion._symbolic_shape_capture import extract_symbolic_shape_expressions
    from torch_tensorrt.dynamo.runtime import TorchTensorRTModule

    module = TorchTensorRTModule(
        engine,
        input_binding_names=list(INPUT_NAMES),
        output_binding_names=list(request.output_names),
        symbolic_shape_expressions=extract_symbolic_shape_expressions(source.module()),
    )
    # Torch logs every method of an engine that its fake class lacks, and prints the engine.
    with torch.no_grad(), quiet("torch._library.fake_class_registry"):
        program = torch.export.export(
            _EngineModule(module.engine), inputs, dynamic_shapes=dynamic_shapes(request), strict=False
        )
    write_program(program, path)


def saved_runner(path: Path, request: ExportRequest) -> Runner:
    """Loads model.ep or model.ts. torch_tensorrt and the plugins must be loaded before."""
    if path.suffix == ".ts":
        module = torch.jit.load(str(path))
    else:
        with path.open("rb") as file:
            module = torch.export.load(file).module()

    def run(inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        with torch.inference_mode(), allow_tf32(torch, request.precision == "tf32"):
            outputs = module(*(torch.from_numpy(inputs[name]).cuda() for name in INPUT_NAMES))
        return {
            name: output.cpu().numpy() for name, output in zip(request.output_names, outputs, strict=True)
        }

    return run
