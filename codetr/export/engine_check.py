"""Comparison of an exported file with PyTorch: the detections of both in a photo."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

import trt_plugin
from codetr.cli.program import complain
from codetr.config import NmsConfig
from codetr.detector.postprocess import apply_nms_to_batch
from codetr.detector.preprocess import Batch, Preprocessor, load_image
from codetr.detector.torch_backend import allow_tf32
from codetr.export.box_agreement import (
    FP32_LEAST_SHARE,
    ROUNDED_LEAST_SHARE,
    BoxAgreement,
    compare_detections,
)
from codetr.export.request import INPUT_NAMES, OUTPUT_NAMES, ExportRequest
from codetr.model import CoDino

DEMO_PHOTO = Path(__file__).resolve().parents[1] / "demo" / "coffee.jpg"

DetectionArrays = tuple[np.ndarray, np.ndarray, np.ndarray]
"""boxes [N, K, 4], scores [N, K], labels [N, K]."""
Runner = Callable[[dict[str, np.ndarray]], Mapping[str, np.ndarray]]
"""Runs an exported file: inputs by name -> outputs by name."""


@dataclass(frozen=True)
class EngineCheck:
    """The photo as an input of one size, with PyTorch's detections."""

    batch: Batch
    # By precision, "fp32" and the request's; empty without a GPU. If the graph suppresses by itself, they are
    # suppressed too.
    detections: dict[str, DetectionArrays]


def photo_batches(request: ExportRequest) -> list[Batch]:
    """Prepares the photo at the size that the export is tuned for, and at the ends of dynamic sizes."""
    photo, config = load_image(request.photo or DEMO_PHOTO), request.config
    n, h, w = request.sizes.batch, request.sizes.height, request.sizes.width
    # PyTorch may lack the memory for the largest batch and size at once.
    chosen = [(n.opt, h.opt, w.opt), (n.max, h.min, w.min), (n.min, h.max, w.max), (n.max, h.min, w.opt)]
    return [
        Preprocessor(config.mean, config.std, height=height, width=width).batch(turned(photo, count))
        for count, height, width in dict.fromkeys(chosen)
    ]


def turned(photo: np.ndarray, count: int) -> list[np.ndarray]:
    """Returns `count` copies of a photo, each turned by 90 degrees more, so that they differ in size."""
    return [np.ascontiguousarray(np.rot90(photo, turn)) for turn in range(count)]


def make_checks(
    model: CoDino,
    batches: list[Batch],
    precision: str,
    device: torch.device,
    nms: NmsConfig | None,
) -> list[EngineCheck]:
    """Runs PyTorch on the photo, in fp32 and in the export's precision; on a CPU only sets the precision."""
    checks = [EngineCheck(batch, {}) for batch in batches]
    for name in dict.fromkeys(("fp32", precision)):
        model.set_precision("fp32" if name == "tf32" else name)
        for check in checks if device.type == "cuda" else ():
            detections = detect_with_torch(model.to(device), check.batch, device, tf32=name == "tf32")
            if nms is not None:  # by the reference in NumPy, which is independent of the graph's
                detections = apply_nms_to_batch(*detections, **dataclasses.asdict(nms))
            check.detections[name] = detections
    return checks


def detect_with_torch(model: CoDino, batch: Batch, device: torch.device, tf32: bool) -> DetectionArrays:
    """Detects with a model on `device`; `tf32` lets fp32 products round their factors to TF32."""
    with torch.inference_mode(), allow_tf32(torch, tf32):
        images, image_shapes = (torch.from_numpy(array) for array in (batch.images, batch.image_shapes))
        outputs = model(images.to(device), image_shapes.to(device))
        boxes, scores, labels = (output.cpu().numpy() for output in outputs)
    return boxes, scores, labels


def compare_with_torch(checks: list[EngineCheck], request: ExportRequest, name: str, run: Runner) -> None:
    """Runs an exported file on every check and prints how its detections agree with PyTorch's.

    Raises:
        RuntimeError: the detections differ from PyTorch's (`codetr.export.box_agreement` has the limits), and
            the request does not keep such files.
    """
    for check in checks:
        outputs = run(dict(zip(INPUT_NAMES, (check.batch.images, check.batch.image_shapes), strict=True)))
        found = tuple(np.array(outputs[output]) for output in OUTPUT_NAMES)
        if request.nms_method != "none":
            counts, kept = outputs["num_detections"].tolist(), (found[2] >= 0).sum(axis=1).tolist()
            if counts != kept:
                raise RuntimeError(
                    f"num_detections: expected the number of labels from 0 on {kept}, got {counts}"
                )
        n, _, h, w = check.batch.images.shape
        size = f" at {n} x {h} x {w}" if request.sizes.dynamic else ""
        agreements = {}
        for precision, expected in check.detections.items():
            agreements[precision] = compare_detections(expected, found)
            against = f"PyTorch {precision}{size}: {agreements[precision]}"
            print(f"{name} {request.precision} against {against}", flush=True)
        if agreements:
            _require_agreement(agreements["fp32"], check, request, f"{name}'s detections{size}")


def compare_engine(checks: list[EngineCheck], request: ExportRequest, engine: Path) -> None:
    """Runs a TensorRT engine without Torch and compares it, see `compare_with_torch`."""
    with trt_plugin.EngineRunner(engine) as runner:
        compare_with_torch(checks, request, "engine", runner)


def _require_agreement(found: BoxAgreement, check: EngineCheck, request: ExportRequest, what: str) -> None:
    """Raises, or warns if the request keeps such files, when too few detections agree with PyTorch's in
    fp32."""
    if request.precision == "fp32":
        count, share, least = found.equal, found.equal_share, FP32_LEAST_SHARE
        how = "equal"
    else:
        precision = request.model_precision
        rounded = compare_detections(check.detections["fp32"], check.detections[precision])
        count, share, least = found.matched, found.matched_share, ROUNDED_LEAST_SHARE * rounded.matched_share
        how = f"matched with fp32's, where PyTorch {precision} has {rounded.matched}"
    if share >= least:
        return
    needed = math.ceil(least * found.count)
    message = f"the {what} are not PyTorch's: expected {needed} or more of {found.count} {how}, got {count}"
    if not request.keep_unequal:
        raise RuntimeError(f"{message}; nothing is kept (--keep-unequal keeps the files)")
    complain("warning", message)
