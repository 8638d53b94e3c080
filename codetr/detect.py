"""The detector as a user calls it: pictures in, detections out, by PyTorch or by a TensorRT engine.

Imports Torch only for the torch backend, and TensorRT (through trt_plugin) only for the tensorrt backend.

    detector = Detector("co_dino_swin_l", device="cuda", precision="fp16")
    for detections in detector.detect(["street.jpg"], threshold=0.4):
        print(detections.names(), detections.boxes_xyxy_px)
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

import numpy as np

from codetr.postprocess import apply_nms
from codetr.preprocess import Batch, Preprocessor, load_image
from codetr.results import Detections
from codetr.weights import DEMO

__all__ = ["Backend", "Detections", "Detector", "TensorRTBackend", "TorchBackend"]

PRECISIONS = ("fp32", "tf32", "fp16", "bf16")
NMS_METHODS = ("soft", "hard", "none")


class Backend(Protocol):
    """What runs the network.

    Attributes:
        preprocessor: pictures to the network's input.
        class_names: a name for each label.
        nms: default arguments of `codetr.postprocess.apply_nms`, "method" and "iou_threshold" among them.
        batch: the fixed number of images of a run, None if any number goes.
        description: model, runtime, device and precision in words.
    """

    preprocessor: Preprocessor
    class_names: tuple[str, ...]
    nms: Mapping[str, Any]
    batch: int | None
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
        backend: "torch", "tensorrt", or an object like `Backend`.
        engine: path of the TensorRT engine, with its metadata <stem>.json beside it. TensorRT only.
        device: "auto" (the GPU if there is one), "cpu", "cuda" or "cuda:i".
        precision: "fp32" (TF32 off), "tf32", "fp16" or "bf16". Torch only; an engine has its own.
        max_size: limit of the resized picture's longer side, pixels. Torch only.
        height: fixed input height, with `width`; pictures are fitted into it and padded. Torch only.
        width: fixed input width.

    Raises:
        ValueError: an argument is unknown, missing, or contradicts the backend.
        RuntimeError: there is no such device, or the engine cannot run here.
    """

    def __init__(
        self,
        model: Any = None,
        weights: Any = None,
        *,
        backend: str | Backend = "torch",
        engine: str | Path | None = None,
        device: str = "auto",
        precision: str = "fp32",
        max_size: int | None = None,
        height: int | None = None,
        width: int | None = None,
    ) -> None:
        if backend == "torch":
            if model is None:
                if weights is not None:
                    raise ValueError("weights: goes with model, whose weights they are, got model=None")
                model = DEMO
            if engine is not None:
                raise ValueError("engine: goes with backend='tensorrt', got backend='torch'")
            self.backend: Backend = TorchBackend(model, weights, device, precision, max_size, height, width)
        elif backend == "tensorrt":
            if engine is None:
                raise ValueError("engine: expected the path of a TensorRT engine, got None")
            given = {
                "model": model,
                "weights": weights,
                "max_size": max_size,
                "height": height,
                "width": width,
            }
            for name, value in given.items():
                if value is not None:
                    raise ValueError(f"{name}: is fixed in the engine {engine}, leave it out")
            self.backend = TensorRTBackend(engine, device)
        elif isinstance(backend, str):
            raise ValueError(f"backend: expected torch or tensorrt, got {backend!r}")
        else:
            self.backend = backend

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
            nms: "soft", "hard" or "none"; default as the model was published.
            nms_iou: IoU from which boxes of a class suppress each other; default as the model was published.
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
        suppression = dict(self.backend.nms)
        if nms is not None:
            if nms not in NMS_METHODS:
                raise ValueError(f"nms: expected one of {', '.join(NMS_METHODS)}, got {nms!r}")
            suppression["method"] = nms
        if nms_iou is not None:
            suppression["iou_threshold"] = nms_iou
        started = time.perf_counter()
        batch = self.backend.preprocessor.batch(images)
        prepared = time.perf_counter()
        all_boxes, all_scores, all_labels = self._run(batch)
        inferred = time.perf_counter()
        kept = []
        for index in range(len(images)):
            # Rows that are not finite (an engine fed with damaged weights) are no detections.
            finite = np.isfinite(all_scores[index]) & np.isfinite(all_boxes[index]).all(axis=-1)
            boxes = batch.restore_boxes(index, all_boxes[index][finite])
            scores = np.asarray(all_scores[index][finite], dtype=np.float32)
            labels = np.asarray(all_labels[index][finite], dtype=np.int64)
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

    def _run(self, batch: Batch) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Runs the backend; if its batch is fixed, in parts of it, the last filled up with the last image."""
        size = self.backend.batch
        count = len(batch.images)
        if size is None:
            return self.backend(batch.images, batch.image_shapes)
        parts = []
        for start in range(0, count, size):
            chosen = np.minimum(np.arange(start, start + size), count - 1)
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


class TorchBackend:
    """Runs `codetr.CoDino` in PyTorch. Arguments as `Detector`."""

    batch: int | None = None

    def __init__(
        self,
        model: Any,
        weights: Any = None,
        device: str = "auto",
        precision: str = "fp32",
        max_size: int | None = None,
        height: int | None = None,
        width: int | None = None,
    ) -> None:
        if precision not in PRECISIONS:
            raise ValueError(f"precision: expected one of {', '.join(PRECISIONS)}, got {precision!r}")
        import torch

        import codetr

        self._torch = torch
        self.device = _torch_device(device)
        self.precision = precision
        config = codetr.load_config(model) if isinstance(model, (str, Path)) else model
        if weights is None:
            from codetr.weights import KNOWN_WEIGHTS

            if config.name not in KNOWN_WEIGHTS:
                known = ", ".join(KNOWN_WEIGHTS)
                raise ValueError(
                    f"weights: none are known for model {config.name!r} (known: {known}), give a checkpoint"
                )
            weights = config.name
        self.model = codetr.CoDino(config).eval()
        codetr.load_checkpoint(self.model, weights)
        if precision in ("fp16", "bf16"):
            self.model.set_precision(precision)
        self.model.to(self.device)
        self.class_names = config.label_names
        self.nms = dataclasses.asdict(config.nms)
        self.preprocessor = make_preprocessor(config, max_size, height, width)
        self.description = f"{config.name}, PyTorch {torch.__version__}, {self._device_name()}, {precision}"

    def __call__(
        self, images: np.ndarray, image_shapes: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Runs the model; see `Backend`."""
        torch = self._torch
        try:
            with torch.inference_mode(), _tf32(torch, self.precision == "tf32"):
                outputs = self.model(
                    torch.from_numpy(images).to(self.device), torch.from_numpy(image_shapes).to(self.device)
                )
                boxes, scores, labels = (output.cpu().numpy() for output in outputs)
        except torch.OutOfMemoryError:
            count, _, height, width = images.shape
            raise RuntimeError(
                f"out of GPU memory with {count} image(s) of {height}x{width}: "
                "lower --batch or --max-size, or use --precision fp16"
            ) from None
        return boxes, scores, labels

    def close(self) -> None:
        """Drops the model."""
        self.model = None

    def _device_name(self) -> str:
        return self._torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else "CPU"


