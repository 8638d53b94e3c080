"""A model in memory, one in training for instance, as a backend of `codetr.Detector`."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np

from codetr.config import Config
from codetr.detector.preprocess import make_preprocessor

if TYPE_CHECKING:
    import torch

    from codetr.model import CoDino


class LiveModel:
    """Runs a `CoDino` that somebody else holds, with the weights that it has at each run.

    Whether its modules train and which device it is on stay as they are; TF32 is as the caller has set it.

        detector = codetr.Detector(backend=LiveModel(model, config, device))
        metrics = evaluate(detector, dataset, batch=16)

    Args:
        model: the model, without a wrapper such as DistributedDataParallel.
        config: the model's.
        device: where the model is.
        max_size: limit of the resized picture's longer side, pixels; default: as the configuration says.
        height: fixed input height, with `width`.
        width: fixed input width.
    """

    batch: int | None = None

    def __init__(
        self,
        model: CoDino,
        config: Config,
        device: torch.device | str,
        *,
        max_size: int | None = None,
        height: int | None = None,
        width: int | None = None,
    ) -> None:
        self.model = model
        self.device = device
        self.class_names = config.label_names
        self.nms = dataclasses.asdict(config.nms)
        self.preprocessor = make_preprocessor(config, max_size, height, width)
        self.description = f"{config.name}, PyTorch, {device}, in memory"

    def __call__(
        self, images: np.ndarray, image_shapes: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Runs the model; see `codetr.detector.detector.Backend`."""
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
        """Does nothing: the model is its owner's."""
