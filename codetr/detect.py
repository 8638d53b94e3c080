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
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

import numpy as np

from codetr.onnx_backend import OnnxRuntimeBackend
from codetr.postprocess import apply_nms
from codetr.preprocess import Batch, Preprocessor, load_image
from codetr.results import Detections
from codetr.sizes import Range
from codetr.tensorrt_backend import TensorRTBackend
from codetr.torch_backend import PRECISIONS, TorchBackend
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
        nms: default arguments of `codetr.postprocess.apply_nms`, "method" and "iou_threshold" among them;
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
        model: "co_dino_swin_l", "co_dino_r50", path of a configuration JSON, or `codetr.Config`; default: the
            demo model, which comes with the package. Torch only.
        weights: checkpoint file, URL, known name, or mapping of tensors. Default: the model's known weights.
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
    ) -> None:
        if not isinstance(backend, str):
            self.backend: Backend = backend
            return
        if backend not in BACKENDS:
            raise ValueError(f"backend: expected torch, onnxruntime or tensorrt, got {backend!r}")
        given = {"engine": engine, "onnx": onnx}
        for runtime, (name, _) in FILES.items():
            if given[name] is not None and runtime != backend:
                raise ValueError(f"{name}: goes with backend={runtime!r}, got backend={backend!r}")
        if backend == "torch":
            if model is None:
                if weights is not None:
                    raise ValueError("weights: goes with model, whose weights they are, got model=None")
                model = DEMO
            self.backend = TorchBackend(model, weights, device, precision, max_size, height, width)
            return
        name, kind = FILES[backend]
        file = given[name]
        if file is None:
            raise ValueError(f"{name}: expected the path of an {kind}, got None")
        for argument, value in {"model": model, "weights": weights}.items():
            if value is not None:
                raise ValueError(f"{argument}: is fixed in the {kind} {file}, leave it out")
        run_file = TensorRTBackend if backend == "tensorrt" else OnnxRuntimeBackend
        self.backend = run_file(file, device, max_size, height, width)

    @property
    def class_names(self) -> tuple[str, ...]:
        """Name of each label."""
        return self.backend.class_names

    def detect(
        self,
        images: Any,
        *,
        threshold: float = 0.3,
        nms: str | None = None,
        nms_iou: float | None = None,
        top: int | None = None,
        batch: int = 1,
    ) -> list[Detections]:
        """Detects objects in pictures of any sizes.

        Args:
            images: a path or an RGB uint8 [H, W, 3] array, or a sequence of such.
            threshold: least score.
            nms: "soft", "hard" or "none"; default as the model was published. None for a file that has it
                inside.
            nms_iou: IoU from which boxes of a class suppress each other; default and exception likewise.
            top: the most detections of a picture.
            batch: pictures in one run of the network.

        Returns:
            One `Detections` for each picture, in order.
        """
        single = isinstance(images, (str, Path, np.ndarray))
        items = [images] if single else list(images)
        if batch < 1:
            raise ValueError(f"batch: expected at least 1, got {batch}")
        results: list[Detections] = []
        for start in range(0, len(items), batch):
            chunk = [
                item if isinstance(item, np.ndarray) else load_image(item)
                for item in items[start : start + batch]
            ]
            results += self.detect_batch(chunk, threshold=threshold, nms=nms, nms_iou=nms_iou, top=top)
        return results

    def detect_batch(
        self,
        images: Sequence[np.ndarray],
        *,
        threshold: float = 0.3,
        nms: str | None = None,
        nms_iou: float | None = None,
        top: int | None = None,
    ) -> list[Detections]:
        """Runs the network once over RGB uint8 [H, W, 3] images. Arguments and result as `detect`."""
        suppression = self._suppression(nms, nms_iou)
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
