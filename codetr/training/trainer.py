"""The training loop: from data and a network to the files of a run."""

from __future__ import annotations

import contextlib
import math
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from codetr.dataset.bad_pictures import LeftOut
from codetr.dataset.coco_files import CocoDataset
from codetr.training.augment import Augmentation
from codetr.training.criterion import Criterion
from codetr.training.data import BatchOrder, StepSampler, TrainingSet
from codetr.training.ema import MovingAverage
from codetr.training.loader import Loader
from codetr.training.log import (
    TRAINING_COLUMNS,
    VALIDATION_COLUMNS,
    Progress,
    Table,
    draw_curves,
    sum_layers,
)
from codetr.training.network import TrainingNetwork, parameter_groups
from codetr.training.processes import Processes
from codetr.training.schedule import Schedule
from codetr.training.state import save_state
from codetr.training.step import TOLERATED_SKIPS, Step, TrainingError
from codetr.training.validation import Validation

CONTROL_EVERY = 8
"""Steps between two agreements of several processes on the time, and on whether to stop."""


@dataclass(frozen=True)
class Interval:
    """A distance between two events of a run; one of the two is given."""

    steps: int | None = None
    minutes: float | None = None

    def due(self, step: int, seconds: float, last_seconds: float) -> bool:
        """Whether the event is to happen now, when it last did at `last_seconds` of training time."""
        if self.steps is not None:
            return step % self.steps == 0
        return seconds - last_seconds >= 60.0 * self.minutes


@dataclass(frozen=True)
class Settings:
    """How to train; see `codetr.training.arguments` for what each means and its default.

    Attributes:
        batch: samples of a step and process.
        scales: (long, short) sides in pixels; a step has one of them.
        evaluate_every: steps, 0 for never, None for every tenth of the run.
        time_limit: minutes after which this process stops, whatever is left.
    """

    batch: int
    schedule: Schedule
    scales: tuple[tuple[int, int], ...]
    augmentation: Augmentation = field(default_factory=Augmentation)
    learning_rate: float = 1e-4
    backbone_factor: float = 1.0
    weight_decay: float = 1e-4
    clip: float = 0.1
    ema: float = 0.9998
    bf16: bool = True
    workers: int = 4
    seed: int = 0
    save_every: Interval = field(default_factory=lambda: Interval(minutes=10.0))
    log_every: int = 50
    evaluate_every: int | None = None
    time_limit: float | None = None


