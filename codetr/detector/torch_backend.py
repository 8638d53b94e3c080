"""Runs the detector in PyTorch, on the CPU or a GPU. Torch is imported when a backend is made."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from codetr.detector.preprocess import make_preprocessor

PRECISIONS = ("fp32", "tf32", "fp16", "bf16")


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
            from codetr.weights import KNOWN_WEIGHTS, default_weights

            weights = default_weights(model, config)
            if weights is None:
                known = ", ".join(KNOWN_WEIGHTS)
                raise ValueError(
                    f"weights: none are known for model {config.name!r} (known: {known}), give a checkpoint"
                )
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
        """Drops the model."""
        self.model = None

    def _device_name(self) -> str:
        return self._torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else "CPU"


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
def allow_tf32(torch: Any, allowed: bool) -> Iterator[None]:
    """Sets whether fp32 products may round their factors to TF32, and puts the caller's settings back."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    matmul.allow_tf32 = cudnn.allow_tf32 = allowed
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before
