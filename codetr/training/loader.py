"""Batches read ahead by worker processes, and the end of these processes, which nothing may delay.

A worker ignores SIGTERM and Ctrl-C: torchrun and shells send them to a whole process group, and the main
process needs batches until its step has ended and its state is saved. So a worker ends by other means: the
loader asks it to, as Torch does; a thread in it sees that it was asked, or that the main process is gone, and
ends it whatever its main thread waits for; and what is left is killed.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import math
import multiprocessing
import os
import shutil
import signal
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from codetr.dataset.coco_files import DatasetError
from codetr.training.data import HostBatch, Sample, Unreadable, collate

GRACE_S = 3.0
"""Seconds that a worker has to end by itself."""

_AHEAD = 4  # batches that each worker process reads ahead
_WATCH_S = 1.0  # seconds between two looks for the main process

_open: weakref.WeakSet[Loader] = weakref.WeakSet()


class Loader(Iterator[HostBatch]):
    """Batches of a data set. Use it in a `with` block, whose end is that of the worker processes.

    Args:
        dataset: whose items `collate` takes.
        workers: processes; 0 reads in this one.
        pinned: memory for fast copies to a GPU.
        batch_bytes: of the pixels of the largest batch. Workers hand batches over in shared memory where it
            has room for all that they read ahead, and through pipes elsewhere (a Docker container has 64 MiB
            of it unless told otherwise).
        options: of Torch's loader: batch_sampler, or batch_size and sampler.

    Raises:
        DatasetError: from `next`: an item is one.
    """

    def __init__(
        self, dataset: Dataset, workers: int, pinned: bool, batch_bytes: int, **options: Any
    ) -> None:
        self._pinned, self._piped, self._ending, self._owner = pinned, False, None, os.getpid()
        if workers:
            told, self._ending = multiprocessing.Pipe(duplex=False)
            start = functools.partial(_start_worker, told, self._ending)
            options |= {"prefetch_factor": _AHEAD, "worker_init_fn": start}
            local = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
            self._piped = _free_shared_memory() < 2 * local * workers * (_AHEAD + 1) * batch_bytes
        loader = DataLoader(
            dataset,
            num_workers=workers,
            pin_memory=pinned and not self._piped,
            collate_fn=_collate_arrays if self._piped else collate,
            **options,
        )
        others = set(multiprocessing.active_children())
        self._batches = iter(loader)
        self._workers = set(multiprocessing.active_children()) - others
        _open.add(self)

    def __next__(self) -> HostBatch:
        batch = next(self._batches)
        if isinstance(batch, DatasetError):
            raise batch
        if self._piped:
            batch = batch.map(torch.from_numpy)
            batch = batch.map(torch.Tensor.pin_memory) if self._pinned else batch
        return batch

    def __enter__(self) -> Loader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the worker processes, within seconds whatever they do. May be called again."""
        if self._workers:
            try:
                # A byte that nobody reads: all workers see it.
                with contextlib.suppress(OSError):
                    self._ending.send_bytes(b".")
                # Torch's own way, in its order: the thread that pins memory, then the workers. Not left to
                # the iterator's end, as the traceback of an error in `next` holds the iterator. A worker that
                # has died is no error any more.
                with contextlib.suppress(RuntimeError):
                    self._batches._shutdown_workers()
            finally:
                for worker in self._workers:
                    worker.kill()
                for worker in self._workers:
                    worker.join(GRACE_S)
            self._workers = set()
            self._ending.close()
        self._batches = iter(())
        _open.discard(self)


@atexit.register  # after those of multiprocessing and Torch, so run before them: they would wait for ever
def _close_all() -> None:
    for loader in list(_open):
        if loader._owner == os.getpid():  # not in a child that has inherited it
            loader.close()


def _collate_arrays(samples: Sequence[Sample | Unreadable | DatasetError]) -> HostBatch | DatasetError:
    """As `collate`, with arrays, which go through a pipe, for tensors, which go through shared memory."""
    batch = collate(samples)
    return batch if isinstance(batch, DatasetError) else batch.map(torch.Tensor.numpy)


def _free_shared_memory() -> float:
    """Bytes; infinite where there is no such limit."""
    try:
        return shutil.disk_usage("/dev/shm").free
    except OSError:
        return math.inf


# In a worker process.


def _start_worker(told: Connection, ending: Connection, _index: int) -> None:
    import cv2

    cv2.setNumThreads(0)  # there is a process for each core
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    ending.close()  # the main process is the one that holds this end, so its death ends the pipe
    threading.Thread(target=_watch, args=(told, os.getppid()), daemon=True).start()


def _watch(told: Connection, parent: int) -> None:
    """Ends this process when its parent is gone, or some time after it was told to end.

    The main thread cannot see to it alone: it may be inside of a picture, and at its end it waits until
    somebody has taken what it has put into a pipe.
    """
    # The pipe of a parent that is gone stays open while some other child of it holds the parent's end.
    while os.getppid() == parent and not wait([told], _WATCH_S):
        pass
    if os.getppid() == parent:
        time.sleep(GRACE_S)
    os._exit(0)
