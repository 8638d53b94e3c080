"""Weights, runs and exports of the zoo's modules (`tests.onnx.model_zoo`)."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal
from unittest import mock

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

Exporter = Literal["torchscript", "dynamo"]
Simplifier = Literal["onnxslim", "onnxsim"]
Sampling = Literal["GridSample", "gather"]


def export_module(
    model: nn.Module,
    inputs: dict[str, Tensor],
    path: Path,
    *,
    outputs: tuple[str, ...],
    exporter: Exporter,
    opset: int,
    dynamic: dict[str, dict[int, str]] | None = None,
    sampling: Sampling = "GridSample",
    double_grids: bool = False,
) -> None:
    """Exports any module as `export` does, for instance one that `build(full=True)` made."""
    options: dict = {"dynamic_axes": dynamic}
    if exporter == "dynamo":
        options = {"external_data": False, "verbose": False}
        if dynamic:
            shapes = {
                key: {axis: torch.export.Dim.DYNAMIC for axis in dynamic.get(key, ())} for key in inputs
            }
            options["dynamic_shapes"] = tuple(shapes.values())
    with quiet(), torch.no_grad(), contextlib.ExitStack() as stack:
        if exporter == "torchscript" and not double_grids:
            stack.enter_context(mock.patch.object(torch, "linspace", _linspace))
        if exporter == "torchscript" and dynamic:
            for function in ("tensor", "as_tensor"):
                stack.enter_context(mock.patch.object(torch, function, _of_sizes(getattr(torch, function))))
        if sampling == "gather":
            stack.enter_context(mock.patch.object(F, "grid_sample", gathered_samples))
        torch.onnx.export(
            model,
            tuple(inputs.values()),
            path,
            input_names=list(inputs),
            output_names=list(outputs),
            opset_version=opset,
            dynamo=exporter == "dynamo",
            **options,
        )


def msda_modules(model: nn.Module) -> list[nn.Module]:
    """The modules that project queries to offsets and weights of samples, as every MSDA does."""
    return [
        module
        for module in model.modules()
        if isinstance(getattr(module, "sampling_offsets", None), nn.Linear)
        and isinstance(getattr(module, "attention_weights", None), nn.Linear)
    ]


def run(model: nn.Module, inputs: dict[str, Tensor]) -> tuple[Tensor, ...]:
    """The model's outputs in PyTorch, in the order of `ZooModel.outputs`."""
    with quiet(), torch.no_grad():
        return model(*inputs.values())


def run_onnx(path: Path, inputs: dict[str, Tensor]) -> list[np.ndarray]:
    """The file's outputs in onnxruntime on the CPU."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(path, options, ["CPUExecutionProvider"])
    return session.run(None, {name: tensor.numpy() for name, tensor in inputs.items()})


@torch.no_grad()
def randomise(model: nn.Module) -> nn.Module:
    """Draws weights with which offsets, weights and scores differ, so that no two outputs are alike.

    Published initialisations make scores equal to the last bit: offsets and logits of MSDA start at zero
    weights, RT-DETR's batch norms at 0.01. The choice of queries would be a draw.
    """
    generator = torch.Generator().manual_seed(0)
    for name, module in model.named_modules():
        if isinstance(module, (nn.Linear, nn.Conv2d, nn.ConvTranspose2d)):
            gain = 1 if isinstance(module, nn.Linear) else 2**0.5
            module.weight.normal_(0, gain / module.weight[0].numel() ** 0.5, generator=generator)
            # The star of initial offsets stays.
            if module.bias is not None and not name.endswith("sampling_offsets"):
                module.bias.normal_(0, 0.1, generator=generator)
        elif isinstance(module, nn.Embedding):
            module.weight.normal_(0, 0.5, generator=generator)
        elif isinstance(module, (nn.BatchNorm2d, nn.LayerNorm, nn.GroupNorm)) and module.weight is not None:
            module.weight.normal_(1, 0.1, generator=generator)
            module.bias.normal_(0, 0.1, generator=generator)
    for parameter in model.parameters():
        if parameter.dim() >= 2 and (parameter == parameter.flatten()[0]).all():
            parameter.normal_(0, 0.3, generator=generator)
    return model


class Exportable(nn.Module):
    """A transformers model whose arguments are tensors by position and whose outputs are a tuple.

    Args:
        inputs: the arguments, by the model's names.
        outputs: which of the model's outputs to return.
        patches: returns context managers in which the model runs.
        fixed: arguments that become constants.
    """

    def __init__(
        self,
        model: nn.Module,
        inputs: dict[str, Tensor],
        outputs: tuple[str, ...],
        patches: Callable[[], list],
        **fixed: Tensor,
    ):
        super().__init__()
        self.model, self.names, self.outputs = model, tuple(inputs), outputs
        self.patches, self.fixed = patches, fixed

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        with contextlib.ExitStack() as stack:
            for patch in self.patches():
                stack.enter_context(patch)
            output = self.model(**dict(zip(self.names, tensors, strict=True)), **self.fixed)
        return tuple(output[name] for name in self.outputs)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without warnings, and without transformers' shape checks, which no exporter can write."""
    with warnings.catch_warnings(), mock.patch.dict(os.environ, TRANSFORMERS_DISABLE_TORCH_CHECK="1"):
        warnings.simplefilter("ignore")
        yield


