"""The detector as a user calls it: pictures in, detections out, by PyTorch, onnxruntime or TensorRT.

Imports Torch only for the torch backend, onnxruntime only for its own, and TensorRT (through trt_plugin) only
for the tensorrt backend.

    detector = Detector("co_dino_swin_l", device="cuda", precision="fp16")
    for detections in detector.detect(["street.jpg"], threshold=0.4):
        print(detections.names(), detections.boxes_xyxy_px)
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

import numpy as np

from codetr.detector.onnxruntime_backend import OnnxRuntimeBackend
from codetr.detector.postprocess import apply_nms
from codetr.detector.preprocess import Batch, Preprocessor, split_images, to_rgb
from codetr.detector.sizes import Range
from codetr.detector.tensorrt_backend import TensorRTBackend
from codetr.detector.torch_backend import PRECISIONS, TorchBackend
from codetr.results import Detections
from codetr.weights import DEMO

__all__ = [
    "BACKENDS",
    "FILES",
    "NMS_METHODS",
    "PRECISIONS",
    "Backend",
    "Detections",
    "Detector",
    "OnnxRuntimeBackend",
    "TensorRTBackend",
    "TorchBackend",
]

BACKENDS = ("torch", "onnxruntime", "tensorrt")
NMS_METHODS = ("soft", "hard", "none")
FILES = {"tensorrt": ("engine", "engine"), "onnxruntime": ("onnx", "ONNX file")}
"""What a backend runs, where that is a file: the argument that names it, and what to call it."""


class Backend(Protocol):
    """What runs the network.

    Attributes:
        preprocessor: pictures to the network's input.
        class_names: a name for each label.
        nms: default arguments of `codetr.detector.postprocess.apply_nms`, "method" and "iou_threshold" among them;
            None if the network suppresses by itself. Rows that it leaves empty have a negative label.
        batch: the fixed number of images of a run, or how few and many, None if any number goes.
        description: model, runtime, device and precision in words.
    """

    preprocessor: Preprocessor
    class_names: tuple[str, ...]
    nms: Mapping[str, Any] | None
    batch: int | Range | None
    description: str

    def __call__(
        self, images: np.ndarray, image_shapes: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Maps images [N, 3, H, W], image_shapes [N, 2] to boxes [N, K, 4], scores [N, K], labels [N, K]."""

    def close(self) -> None:
        """Frees what the backend holds."""