class Trainer:
    """A run.

    Args:
        network: to train, on the device of the processes.
        data: to train on.
        validation_data: to evaluate on; None does without.
        settings: how.
        processes: that share the work; each makes a `Trainer`.
        folder: for the run's files; it exists.
        options: what the run's result depends on, see `codetr.training.state`.
        save_weights: writes the weights of a network with averaged weights.
        state: of `codetr.training.state.load_state`, to go on from.
        left_out: the pictures of `data` that are known to be bad, and is told of others; default: none.
        validation_left_out: likewise, of `validation_data`.
    """

    def __init__(
        self,
        network: TrainingNetwork,
        data: CocoDataset,
        validation_data: CocoDataset | None,
        settings: Settings,
        processes: Processes,
        folder: Path,
        options: dict[str, Any],
        save_weights: Callable[[TrainingNetwork], None],
        state: dict[str, Any] | None = None,
        left_out: LeftOut | None = None,
        validation_left_out: LeftOut | None = None,
    ) -> None:
        self.settings, self.processes, self.folder, self.options = settings, processes, folder, options
        self.save_weights = save_weights
        self.plain_network = network
        network.train()
        self.average = MovingAverage(network, settings.ema)
        criterion = Criterion(network.model.config.num_classes)
        groups = parameter_groups(
            network, settings.learning_rate, settings.backbone_factor, settings.weight_decay
        )
        self.step_once = Step(
            self._wrapped(network),
            criterion,
            groups,
            self.average,
            bf16=settings.bf16,
            clip=settings.clip,
            seed=settings.seed,
            rank=processes.rank,
        )
        self.data = data
        self.left_out = LeftOut(data) if left_out is None else left_out
        self.order = BatchOrder(
            data.pictures, settings.batch * processes.world, settings.scales, settings.seed
        )
        self.validation = None
        if validation_data is not None and settings.evaluate_every != 0:
            self.validation = Validation(
                validation_data,
                self.average.model,
                criterion,
                processes,
                batch=settings.batch,
                workers=settings.workers,
                bf16=settings.bf16,
                left_out=validation_left_out,
            )
        self.step = 0
        self.seconds = 0.0  # of training time, as the processes last agreed
        self.evaluated = 0.0  # progress at the last evaluation
        self.saved_seconds = 0.0
        self._seconds_before = 0.0  # this process began
        self.signal = 0
        self.stop_reason = ""
        if state is not None:
            self._load(state)
        self.saved_step = self.step
        self._last_images, self._last_time, self._waited = 0, 0.0, 0.0
        if processes.first:
            self.training_log = Table(folder / "log.csv", TRAINING_COLUMNS, self.step)
            self.validation_log = Table(folder / "validation.csv", VALIDATION_COLUMNS, self.step)

    @property
    def progress(self) -> float:
        """The share of the run that is done, 0 to 1."""
        return self.settings.schedule.progress(self.step, self.seconds)

    @property
    def images(self) -> int:
        """Samples that all processes have seen."""
        return self.step * self.settings.batch * self.processes.world

    def run(self) -> bool:
        """Trains until the run's end, its time limit, a signal or an error; the state is saved in each case.

        After an error, the state is that after the last whole step, which `saved_step` tells.

        Returns:
            Whether the run has come to its end.

        Raises:
            DatasetError: a picture cannot be read, and nothing can stand in for it.
            TrainingError: what comes out is not finite.
        """
        with self._signals(), Progress(self.processes.first) as self.console:
            self._started = self._last_time = time.monotonic()
            try:
                finished = self._run()
            except Exception:
                if self.step > self.saved_step:
                    # What has broken the run (a full disk, a lost GPU) may prevent this as well.
                    with contextlib.suppress(Exception):
                        self._save()
                raise
        return finished

    def _run(self) -> bool:
        factor = self.settings.schedule.factor(self.step, self.progress)
        with self._loader() as batches:
            while not self._stops():
                waiting = time.monotonic()
                batch = next(batches)
                self._waited += time.monotonic() - waiting
                for index, error in batch.unreadable:
                    self.left_out.add(self.data.pictures[index], error)
                factor = self.settings.schedule.factor(self.step, self.progress)
                self.step_once(batch, self.step, factor)
                self.step += 1
                self._after_step(factor)
        finished = self.progress >= 1.0
        if finished and self.step % self.settings.log_every:
            self._log(factor)
        if self.validation is not None and finished:
            self._evaluate()
        self._save()
        for errors in self.processes.gather(self.left_out.errors):
            self.left_out.errors |= errors
        return finished

    # What happens between steps.

    def _stops(self) -> bool:
        if self.processes.world == 1 or self.step % CONTROL_EVERY == 0:
            here = time.monotonic() - self._started
            mine = self._seconds_before + here if self.processes.first else 0.0
            limit = self.settings.time_limit
            over = float(limit is not None and here >= 60.0 * limit)
            self.seconds, over, number = self.processes.agree(mine, over, float(self.signal))
            if number:
                self.signal = int(number)
                self.stop_reason = signal.Signals(self.signal).name
            elif over:
                self.stop_reason = "the time limit"
        return bool(self.stop_reason) or self.progress >= 1.0

    def _after_step(self, factor: float) -> None:
        settings = self.settings
        self.console.advance(self.progress)
        if self.step % settings.log_every == 0:
            self._log(factor)
        if self._evaluation_is_due() and self.progress < 1.0:
            self._evaluate()
        if settings.save_every.due(self.step, self.seconds, self.saved_seconds) and self.progress < 1.0:
            self._save()

    def _evaluation_is_due(self) -> bool:
        if self.validation is None:
            return False
        if self.settings.evaluate_every:
            return self.step % self.settings.evaluate_every == 0
        return int(10 * self.progress) > int(10 * self.evaluated)

    def _log(self, factor: float) -> None:
        meter = self.step_once.meter
        means, skipped, in_a_row = meter.read()
        meter.reset()
        means = self.processes.mean(means)
        if in_a_row > TOLERATED_SKIPS:
            raise TrainingError(
                f"step {self.step}: the gradients of the last {in_a_row} steps are not finite; "
                "try a lower --lr, a longer --warmup, or --precision fp32"
            )
        now = time.monotonic()
        seconds, images = now - self._last_time, self.images - self._last_images
        waiting = self._waited / max(1e-9, seconds)
        self._last_time, self._last_images, self._waited = now, self.images, 0.0
        if not self.processes.first:
            return
        device = self.processes.device
        memory = torch.cuda.max_memory_allocated(device) / 2**30 if device.type == "cuda" else 0.0
        row = {
            **self._place(),
            "learning_rate": self.settings.learning_rate * factor,
            **sum_layers(means),
            "skipped_steps": skipped,
            "images_per_second": images / max(1e-9, seconds),
            "waiting_for_data": waiting,
            "gpu_memory_gib": memory,
        }
        self.training_log.add(row)
        line = f"loss {means.get('loss', math.nan):.3f}, {row['images_per_second']:.1f} images/s"
        self.console.report(
            f"step {self.step} ({self.progress:.1%}, {self.seconds:.0f} s): {line}, "
            f"learning rate {row['learning_rate']:.2e}, "
            f"gradients {means.get('gradient_norm', math.nan):.2f}, {waiting:.0%} waiting for data",
            bar=f"step {self.step} {line}",
        )

    def _evaluate(self) -> None:
        numbers = self.validation()
        self.evaluated = self.progress
        if self.processes.first:
            left_out = self.validation.left_out
            self.validation_log.add({**self._place(), **numbers, "left_out": len(left_out.errors)})
            text = ", ".join(f"{name} {value:.4f}" for name, value in numbers.items())
            text += f"; {left_out.words} left out" if left_out.errors else ""
            self.console.report(f"step {self.step}: validation {text}")
        self._last_time, self._last_images, self._waited = time.monotonic(), self.images, 0.0

    def _place(self) -> dict[str, Any]:
        epoch = self.step / self.order.batches_per_epoch
        return {"step": self.step, "epoch": round(epoch, 3), "seconds": round(self.elapsed(), 1)}

    def elapsed(self) -> float:
        """Seconds of training time, those before a `--resume` included."""
        return self._seconds_before + time.monotonic() - self._started

    # The state.

    def _save(self) -> None:
        """Writes the state, the averaged weights and the curves."""
        self.saved_seconds = self.seconds
        if self.processes.first:
            content = {
                "step": self.step,
                "seconds": self.elapsed(),
                "evaluated": self.evaluated,
                "network": self.plain_network.state_dict(),
                "average": self.average.model.state_dict(),
                "optimizer": self.step_once.optimizer.state_dict(),
                "meter": self.step_once.meter.state_dict(),
            }
            save_state(self.folder, self.step, self.options, content)
            self.saved_step = self.step
            self.save_weights(self.average.model)
            with contextlib.suppress(ImportError):
                draw_curves(self.folder / "curves.png", self.training_log, self.validation_log)

    def _load(self, state: dict[str, Any]) -> None:
        self.step, self.evaluated = state["step"], state["evaluated"]
        self.seconds = self._seconds_before = self.saved_seconds = state["seconds"]
        self.plain_network.load_state_dict(state["network"])
        self.average.model.load_state_dict(state["average"])
        self.step_once.optimizer.load_state_dict(state["optimizer"])
        self.step_once.meter.load_state_dict(state["meter"])

    # What runs beside.

    def _wrapped(self, network: TrainingNetwork) -> nn.Module:
        if self.processes.world == 1:
            return network
        device = self.processes.device
        ids = [device.index] if device.type == "cuda" else None
        return DistributedDataParallel(network, device_ids=ids, gradient_as_bucket_view=True)

    def _loader(self) -> Loader:
        errors = self.left_out.errors
        bad = [index for index, picture in enumerate(self.data.pictures) if picture.id in errors]
        sampler = StepSampler(self.order, self.step, self.processes.rank, self.processes.world)
        return Loader(
            TrainingSet(self.data, self.settings.augmentation, bad),
            self.settings.workers,
            self.processes.device.type == "cuda",
            3 * self.settings.batch * max(self.settings.scales[-1]) ** 2,
            batch_sampler=sampler,
        )

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """Turns SIGTERM and the first Ctrl-C into a stop between two steps; a second Ctrl-C interrupts."""

        def receive(number: int, _frame: FrameType | None) -> None:
            if self.signal == number == signal.SIGINT:
                raise KeyboardInterrupt
            self.signal = number

        before = {number: signal.signal(number, receive) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
