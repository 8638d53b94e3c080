"""A model in memory, such as one in training, as a backend of `codetr.Detector`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from codetr.config import Config
from codetr.detector.sizes import ChosenSize
from codetr.detector.torch_backend import TorchBackend

if TYPE_CHECKING:
    import torch

    from codetr.model import CoDino


class LiveModel(TorchBackend):
    """Runs a `CoDino` that the caller owns, with its weights at the time of each run.

    The caller puts the model into evaluation mode, and detects by
    `codetr.Detector(backend=LiveModel(model, config, device))`. `size` has fields of
    `codetr.detector.sizes.ChosenSize`.
    """

    def __init__(self, model: CoDino, config: Config, device: torch.device | str, **size: int | None) -> None:
        super().__init__(config, {}, size=ChosenSize(**size))
        self.model, self.device = model, device

    def __call__(
        self, images: np.ndarray, image_shapes: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Runs the model under the caller's settings; see `codetr.detector.backend.Backend`."""
        import torch

        with torch.no_grad():
            inputs = (torch.from_numpy(array).to(self.device) for array in (images, image_shapes))
            boxes, scores, labels = (output.cpu().numpy() for output in self.model(*inputs))
        return boxes, scores, labels
