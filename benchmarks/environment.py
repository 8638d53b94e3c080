"""What a result file says of where it comes from: machine, versions, commit, command line, time."""

from __future__ import annotations

import datetime
import json
import os
import platform
import shlex
import shutil
import subprocess
from pathlib import Path

from trt_plugin.atomic_files import atomic_write
from trt_plugin.engine_error import EngineError, import_tensorrt

SCHEMA_VERSION = 1
"""Of the result files; raised when a field changes its meaning."""

ROOT = Path(__file__).resolve().parent.parent


def describe(module: str, arguments: list[str]) -> dict:
    """The head of a result file.

    Args:
        module: the module that ran, as in `python -m module`.
        arguments: its command-line arguments.
    """
    import torch

    gpu = {}
    if torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        gpu = {
            "name": properties.name,
            "compute_capability": f"{properties.major}.{properties.minor}",
            "memory_bytes": properties.total_memory,
            "l2_bytes": properties.L2_cache_size,
            "multiprocessors": properties.multi_processor_count,
            "driver": _output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"),
            "clocks": _output(
                "nvidia-smi", "--query-gpu=clocks.max.sm,clocks.max.mem", "--format=csv,noheader"
            ),
        }
    return {
        "schema_version": SCHEMA_VERSION,
        "command": shlex.join(["python", "-m", module, *arguments]),
        "date_utc": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "commit": commit(),
        "gpu": gpu,
        "cpu": _cpu(),
        "cpu_threads": os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "tensorrt": tensorrt_version(),
    }


def commit() -> str:
    """The checkout's commit, "+changes" added when files differ from it; CODETR_COMMIT, else "unknown",
    without git."""
    head = _output("git", "-C", str(ROOT), "rev-parse", "HEAD")
    if not head:
        return os.environ.get("CODETR_COMMIT", "unknown")
    changes = _output("git", "-C", str(ROOT), "status", "--porcelain", "--untracked-files=no")
    return head + ("+changes" if changes else "")


def tensorrt_version() -> str | None:
    """TensorRT's version, or None where it cannot be imported."""
    try:
        return import_tensorrt().__version__
    except (EngineError, OSError):
        return None


def slug(gpu_name: str) -> str:
    """A GPU's name for a file name: "NVIDIA H100 80GB HBM3" -> "h100_80gb_hbm3"."""
    words = "".join(character if character.isalnum() else " " for character in gpu_name.lower()).split()
    return "_".join(word for word in words if word not in ("nvidia", "geforce")) or "gpu"


def write_json(path: Path, content: dict) -> None:
    """Writes a result file whole or not at all."""
    with atomic_write(path) as temporary:
        temporary.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n", encoding="utf-8")


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def _output(*command: str) -> str:
    """First line that a command prints; empty when it is missing or fails."""
    if shutil.which(command[0]) is None:
        return ""
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    return done.stdout.strip().splitlines()[0].strip() if done.returncode == 0 and done.stdout.strip() else ""
