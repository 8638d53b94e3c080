"""Result files: one JSON file a run, with the machine, the versions, the commit and all samples."""

from __future__ import annotations

import datetime
import os
import platform
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

import torch

from benchmarks import timing
from codetr.export.output_folder import check_output
from onnx_path.sweeping.machine import cpu_name
from trt_plugin.atomic_files import write_json
from trt_plugin.engine_error import EngineError, import_tensorrt

SCHEMA_VERSION = 1
"""Version of the format. It is raised when a field changes its meaning."""

ROOT = Path(__file__).resolve().parent.parent


class ResultFile:
    """The result file of a run.

    Args:
        module: the benchmark, such as "benchmarks.msda". Its last part is the file's "kind".
        out: the file. Default: benchmarks/results/<stem>_<gpu>.json.
        stem: default: the kind.
        needs_gpu: without a GPU, fail.

    Raises:
        ArgumentError: the file cannot be written.
        RuntimeError: there is no GPU.
    """

    def __init__(
        self, module: str, out: Path | None, stem: str | None = None, needs_gpu: bool = True
    ) -> None:
        check_output("out", out)
        if needs_gpu:
            timing.require_gpu()
        self.kind = module.rpartition(".")[2]
        self.head = describe(module)
        self.started = time.monotonic()
        gpu = self.head["gpu"]
        machine = slug(gpu["name"]) if gpu else "cpu"
        self.path = out or Path("benchmarks/results") / f"{stem or self.kind}_{machine}.json"
        check_output("out", self.path)
        self.rows: list[dict] = []

    def add(self, row: dict, line: str) -> None:
        """Adds a row and prints a line about it."""
        self.rows.append(row)
        print(line, flush=True)

    def write(self, **facts: object) -> dict:
        """Writes the file and returns its content."""
        seconds = round(time.monotonic() - self.started, 1)
        content = {**self.head, "kind": self.kind, **facts, "seconds": seconds, "results": self.rows}
        write_json(self.path, content, allow_nan=False)
        return content


def describe(module: str) -> dict:
    """Returns the head of a benchmark's result file: command, time, commit, machine and versions."""
    gpu = {}
    if torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        gpu = {
            "name": properties.name,
            "compute_capability": f"{properties.major}.{properties.minor}",
            "memory_bytes": properties.total_memory,
            "l2_bytes": properties.L2_cache_size,
            "multiprocessors": properties.multi_processor_count,
            "driver": _nvidia_smi("driver_version"),
            "clocks": _nvidia_smi("clocks.max.sm,clocks.max.mem"),
        }
    return {
        "schema_version": SCHEMA_VERSION,
        "command": shlex.join(["python", "-m", module, *sys.argv[1:]]),
        "date_utc": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "commit": commit(),
        "gpu": gpu,
        "cpu": cpu_name(),
        "cpu_threads": os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "tensorrt": _tensorrt_version(),
    }


def commit() -> str:
    """Returns the checkout's commit, followed by "+changes" if files differ from it.

    Without git it is $CODETR_COMMIT, else "unknown".
    """
    head = _output("git", "-C", str(ROOT), "rev-parse", "HEAD")
    if not head:
        return os.environ.get("CODETR_COMMIT", "unknown")
    changes = _output("git", "-C", str(ROOT), "status", "--porcelain", "--untracked-files=no")
    return head + ("+changes" if changes else "")


def slug(gpu_name: str) -> str:
    """Turns a GPU's name into a part of a file name: "NVIDIA H100 80GB HBM3" -> "h100_80gb_hbm3"."""
    words = re.findall(r"[a-z0-9]+", gpu_name.lower())
    return "_".join(word for word in words if word not in ("nvidia", "geforce")) or "gpu"


def _tensorrt_version() -> str | None:
    try:
        return import_tensorrt().__version__
    except (EngineError, OSError):
        return None


def _nvidia_smi(field: str) -> str:
    return _output("nvidia-smi", f"--query-gpu={field}", "--format=csv,noheader")


def _output(*command: str) -> str:
    """Returns the first line that a command prints; "" if the command is missing or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return done.stdout.strip().partition("\n")[0].strip()
