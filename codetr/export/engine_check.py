"""The photo that an export is compared on: PyTorch's detections of it, and those of what was exported."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from codetr.cli.command import complain
from codetr.detector.postprocess import apply_nms_to_batch
from codetr.detector.preprocess import Batch, Preprocessor, load_image
from codetr.detector.sizes import InputSizes
from codetr.detector.torch_backend import allow_tf32
from codetr.export.box_agreement import FP32_LEAST_SHARE, ROUNDED_LEAST_SHARE, Comparison, compare_detections

if TYPE_CHECKING:
    import torch

    from codetr.config import NmsConfig
    from codetr.export.request import Request
    from codetr.model import CoDino

INPUT_NAMES = ("images", "image_shapes")
OUTPUT_NAMES = ("boxes", "scores", "labels")
DEMO_PHOTO = Path(__file__).resolve().parents[2] / "assets" / "coffee.jpg"

Detections = tuple[np.ndarray, np.ndarray, np.ndarray]
"""boxes [N, K, 4], scores [N, K], labels [N, K]."""
Runner = Callable[[dict[str, np.ndarray]], Mapping[str, np.ndarray]]
"""Runs what was exported: inputs by name -> outputs by name."""


@dataclass(frozen=True)
class Check:
    """The photo as input of one size, and what PyTorch finds in it.

    Attributes:
        batch: the network's input.
        detections: PyTorch's by precision: "fp32", and the one asked for. With non-maximum suppression in the
            graph after `codetr.detector.postprocess`. Empty without a GPU.
    """

    batch: Batch
    detections: dict[str, Detections]


def photo_batches(request: Request, mean: tuple[float, ...], std: tuple[float, ...]) -> list[Batch]:
    """The photo at the usual size; and where sizes are dynamic also few and many images, small and large."""
    if request.photo is not None:
        photo = load_image(request.photo)
    elif DEMO_PHOTO.is_file():
        photo = load_image(DEMO_PHOTO)
    else:  # an installed package has no pictures
        y, x = np.mgrid[:480, :640]
        photo = np.stack([127.5 + 127.5 * np.sin(x * y / scale) for scale in (900, 1700, 4000)], -1).astype(
            np.uint8
        )
    batches = []
    for count, height, width in _checked_sizes(request.sizes):
        batches.append(Preprocessor(mean, std, height=height, width=width).batch(turned(photo, count)))
    return batches


def turned(photo: np.ndarray, count: int) -> list[np.ndarray]:
    """A photo so many times, each turned by another 90 degrees, so that they differ in size."""
    return [np.ascontiguousarray(np.rot90(photo, turn)) for turn in range(count)]


def _checked_sizes(sizes: InputSizes) -> list[tuple[int, int, int]]:
    """(N, H, W): the usual size first. Most and largest at once may be more than PyTorch has memory for."""
    n, h, w = sizes.batch, sizes.height, sizes.width
    chosen = [(n.opt, h.opt, w.opt), (n.max, h.min, w.min), (n.min, h.max, w.max), (n.max, h.min, w.opt)]
    return list(dict.fromkeys(chosen))


def make_checks(
    model: CoDino,
    batches: list[Batch],
    precisions: tuple[str, ...],
    device: torch.device | None,
    nms: NmsConfig | None,
) -> list[Check]:
    """Lets PyTorch detect.

    Args:
        model: brought to each precision, the last one at the end.
        batches: the photo.
        precisions: "fp32" first.
        device: None runs nothing: the checks have no detections.
        nms: what will be in the graph.
    """
    found: list[dict[str, Detections]] = [{} for _ in batches]
    for precision in precisions:
        model.set_precision("fp32" if precision == "tf32" else precision)
        if device is None:
            continue
        model.to(device)
        for batch, detections in zip(batches, found, strict=True):
            detections[precision] = detect_with_torch(model, batch, device, tf32=precision == "tf32")
            if nms is not None:  # by the reference in NumPy, not by what the graph will have inside
                detections[precision] = apply_nms_to_batch(*detections[precision], **dataclasses.asdict(nms))
    return [Check(*pair) for pair in zip(batches, found, strict=True)]


def detect_with_torch(model: CoDino, batch: Batch, device: torch.device, tf32: bool) -> Detections:
    """What a model on that device finds; `tf32`: whether fp32 products may round their factors to it."""
    import torch

    with torch.inference_mode(), allow_tf32(torch, tf32):
        images, image_shapes = (torch.from_numpy(array) for array in (batch.images, batch.image_shapes))
        outputs = model(images.to(device), image_shapes.to(device))
        boxes, scores, labels = (output.cpu().numpy() for output in outputs)
    return boxes, scores, labels


def compare(checks: list[Check], request: Request, name: str, run: Runner) -> None:
    """Runs what was exported on every check and prints how its detections compare with PyTorch's.

    Args:
        checks: of `make_checks`.
        request: precision, whether suppression is inside, whether to keep files that differ.
        name: of what runs, such as "engine".
        run: see `Runner`.

    Raises:
        RuntimeError: the detections are not PyTorch's (`codetr.export.box_agreement` says how alike they have to be), and
            the request does not ask to keep such files.
    """
    for check in checks:
        outputs = run(dict(zip(INPUT_NAMES, (check.batch.images, check.batch.image_shapes), strict=True)))
        found = tuple(np.array(outputs[name]) for name in OUTPUT_NAMES)
        if request.nms != "none":
            counts, kept = outputs["num_detections"].tolist(), (found[2] >= 0).sum(axis=1).tolist()
            if counts != kept:
                raise RuntimeError(
                    f"num_detections: expected the number of labels from 0 on {kept}, got {counts}"
                )
        n, _, h, w = check.batch.images.shape
        size = f" at {n} x {h} x {w}" if request.sizes.dynamic else ""
        comparisons = {}
        for precision, expected in check.detections.items():
            comparisons[precision] = compare_detections(expected, found)
            against = f"PyTorch {precision}{size}: {comparisons[precision]}"
            print(f"{name} {request.precision} against {against}", flush=True)
        if comparisons:
            _require_alike(comparisons["fp32"], check, request, f"{name}'s detections{size}")


def compare_engine(checks: list[Check], request: Request, engine: Path) -> None:
    """`compare` of a TensorRT engine, run without Torch."""
    import trt_plugin

    with trt_plugin.EngineRunner(engine) as runner:
        compare(checks, request, "engine", runner)


def _require_alike(found: Comparison, check: Check, request: Request, what: str) -> None:
    """Holds what was found against PyTorch's detections in fp32, and against what PyTorch in the request's
    precision makes of these."""
    if request.precision == "fp32":
        count, share, least = found.equal, found.equal_share, FP32_LEAST_SHARE
        how = "equal"
    else:
        rounded = compare_detections(check.detections["fp32"], check.detections[request.precision])
        count, share, least = found.matched, found.matched_share, ROUNDED_LEAST_SHARE * rounded.matched_share
        how = f"matched with fp32's, where PyTorch {request.precision} has {rounded.matched}"
    if share >= least:
        return
    needed = math.ceil(least * found.count)
    message = f"the {what} are not PyTorch's: expected {needed} or more of {found.count} {how}, got {count}"
    if not request.keep_unequal:
        raise RuntimeError(f"{message}; nothing is kept (--keep-unequal keeps the files)")
    complain("warning", message)
