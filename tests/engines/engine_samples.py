"""Samples for the tests of engines: metadata, recorded layers, engine files, processes without a GPU."""

from __future__ import annotations

import dataclasses
import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from tests.detector.exported_metadata import fixed_metadata
from trt_plugin.inspection import engine_layers
from trt_plugin.inspection.engine_summary import EngineSummary, TensorReport

REPOSITORY = Path(__file__).resolve().parents[2]
RECORDED = Path(__file__).parent / "recorded"

needs_dot = pytest.mark.skipif(shutil.which("dot") is None, reason="no program dot (Graphviz)")

METADATA = dataclasses.replace(
    fixed_metadata(),
    model="co_dino_r50",
    class_names=["person", "Fahrrad", "飞机"],
    precision="fp16",
    source_weights="co_dino_r50",
)
SUMMARY = EngineSummary(
    engine_bytes=3 * 2**20,
    built_with="10.6.0.26",
    tensorrt_version="10.6.0.post1",
    gpu="NVIDIA H0",
    layers=102,
    inputs=(TensorReport("images", (-1, 3, 8, 8), "float32", (1, 3, 8, 8), (2, 3, 8, 8), (4, 3, 8, 8)),),
    outputs=(TensorReport("boxes", (-1, 300, 4), "float32"),),
    profiles=2,
    device_memory_bytes=5 * 2**20,
    loaded_bytes=7 * 2**20,
    auxiliary_streams=1,
)


def recorded(name: str) -> engine_layers.LayerList:
    """Layers of a real engine with their times: "onnx", "dynamo", "int8" or "fp8"."""
    times = engine_layers.read_times(RECORDED / f"{name}_times.json")
    return engine_layers.read_file(RECORDED / f"{name}_layers.json").with_times(times)


def plan_header(version: tuple[int, int, int, int] = (10, 6, 0, 26)) -> bytes:
    """The beginning of an engine file."""
    return struct.pack("<II", 0x74727466, 0) + bytes(16) + bytes(version) + bytes(100)


def run_python(*arguments: str, gpu: bool = False, **environment: str) -> subprocess.CompletedProcess:
    """Runs Python in the source tree; without `gpu`, CUDA shows it none."""
    hidden = {} if gpu else {"CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=REPOSITORY,
        env={**os.environ, **hidden, **environment},
    )


def lines_of(text: str) -> list[str]:
    """The lines, without the warning that TensorRT 10.6 prints when it is imported."""
    return [line for line in text.splitlines() if "experimental in TensorRT" not in line]


def only_error(done: subprocess.CompletedProcess) -> str:
    """The one line on stderr of a command that failed."""
    assert done.returncode == 1, (done.returncode, done.stderr)
    (line,) = lines_of(done.stderr)
    assert "error: " in line
    return line
