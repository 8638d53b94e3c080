"""How good the averaged weights are on pictures that training does not see: AP, or the loss."""

from __future__ import annotations

import dataclasses
import importlib.util
import math
from typing import Any

import torch

from codetr.dataset.bad_pictures import LeftOut
from codetr.dataset.coco_files import CocoDataset
from codetr.training.criterion import Criterion, total
from codetr.training.data import PlainSet
from codetr.training.loader import Loader
from codetr.training.network import TrainingNetwork, normalise, targets_of
from codetr.training.processes import Processes


class Validation:
    """Evaluates a network on a data set, shared out among the processes.

    Args:
        data: to evaluate on.
        network: with the averaged weights.
        criterion: of the loss; there are no denoising queries.
        processes: all of them must call.
        batch: pictures at a time.
        workers: processes that read, for the loss.
        bf16: whether to run the network under autocast to bfloat16.
        left_out: the pictures of `data` that are known to be bad, and is told of others; default: none.
    """

    def __init__(
        self,
        data: CocoDataset,
        network: TrainingNetwork,
        criterion: Criterion,
        processes: Processes,
        *,
        batch: int,
        workers: int,
        bf16: bool,
        left_out: LeftOut | None = None,
    ) -> None:
        self.data, self.network, self.criterion, self.processes = data, network, criterion, processes
        self.batch, self.workers, self.bf16 = batch, workers, bf16
        self.left_out = LeftOut(data) if left_out is None else left_out

    def __call__(self) -> dict[str, float]:
        """Returns numbers by the names of `codetr.training.log.VALIDATION_COLUMNS`; on the first process
        only, elsewhere nothing.

        Raises:
            DatasetError: a picture cannot be read, and `left_out` is strict.
        """
        # What was found decides on every process alike: they have the same installation.
        return self._precision() if importlib.util.find_spec("pycocotools") else self._loss()

    def _precision(self) -> dict[str, float]:
        """COCO's AP of the detections, made as `codetr detect` makes them."""
        from codetr.detector.detector import Detector
        from codetr.evaluation import LiveModel, coco_metrics, detect_all

        device, model = self.processes.device, self.network.model
        share = tuple(self.data.pictures[index] for index in self._share())
        with (
            Detector(backend=LiveModel(model, model.config, device)) as detector,
            torch.autocast(device.type, torch.bfloat16, enabled=self.bf16),
        ):
            run = detect_all(
                detector,
                dataclasses.replace(self.data, pictures=share),
                batch=self.batch,
                left_out=self.left_out,
            )
        gathered = self._gather(run.rows)
        if not self.processes.first:
            return {}
        metrics = coco_metrics(self.left_out.usable(), [row for rows in gathered for row in rows])
        numbers = {
            "AP": metrics.ap,
            "AP50": metrics.ap50,
            "AP75": metrics.ap75,
            "APs": metrics.ap_small,
            "APm": metrics.ap_medium,
            "APl": metrics.ap_large,
        }
        return {name: number for name, number in numbers.items() if not math.isnan(number)}

    @torch.no_grad()
    def _loss(self) -> dict[str, float]:
        device, config = self.processes.device, self.network.model.config
        losses = torch.zeros((), device=device)
        batches = 0
        with Loader(
            PlainSet(self.data, config.resize_scale),
            self.workers,
            device.type == "cuda",
            3 * self.batch * max(config.resize_scale) ** 2,
            batch_size=self.batch,
            sampler=self._share(),
        ) as loader:
            for host_batch in loader:
                for index, error in host_batch.unreadable:
                    self.left_out.add(self.data.pictures[index], error)
                if not host_batch.counts:
                    continue
                batch = host_batch.to(device)
                with torch.autocast(device.type, torch.bfloat16, enabled=self.bf16):
                    images = normalise(batch.pixels, batch.image_shapes, self.network.mean, self.network.std)
                    outputs = self.network.model.training_outputs(images, batch.image_shapes)
                # Each process has its own number of batches, so counts are not averaged over processes here.
                losses += total(self.criterion(outputs, targets_of(batch), average=lambda counts: counts))
                batches += 1
        gathered = self._gather((losses.item(), batches))
        if not self.processes.first:
            return {}
        return {"loss": sum(loss for loss, _ in gathered) / max(1, sum(count for _, count in gathered))}

    def _share(self) -> list[int]:
        """Indices of this process's pictures, without those that are known to be bad."""
        indices = range(self.processes.rank, len(self.data), self.processes.world)
        return [index for index in indices if self.data.pictures[index].id not in self.left_out.errors]

    def _gather(self, result: Any) -> list[Any]:
        """The results of all processes, and their bad pictures into `left_out`; see `Processes.gather`."""
        gathered = self.processes.gather((result, self.left_out.errors))
        for _, errors in gathered:
            self.left_out.errors |= errors
        return [result for result, _ in gathered]
