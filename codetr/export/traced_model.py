"""The model that both export paths trace: loaded in the request's precision, with its example inputs."""

from __future__ import annotations

import contextlib
import dataclasses
from dataclasses import dataclass
from typing import Any

import torch
from torch.export import Dim

from codetr.checkpoint import load_checkpoint
from codetr.config import NmsConfig
from codetr.detector.sizes import SIZE_DIVISOR
from codetr.errors import ArgumentError
from codetr.export.engine_check import EngineCheck, make_checks, photo_batches
from codetr.export.graph_nms import CoDinoWithNms
from codetr.export.output_folder import stage
from codetr.export.quiet_logs import quiet
from codetr.export.request import ExportRequest, size_note
from codetr.model import CoDino


@dataclass(frozen=True)
class ExportSubject:
    """A loaded model with the photo for the comparison."""

    model: CoDino  # on the CPU, in the request's precision
    nms: NmsConfig | None  # non-maximum suppression in the graph, or None
    checks: list[EngineCheck]  # the photo, first at the size that the export is tuned for
    source_weights: str  # path, URL or name of the checkpoint

    def module(self) -> torch.nn.Module:
        """Returns the module to trace: the model, followed by its non-maximum suppression if there is one."""
        return self.model if self.nms is None else CoDinoWithNms(self.model, self.nms.iou_threshold)


def pick_device(device: str) -> torch.device:
    """Turns "auto", "cpu" or "cuda" into a device of this machine."""
    if device == "cuda" and not torch.cuda.is_available():
        raise ArgumentError("device", "expected a GPU that PyTorch finds (nvidia-smi lists them), got 'cuda'")
    return torch.device("cuda" if device != "cpu" and torch.cuda.is_available() else "cpu")


def prepare(request: ExportRequest) -> ExportSubject:
    """Loads model and photo. With a GPU, PyTorch detects in the photo, in float32 and the request's
    precision.

    Prints a note if the input's size is far from the model's.

    Raises:
        ArgumentError: an option has a wrong value.
        ValueError, OSError: weights, photo or size do not fit.
    """
    device, config = pick_device(request.device), request.config
    note = size_note(request.sizes, config)
    if note is not None:
        print(f"note: {note}", flush=True)
    batches = photo_batches(request)
    with stage(f"load {config.name}, weights {request.source_weights}"):
        model = load_model(request, [batch.images.shape for batch in batches])
    nms = None
    if request.nms_method != "none":
        iou = config.nms.iou_threshold if request.nms_iou is None else request.nms_iou
        nms = dataclasses.replace(config.nms, method=request.nms_method, iou_threshold=iou)
    names = " and ".join(dict.fromkeys(("fp32", request.model_precision)))
    with stage(f"detect with PyTorch {names}") if device.type == "cuda" else contextlib.nullcontext():
        checks = make_checks(model, batches, request.model_precision, device, nms)
    return ExportSubject(model.cpu(), nms, checks, request.source_weights)


def load_model(request: ExportRequest, shapes: list[tuple[int, ...]]) -> CoDino:
    """Loads the model on the CPU in float32, in the form for exports of the request's sizes.

    Raises:
        ValueError, OSError: the weights do not fit, or the model refuses one of the shapes [N, 3, H, W].
    """
    model = CoDino(request.config).eval().requires_grad_(False)
    # Without values, so that a size that the model refuses raises before the weights are loaded.
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    meta = {name: tensor.to("meta") for name, tensor in tensors.items()}
    for shape in shapes:
        inputs = torch.empty(shape, device="meta"), torch.empty(shape[0], 2, device="meta")
        with torch.no_grad():
            torch.func.functional_call(model, meta, inputs)
    if request.sizes.resizable:
        _check_smallest(model, min(request.sizes.height.min, request.sizes.width.min))
    load_checkpoint(model, request.source_weights)
    model.fold_batch_norms()
    model.fold_position_biases()
    model.write_out_group_norms()
    model.write_out_linears()
    return model


def export_program(
    model: torch.nn.Module,
    inputs: tuple[torch.Tensor, ...],
    dynamic: tuple[dict, dict] | None = None,
) -> torch.export.ExportedProgram:
    """Traces `ExportSubject.module()` strictly, with `example_inputs` and `dynamic_shapes`."""
    with quiet(), torch.no_grad():
        return torch.export.export(model, inputs, dynamic_shapes=dynamic, strict=True)


def example_inputs(
    request: ExportRequest, device: str | torch.device = "cpu"
) -> tuple[torch.Tensor, torch.Tensor]:
    """Makes the arguments of the trace: images [N, 3, H, W] fp32 and image_shapes [N, 2] int64.

    torch.export takes a dynamic size for a fixed one if it is 1 or equals another size. The sizes avoid both.
    """
    sizes = request.sizes
    n, h, w = sizes.batch.opt, sizes.height.opt, sizes.width.opt
    if sizes.batch.dynamic:
        n = max(2, n)
    if h == w and sizes.width.dynamic:
        w = sizes.width.min if w > sizes.width.min else sizes.width.max
    return torch.zeros(n, 3, h, w, device=device), torch.tensor([[h, w]], device=device).repeat(n, 1)


def dynamic_shapes(request: ExportRequest) -> tuple[dict, dict] | None:
    """Returns the argument `dynamic_shapes` of `torch.export.export`; None if all sizes are fixed."""
    sizes = request.sizes
    if not sizes.dynamic:
        return None
    images: dict[int, Any] = {}
    if sizes.batch.dynamic:
        images[0] = Dim("batch", min=sizes.batch.min, max=sizes.batch.max)
    for axis, name, size in ((2, "rows", sizes.height), (3, "columns", sizes.width)):
        if size.dynamic:  # a multiple, so that torch.export knows every division by a stride to be exact
            units = Dim(name, min=size.min // SIZE_DIVISOR, max=size.max // SIZE_DIVISOR)
            images[axis] = SIZE_DIVISOR * units
    return images, {axis: size for axis, size in images.items() if axis == 0}


def _check_smallest(model: CoDino, smallest: int) -> None:
    """Refuses sizes whose coarsest level is one cell wide: torch.export treats a size of 1 as a constant."""
    coarsest = model.backbone.first_stride << (model.config.num_levels - 1)  # pixels of a cell
    if smallest <= coarsest:
        least = (coarsest // SIZE_DIVISOR + 1) * SIZE_DIVISOR
        raise ArgumentError(
            "dynamic_size",
            f"expected sizes from {least} on, where the coarsest level of {model.config.name} has two cells, "
            f"got {smallest}",
        )
