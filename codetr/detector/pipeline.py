"""Detection in many pictures: decoding, inference and writing overlap. Imports no Torch.

    decode threads      detect threads, one for each context     the caller, in order     write threads
    file -> picture     pictures -> GPU -> engine -> NMS          results                  draw, save

Every stage holds few batches, so that memory does not grow with the number of pictures.
"""

from __future__ import annotations

import gc
import itertools
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from codetr.detector.decoding import Decoded
from codetr.detector.detector import Detector
from codetr.detector.preprocess import ImageError
from codetr.results import Detections
from codetr.usable_cores import usable_cores
from trt_plugin.engine_error import EngineError

_log = logging.getLogger(__name__)
CONTEXTS = 3
"""Batches in work at the same time, each in a context with a stream of its own.

On a GPU their networks take turns, while copies and the choice of boxes go on. The third one keeps the GPU
busy while the threads of the other two wait for Python's lock: on an H200, `codetr batch` with the demo's
network took 1121 images/s with three and 1053 with two.
"""
BLACK = np.zeros((480, 640, 3), np.uint8)
"""A picture to try a network with."""


@dataclass(frozen=True)
class Processed:
    """A picture and its detections, or the reason why there are none.

    Attributes:
        item: what the caller gave.
        image: uint8 [H, W, 3], RGB, or a `trt_plugin.image_input.DeviceImage`; None if it cannot be decoded.
        found: the detections; None after an error.
        error: FileNotFoundError or ImageError of the decoder, or the network's ValueError for a size that it
            cannot take.
        times_ms: milliseconds of a thread for this picture, by stage.
    """

    item: Any
    image: Any = None
    found: Detections | None = None
    error: Exception | None = None
    times_ms: Mapping[str, float] = field(default_factory=dict)


def detect_each(detector: Detector, images: Sequence[Any], **options: Any) -> list[Detections | ValueError]:
    """Runs a network once, and again for each picture if it refuses one of them.

    Args:
        images, options: of `Detector.detect_batch`, the options checked.

    Returns:
        For each picture the detections, or the error of a picture that the network cannot take, such as a
        strip. It does not fail the others.
    """
    try:
        return detector.detect_batch(images, **options)
    except ValueError as error:
        if len(images) == 1:
            return [error]
        return [one for image in images for one in detect_each(detector, [image], **options)]


class Contexts:
    """A network that several threads run at the same time.

    Args:
        detector: its network is loaded.
        count: runs at the same time, for a backend that can be forked; others have one.

    Attributes:
        count: runs at the same time.
    """

    def __init__(self, detector: Detector, count: int = CONTEXTS) -> None:
        self._detector = detector
        self._forks = _fork(detector.backend, count - 1)
        self._free: queue.SimpleQueue = queue.SimpleQueue()
        for backend in (detector.backend, *self._forks):
            self._free.put(backend)
        self.count = 1 + len(self._forks)

    def detect(self, images: Sequence[Any], **options: Any) -> list[Detections | ValueError]:
        """Waits for a free context, and runs the network once.

        Args:
            images: uint8 [H, W, 3], RGB, or `trt_plugin.image_input.DeviceImage`.
            options: arguments of `Detector.detect_batch`, checked.

        Returns:
            As `detect_each`.
        """
        backend = self._free.get()
        try:
            return detect_each(self._detector, images, backend=backend, **options)
        finally:
            self._free.put(backend)

    def warm_up(self, batch: int) -> None:
        """Runs each context once: an engine's first run loads its kernels, and captures its CUDA graph."""
        for _ in range(self.count):
            self.detect([BLACK] * batch)

    def close(self) -> None:
        """Frees the forks."""
        for backend in self._forks:
            backend.close()
        self._forks = []


class Span(NamedTuple):
    """A batch in a detect thread, in seconds of `time.perf_counter`."""

    thread: str
    began_s: float  # waiting for pictures
    decoded_s: float  # working on them
    ended_s: float


