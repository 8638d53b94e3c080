"""training.json: the settings, machine and results of a run, for those who repeat it."""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

import codetr
from trt_plugin.atomic_files import write_json


def describe_session(processes: int) -> dict[str, Any]:
    """Describes the start of a run: its time, command, machine and versions."""
    return {
        "started_utc": _now(),
        "command": shlex.join(["codetr", *sys.argv[1:]]),
        "processes": processes,
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "cpu_threads": os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "codetr": codetr.__version__,
        "commit": _commit(),
    }


def write_report(path: Path, content: Mapping[str, Any], session: Mapping[str, Any]) -> None:
    """Writes the report: the run so far, and this session after those of an earlier file."""
    earlier = []
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        earlier = json.loads(path.read_text(encoding="utf-8"))["sessions"]
    write_json(path, {**content, "sessions": [*earlier, {**session, "ended_utc": _now()}]})


def _now() -> str:
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def _commit() -> str | None:
    """Returns the commit of the checkout that holds this package, if there is one."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return os.environ.get("CODETR_COMMIT")
    command = ["git", "-C", str(root), "rev-parse", "HEAD"]
    with contextlib.suppress(OSError):  # no git
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip() or None
