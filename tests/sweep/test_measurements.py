"""Statistics of latencies, differences of outputs, and the state of the GPU."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import numpy as np
import pytest

from onnx_path.sweeping import gpu_monitor, machine
from onnx_path.sweeping.latency import summarise
from onnx_path.sweeping.output_differences import (
    ClassifierDifferences,
    DetectorDifferences,
    OutputDifferences,
)


def test_statistics_of_latencies():
    found = summarise([*range(1, 100), 1000], 10)
    assert (found["median"], found["p95"], found["p99"], found["max"]) == (50.5, 96, 1000, 1000)
    low, high = found["ci95"]
    assert found["mean"] == pytest.approx(59.5)
    assert low < found["mean"] < high
    assert high - low == pytest.approx(2 * 1.96 * np.std([*range(1, 100), 1000], ddof=1) / 10)


def test_differences_of_outputs():
    differences = OutputDifferences(1e-3, 0)
    differences.update([np.float32([[1, 2], [3, 4]])], [np.float32([[1.0005, 2.1], [3, 4]])])
    assert differences.report()["close"] == 0.75


def test_differences_of_classifiers():
    differences = ClassifierDifferences(1e-3, 0, ["a", "b", "c"])
    expected = np.log(np.float32([[0.7, 0.2, 0.1], [0.5, 0.3, 0.2]]))
    differences.update([expected], [np.log(np.float32([[0.7, 0.1, 0.2], [0.5, 0.3, 0.2]]))])
    report = differences.report()
    assert [row["disagreement"] for row in report["by_rank"]] == [0, 0.5, 0.5]
    assert [row["mean_abs_error"] for row in report["by_rank"]] == pytest.approx([0, 0, 0], abs=1e-6)
    assert [name for name, _ in report["example"]["got"]] == ["a", "c", "b"]


def test_differences_of_detectors():
    boxes = np.float32([[[0, 0, 10, 10], [20, 20, 40, 40], [0, 0, 0, 0]]])
    scores, labels = np.float32([[0.5, 0.9, 0]]), np.int64([[1, 2, -1]])
    moved = boxes + np.float32([1, 0, 0, 0])
    differences = DetectorDifferences()
    differences.update((boxes, scores, labels), (moved, scores - 0.25, np.int64([[3, 2, -1]])))
    report = differences.report()
    assert report["matched"] == 0.5
    assert report["by_rank"] == [{"rank": 1, "box_px": 1.0, "score": pytest.approx(0.25)}]


@pytest.mark.parametrize(
    ("bits", "reasons", "watts"),
    [
        (0x1, [], 300.0),
        (0x20 | 0x4, ["power cap", "thermal slowdown (software)"], 300.0),
        (None, ["unknown"], 300.0),
        (0x1, [], None),
    ],
)
def test_throttling_is_named(monkeypatch, bits, reasons, watts):
    """A GPU that does not tell its power is watched too."""

    class NVMLError(Exception):
        pass

    def told(value):
        if value is None:
            raise NVMLError
        return value

    process = SimpleNamespace(pid=7, usedGpuMemory=2**30)
    nvml = SimpleNamespace(
        NVMLError=NVMLError,
        NVML_CLOCK_SM=1,
        NVML_TEMPERATURE_GPU=0,
        nvmlClocksThrottleReasonSwPowerCap=0x4,
        nvmlClocksThrottleReasonSwThermalSlowdown=0x20,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetUtilizationRates=lambda handle: SimpleNamespace(gpu=50),
        nvmlDeviceGetMemoryInfo=lambda handle: SimpleNamespace(used=2**30),
        nvmlDeviceGetPowerUsage=lambda handle: 1000 * told(watts),
        nvmlDeviceGetClockInfo=lambda handle, kind: 1980,
        nvmlDeviceGetTemperature=lambda handle, kind: 40,
        nvmlDeviceGetComputeRunningProcesses=lambda handle: [process],
        nvmlDeviceGetCurrentClocksEventReasons=lambda handle: told(bits),
        nvmlDeviceGetCurrentClocksThrottleReasons=lambda handle: told(bits),
    )
    monkeypatch.setattr(gpu_monitor, "import_nvml", lambda: nvml)
    monkeypatch.setattr(gpu_monitor, "PERIOD_S", 0.01)
    with gpu_monitor.GpuMonitor() as monitor:
        monitor.watch_process(7)
        monitor._stop.wait(0.1)
    gpu, peak = monitor.report([[0, sys.maxsize]])
    assert (gpu["throttled"], gpu["reasons"], peak) == (bool(reasons), reasons, 2**30)
    assert gpu["samples"][0][1:] == [50, 1024.0, watts, 1980, 40]


@pytest.mark.parametrize(
    ("visible", "name"),
    [(None, "GPU 0"), ("1,0", "GPU 1"), ("GPU-b", "GPU b"), ("", None), ("-1", None), ("7", None)],
)
def test_the_gpu_is_the_first_visible_one(monkeypatch, visible, name):
    class NVMLError(Exception):
        pass

    def find(key):
        try:
            return {0: "GPU 0", 1: "GPU 1", "GPU-b": "GPU b"}[key]
        except KeyError:
            raise NVMLError from None

    nvml = SimpleNamespace(
        NVMLError=NVMLError,
        nvmlDeviceGetHandleByIndex=find,
        nvmlDeviceGetHandleByUUID=find,
        nvmlDeviceGetName=lambda handle: handle,
    )
    monkeypatch.setattr(machine, "import_nvml", lambda: nvml)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert machine.gpu_name.__wrapped__() == name
