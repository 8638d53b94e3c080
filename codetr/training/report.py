"""training.json: what a run was, for those who want to repeat it."""

from __future__ import annotations

import datetime
import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from trt_plugin.atomic_files import atomic_write


def session(processes: int) -> dict[str, Any]:
    """Describes the start of a process group: when, how, where, with which versions."""
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {
        "started_utc": _now(),
        "command": shlex.join(["codetr", *sys.argv[1:]]),
        "processes": processes,
        "gpu": gpu,
        "cpu_threads": os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "codetr": _version(),
        "commit": _commit(),
    }


def write_report(path: Path, content: Mapping[str, Any], this_session: Mapping[str, Any]) -> None:
    """Writes the report. Sessions that an earlier file lists stay in it, before this one.

    Args:
        path: of training.json.
        content: of the run so far.
        this_session: of `session`, and what came of it.
    """
    earlier = []
    if path.is_file():
        try:
            earlier = json.loads(path.read_text(encoding="utf-8"))["sessions"]
        except (ValueError, KeyError, TypeError):
            earlier = []  # somebody else's file
    earlier = [entry for entry in earlier if entry["started_utc"] != this_session["started_utc"]]
    whole = {**content, "sessions": [*earlier, {**this_session, "ended_utc": _now()}]}
    with atomic_write(path) as temporary:
        temporary.write_text(json.dumps(whole, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _now() -> str:
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def _version() -> str | None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("codetr-tensorrt")
    except PackageNotFoundError:
        return None


def _commit() -> str | None:
    """The commit of the source checkout that this package is in, if it is in one."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists() or shutil.which("git") is None:
        return os.environ.get("CODETR_COMMIT")
    command = ["git", "-C", str(root), "rev-parse", "HEAD"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    return done.stdout.strip() or os.environ.get("CODETR_COMMIT")
