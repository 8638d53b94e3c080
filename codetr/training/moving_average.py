"""The moving average of a model's weights, which a run saves.

`torch.optim.swa_utils.AveragedModel` computes the same, but waits for the GPU twice in every step.
"""

from __future__ import annotations

import copy

import torch
from torch import nn


class MovingAverage:
    """Follows a model: average <- decay * average + (1 - decay) * weights, after every step.

    The decay grows with the steps, min(decay, (1 + t) / (10 + t)), so that the first weights are soon
    forgotten. Floating-point buffers (statistics of batch norms) are averaged as well; others are copied.

    Args:
        model: the model to follow. The attribute `model` is a copy in evaluation mode.
        decay: from 0 to below 1; 0 follows the newest weights.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.model = copy.deepcopy(model).eval().requires_grad_(False)
        pairs = list(zip(self.model.state_dict().values(), model.state_dict().values(), strict=True))
        self._floating = [pair for pair in pairs if pair[0].is_floating_point()]
        self._others = [pair for pair in pairs if not pair[0].is_floating_point()]

    @torch.no_grad()
    def update(self, steps: int) -> None:
        """Moves towards the model's weights. `steps` counts the updates before this one."""
        decay = min(self.decay, (1.0 + steps) / (10.0 + steps))
        averages, weights = zip(*self._floating)
        torch._foreach_lerp_(averages, weights, 1.0 - decay)
        for average, value in self._others:
            average.copy_(value)
