"""The interface between `codetr.Detector` and a network, and the network's device. Imports no Torch."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from codetr.detector.preprocess import Preprocessor
from codetr.detector.sizes import SizeRange
from codetr.errors import ArgumentError


class Backend(Protocol):
    """Runs a network.

    A backend may have more, as `TensorRTBackend` does: `fork()` makes another one of the same network that a
    second thread may call at the same time. `run_images(images, image_shapes, padded)` resizes and normalises
    pictures itself, where the attribute `takes_images` is true.
    """

    preprocessor: Preprocessor  # turns pictures into the network's input
    class_names: tuple[str, ...]  # a name for each label
    # Default arguments of `codetr.apply_nms`, "method" and "iou_threshold" among them. None for a network
    # with non-maximum suppression in its graph, which gives empty rows a negative label.
    nms: Mapping[str, Any] | None
    batch: int | SizeRange | None  # images in a run, fixed or as a range; None for any number
    description: str  # model, runtime, device and precision in words

    def __call__(
        self, images: np.ndarray, image_shapes: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Maps images [N, 3, H, W], image_shapes [N, 2] to boxes [N, K, 4], scores [N, K], labels [N, K]."""

    def close(self) -> None:
        """Frees the network."""


def split_device(device: str, cpu: bool = True) -> tuple[str, int | None]:
    """Parses "auto", "cpu", "cuda" or "cuda:<number>" into a kind and a number.

    Args:
        cpu: whether "cpu" is allowed.

    Raises:
        ArgumentError: the text has another form.
    """
    match = re.fullmatch(r"(auto|cpu|cuda)(?::(\d+))?", device, re.ASCII)
    if match is None or (match[1] == "cpu" and not cpu) or (match[1] != "cuda" and match[2]):
        kinds = "auto, cpu, cuda" if cpu else "auto, cuda"
        raise ArgumentError("device", f"expected {kinds} or cuda:<number>, got {device!r}")
    return match[1], None if match[2] is None else int(match[2])
