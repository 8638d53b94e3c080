"""A model in memory, such as one in training, as a backend of `codetr.Detector`."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np

from codetr.config import Config
from codetr.detector.preprocess import Preprocessor
from codetr.detector.sizes import ChosenSize

if TYPE_CHECKING:
    import torch

    from codetr.model import CoDino


class LiveModel:
    """Runs a `CoDino` that the caller owns, with its weights at the time of each run.

    The training mode of its modules, its device and the caller's TF32 setting stay as they are.

        detector = codetr.Detector(backend=LiveModel(model, config, device))
        metrics = evaluate(detector, dataset, batch=16)

    Args:
        model: the model, without a wrapper such as DistributedDataParallel.
        config: of the model.
        device: of the model.
        height, width: fixed input size. Default: pictures are resized as the configuration says.
    """

    batch: int | None = None

    def __init__(
        self,
        model: CoDino,
        config: Config,
        device: torch.device | str,
        *,
        height: int | None = None,
        width: int | None = None,
    ) -> None:
        self.model = model
        self.device = device
        self.class_names = config.label_names
        self.nms = dataclasses.asdict(config.nms)
        self.preprocessor = Preprocessor.of_config(config, ChosenSize(height=height, width=width))
        self.description = f"{config.name}, PyTorch, {device}, in memory"

    def __call__(
        self, images: np.ndarray, image_shapes: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Runs the model; see `codetr.detector.backend.Backend`."""
        import torch

        training = [module for module in self.model.modules() if module.training]
        self.model.eval()
        try:
            with torch.no_grad():
                outputs = self.model(
                    torch.from_numpy(images).to(self.device), torch.from_numpy(image_shapes).to(self.device)
                )
                boxes, scores, labels = (output.cpu().numpy() for output in outputs)
        finally:
            for module in training:
                module.training = True
        return boxes, scores, labels

    def close(self) -> None:
        """Does nothing. The caller owns the model."""