class Pipeline:
    """Detects objects in a sequence of pictures.

    Args:
        detector: its network is loaded.
        options: arguments of `Detector.detect_batch`, checked.
        start: begins to decode items, and returns a future for each: `Decoder.start` or `decoding.ready`.
        batch: pictures in one run of the network.
        contexts: see `Contexts`.
        ahead: batches that wait for a context, decoded or being decoded.

    Attributes:
        contexts: runs at the same time.
        spans: when the detect threads waited and worked, a `Span` for each batch.
    """

    def __init__(
        self,
        detector: Detector,
        options: Mapping[str, Any],
        start: Callable[[Sequence[Any]], list[Future[Decoded]]],
        *,
        batch: int = 1,
        contexts: int = CONTEXTS,
        ahead: int = 2,
    ) -> None:
        self._options, self._start, self._batch, self._ahead = options, start, batch, ahead
        self._network = Contexts(detector, contexts)
        self.contexts = self._network.count
        self._pool = ThreadPoolExecutor(self.contexts, "detect")
        self.spans: list[Span] = []

    def run(self, items: Iterable[Any]) -> Iterator[Processed]:
        """Yields a result for each item, in order.

        Raises:
            RuntimeError: the network fails.
        """
        running: deque[Future[list[Processed]]] = deque()
        iterator = iter(items)
        try:
            while chunk := list(itertools.islice(iterator, self._batch)):
                running.append(self._pool.submit(self._detect, chunk, self._start(chunk)))
                if len(running) > self.contexts + self._ahead:
                    yield from running.popleft().result()
            while running:
                yield from running.popleft().result()
        finally:
            for future in running:
                future.cancel()

    def _detect(self, chunk: Sequence[Any], futures: Sequence[Future[Decoded]]) -> list[Processed]:
        """Waits for the pictures of a batch, and runs the network over those that could be decoded."""
        began = time.perf_counter()
        results: list[Processed] = []
        for item, future in zip(chunk, futures, strict=True):
            try:
                image, milliseconds = future.result()
                results.append(Processed(item, image, times_ms={"read": milliseconds}))
            except (ImageError, FileNotFoundError) as error:
                results.append(Processed(item, error=error))
        decoded = time.perf_counter()
        readable = [index for index, one in enumerate(results) if one.error is None]
        if readable:
            found = self._network.detect([results[index].image for index in readable], **self._options)
            for index, one in zip(readable, found, strict=True):
                done = results[index]
                if isinstance(one, Exception):
                    results[index] = Processed(done.item, done.image, error=one)
                else:
                    times = {**done.times_ms, **one.times_ms}
                    results[index] = Processed(done.item, done.image, one, times_ms=times)
        self.spans.append(Span(threading.current_thread().name, began, decoded, time.perf_counter()))
        return results

    def warm_up(self) -> None:
        """Runs the network once in each context, see `Contexts.warm_up`."""
        self._network.warm_up(self._batch)

    def close(self) -> None:
        """Waits for what is running, and frees the contexts."""
        self._pool.shutdown(cancel_futures=True)
        self._network.close()

    def __enter__(self) -> Pipeline:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class Workers:
    """Threads for the work after detection, such as drawing. At most a few jobs wait.

    Args:
        threads: default: one for each usable core, 16 at most.
    """

    def __init__(self, threads: int | None = None) -> None:
        self._threads = threads or min(usable_cores(), 16)
        self._pool = ThreadPoolExecutor(self._threads, "write")
        self._jobs: deque[Future] = deque()
        self.waited_s = 0.0
        """Seconds that the caller waited for a free place."""

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future:
        """Begins a job, and returns its future; waits while too many are unfinished.

        Raises:
            Exception: that of an earlier job.
        """
        began = time.perf_counter()
        while self._jobs and (self._jobs[0].done() or len(self._jobs) >= 2 * self._threads):
            self._jobs.popleft().result()
        self.waited_s += time.perf_counter() - began
        self._jobs.append(self._pool.submit(function, *arguments))
        return self._jobs[-1]

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        """Waits for all jobs, and raises the error of one. After an error in the block, drops what waits."""
        self._pool.shutdown(cancel_futures=kind is not None)
        while kind is None and self._jobs:
            self._jobs.popleft().result()


def keep_collections_short() -> None:
    """Exempts all objects of the process from garbage collection; call it once everything is loaded.

    With Ray's imports they are 140,000. A full collection takes 60 to 90 ms for them, and all threads wait.
    """
    gc.collect()
    gc.freeze()


def _fork(backend: Any, count: int) -> list[Any]:
    """Forks a backend up to `count` times, as often as the GPU's memory allows."""
    forks: list[Any] = []
    if not hasattr(backend, "fork"):
        return forks
    try:
        while len(forks) < count:
            forks.append(backend.fork())
    except EngineError as error:
        _log.info("the engine runs %d batches at the same time: %s", 1 + len(forks), error)
    return forks
