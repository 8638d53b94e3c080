"""Times of work on the GPU: CUDA events around replays of a CUDA graph.

A graph holds several calls, each with its own copy of the inputs. The host launches nothing between the
calls, so a sample is GPU time only. Copies that exceed the L2 cache several times make the cache "cold": no
call finds its inputs there. A replay itself takes some microseconds, so a graph of few copies repeats them.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import torch

L2_MULTIPLE = 3
"""Size of all copies of the inputs, in L2 caches: a round leaves nothing of the first copy in the cache."""

MAX_COPIES = 64


@dataclass(frozen=True)
class Timing:
    """Samples of one measurement."""

    samples_ms: list[float]  # milliseconds of a call, one number for each replay
    calls_per_replay: int = 1  # calls in the graph
    warmup: int = 0  # replays before the first sample
    cache: str = "warm"  # "warm" if the L2 cache can hold the inputs from one call to the next, else "cold"
    method: str = "CUDA events around replays of one CUDA graph"  # the clock, in words

    @property
    def median_ms(self) -> float:
        """The median sample, milliseconds."""
        return statistics.median(self.samples_ms)

    @property
    def summary(self) -> dict[str, float]:
        """Median, 5th and 95th percentile, minimum, and number of the samples."""
        ordered = sorted(self.samples_ms)
        last = len(ordered) - 1
        return {
            "median_ms": self.median_ms,
            "p05_ms": ordered[round(0.05 * last)],
            "p95_ms": ordered[round(0.95 * last)],
            "min_ms": ordered[0],
            "samples": len(ordered),
        }

    def as_dict(self) -> dict:
        """Returns the fields for JSON: the summary first, samples rounded to 0.1 microseconds."""
        samples = [round(sample, 4) for sample in self.samples_ms]
        return {**self.summary, **asdict(self), "samples_ms": samples}


def spread(timing: dict) -> str:
    """Returns the median and the percentiles of `Timing.as_dict` in words."""
    low, high = timing["p05_ms"], timing["p95_ms"]
    return f"{timing['median_ms']:.3f} ms ({low:.3f} to {high:.3f}, {timing['samples']} samples)"


def l2_bytes() -> int:
    """Returns the size of the current GPU's L2 cache, in bytes."""
    return torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size


def copies_for_cold_cache(bytes_per_call: int) -> int:
    """Returns the number of copies of the inputs with which every call finds a cold L2 cache."""
    wanted = -(-L2_MULTIPLE * l2_bytes() // max(1, bytes_per_call))
    return min(MAX_COPIES, max(1, wanted))


def capture(calls: Sequence[Callable[[], object]]) -> torch.cuda.CUDAGraph:
    """Captures calls, one after the other, as one CUDA graph.

    Each call first runs twice on the stream of the graph. It may keep a result of that, such as an autograd
    graph.
    """
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            for call in calls:
                call()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        # The results live until the capture ends. So each call writes memory that is not in the cache.
        results = [call() for call in calls]
    del results
    return graph


def time_graph(
    calls: Sequence[Callable[[], object]],
    bytes_per_call: int = 0,
    iterations: int = 100,
    warmup: int = 10,
    seconds: float = 2.0,
    least_calls: int = 1,
) -> Timing:
    """Times calls as one CUDA graph.

    Args:
        calls: each runs the same work with its own tensors.
        bytes_per_call: size of the tensors of one call, which decides whether the cache is cold.
        iterations: number of replays, one sample each.
        seconds: limit of the GPU time for samples. At least 10 are taken.
        least_calls: the calls are repeated until the graph holds this number.

    Raises:
        RuntimeError: there is no GPU.
    """
    require_gpu()
    cold = bytes_per_call * len(calls) >= 2 * l2_bytes()
    calls = list(calls) * -(-least_calls // len(calls))
    graph = capture(calls)
    once = max(_milliseconds(graph.replay), 1e-3)
    affordable = max(10, int(seconds * 1e3 / once))
    iterations, warmup = min(iterations, affordable), min(warmup, max(2, affordable // 10))
    for _ in range(warmup):
        graph.replay()
    # The host queues all replays before it waits for the first, so that the GPU is never idle.
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(iterations)]
    for start, stop in events:
        start.record()
        graph.replay()
        stop.record()
    torch.cuda.synchronize()
    samples = [start.elapsed_time(stop) / len(calls) for start, stop in events]
    graph.reset()
    return Timing(samples, len(calls), warmup, "cold" if cold else "warm")


def time_eager(
    call: Callable[[], object], iterations: int = 100, warmup: int = 3, seconds: float = 1.5
) -> Timing:
    """Times a call that waits for the GPU, which no graph can capture. The waiting is part of a sample.

    Args:
        iterations: number of calls, one sample each.
        seconds: limit of the time for samples. At least 5 are taken.
    """
    require_gpu()
    samples: list[float] = []
    for index in range(warmup + iterations):
        milliseconds = _milliseconds(call)
        if index >= warmup:
            samples.append(milliseconds)
        if len(samples) >= 5 and sum(samples) > seconds * 1e3:
            break
    return Timing(samples, warmup=warmup, method="CUDA events around eager calls, one set of inputs")


def _milliseconds(call: Callable[[], object]) -> float:
    """Runs a call and waits for the GPU; returns its GPU time."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    call()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end)


def copy_bandwidth() -> float:
    """Returns the bytes per second, read plus written, of a copy of 2 GiB on the GPU."""
    source = torch.randn(2**29, device="cuda")
    target = torch.empty_like(source)
    timing = time_graph([lambda: target.copy_(source)], 2 * source.nbytes, iterations=20)
    return 2 * source.nbytes / (timing.median_ms * 1e-3)


def require_gpu() -> None:
    """Raises RuntimeError if Torch sees no GPU."""
    if not torch.cuda.is_available():
        raise RuntimeError("this benchmark needs an NVIDIA GPU, and torch.cuda.is_available() is False here")
