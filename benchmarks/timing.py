"""The one timer: CUDA events around replays of a CUDA graph.

What is timed is captured as one graph of several calls, each over its own copy of the inputs, so that the
time is the GPU's alone (no launch from the host between calls) and, when the copies together are larger than
the L2 cache several times over, each call finds its inputs outside the cache ("cold"). A replay takes some
microseconds of its own, so a graph of few copies goes round them several times.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field

import torch

L2_MULTIPLE = 3
"""The copies of the inputs are together at least this many times the L2 cache, so that none of a copy
survives a round."""

MAX_COPIES = 64


@dataclass(frozen=True)
class Timing:
    """Samples of one measurement, GPU milliseconds a call.

    Attributes:
        samples_ms: one number a replay: its time divided by calls_per_replay.
        calls_per_replay: calls captured in the graph, over copies of the inputs in turn.
        warmup: replays before the first sample.
        cache: "cold" or "warm": whether the L2 cache can hold the inputs from one call to the next.
        method: how it was timed.
    """

    samples_ms: list[float]
    calls_per_replay: int
    warmup: int
    cache: str
    method: str = "CUDA events around replays of one CUDA graph"
    summary: dict[str, float] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "summary", summarise(self.samples_ms))

    @property
    def median_ms(self) -> float:
        """The middle sample, milliseconds."""
        return self.summary["median_ms"]

    def as_dict(self) -> dict:
        """For JSON: the summary first, samples rounded to 0.1 microseconds."""
        fields = asdict(self)
        fields["samples_ms"] = [round(sample, 4) for sample in self.samples_ms]
        return {**fields.pop("summary"), **fields}


def summarise(samples_ms: Sequence[float]) -> dict[str, float]:
    """Median and spread: 5th and 95th percentile, minimum, and their number."""
    ordered = sorted(samples_ms)
    if not ordered:
        raise ValueError("samples_ms: expected at least one sample, got none")
    last = len(ordered) - 1
    return {
        "median_ms": statistics.median(ordered),
        "p05_ms": ordered[round(0.05 * last)],
        "p95_ms": ordered[round(0.95 * last)],
        "min_ms": ordered[0],
        "samples": len(ordered),
    }


def l2_bytes() -> int:
    """Size of the current GPU's L2 cache in bytes."""
    return torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size


def copies_for_cold_cache(bytes_per_call: int) -> int:
    """How many sets of inputs make every call find a cold L2 cache: their bytes together are L2_MULTIPLE
    caches."""
    wanted = -(-L2_MULTIPLE * l2_bytes() // max(1, bytes_per_call))
    return min(MAX_COPIES, max(1, wanted))


def capture(calls: Sequence[Callable[[], object]]) -> torch.cuda.CUDAGraph:
    """Captures the calls, one after the other, as one CUDA graph; each has run twice before (or more often,
    if it is there several times), outside the graph but on its stream (so a call may keep what its first run
    computed, an autograd graph say)."""
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
        # The results live until the capture ends: each call writes memory of its own, as cold as its inputs.
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
    """Times calls on the current GPU.

    Args:
        calls: each runs the same work over its own tensors; they are captured together.
        bytes_per_call: of one call's tensors; with the number of calls it says whether the cache is cold.
        iterations: replays, one sample each.
        warmup: replays before them.
        seconds: stop sampling after about so much GPU time, with at least 10 samples: for slow baselines.
        least_calls: go round the calls until a replay has so many.

    Raises:
        RuntimeError: without a GPU.
    """
    require_gpu()
    cold = bytes_per_call * len(calls) >= 2 * l2_bytes()
    calls = list(calls) * -(-least_calls // len(calls))
    graph = capture(calls)
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    graph.replay()
    end.record()
    end.synchronize()
    once = max(begin.elapsed_time(end), 1e-3)
    affordable = max(10, int(seconds * 1e3 / once))
    iterations, warmup = min(iterations, affordable), min(warmup, max(2, affordable // 10))
    for _ in range(warmup):
        graph.replay()
    # All replays are in the queue before the first is waited for: the GPU never runs dry between them.
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
    """Times a call that cannot be captured, because it waits for the GPU inside; its waiting counts.

    Args:
        call: runs the work on the current stream.
        iterations: calls, one sample each.
        warmup: calls before them.
        seconds: stop sampling after about so much time, with at least 5 samples.
    """
    require_gpu()
    samples: list[float] = []
    for index in range(warmup + iterations):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        call()
        end.record()
        end.synchronize()
        if index >= warmup:
            samples.append(begin.elapsed_time(end))
        if len(samples) >= 5 and sum(samples) > seconds * 1e3:
            break
    return Timing(samples, 1, warmup, "warm", "CUDA events around eager calls, one set of inputs")


def copy_bandwidth(megabytes: int = 2048) -> float:
    """Bytes per second, read plus written, of a large copy on the GPU: the ceiling that the byte floor is
    taken at."""
    source = torch.randn(megabytes * 2**18, device="cuda")
    target = torch.empty_like(source)
    timing = time_graph([lambda: target.copy_(source)], 2 * source.nbytes, iterations=20)
    return 2 * source.nbytes / (timing.median_ms * 1e-3)


def require_gpu() -> None:
    """Raises RuntimeError in one line when Torch sees no GPU."""
    if not torch.cuda.is_available():
        raise RuntimeError("this benchmark needs an NVIDIA GPU, and torch.cuda.is_available() is False here")
