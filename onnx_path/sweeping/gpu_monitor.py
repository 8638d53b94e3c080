"""Watches a GPU through NVML while a process measures: load, memory, power, clocks, throttling."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

PERIOD_S = 0.1
MOST_SAMPLES = 300
"""Samples that a result keeps, evenly spread."""

# Names of NVML's bits. An idle GPU and clocks that a user set are no throttling.
_REASONS = {
    "SwPowerCap": "power cap",
    "HwSlowdown": "hardware slowdown",
    "SwThermalSlowdown": "thermal slowdown (software)",
    "HwThermalSlowdown": "thermal slowdown (hardware)",
    "HwPowerBrakeSlowdown": "power brake",
}


def import_nvml() -> Any:
    """Returns pynvml, initialised, or None without the package, the driver or a GPU."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # ModuleNotFoundError, or NVML's own classes without a driver
        return None
    return pynvml


def visible_gpu(nvml: Any) -> Any:
    """Returns NVML's handle of the first GPU of CUDA_VISIBLE_DEVICES; None if CUDA sees none.

    Args:
        nvml: result of `import_nvml`.
    """
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip()
    if nvml is None:
        return None
    try:
        if first.isdecimal():
            return nvml.nvmlDeviceGetHandleByIndex(int(first))
        return nvml.nvmlDeviceGetHandleByUUID(first)
    except nvml.NVMLError:
        return None


class GpuMonitor:
    """Samples the first visible GPU from a thread, between `__enter__` and `__exit__`.

    The measuring process is another one, so that its timing shares no interpreter with the samples.
    """

    def __init__(self) -> None:
        self._nvml = import_nvml()
        self._handle = visible_gpu(self._nvml)
        self._samples: list[list[float | None]] = []
        self._reasons: list[int | None] = []
        self._peak_bytes = 0
        self._process: int | None = None  # whose memory is measured
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> GpuMonitor:
        if self._handle is not None:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def watch_process(self, number: int) -> None:
        """Measures the memory of a process from now on."""
        self._process = number

    def report(self, intervals: list[list[float]]) -> tuple[dict | None, int | None]:
        """Returns the GPU's part of a result, and the peak memory of the process in bytes.

        Args:
            intervals: (start, end) in seconds of time.time() in which times were measured. Throttling counts
                there only. A state that NVML did not tell counts as throttled.
        """
        if not self._samples:
            return None, None
        inside = [
            i
            for i, sample in enumerate(self._samples)
            if any(start <= sample[0] <= end for start, end in intervals)
        ]
        bits = [self._reasons[i] for i in inside]
        names = {name for value in bits if value is not None for name in self._names(value)}
        if any(value is None for value in bits) or (intervals and not inside):
            names.add("unknown")
        clocks = [self._samples[i][4] for i in inside or [-1] if self._samples[i][4] is not None]
        began = self._samples[0][0]
        step = -(-len(self._samples) // MOST_SAMPLES)
        samples = [[round(sample[0] - began, 2), *sample[1:]] for sample in self._samples[::step]]
        gpu = {
            "throttled": bool(names),
            "reasons": sorted(names),
            "sm_mhz": [min(clocks), max(clocks)] if clocks else None,
            "samples": samples,
        }
        return gpu, self._peak_bytes or None

    def _names(self, bits: int) -> list[str]:
        found = []
        for name, words in _REASONS.items():
            # The constants were renamed from "Throttle" to "Event" reasons.
            value = getattr(self._nvml, f"nvmlClocksThrottleReason{name}", None) or getattr(
                self._nvml, f"nvmlClocksEventReason{name}", 0
            )
            if bits & value:
                found.append(words)
        return found

    def _watch(self) -> None:
        nvml, handle = self._nvml, self._handle
        readings = (
            lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu,
            lambda: round(nvml.nvmlDeviceGetMemoryInfo(handle).used / 2**20, 1),
            lambda: round(nvml.nvmlDeviceGetPowerUsage(handle) / 1e3, 1),
            lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
            lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
        )
        while not self._stop.is_set():
            self._samples.append([time.time(), *map(self._read, readings)])
            self._reasons.append(self._read_reasons())
            for process in self._read(lambda: nvml.nvmlDeviceGetComputeRunningProcesses(handle)) or ():
                if process.pid == self._process:
                    self._peak_bytes = max(self._peak_bytes, process.usedGpuMemory or 0)
            self._stop.wait(PERIOD_S)

    def _read(self, reading: Callable[[], Any]) -> Any:
        """Returns a reading, or None on a GPU that lacks it, such as the power of a MIG instance."""
        try:
            return reading()
        except self._nvml.NVMLError:
            return None

    def _read_reasons(self) -> int | None:
        for name in ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"):
            try:
                return int(getattr(self._nvml, name)(self._handle))
            except (AttributeError, self._nvml.NVMLError):
                continue
        return None
