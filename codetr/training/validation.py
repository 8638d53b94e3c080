"""Average precision of the averaged weights on the validation split."""

from __future__ import annotations

import dataclasses

import torch

from codetr.dataset.bad_pictures import BadPictures
from codetr.detector.detector import Detector
from codetr.evaluation import LiveModel, coco_metrics, detect_all
from codetr.training.torchrun_processes import Processes
from codetr.training.training_network import TrainingNetwork


def validate(
    pictures: BadPictures, network: TrainingNetwork, processes: Processes, *, batch: int, bf16: bool
) -> dict[str, float]:
    """Evaluates a network on a dataset that all processes share.

    Args:
        pictures: of the dataset. It records pictures that cannot be read.
        network: with the averaged weights.

    Returns:
        Average precisions by the names of `codetr.training.training_log.VALIDATION_COLUMNS`, without those of
        sizes that no object has. Nothing on the processes after the first.

    Raises:
        DatasetError: a picture cannot be read, and the check is strict.
    """
    device, model, dataset = processes.device, network.model, pictures.dataset
    # The share first: processes know different errors.
    share = dataset.pictures[processes.rank :: processes.world]
    share = tuple(picture for picture in share if picture.id not in pictures.errors)
    with (
        Detector(backend=LiveModel(model, model.config, device)) as detector,
        torch.autocast(device.type, torch.bfloat16, enabled=bf16),
    ):
        data = dataclasses.replace(dataset, pictures=share)
        run = detect_all(detector, data, batch=batch, bad_pictures=pictures)
    gathered = processes.gather((run.rows, pictures.errors))
    if not processes.first:
        return {}
    for _, errors in gathered:
        pictures.errors |= errors
    metrics = coco_metrics(pictures.usable(), [row for rows, _ in gathered for row in rows])
    return {name: number for name, number in metrics.precisions().items() if number is not None}
