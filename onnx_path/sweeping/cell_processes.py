"""Runs `onnx_path.sweeping.measure_cell` in processes of their own, and watches the GPU meanwhile."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from onnx_path.sweeping.cells import CellSpec
from onnx_path.sweeping.gpu_monitor import GpuMonitor
from trt_plugin.atomic_files import write_json


class CellProcesses:
    """Starts processes, waits for their results and keeps their output.

    Args:
        logs: folder of their output.
        limit: seconds after which a process is killed.
    """

    def __init__(self, logs: Path, limit: int) -> None:
        self._logs, self._limit = logs, limit
        self._folder = tempfile.TemporaryDirectory(prefix="codetr-sweep-")  # of specs and results
        self._loading: dict[str, tuple[subprocess.Popen, str]] = {}

    def load(self, spec: CellSpec) -> None:
        """Starts the process of a cell, which loads its network and waits; `run` lets it go on."""
        if spec.cell.id not in self._loading:
            self._loading[spec.cell.id] = self._start("cell", spec)

    def stop(self, name: str) -> None:
        """Ends the process of a cell that waits, if there is one."""
        if name in self._loading:
            process, _ = self._loading.pop(name)
            process.kill()
            process.wait()

    def stop_all(self) -> None:
        """Ends all processes that wait, and removes their files."""
        for name in [*self._loading]:
            self.stop(name)
        self._folder.cleanup()

    def run(self, what: str, spec: CellSpec) -> dict[str, Any]:
        """Runs a process to its end.

        Args:
            what: "cell", "build" or "reference", see `onnx_path.sweeping.measure_cell`.

        Returns:
            Its result, with status "failed" and a reason if it left none; and "gpu", "peak_gpu_bytes" and
            "seconds".
        """
        loading = self._loading.pop(spec.cell.id, None) if what == "cell" else None
        process, name = loading or self._start(what, spec)
        result = self._result(name)
        started = time.monotonic()
        with GpuMonitor() as monitor:
            monitor.watch_process(process.pid)
            try:
                with contextlib.suppress(BrokenPipeError):  # it has ended
                    process.stdin.write(b"\n")
                process.wait(self._limit)
                reason = _ending(process.returncode, self._log(name))
            except subprocess.TimeoutExpired:
                reason = f"took longer than --cell-seconds {self._limit}"
            finally:
                process.stdin.close()
                process.kill()
                process.wait()
        content: dict[str, Any] = {"status": "failed", "reason": reason}
        if result.is_file():
            content = json.loads(result.read_text(encoding="utf-8"))
        gpu, peak = monitor.report(content.pop("measured", []))
        seconds = round(time.monotonic() - started, 2)
        return {**content, "gpu": gpu, "peak_gpu_bytes": peak, "seconds": seconds}

    def _start(self, what: str, spec: CellSpec) -> tuple[subprocess.Popen, str]:
        """Starts a process, which waits for a line.

        Returns:
            The process, and the name of its files without their suffixes.
        """
        self._logs.mkdir(parents=True, exist_ok=True)
        name = f"{spec.network.folder}-reference" if what == "reference" else spec.cell.id
        source, result = Path(self._folder.name, f"{name}.spec.json"), self._result(name)
        write_json(source, spec.as_dict())
        result.unlink(missing_ok=True)
        command = [sys.executable, "-m", "onnx_path.sweeping.measure_cell", what, str(source), str(result)]
        with self._log(name).open("w") as file:
            pipes = {"stdin": subprocess.PIPE, "stdout": file, "stderr": subprocess.STDOUT}
            process = subprocess.Popen(command, bufsize=0, **pipes)
        return process, name

    def _result(self, name: str) -> Path:
        return Path(self._folder.name, f"{name}.result.json")

    def _log(self, name: str) -> Path:
        return self._logs / f"{name}.log"


def _ending(status: int, log: Path) -> str:
    """Describes the end of a process that left no result."""
    if status < 0:
        name = signal.Signals(-status).name
        hint = ", as Linux does for want of memory" if name == "SIGKILL" else ""
        return f"the process was killed by {name}{hint}"
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return f"the process ended with status {status}: {lines[-1] if lines else 'no message'}"