def _linspace(start: float, end: float, steps: int, **options) -> Tensor:
    """torch.linspace with a type and a constant step: one cell, whatever the number of cells."""
    step = float(end - start) / max(int(steps) - 1, 1)
    dtype = options.pop("dtype", None) or torch.float32
    return start + torch.arange(steps, **options).to(dtype) * step


def _of_sizes(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """torch.tensor or torch.as_tensor that keeps traced sizes [(H, W), ...] from becoming constants."""

    def make(data, **options) -> Tensor:
        rows = data if isinstance(data, list | tuple) else ()
        if any(isinstance(size, Tensor) for row in rows if isinstance(row, list | tuple) for size in row):
            return torch.stack([torch.stack(list(row)) for row in rows])
        return function(data, **options)

    return make


def gathered_samples(
    value: Tensor,
    grid: Tensor,
    mode: str = "bilinear",
    padding_mode: str = "zeros",
    align_corners: bool = False,
) -> Tensor:
    """Bilinear grid_sample with zeros outside, by gathers: value [N, C, H, W], grid [N, Q, P, 2]."""
    if (mode, padding_mode, align_corners) != ("bilinear", "zeros", False):
        raise ValueError(f"grid_sample: not as in MSDA: {mode}, {padding_mode}, {align_corners}")
    height, width = value.shape[-2:]
    position = (grid + 1) * torch.tensor([width, height], dtype=grid.dtype) / 2 - 0.5
    corner = position.floor()
    share = position - corner
    flat, total = value.flatten(2), None
    for right, down in ((0, 0), (1, 0), (0, 1), (1, 1)):
        x, y = corner[..., 0] + right, corner[..., 1] + down
        inside = (x >= 0) & (x < width) & (y >= 0) & (y < height)
        cell = (y.clamp(0, height - 1) * width + x.clamp(0, width - 1)).long()
        weight = (share[..., 0] if right else 1 - share[..., 0]) * (
            share[..., 1] if down else 1 - share[..., 1]
        )
        index = cell.flatten(1).unsqueeze(1).expand(-1, flat.shape[1], -1)
        sample = flat.gather(2, index).unflatten(2, cell.shape[1:]) * (weight * inside).unsqueeze(1)
        total = sample if total is None else total + sample
    return total


def simplify(source: Path, target: Path, tool: Simplifier) -> None:
    """Runs onnxslim or onnxsim over a file; skips the test if it is not installed."""
    import onnx

    package = pytest.importorskip(tool, reason=f"{tool} is not installed")
    if tool == "onnxslim":
        model = package.slim(str(source))
    else:
        model, checked = package.simplify(onnx.load(source))
        if not checked:
            raise RuntimeError(f"{source.name}: onnxsim changed the outputs")
    onnx.save(model, target)
