"""The processes of a run: one, or as many as `torchrun` started, one for each GPU or share of the CPU."""

from __future__ import annotations

import contextlib
import datetime
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import distributed

from codetr.errors import ArgumentError

TIMEOUT = datetime.timedelta(minutes=30)
"""Longest wait of a process for another one, such as for the check of a large dataset."""

Result = TypeVar("Result")


@dataclass(frozen=True)
class Processes:
    """This process and the number of all."""

    rank: int  # from 0; process 0 writes the files and prints
    world: int  # number of processes
    device: torch.device  # of this process

    @property
    def first(self) -> bool:
        return self.rank == 0

    def agree(self, *numbers: float) -> tuple[float, ...]:
        """Returns the largest of each number over all processes. It waits for them, not for their GPUs."""
        if self.world == 1:
            return numbers
        tensor = torch.tensor(numbers, dtype=torch.float64)
        distributed.all_reduce(tensor, distributed.ReduceOp.MAX)
        return tuple(tensor.tolist())

    def gather(self, value: Any) -> list[Any]:
        """Returns the values of all processes, by rank."""
        values = [value] * self.world
        if self.world > 1:
            distributed.all_gather_object(values, value)
        return values

    def first_then_others(self, function: Callable[[], Result]) -> Result:
        """Calls a function in process 0, then in the others.

        If it fails in process 0, the others exit silently with status 1.
        """
        if not self.first and self.agree(0.0) != (0.0,):
            with contextlib.suppress(RuntimeError):
                self.agree(0.0)  # until process 0 has printed its error and exited
            os._exit(1)
        try:
            result = function()
        except BaseException:
            if self.first:
                self.agree(1.0)
            raise
        if self.first:
            self.agree(0.0)
        return result


@contextlib.contextmanager
def join_processes(device: str) -> Iterator[Processes]:
    """Joins the processes that `torchrun` started while the block runs.

    Gloo exchanges CPU tensors, without the GPUs, and NCCL exchanges CUDA tensors.

    Args:
        device: "auto", "cpu" or "cuda". On GPUs, the process takes the one of its rank on this machine.

    Raises:
        ArgumentError: there is no GPU for this process.
    """
    rank, local_rank, world = (
        int(os.environ.get(name, "0")) for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE")
    )
    gpus = 0 if device == "cpu" else torch.cuda.device_count()
    if device == "cuda" and not gpus:
        raise ArgumentError("device", "expected cpu, PyTorch can use no NVIDIA GPU here, got cuda")
    if gpus and local_rank >= gpus:
        raise ArgumentError("device", f"expected a GPU for each process, got {gpus} for rank {local_rank}")
    place = torch.device("cuda", local_rank) if gpus else torch.device("cpu")
    if gpus:
        torch.cuda.set_device(place)
    if world <= 1:
        yield Processes(0, 1, place)
        return
    distributed.init_process_group("cpu:gloo,cuda:nccl" if gpus else "gloo", timeout=TIMEOUT)
    # After an error other processes may wait for this one in a collective, and destroying the group would
    # wait for them. So there is no `finally`.
    yield Processes(rank, world, place)
    distributed.destroy_process_group()
