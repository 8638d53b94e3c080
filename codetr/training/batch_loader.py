"""Batches that worker processes of `torch.utils.data.DataLoader` read ahead."""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import signal
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import cv2
import torch
from torch.utils.data import DataLoader, Dataset

from codetr.dataset.coco_files import DatasetError
from codetr.training.training_batches import HostBatch, Sample, collate

_AHEAD = 4  # batches that each worker process reads ahead


@contextlib.contextmanager
def read_batches(
    dataset: Dataset, sampler: Iterable[Sequence[Any]], workers: int, pinned: bool, batch_bytes: int
) -> Iterator[Iterator[HostBatch]]:
    """Yields an iterator over batches. The worker processes end with the block.

    `next` raises DatasetError if `dataset` returns one.

    Args:
        dataset: its items go to `collate`.
        sampler: yields the indices of each batch.
        workers: processes; 0 reads in this one.
        pinned: put batches into pinned memory, from which copies to a GPU do not wait.
        batch_bytes: pixels of the largest batch. Workers pass batches through shared memory if it has room
            for all that they read ahead. Otherwise they use pipes, as a Docker container has 64 MiB of shared
            memory by default.
    """
    local = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    piped = workers > 0 and _free_shared_memory() < 2 * local * workers * (_AHEAD + 1) * batch_bytes
    loader = DataLoader(
        dataset,
        batch_sampler=sampler,
        num_workers=workers,
        prefetch_factor=_AHEAD if workers else None,
        worker_init_fn=_start_worker,
        pin_memory=pinned and not piped,
        collate_fn=_collate_arrays if piped else collate,
    )
    iterator = iter(loader)
    try:
        yield _batches(iterator, piped, pinned)
    finally:
        # The workers ignore SIGTERM, which Python's exit would send them. A worker that has died, or that a
        # hanging disk delays, must not delay the end of a run.
        if workers:
            with contextlib.suppress(RuntimeError):
                iterator._shutdown_workers()
            for worker in iterator._workers:
                worker.kill()


def _batches(iterator: Iterator[HostBatch | DatasetError], piped: bool, pinned: bool) -> Iterator[HostBatch]:
    for batch in iterator:
        if isinstance(batch, DatasetError):
            raise batch
        if piped:
            batch = batch.map(torch.from_numpy)
            batch = batch.map(torch.Tensor.pin_memory) if pinned else batch
        yield batch


def _collate_arrays(samples: Sequence[Sample | DatasetError]) -> HostBatch | DatasetError:
    """Like `collate`, with arrays, which take a pipe, instead of tensors, which take shared memory."""
    batch = collate(samples)
    return batch if isinstance(batch, DatasetError) else batch.map(torch.Tensor.numpy)


def _free_shared_memory() -> float:
    """Returns bytes; infinity on systems without /dev/shm."""
    try:
        return shutil.disk_usage("/dev/shm").free
    except OSError:
        return math.inf


def _start_worker(_index: int) -> None:
    cv2.setNumThreads(0)  # there is a process for each core
    # torchrun and shells signal the whole process group. The main process still needs batches until its step
    # has ended and its state is saved.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()


def _end_with(parent: int) -> None:
    """Ends this process soon after its parent, even if it waits for a full pipe."""
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)
