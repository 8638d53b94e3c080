"""Average precision of the averaged weights on the validation split."""

from __future__ import annotations

import dataclasses
import math

import torch

from codetr.dataset.bad_pictures import BadPictures
from codetr.detector.detector import Detector
from codetr.evaluation import LiveModel, coco_metrics, detect_all
from codetr.training.torchrun_processes import Processes
from codetr.training.training_network import TrainingNetwork


class Validation:
    """Evaluates a network on a dataset that all processes share.

    Args:
        pictures: of the dataset. It records pictures that cannot be read.
        network: with the averaged weights.
        processes: all of them call this object.
        batch: pictures in one run of the network.
        bf16: whether to run the network under autocast to bfloat16.
    """

    def __init__(
        self,
        pictures: BadPictures,
        network: TrainingNetwork,
        processes: Processes,
        *,
        batch: int,
        bf16: bool,
    ) -> None:
        self.pictures, self.network, self.processes = pictures, network, processes
        self.batch, self.bf16 = batch, bf16

    def __call__(self) -> dict[str, float]:
        """Returns average precisions by the names of `codetr.training.training_log.VALIDATION_COLUMNS` on the
        first process, nothing on the others.

        Raises:
            DatasetError: a picture cannot be read, and the check is strict.
        """
        device, model, dataset = self.processes.device, self.network.model, self.pictures.dataset
        # The share first: processes know different errors.
        share = dataset.pictures[self.processes.rank :: self.processes.world]
        share = tuple(picture for picture in share if picture.id not in self.pictures.errors)
        with (
            Detector(backend=LiveModel(model, model.config, device)) as detector,
            torch.autocast(device.type, torch.bfloat16, enabled=self.bf16),
        ):
            data = dataclasses.replace(dataset, pictures=share)
            run = detect_all(detector, data, batch=self.batch, bad_pictures=self.pictures)
        gathered = self.processes.gather((run.rows, self.pictures.errors))
        if not self.processes.first:
            return {}
        for _, errors in gathered:
            self.pictures.errors |= errors
        metrics = coco_metrics(self.pictures.usable(), [row for rows, _ in gathered for row in rows])
        numbers = {
            "AP": metrics.ap,
            "AP50": metrics.ap50,
            "AP75": metrics.ap75,
            "APs": metrics.ap_small,
            "APm": metrics.ap_medium,
            "APl": metrics.ap_large,
        }
        return {name: number for name, number in numbers.items() if not math.isnan(number)}
