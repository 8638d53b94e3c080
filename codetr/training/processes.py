"""The processes of a run: one, or as many as `torchrun` started, one to a GPU (or to a share of the CPU)."""

from __future__ import annotations

import contextlib
import datetime
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import distributed

TIMEOUT = datetime.timedelta(minutes=10)
"""How long a process waits for others that have died without a word."""


def launched() -> tuple[int, int, int]:
    """(rank, rank on this machine, number of processes) that `torchrun` gave; (0, 0, 1) without it."""
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE")
    if not all(name in os.environ for name in names):
        return 0, 0, 1
    rank, local_rank, world = (int(os.environ[name]) for name in names)
    return rank, local_rank, world


@dataclass(frozen=True)
class Processes:
    """This process among all.

    Attributes:
        rank: from 0; process 0 writes files and speaks.
        world: how many there are.
        device: of this process.
    """

    rank: int
    world: int
    device: torch.device

    @property
    def first(self) -> bool:
        return self.rank == 0

    def agree(self, *numbers: float) -> tuple[float, ...]:
        """The largest of each number over all processes; waits for them, not for their GPUs."""
        if self.world == 1:
            return numbers
        tensor = torch.tensor(numbers, dtype=torch.float64)
        distributed.all_reduce(tensor, distributed.ReduceOp.MAX)
        return tuple(tensor.tolist())

    def mean(self, numbers: dict[str, float]) -> dict[str, float]:
        """The mean of each number over all processes, which have the same names; waits for them."""
        if self.world == 1 or not numbers:
            return numbers
        tensor = torch.tensor(list(numbers.values()), dtype=torch.float64)
        distributed.all_reduce(tensor)
        return dict(zip(numbers, (tensor / self.world).tolist(), strict=True))

    def gather(self, value: Any) -> list[Any]:
        """What every process gave, by rank; on process 0 only, elsewhere an empty list."""
        if self.world == 1:
            return [value]
        values = [None] * self.world if self.first else None
        distributed.gather_object(value, values)
        return values or []

    def barrier(self) -> None:
        """Waits for all processes."""
        self.agree(0.0)


@contextlib.contextmanager
def join_processes(device: str) -> Iterator[Processes]:
    """Joins the processes that `torchrun` started for as long as the block runs.

    CPU tensors are exchanged by Gloo, which keeps the GPUs out of it, and CUDA tensors by NCCL.

    Args:
        device: "cpu" or "cuda"; with "cuda", the process takes the GPU of its rank on this machine.
    """
    rank, local_rank, world = launched()
    if device == "cuda":
        torch.cuda.set_device(local_rank)
        place = torch.device("cuda", local_rank)
    else:
        place = torch.device(device)
    if world == 1:
        yield Processes(0, 1, place)
        return
    backend = "cpu:gloo,cuda:nccl" if place.type == "cuda" else "gloo"
    distributed.init_process_group(backend, timeout=TIMEOUT)
    # Not in a `finally`: after an error the others may be waiting, and leaving in order would wait for them.
    yield Processes(rank, world, place)
    distributed.destroy_process_group()
