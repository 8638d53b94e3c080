"""`codetr serve` as a process."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from benchmarks.serving import networks
from codetr.cli.serve import _free_port

ROOT = Path(__file__).resolve().parents[2]


def free_port() -> int:
    """Returns a port that stays free until the server listens: Linux gives it to no other program."""
    return _free_port(random.sample(range(10000, 20000), 9))


class ServerProcess:
    """A server that runs.

    Attributes:
        url: its address.
        process: the command.
        log: file of its output.
    """

    def __init__(self, folder: Path, *options: object) -> None:
        port = free_port()
        self.url, self.log = f"http://127.0.0.1:{port}", folder / "log.txt"
        command = [sys.executable, "-m", "codetr", "serve", "--port", str(port), *map(str, options)]
        # Ray reports metrics every second, and each line of the log at once.
        quick = {"RAY_metrics_report_interval_ms": "1000", "RAY_DEDUP_LOGS": "0"}
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                command, stdout=log, stderr=log, cwd=ROOT, env={**os.environ, **quick}
            )

    def get(self, path: str, headers: dict[str, str] | None = None) -> tuple[int, str]:
        """Returns status and text."""
        return self.send(urllib.request.Request(self.url + path, headers=headers or {}))

    def post(self, body: bytes, query: str = "") -> tuple[int, str]:
        """Detects in an image; returns status and text."""
        return self.send(urllib.request.Request(f"{self.url}/v1/detect{query}", body))

    @staticmethod
    def send(request: urllib.request.Request) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def wait_until_ready(self) -> None:
        ends = time.monotonic() + 90
        while time.monotonic() < ends and self.process.poll() is None:
            with contextlib.suppress(OSError):
                if self.get("/readyz")[0] == 200:
                    return
            time.sleep(0.2)
        raise AssertionError(self.log.read_text())

    def networks(self) -> list[int]:
        """The processes that run the network."""
        return networks(self.process.pid)


@contextlib.contextmanager
def running(folder: Path, *options: object) -> Iterator[ServerProcess]:
    """Starts a server, and ends it."""
    server = ServerProcess(folder, *options)
    try:
        try:
            server.wait_until_ready()
        except AssertionError as error:
            if "timed out during startup" not in str(error):
                raise
            # Ray gives one of its processes 15 seconds to start, which a busy machine may exceed.
            server = ServerProcess(folder, *options)
            server.wait_until_ready()
        yield server
    finally:
        server.process.send_signal(signal.SIGTERM)
        try:
            server.process.wait(30)
        except subprocess.TimeoutExpired:
            server.process.kill()
            raise


def boxes(text: str) -> list[dict]:
    """The detections of the only image of an answer."""
    (image,) = json.loads(text)["images"]
    return image["detections"]
