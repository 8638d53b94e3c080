"""Runs the detector in PyTorch, on the CPU or a GPU. `load` imports Torch."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, get_args

import numpy as np

from codetr.config import Config
from codetr.detector.backend import split_device
from codetr.detector.preprocess import Preprocessor
from codetr.detector.sizes import ChosenSize
from codetr.errors import ArgumentError
from codetr.weights import choose_weights, model_config
from trt_plugin.metadata import Precision

TORCH_PRECISIONS = get_args(Precision)


class TorchBackend:
    """Runs `codetr.CoDino`. The constructor reads the configuration only; `load` reads the weights.

    Args:
        model, weights, device, precision: see `codetr.Detector`.

    Raises:
        ArgumentError: an argument is not what `codetr.Detector` expects.
    """

    batch: int | None = None

    def __init__(
        self,
        model: Any,
        weights: Any = None,
        device: str = "auto",
        precision: str | None = None,
        size: ChosenSize | None = None,
    ) -> None:
        self.precision = precision or "fp32"
        if self.precision not in TORCH_PRECISIONS:
            expected = f"expected one of {', '.join(TORCH_PRECISIONS)}"
            raise ArgumentError("precision", f"{expected}, got {precision!r}")
        self._kind, self._index = split_device(device)
        self.config = model if isinstance(model, Config) else model_config(model)
        own = isinstance(weights, Mapping)
        self._weights = weights if own else choose_weights(model, self.config, weights)
        self.class_names = self.config.label_names
        self.nms = dataclasses.asdict(self.config.nms)
        self.preprocessor = Preprocessor.of_config(self.config, size)
        self.model: Any = None
        self.description = f"{self.config.name}, PyTorch, {self.precision}"

    def load(self) -> TorchBackend:
        """Loads the weights on the device; returns the backend.

        Raises:
            ValueError: the weights are missing, damaged, or another model's.
            RuntimeError: there is no such device.
        """
        import torch

        from codetr.checkpoint import load_checkpoint
        from codetr.model import CoDino

        self.device = _torch_device(self._kind, self._index)
        self.model = CoDino(self.config).eval()
        load_checkpoint(self.model, self._weights)
        if self.precision in ("fp16", "bf16"):
            self.model.set_precision(self.precision)
        self.model.to(self.device)
        where = torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else "CPU"
        self.description = f"{self.config.name}, PyTorch {torch.__version__}, {where}, {self.precision}"
        return self

    def __call__(
        self, images: np.ndarray, image_shapes: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Runs the model, see `codetr.detector.backend.Backend`."""
        import torch

        try:
            with torch.inference_mode(), allow_tf32(torch, self.precision == "tf32"):
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
        """Frees the model."""
        self.model = None


def _torch_device(kind: str, index: int | None) -> Any:
    import torch

    if kind == "auto":
        kind = "cuda" if torch.cuda.is_available() else "cpu"
    name = kind if index is None else f"{kind}:{index}"
    if kind == "cuda" and not torch.cuda.is_available():
        raise RuntimeError(f"device {name}: PyTorch finds no GPU here (nvidia-smi shows the driver's view)")
    if index is not None and index >= torch.cuda.device_count():
        raise RuntimeError(f"device {name}: there are {torch.cuda.device_count()} GPU(s), counted from 0")
    return torch.device(name)


@contextmanager
def allow_tf32(torch: Any, allowed: bool) -> Iterator[None]:
    """Sets whether fp32 products may round their factors to TF32; restores the settings afterwards."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    matmul.allow_tf32 = cudnn.allow_tf32 = allowed
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before
