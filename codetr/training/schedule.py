"""How long a run is and how its learning rate goes: up over some steps, then down along a cosine."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Schedule:
    """A run's length, in steps or in minutes of training time; one of the two is given.

    Attributes:
        steps: optimiser steps.
        minutes: of training, those before a stop and a `--resume` included.
        warmup: steps over which the learning rate rises from almost nothing.
        floor: share of the learning rate that is left at the end.
    """

    steps: int | None = None
    minutes: float | None = None
    warmup: int = 0
    floor: float = 0.0

    def __post_init__(self) -> None:
        if (self.steps is None) == (self.minutes is None):
            raise ValueError(f"give either steps or minutes, got {self.steps} and {self.minutes}")

    def progress(self, step: int, seconds: float) -> float:
        """The share of the run that is done, 0 to 1.

        Args:
            step: steps done.
            seconds: of training time gone.
        """
        done = step / self.steps if self.steps is not None else seconds / (60.0 * self.minutes)
        return min(1.0, done)

    def factor(self, step: int, progress: float) -> float:
        """What to multiply the learning rate with for the next step.

        Args:
            step: steps done.
            progress: share of the run that is done.
        """
        rise = min(1.0, (step + 1) / self.warmup) if self.warmup else 1.0
        fall = self.floor + (1.0 - self.floor) * 0.5 * (1.0 + math.cos(math.pi * progress))
        return rise * fall
