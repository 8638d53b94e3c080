"""Files that PyTorch runs: model.ep in its own operators, model.ts with the engine inside. Needs a GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from codetr.export_checks import INPUT_NAMES, Runner
from codetr.files import atomic_write
from codetr.torch_backend import allow_tf32

if TYPE_CHECKING:
    from codetr.exporting import Request


def save_torchscript(engine: bytes, output_names: Sequence[str], path: Path) -> None:
    """Writes a TorchScript module that runs an engine by Torch-TensorRT's runtime.

    It is called with images and image_shapes on the GPU and returns a tuple of the outputs. Whoever loads it
    imports torch_tensorrt and calls `trt_plugin.load()` before.

    Args:
        engine: serialised.
        output_names: in the order that the module returns.
        path: to write.
    """
    from torch_tensorrt.ts import embed_engine_in_new_module

    module = embed_engine_in_new_module(
        engine, input_binding_names=list(INPUT_NAMES), output_binding_names=list(output_names)
    )
    with atomic_write(path) as temporary:
        torch.jit.save(module, str(temporary))


def torchscript_runner(path: Path, request: Request) -> Runner:
    """Loads a TorchScript module with engines inside; torch_tensorrt and the plugins are there already."""
    return _runner(torch.jit.load(str(path)), request)


def program_runner(path: Path, request: Request) -> Runner:
    """Loads an exported program."""
    import msda  # noqa: F401  (the operators that it calls)

    with path.open("rb") as file:
        return _runner(torch.export.load(file).module(), request)


def _runner(module: Callable, request: Request) -> Runner:
    def run(inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        with torch.inference_mode(), allow_tf32(torch, request.precision == "tf32"):
            outputs = module(*(torch.from_numpy(inputs[name]).cuda() for name in INPUT_NAMES))
        return {
            name: output.cpu().numpy() for name, output in zip(request.output_names, outputs, strict=True)
        }

    return run
