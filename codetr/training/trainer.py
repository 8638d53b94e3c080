"""The training loop."""

from __future__ import annotations

import contextlib
import math
import signal
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from codetr.training.augment import Augmentation
from codetr.training.batch_loader import read_batches
from codetr.training.moving_average import MovingAverage
from codetr.training.run_state import save_state
from codetr.training.run_weights import save_config, save_weights
from codetr.training.torchrun_processes import Processes
from codetr.training.train_options import LONGEST_WARMUP
from codetr.training.training_batches import HostBatch, TrainingSet
from codetr.training.training_log import (
    TRAINING_COLUMNS,
    VALIDATION_COLUMNS,
    Table,
    draw_curves,
    progress_bar,
    sum_layers,
)
from codetr.training.training_network import TrainingNetwork, parameter_groups
from codetr.training.training_plan import TrainingPlan
from codetr.training.training_step import TOLERATED_SKIPS, TrainingError, TrainingStep
from codetr.training.validation import validate

CONTROL_EVERY = 8
"""Several processes agree on the time and on a stop after this number of steps."""


def learning_rate_factor(
    step: int, progress: float, warmup: int, floor: float, longest_warmup: float = math.inf
) -> float:
    """Returns the factor of the learning rate for the next step: a linear warm-up, then a cosine.

    Args:
        step: steps taken.
        progress: share of the run that is done.
        warmup: steps over which the learning rate rises linearly.
        floor: the factor at the end.
        longest_warmup: share of the run at whose end the warm-up ends, however few steps it had. Default: no
            limit.
    """
    rise = min(1.0, max((step + 1) / warmup, progress / longest_warmup)) if warmup else 1.0
    return rise * (floor + (1.0 - floor) * 0.5 * (1.0 + math.cos(math.pi * progress)))


