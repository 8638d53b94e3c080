"""One optimiser step without waiting for the device, and measurements since the last log."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from codetr.training.criterion import compute_losses, total
from codetr.training.moving_average import MovingAverage
from codetr.training.targets import make_targets
from codetr.training.training_batches import HostBatch

TOLERATED_SKIPS = 10
"""A step with non-finite gradients is skipped. More of them in a row are an error."""


class TrainingError(RuntimeError):
    """Training cannot continue."""


class Meter:
    """Sums of each step's measurements on the device. Reading them waits for the device."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.state: dict[str, Any] = {
            "names": [],
            "sums": None,  # [names], over the steps with finite gradients
            "counts": torch.zeros(2, dtype=torch.float64, device=device),  # steps: finite, skipped
            "skipped_in_a_row": torch.zeros((), dtype=torch.float64, device=device),
        }

    def add(self, values: dict[str, Tensor], finite: Tensor) -> None:
        """Adds a step.

        Args:
            values: scalars on the device, with the same names in every step.
            finite: bool scalar, whether the step counts.
        """
        vector = torch.stack([value.detach() for value in values.values()]).double()
        vector = torch.where(finite, vector, 0.0)
        state = self.state
        state["names"] = list(values)
        state["sums"] = vector if state["sums"] is None else state["sums"] + vector
        state["counts"] += torch.stack((finite, ~finite))
        state["skipped_in_a_row"] = (state["skipped_in_a_row"] + 1.0) * ~finite

    def read(self) -> tuple[dict[str, float], int, int]:
        """Returns the means over the finite steps, the number of skipped steps, and how many of them ended
        the sequence. It waits for the device and starts new sums."""
        state = self.state
        numbers = torch.cat((state["counts"], state["skipped_in_a_row"][None])).tolist()
        finite, skipped, in_a_row = (int(number) for number in numbers)
        means = {}
        if finite:
            means = dict(zip(state["names"], (state["sums"] / finite).tolist(), strict=True))
        state["sums"] = None
        state["counts"].zero_()
        return means, skipped, in_a_row

    def state_dict(self) -> dict[str, Any]:
        return self.state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            self.state[name] = value.to(self.device) if isinstance(value, Tensor) else value


class TrainingStep:
    """Forward, losses, backward, clipping, AdamW, moving average.

    Each step seeds its random generators, so that a state needs no generator.

    Args:
        network: a `TrainingNetwork`, or one in DistributedDataParallel.
        groups: parameter groups, see `codetr.training.training_network.parameter_groups`.
        average: follows the network without the wrapper.
        bf16: whether to run the network under autocast to bfloat16.
        clip: largest norm of the gradients; 0 does not clip.
        seed, rank: of the random numbers, together with the step.
    """

    def __init__(
        self,
        network: nn.Module,
        groups: Iterable[dict],
        average: MovingAverage,
        *,
        bf16: bool,
        clip: float,
        seed: int = 0,
        rank: int = 0,
    ) -> None:
        self.network, self.average = network, average
        # The fused kernels take `found_inf`, which skips a step without asking the host.
        self.optimizer = torch.optim.AdamW(groups, fused=True)
        self.rates = [group["lr"] for group in self.optimizer.param_groups]
        self.parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        self.bf16, self.clip, self.seed, self.rank = bf16, clip, seed, rank
        self.device = self.parameters[0].device
        self.generator = torch.Generator(self.device)
        self.meter = Meter(self.device)

    def __call__(self, batch: HostBatch, step: int, factor: float) -> None:
        """Takes a step.

        Args:
            batch: in the host's memory.
            step: steps taken before.

        Raises:
            TrainingError: predictions are non-finite.
        """
        seed = ((self.seed & 0xFFFF) << 44) ^ (step << 12) ^ self.rank
        torch.manual_seed(seed)
        self.generator.manual_seed(seed)
        for group, rate in zip(self.optimizer.param_groups, self.rates):
            group["lr"] = rate * factor
        batch = batch.to(self.device)
        targets = make_targets(batch.boxes_cxcywh, batch.labels, batch.image_shapes, batch.counts)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.bf16):
            outputs, layout = self.network(batch.pixels, targets, self.generator)
        try:
            losses = compute_losses(outputs, targets, layout)
        except FloatingPointError as error:
            raise TrainingError(f"step {step + 1}: {error}") from error
        loss = total(losses)
        loss.backward()
        norm = self._clip()
        finite = norm.isfinite()
        self.optimizer.found_inf = (~finite).float()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.average.update(step)
        self.meter.add({"loss": loss, "gradient_norm": norm, **losses}, finite)

    def _clip(self) -> Tensor:
        """Clips the gradients. Returns their norm before."""
        gradients = [p.grad for p in self.parameters if p.grad is not None]
        norm = nn.utils.get_total_norm(gradients, foreach=True)
        if self.clip:
            nn.utils.clip_grads_with_norm_(self.parameters, self.clip, norm, foreach=True)
        return norm