class TensorRTBackend:
    """Runs an engine through `trt_plugin`, without Torch. What else it needs is in the metadata beside it.

    Args:
        engine: path of the engine; <stem>.json lies beside it.
        device: "auto", "cuda" or "cuda:i".
    """

    def __init__(self, engine: str | Path, device: str = "auto") -> None:
        engine = Path(engine)
        metadata_path = engine.with_suffix(".json")
        if not engine.is_file():
            raise FileNotFoundError(f"{engine}: no such file")
        if not metadata_path.is_file():
            raise FileNotFoundError(f"{metadata_path}: no such file; an engine's metadata lies beside it")
        kind, _, index = "cuda".partition(":") if device == "auto" else device.partition(":")
        if kind != "cuda" or not (index == "" or index.isdecimal()):
            raise ValueError(f"device: an engine runs on auto, cuda or cuda:<number>, got {device!r}")
        import trt_plugin

        metadata = trt_plugin.ArtifactMetadata.load(metadata_path)
        self._runner = trt_plugin.EngineRunner(engine, device=int(index or 0))
        try:
            metadata.check_engine(metadata_path, self._runner.inputs, self._runner.outputs)
        except trt_plugin.EngineError:
            self._runner.close()
            raise
        self.class_names = tuple(metadata.class_names)
        self.nms = dict(metadata.nms)
        self.batch = metadata.batch
        self.preprocessor = Preprocessor(
            tuple(metadata.mean),
            tuple(metadata.std),
            height=metadata.resize["height"],
            width=metadata.resize["width"],
        )
        self.description = (
            f"{metadata.model}, TensorRT {metadata.tensorrt_version}, {metadata.gpu}, {metadata.precision}"
        )

    def __call__(
        self, images: np.ndarray, image_shapes: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Runs the engine; see `Backend`."""
        outputs = self._runner({"images": images, "image_shapes": image_shapes})
        return outputs["boxes"], outputs["scores"], outputs["labels"]

    def close(self) -> None:
        """Frees the engine."""
        self._runner.close()


def make_preprocessor(
    config: Any, max_size: int | None = None, height: int | None = None, width: int | None = None
) -> Preprocessor:
    """Builds the preprocessing of a `codetr.Config`, with the longer side limited or a fixed input size."""
    if height is not None or width is not None:
        if max_size is not None:
            raise ValueError("max_size: does not go with a fixed height and width")
        return Preprocessor(config.mean, config.std, height=height, width=width)
    long_side, short_side = max(config.resize_scale), min(config.resize_scale)
    if max_size is not None:
        if max_size < 1:
            raise ValueError(f"max_size: expected a positive number of pixels, got {max_size}")
        long_side, short_side = min(long_side, max_size), min(short_side, max_size)
    return Preprocessor(config.mean, config.std, scale=(long_side, short_side))


def _torch_device(device: str) -> Any:
    """Turns "auto", "cpu", "cuda" or "cuda:i" into a torch.device that exists here."""
    import torch

    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    kind, _, index = device.partition(":")
    if kind not in ("cpu", "cuda") or (index and not (kind == "cuda" and index.isdecimal())):
        raise ValueError(f"device: expected auto, cpu, cuda or cuda:<number>, got {device!r}")
    if kind == "cuda":
        if not torch.cuda.is_available():
            raise RuntimeError(
                f"device {device}: PyTorch finds no GPU here (nvidia-smi shows the driver's view)"
            )
        if index and int(index) >= torch.cuda.device_count():
            raise RuntimeError(
                f"device {device}: there are {torch.cuda.device_count()} GPU(s), counted from 0"
            )
    return torch.device(device)


@contextmanager
def _tf32(torch: Any, allowed: bool) -> Iterator[None]:
    """Sets whether fp32 products may round their factors to TF32, and puts the caller's settings back."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    matmul.allow_tf32 = cudnn.allow_tf32 = allowed
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before