class Trainer:
    """A run. Each of the processes that share it makes a `Trainer`.

    Args:
        network: to train, on the device of the processes.
        folder: for the run's files; it exists.
        state: of `codetr.training.run_state.load_state`, to continue from.
    """

    def __init__(
        self,
        network: TrainingNetwork,
        plan: TrainingPlan,
        processes: Processes,
        folder: Path,
        state: dict[str, Any] | None = None,
    ) -> None:
        options = self.options = plan.options
        self.plan, self.processes, self.folder = plan, processes, folder
        network.train()
        self.average = MovingAverage(network, options.ema)
        self.bf16 = options.precision == "bf16"
        if processes.world == 1:
            wrapped = network
        else:
            ids = [processes.device.index] if processes.device.type == "cuda" else None
            wrapped = DistributedDataParallel(network, device_ids=ids, gradient_as_bucket_view=True)
        step = self.take_step = TrainingStep(
            wrapped,
            parameter_groups(network, options.lr, options.backbone_lr_factor, options.weight_decay),
            self.average,
            bf16=self.bf16,
            clip=options.clip,
            seed=options.seed,
            rank=processes.rank,
        )
        self.parts = {
            "network": network,
            "average": self.average.model,
            "optimizer": step.optimizer,
            "meter": step.meter,
        }
        self.data = plan.data.dataset
        self.order = plan.order
        self.step = 0
        self.seconds = 0.0  # training time, as the processes last agreed
        self.evaluated = 0.0  # progress at the last evaluation
        self.saved_seconds = 0.0
        self._seconds_before = 0.0  # training time before this process started
        self.signal = 0
        self.stop_reason = ""
        if state is not None:
            self.step, self.evaluated = state["step"], state["evaluated"]
            self.seconds = self._seconds_before = self.saved_seconds = state["seconds"]
            for name, part in self.parts.items():
                part.load_state_dict(state[name])
        self.saved_step = self.step
        self._last_images, self._last_time, self._waited = 0, 0.0, 0.0
        if processes.first:
            self.training_log = Table(folder / "log.csv", TRAINING_COLUMNS, self.step)
            self.validation_log = Table(folder / "validation.csv", VALIDATION_COLUMNS, self.step)

    @property
    def progress(self) -> float:
        """The share of the run that is done, 0 to 1: of its steps, or of its training time."""
        steps, minutes = self.options.steps, self.options.minutes
        return min(1.0, self.step / steps if steps is not None else self.seconds / (60.0 * minutes))

    @property
    def factor(self) -> float:
        """The factor of the learning rate for the next step."""
        options = self.options
        # The number of steps of a run of some minutes is unknown.
        longest = LONGEST_WARMUP if options.steps is None else math.inf
        return learning_rate_factor(
            self.step, self.progress, options.warmup, options.final_lr_factor, longest
        )

    @property
    def images(self) -> int:
        """Samples of all processes so far."""
        return self.step * self.options.batch * self.processes.world

    def run(self) -> bool:
        """Trains until the end of the run, its time limit, a signal or an error, and saves the state.

        After an error, the state is that after the last complete step, `saved_step`.

        Returns:
            Whether the run has reached its end.

        Raises:
            DatasetError: neither a picture nor its replacements can be read.
            TrainingError: predictions or gradients are non-finite.
        """
        with self._signals(), progress_bar(self.processes.first) as self.bar:
            self._started = self._last_time = time.monotonic()
            try:
                return self._run()
            except Exception:
                if self.step > self.saved_step:
                    # The cause of the error (a full disk, a lost GPU) may prevent this as well.
                    with contextlib.suppress(Exception):
                        self._save()
                raise

    def _run(self) -> bool:
        factor = self.factor
        with self._batches() as batches:
            while not self._stops():
                waiting = time.monotonic()
                batch = next(batches)
                self._waited += time.monotonic() - waiting
                for index, error in batch.unreadable:
                    self.plan.data.add(self.data.pictures[index], error)
                factor = self.factor
                self.take_step(batch, self.step, factor)
                self.step += 1
                self._after_step(factor)
        finished = self.progress >= 1.0
        if finished:
            if self.step % self.options.log_every:
                self._log(factor)
            self._evaluate()
        self._save()
        for errors in self.processes.gather(self.plan.data.errors):
            self.plan.data.errors |= errors
        return finished

    def _stops(self) -> bool:
        if self.processes.world == 1 or self.step % CONTROL_EVERY == 0:
            here = time.monotonic() - self._started
            mine = self._seconds_before + here if self.processes.first else 0.0
            limit = self.options.time_limit
            over = float(limit is not None and here >= 60.0 * limit)
            self.seconds, over, number = self.processes.agree(mine, over, float(self.signal))
            if number:
                self.signal = int(number)
                self.stop_reason = signal.Signals(self.signal).name
            elif over:
                self.stop_reason = "the time limit"
        return bool(self.stop_reason) or self.progress >= 1.0

    def _after_step(self, factor: float) -> None:
        self.bar.update(self.bar.task_ids[0], completed=self.progress)
        if self.step % self.options.log_every == 0:
            self._log(factor)
        if self.progress < 1.0:
            if self._evaluation_is_due():
                self._evaluate()
            if self.options.save_every.due(self.step, self.seconds, self.saved_seconds):
                self._save()

    def _evaluation_is_due(self) -> bool:
        if self.options.evaluate_every:
            return self.step % self.options.evaluate_every == 0
        return int(10 * self.progress) > int(10 * self.evaluated)

    def _log(self, factor: float) -> None:
        means, skipped, in_a_row = self.take_step.meter.read()
        if in_a_row > TOLERATED_SKIPS:
            raise TrainingError(
                f"step {self.step}: the gradients of the last {in_a_row} steps are non-finite; "
                "try a lower --lr, a longer --warmup, or --precision fp32"
            )
        everywhere = self.processes.gather(means)
        now = time.monotonic()
        seconds, images = now - self._last_time, self.images - self._last_images
        waiting = self._waited / max(1e-9, seconds)
        self._last_time, self._last_images, self._waited = now, self.images, 0.0
        if not self.processes.first:
            return
        means = {name: statistics.fmean(part[name] for part in everywhere) for name in means}
        device = self.processes.device
        memory = torch.cuda.max_memory_allocated(device) / 2**30 if device.type == "cuda" else 0.0
        row = {
            **self._place(),
            "learning_rate": self.options.lr * factor,
            **sum_layers(means),
            "skipped_steps": skipped,
            "images_per_second": images / max(1e-9, seconds),
            "waiting_for_data": waiting,
            "gpu_memory_gib": memory,
        }
        self.training_log.add(row)
        self._print(
            f" ({self.progress:.1%}, {self.seconds:.0f} s): loss {means.get('loss', math.nan):.3f}, "
            f"{row['images_per_second']:.1f} images/s, learning rate {row['learning_rate']:.2e}, "
            f"gradients {means.get('gradient_norm', math.nan):.2f}, {waiting:.0%} waiting for data"
        )

    def _evaluate(self) -> None:
        pictures = self.plan.validation_data
        if pictures is None:
            return
        began, network, batch = time.monotonic(), self.average.model, self.options.batch
        numbers = validate(pictures, network, self.processes, batch=batch, bf16=self.bf16)
        self.evaluated = self.progress
        if self.processes.first:
            self.validation_log.add({**self._place(), **numbers, "left_out": len(pictures.errors)})
            text = ", ".join(f"{name} {value:.4f}" for name, value in numbers.items())
            self._print(f": validation {text}" + (f"; {pictures} left out" if pictures.errors else ""))
        self._last_time += time.monotonic() - began  # the speed in the log is that of training

    def _print(self, text: str) -> None:
        line = f"step {self.step}{text}"
        self.bar.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def _place(self) -> dict[str, Any]:
        epoch = self.step / self.order.batches_per_epoch
        return {"step": self.step, "epoch": round(epoch, 3), "seconds": round(self.elapsed(), 1)}

    def elapsed(self) -> float:
        """Returns the seconds of training time, those before a `--resume` included."""
        return self._seconds_before + time.monotonic() - self._started

    def _save(self) -> None:
        """Writes the state and the results."""
        self.saved_seconds = self.seconds
        if self.processes.first:
            content = {"step": self.step, "seconds": self.elapsed(), "evaluated": self.evaluated}
            content |= {name: part.state_dict() for name, part in self.parts.items()}
            save_state(self.folder, self.step, self.plan.fingerprint, content)
            self.saved_step = self.step
            self.write_results()

    def write_results(self) -> None:
        """Writes the averaged weights, their configuration and the curves."""
        save_weights(self.folder / "model.safetensors", self.average.model, self.options.save_precision)
        save_config(self.folder / "model.json", self.plan.config)
        draw_curves(self.folder / "curves.png", self.training_log, self.validation_log)

    def _batches(self) -> contextlib.AbstractContextManager[Iterator[HostBatch]]:
        options, errors = self.options, self.plan.data.errors
        bad = [index for index, picture in enumerate(self.data.pictures) if picture.id in errors]
        augmentation = Augmentation(options.flip, options.crop, options.crop_least, options.colour)
        return read_batches(
            TrainingSet(self.data, augmentation, bad),
            self.order.steps(self.step, self.processes.rank, self.processes.world),
            options.workers,
            self.processes.device.type == "cuda",
            3 * options.batch * max(self.order.scales[-1]) ** 2,
        )

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """Makes SIGTERM and Ctrl-C stop the run between two steps. A second Ctrl-C interrupts it."""

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
