"""The length of a run and its learning rate: a linear warm-up, then a cosine."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Schedule:
    """The length of a run, in steps or in minutes of training time, and its learning rate.

    Attributes:
        steps: optimiser steps, or None.
        minutes: of training, those before a stop and a `--resume` included, or None.
        warmup: steps over which the learning rate rises linearly.
        floor: share of the learning rate at the end.
    """

    steps: int | None = None
    minutes: float | None = None
    warmup: int = 0
    floor: float = 0.0

    def progress(self, step: int, seconds: float) -> float:
        """Returns the share of the run that is done, 0 to 1.

        Args:
            step: steps taken.
            seconds: training time.
        """
        done = step / self.steps if self.steps is not None else seconds / (60.0 * self.minutes)
        return min(1.0, done)

    def factor(self, step: int, progress: float) -> float:
        """Returns the factor of the learning rate for the next step.

        Args:
            step: steps taken.
            progress: share of the run that is done.
        """
        rise = min(1.0, (step + 1) / self.warmup) if self.warmup else 1.0
        fall = self.floor + (1.0 - self.floor) * 0.5 * (1.0 + math.cos(math.pi * progress))
        return rise * fall