class Detector:
    """Detects objects in pictures.

    Args:
        model: "co_dino_swin_l", "co_dino_r50", the folder of a training run, path of a configuration JSON, or
            `codetr.Config`; default: the demo model, which comes with the package. Torch only.
        weights: checkpoint file, URL, known name, or mapping of tensors. Default: those beside the
            configuration, as in the folder of a run; else those that the model was published with.
        backend: "torch", "onnxruntime", "tensorrt", or an object like `Backend`.
        engine: path of the TensorRT engine, with its metadata <stem>.json beside it. TensorRT only.
        onnx: path of the exported ONNX file, with its metadata <stem>.json beside it. onnxruntime only.
        device: "auto" (the GPU if there is one), "cpu", "cuda" or "cuda:i".
        precision: "fp32" (TF32 off), "tf32", "fp16" or "bf16". Torch only; the files have their own.
        max_size: limit of the resized picture's longer side, pixels. For Torch, and for files with dynamic
            sizes. Default: pictures are resized as the model was published, in a file inside its range.
        height: fixed input height, with `width`; pictures are fitted into it and padded. For Torch, and for
            files with dynamic sizes: a multiple of 32 inside the file's range.
        width: fixed input width, likewise.
        imgsz: the resized picture's longer side, which may exceed the published size; or (height, width).
        labels: a name for each class, or a file with one a line. Default: the model's.

    Raises:
        ValueError: an argument is unknown, missing, or contradicts the backend; the weights or the ONNX file
            are not what they should be.
        FileNotFoundError: there is no such engine or ONNX file, or no metadata beside it.
        ImportError: onnxruntime is not installed.
        RuntimeError: there is no such device, or the engine cannot run here.
    """

    def __init__(
        self,
        model: Any = None,
        weights: Any = None,
        *,
        backend: str | Backend = "torch",
        engine: str | Path | None = None,
        onnx: str | Path | None = None,
        device: str = "auto",
        precision: str = "fp32",
        max_size: int | None = None,
        height: int | None = None,
        width: int | None = None,
        imgsz: int | tuple[int, int] | None = None,
        labels: Sequence[str] | str | Path | None = None,
    ) -> None:
        if imgsz is not None and (max_size, height, width) != (None, None, None):
            raise ValueError("imgsz: does not go with max_size, height and width")
        if isinstance(imgsz, int):
            max_size = imgsz
        elif imgsz is not None:
            height, width = imgsz
        self.backend = _make_backend(
            model,
            weights,
            backend,
            {"engine": engine, "onnx": onnx},
            device,
            precision,
            max_size,
            height,
            width,
        )
        if isinstance(imgsz, int):
            self.backend.preprocessor = replace(self.backend.preprocessor, scale=(imgsz, imgsz))
        self.class_names: tuple[str, ...] = self.backend.class_names
        """Name of each label."""
        self.shrunk_images = 0
        """Images so far that a fixed input size made much smaller because of their orientation."""
        if labels is not None:
            try:
                self.rename_classes(labels)
            except ValueError:
                self.close()
                raise

    def rename_classes(self, labels: Sequence[str] | str | Path) -> None:
        """Gives the classes other names.

        Args:
            labels: a name for each class, or a text file with one a line.

        Raises:
            ValueError: the file cannot be read, or the number of names is not the model's.
        """
        if isinstance(labels, (str, Path)):
            try:
                lines = Path(labels).read_text(encoding="utf-8").splitlines()
            except (OSError, UnicodeError) as error:
                reason = getattr(error, "strerror", None) or error
                raise ValueError(f"labels: {labels} cannot be read ({reason})") from error
            labels = [line.strip() for line in lines if line.strip()]
        expected = len(self.class_names)
        if len(labels) != expected:
            raise ValueError(f"labels: expected {expected} names, one for each class, got {len(labels)}")
        self.class_names = tuple(labels)

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
                or tensor with a batch dimension in front holds several.
            threshold: least score, 0 to 1.
            nms: "soft", "hard" or "none"; default as the model was published. None for a file that has it
                inside.
            nms_iou: IoU from which boxes of a class suppress each other; default and exception likewise.
            top: the most detections of a picture.
            classes: only these, by name or label.
            batch: pictures in one run of the network.

        Returns:
            One `Detections` for each picture, in order.

        Raises:
            ValueError: naming the argument, what it should be and what it was.
            FileNotFoundError, codetr.detector.preprocess.ImageError: a picture cannot be read.
        """
        options = {"threshold": threshold, "nms": nms, "nms_iou": nms_iou, "top": top, "classes": classes}
        self.check_options(**options)
        if batch < 1:
            raise ValueError(f"batch: expected at least 1, got {batch}")
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
    ) -> list[Detections]:
        """Runs the network once over RGB uint8 [H, W, 3] images. Arguments and result as `detect`."""
        suppression = self._suppression(nms, nms_iou)
        wanted = None if classes is None else _labels_of(classes, self.class_names)
        shrinks = self.backend.preprocessor.shrinks_by_turn
        self.shrunk_images += sum(shrinks(*image.shape[:2]) for image in images)
        started = time.perf_counter()
        batch = self.backend.preprocessor.batch(images)
        prepared = time.perf_counter()
        all_boxes, all_scores, all_labels = self._run(batch)
        inferred = time.perf_counter()
        kept = []
        for index in range(len(images)):
            # Rows that are not finite (an engine fed with damaged weights) are no detections, nor is padding.
            finite = np.isfinite(all_scores[index]) & np.isfinite(all_boxes[index]).all(axis=-1)
            real = finite & (all_labels[index] >= 0)
            if wanted is not None:
                real &= np.isin(all_labels[index], wanted)
            boxes = batch.restore_boxes(index, all_boxes[index][real])
            scores = np.asarray(all_scores[index][real], dtype=np.float32)
            labels = np.asarray(all_labels[index][real], dtype=np.int64)
            kept.append(apply_nms(boxes, scores, labels, **suppression))
        finished = time.perf_counter()
        share = 1000.0 / len(images)
        times = {
            "preprocess": (prepared - started) * share,
            "inference": (inferred - prepared) * share,
            "postprocess": (finished - inferred) * share,
        }
        return [
            Detections(
                np.asarray(boxes, dtype=np.float32),
                np.asarray(scores, dtype=np.float32),
                np.asarray(labels, dtype=np.int64),
                self.class_names,
                *image.shape[:2],
                times_ms=times,
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
    ) -> None:
        """Checks the arguments of `detect`.

        Raises:
            ValueError: naming the argument, what it should be and what it was.
        """
        for name, number in (("threshold", threshold), ("nms_iou", nms_iou)):
            if number is not None and not 0 <= number <= 1:
                raise ValueError(f"{name}: expected a number from 0 to 1, got {number!r}")
        if top is not None and top < 1:
            raise ValueError(f"top: expected at least 1, got {top!r}")
        self._suppression(nms, nms_iou)
        if classes is not None:
            _labels_of(classes, self.class_names)

    def _suppression(self, nms: str | None, nms_iou: float | None) -> dict[str, Any]:
        """The arguments of `apply_nms`."""
        if self.backend.nms is None:
            for name, value in (("nms", nms), ("nms_iou", nms_iou)):
                if value is not None:
                    raise ValueError(
                        f"{name}: expected None, the network suppresses by itself, got {value!r}"
                    )
            return {"method": "none"}
        if nms is not None and nms not in NMS_METHODS:
            raise ValueError(f"nms: expected one of {', '.join(NMS_METHODS)}, got {nms!r}")
        given = {"method": nms, "iou_threshold": nms_iou}
        return {**self.backend.nms, **{name: value for name, value in given.items() if value is not None}}

    def _run(self, batch: Batch) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Runs the backend; if its batch has limits, in parts, the last filled up with the last image."""
        size = self.backend.batch
        count = len(batch.images)
        if size is None:
            return self.backend(batch.images, batch.image_shapes)
        fewest, most = (size.min, size.max) if isinstance(size, Range) else (size, size)
        parts = []
        for start in range(0, count, most):
            end = max(start + fewest, min(start + most, count))
            chosen = np.minimum(np.arange(start, end), count - 1)
            outputs = self.backend(batch.images[chosen], batch.image_shapes[chosen])
            parts.append([output[: count - start] for output in outputs])
        boxes, scores, labels = (np.concatenate(outputs) for outputs in zip(*parts, strict=True))
        return boxes, scores, labels

    def close(self) -> None:
        """Frees the model or the engine."""
        self.backend.close()

    def __enter__(self) -> Detector:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _make_backend(
    model: Any,
    weights: Any,
    backend: str | Backend,
    files: Mapping[str, str | Path | None],
    device: str,
    precision: str,
    max_size: int | None,
    height: int | None,
    width: int | None,
) -> Backend:
    """Makes the backend of a `Detector`'s arguments; `files` has the engine and the ONNX file."""
    if not isinstance(backend, str):
        return backend
    if backend not in BACKENDS:
        raise ValueError(f"backend: expected torch, onnxruntime or tensorrt, got {backend!r}")
    for runtime, (name, _) in FILES.items():
        if files[name] is not None and runtime != backend:
            raise ValueError(f"{name}: goes with backend={runtime!r}, got backend={backend!r}")
    if backend == "torch":
        if model is None:
            if weights is not None:
                raise ValueError("weights: goes with model, whose weights they are, got model=None")
            model = DEMO
        return TorchBackend(model, weights, device, precision, max_size, height, width)
    name, kind = FILES[backend]
    file = files[name]
    if file is None:
        raise ValueError(f"{name}: expected the path of an {kind}, got None")
    for argument, value in {"model": model, "weights": weights}.items():
        if value is not None:
            raise ValueError(f"{argument}: is fixed in the {kind} {file}, leave it out")
    run_file = TensorRTBackend if backend == "tensorrt" else OnnxRuntimeBackend
    return run_file(file, device, max_size, height, width)


def _labels_of(classes: Sequence[str | int], names: Sequence[str]) -> list[int]:
    """Returns the label of each class, given by name or number.

    Raises:
        ValueError: naming the first that is none.
    """
    labels = []
    for item in classes:
        if item in names:
            labels.append(names.index(item))
        elif str(item).isdecimal() and int(item) < len(names):
            labels.append(int(item))
        else:
            known = ", ".join(names[:20]) + (", …" if len(names) > 20 else "")
            raise ValueError(f"classes: expected a number below {len(names)} or one of {known}, got {item!r}")
    return labels
