"""`codetr.Detector`: pictures in, detections out, by PyTorch, onnxruntime or TensorRT.

Torch is imported for the torch backend only, onnxruntime and TensorRT for their own backends only.

    detector = Detector("co_dino_swin_l", device="cuda", precision="fp16")
    for detections in detector.detect(["street.jpg"], threshold=0.4):
        print(detections.names(), detections.boxes_xyxy_px)
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from codetr.detector.backend import Backend
from codetr.detector.file_backend import FileBackend
from codetr.detector.network_options import NetworkOptions
from codetr.detector.postprocess import NMS_METHODS, apply_nms
from codetr.detector.preprocess import Batch, BatchSizes, split_images, to_rgb
from codetr.detector.sizes import SizeRange, fixed
from codetr.errors import ArgumentError
from codetr.results import Detections


class Detector:
    """Detects objects in pictures.

    Args:
        model: "co_dino_swin_l", "co_dino_r50", the folder of a training run, path of a configuration JSON, or
            `codetr.Config`; default: the demo model, which is part of the package. For Torch only.
        weights: checkpoint file, URL, known name, or mapping of tensors. Default: the file beside the
            configuration, as in the folder of a run; else the published weights of the model.
        backend: "torch", "onnxruntime", "tensorrt", or a `codetr.detector.backend.Backend`. Default: the
            runtime of the file that `engine` or `onnx` names, else "torch".
        engine: path of a TensorRT engine, with its metadata <stem>.json beside it.
        onnx: path of an exported ONNX file, with its metadata <stem>.json beside it.
        device: "auto" (the GPU if there is one), "cpu", "cuda" or "cuda:<number>".
        precision: "fp32" (the default, TF32 off), "tf32", "fp16" or "bf16". For Torch only; exported files
            have their own.
        max_size: limit of the resized picture's longer side, pixels. For Torch, and for files with dynamic
            sizes. Default: pictures are resized as the model was published, in a file inside its range.
        height: fixed input height, with `width`; pictures are fitted into it and padded. For Torch, and for
            files with dynamic sizes: a multiple of 32 inside the file's range.
        width: fixed input width, likewise.
        imgsz: the resized picture's longer side, which may exceed the published size; or (height, width).
        labels: a name for each class, or a text file with one a line. Default: the model's.

    Raises:
        ArgumentError: a `ValueError`: an argument is wrong, or contradicts another one; a file is missing.
        ValueError: the weights are damaged or another model's.
        ImportError: onnxruntime is not installed.
        RuntimeError: there is no such device, or the engine cannot run here.
    """

    def __init__(
        self,
        model: Any = None,
        weights: Any = None,
        *,
        backend: str | Backend | None = None,
        engine: str | Path | None = None,
        onnx: str | Path | None = None,
        device: str = "auto",
        precision: str | None = None,
        max_size: int | None = None,
        height: int | None = None,
        width: int | None = None,
        imgsz: int | tuple[int, int] | None = None,
        labels: Sequence[str] | str | Path | None = None,
    ) -> None:
        named = backend is None or isinstance(backend, str)
        if named:
            backend = NetworkOptions(
                model=model,
                weights=weights,
                backend=backend,
                engine=engine,
                onnx=onnx,
                device=device,
                precision=precision,
                max_size=max_size,
                height=height,
                width=width,
                imgsz=imgsz,
            ).make_backend()
        self.backend: Backend = backend
        self.class_names: tuple[str, ...] = backend.class_names
        """Name of each label."""
        self._count_alone = threading.Lock()
        self.shrunk_images = 0
        """Number of images so far that a fixed input size made much smaller because of their orientation."""
        if labels is not None:
            self.class_names = _read_labels(labels, len(backend.class_names))
        if named:
            backend.load()

    def detect(
        self,
        images: Any,
        *,
        threshold: float = 0.3,
        nms: str | None = None,
        nms_iou: float | None = None,
        top: int | None = None,
        classes: Sequence[str | int] | None = None,
        batch: int = 1,
    ) -> list[Detections]:
        """Detects objects in pictures of any sizes.

        Args:
            images: one picture or a sequence of them. A picture is a path, a PIL image, an RGB uint8 array
                [H, W, 3], or a tensor [3, H, W], RGB, uint8 or floating from 0 to 1, on any device. An array
                or tensor with a leading batch dimension holds several.
            threshold: least score, 0 to 1.
            nms: "soft", "hard" or "none"; default: as the model was published. None for a network with
                non-maximum suppression in its graph.
            nms_iou: IoU from which boxes of a class suppress each other; default and exception as `nms`.
            top: largest number of detections in a picture.
            classes: names or labels of the classes to detect. Default: all.
            batch: pictures in one run of the network.

        Returns:
            One `Detections` for each picture, in order.

        Raises:
            ArgumentError: a `ValueError` that names the argument, what it should be and what it was.
            FileNotFoundError, codetr.detector.preprocess.ImageError: a picture cannot be read.
        """
        options = {"threshold": threshold, "nms": nms, "nms_iou": nms_iou, "top": top, "classes": classes}
        self.check_options(**options, batch=batch)
        items = split_images(images)
        results: list[Detections] = []
        for start in range(0, len(items), batch):
            results += self.detect_batch([to_rgb(item) for item in items[start : start + batch]], **options)
        return results

    def detect_batch(
        self,
        images: Sequence[np.ndarray],
        *,
        threshold: float = 0.3,
        nms: str | None = None,
        nms_iou: float | None = None,
        top: int | None = None,
        classes: Sequence[str | int] | None = None,
        backend: Backend | None = None,
    ) -> list[Detections]:
        """Runs the network once over RGB uint8 [H, W, 3] images. Arguments and result as `detect`.

        Args:
            backend: a fork of the Detector's backend, for a call beside another thread's.
        """
        backend = backend or self.backend
        suppression = self._suppression(nms, nms_iou)
        wanted = None if classes is None else labels_of(classes, self.class_names)
        preprocessor = self.backend.preprocessor
        with self._count_alone:
            self.shrunk_images += sum(preprocessor.shrinks_by_turn(*image.shape[:2]) for image in images)
        clock = [time.perf_counter()]
        if getattr(backend, "takes_images", False):
            batch = preprocessor.batch_sizes([image.shape for image in images])
        else:
            batch = preprocessor.batch(images)
        clock.append(time.perf_counter())
        outputs = self._run(backend, images, batch)
        clock.append(time.perf_counter())
        kept = []
        for index, (boxes, scores, labels) in enumerate(zip(*outputs)):
            # Non-finite rows (of an engine with damaged weights) are no detections, nor is padding.
            real = np.isfinite(scores) & np.isfinite(boxes).all(axis=-1) & (labels >= 0)
            # A box suppresses lower scores only: boxes below the threshold change none above it.
            real &= scores >= threshold
            if wanted is not None:
                real &= np.isin(labels, wanted)
            boxes = batch.restore_boxes(index, boxes[real])
            kept.append(apply_nms(boxes, scores[real], labels[real], **suppression))
        clock.append(time.perf_counter())
        seconds = np.diff(clock) / len(images)
        times = dict(zip(("preprocess", "inference", "postprocess"), (1000.0 * seconds).tolist()))
        return [
            Detections(
                boxes, scores, labels.astype(np.int64), self.class_names, *image.shape[:2], times_ms=times
            ).select(threshold, top)
            for image, (boxes, scores, labels) in zip(images, kept, strict=True)
        ]

    def check_options(
        self,
        threshold: float = 0.3,
        nms: str | None = None,
        nms_iou: float | None = None,
        top: int | None = None,
        classes: Sequence[str | int] | None = None,
        batch: int = 1,
    ) -> None:
        """Checks the arguments of `detect`; raises `ArgumentError` as `detect` does."""
        for name, number in (("threshold", threshold), ("nms_iou", nms_iou)):
            if number is not None and not 0 <= number <= 1:
                raise ArgumentError(name, f"expected a number from 0 to 1, got {number!r}")
        for name, number in (("top", top), ("batch", batch)):
            if number is not None and number < 1:
                raise ArgumentError(name, f"expected at least 1, got {number!r}")
        self._suppression(nms, nms_iou)
        if classes is not None and not labels_of(classes, self.class_names):
            raise ArgumentError("classes", "expected at least one class, got none")

    @property
    def shrunk_note(self) -> str | None:
        """A note on `shrunk_images`, if an exported file's fixed size caused them; else None."""
        if not self.shrunk_images or not isinstance(self.backend, FileBackend):
            return None
        size = f"{self.backend.preprocessor.height}x{self.backend.preprocessor.width}"
        return (
            f"{self.shrunk_images} images shrank to fit the fixed input of {size}, which suits the other "
            "orientation; --dynamic-size of an export suits both"
        )

    def _suppression(self, nms: str | None, nms_iou: float | None) -> dict[str, Any]:
        """Returns the arguments of `apply_nms`."""
        if self.backend.nms is None:
            for name, value in (("nms", nms), ("nms_iou", nms_iou)):
                if value is not None:
                    problem = f"expected none, NMS is part of the network's graph, got {value!r}"
                    raise ArgumentError(name, problem)
            return {"method": "none"}
        if nms is not None and nms not in NMS_METHODS:
            raise ArgumentError("nms", f"expected one of {', '.join(NMS_METHODS)}, got {nms!r}")
        given = {"method": nms, "iou_threshold": nms_iou}
        return {**self.backend.nms, **{name: value for name, value in given.items() if value is not None}}

    def _run(
        self, backend: Backend, images: Sequence[np.ndarray], batch: BatchSizes
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Runs a backend. A limited batch runs in parts, the last one filled up with the last image."""

        size, count = backend.batch, len(images)
        if size is None:
            return backend(batch.images, batch.image_shapes)
        fewest, _, most = size if isinstance(size, SizeRange) else fixed(size)
        parts = []
        for start in range(0, count, most):
            end = max(start + fewest, min(start + most, count))
            chosen = np.minimum(np.arange(start, end), count - 1)
            shapes = batch.image_shapes[chosen]
            if isinstance(batch, Batch):
                outputs = backend(batch.images[chosen], shapes)
            else:
                outputs = backend.run_images([images[index] for index in chosen], shapes, batch.padded)
            parts.append([output[: count - start] for output in outputs])
        boxes, scores, labels = (np.concatenate(outputs) for outputs in zip(*parts, strict=True))
        return boxes, scores, labels

    def close(self) -> None:
        """Frees the network."""
        self.backend.close()

    def __enter__(self) -> Detector:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _read_labels(labels: Sequence[str] | str | Path, expected: int) -> tuple[str, ...]:
    """Returns the class names of the argument `labels`, of which there must be `expected`."""
    if isinstance(labels, (str, Path)):
        try:
            lines = Path(labels).read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeError) as error:
            reason = getattr(error, "strerror", None) or error
            raise ArgumentError("labels", f"{labels} cannot be read ({reason})") from error
        labels = [line.strip() for line in lines if line.strip()]
    if len(labels) != expected:
        raise ArgumentError("labels", f"expected {expected} names, one for each class, got {len(labels)}")
    return tuple(labels)


def split_at_commas(classes: Sequence[str], names: Sequence[str]) -> list[str]:
    """Splits "person,car". A name of the model may have a comma itself."""
    return [part for item in classes for part in ([item] if item in names else item.split(","))]


def labels_of(classes: Sequence[str | int], names: Sequence[str]) -> list[int]:
    """Returns the label of each class, given by name or number.

    Raises:
        ArgumentError: there is no such class.
    """
    labels = []
    for item in classes:
        if item in names:
            labels.append(names.index(item))
        elif str(item).isdecimal() and int(item) < len(names):
            labels.append(int(item))
        else:
            known = ", ".join(names[:20]) + (", …" if len(names) > 20 else "")
            problem = f"expected a number below {len(names)} or one of {known}, got {item!r}"
            raise ArgumentError("classes", problem)
    return labels
