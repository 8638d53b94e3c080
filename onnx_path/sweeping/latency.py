"""Statistics of latencies."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence

WARM_UP = 0.1
"""Share of the runs that go before the samples, not counted."""

FEWEST_SAMPLES = 5


def summarise(samples_ms: Sequence[float], warm_up: int) -> dict:
    """Returns mean, median, percentiles, maximum and the 95% confidence interval of the mean.

    The interval is the normal one: it supposes that samples do not depend on each other.

    Args:
        samples_ms: milliseconds of each run.
        warm_up: number of runs before them.
    """
    ordered = sorted(samples_ms)
    last = len(ordered) - 1
    mean = statistics.fmean(ordered)
    half = 1.96 * statistics.stdev(ordered) / math.sqrt(len(ordered)) if last else 0.0
    return {
        "mean": mean,
        "median": statistics.median(ordered),
        "p95": ordered[math.ceil(0.95 * last)],
        "p99": ordered[math.ceil(0.99 * last)],
        "max": ordered[-1],
        "ci95": [mean - half, mean + half],
        "samples": len(ordered),
        "warmup": warm_up,
    }


def time_calls(call: Callable[[], object], iterations: int, seconds: float) -> dict:
    """Measures the wall clock of calls that return when their work is done, see `summarise`.

    Args:
        iterations: number of samples.
        seconds: limit of their time. At least `FEWEST_SAMPLES` are taken.
    """
    warm_up = max(1, round(WARM_UP * iterations))
    started = time.perf_counter()
    for done in range(1, warm_up + 1):
        call()
        if time.perf_counter() - started > seconds * WARM_UP:
            warm_up = done
            break
    samples: list[float] = []
    total = 0.0
    while len(samples) < iterations and (len(samples) < FEWEST_SAMPLES or total < seconds):
        started = time.perf_counter()
        call()
        elapsed = time.perf_counter() - started
        samples.append(elapsed * 1e3)
        total += elapsed
    return summarise(samples, warm_up)
