"""`python -m benchmarks.serving`: the server under load, beside the pipeline without a server."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from cyclopts.types import NonNegativeInt, PositiveFloat, PositiveInt

from benchmarks.pipeline import Stages, picture_files
from benchmarks.requests import send_malformed, send_slowly
from benchmarks.result_files import ResultFile
from codetr.cli.argument_types import Folder, OutputFile
from codetr.cli.program import run_program
from codetr.detector.detector import Detector
from codetr.detector.network_options import NetworkOptions
from codetr.detector.pipeline import CONTEXTS
from codetr.errors import UsageError

_DEFAULTS = NetworkOptions()
_START_S = 300
_PIPELINE_BATCHES = 125  # of the run without a server


def measure_serving(
    *,
    network: NetworkOptions = _DEFAULTS,
    pictures: Folder | None = None,
    clients: PositiveInt = 32,
    seconds: PositiveFloat = 60.0,
    requests: NonNegativeInt = 0,
    malformed: NonNegativeInt = 500,
    batch: PositiveInt = 8,
    replicas: PositiveInt = 1,
    gateways: PositiveInt | None = None,
    kill: bool = False,
    deadline: PositiveFloat = 10.0,
    port: int = 8765,
    out: OutputFile | None = None,
) -> int:
    """Measure the latency, the images a second and the memory of `codetr serve`, and count what it loses.

    Each client sends a picture as soon as it has the last answer, over the loopback. `of_pipeline` compares
    with the same pictures from files in one process. Memory is the sum of the server's processes, shared
    pages counted once. `growth_mib` compares its medians in the last and the second quarter of the run.

    Then the clients go on beside malformed requests and slow clients, and beside a killed replica. `lost` are
    requests without an answer.

    ```
    python -m benchmarks.serving --engine model.engine --batch 8 --clients 32 --seconds 60
    ```

    Args:
        pictures: folder of pictures. Default: pictures of 1080x1920, made of the repository's photographs.
        clients: connections, with one request at a time each.
        seconds: length of the run, after a warm-up of a tenth.
        requests: least number of requests of the run, which then takes longer.
        malformed: number of malformed requests; 0 for none.
        batch: pictures in one run of the network.
        replicas, gateways: see `codetr serve`.
        kill: kill a replica under load.
        deadline: see `codetr serve`.
        port: port of the server.
        out: result file. Default: benchmarks/results/serving_GPU.json.
    """
    result = ResultFile("benchmarks.serving", out, needs_gpu=False)
    with tempfile.TemporaryDirectory() as scratch:
        files = picture_files(pictures, Path(scratch))
        alone, description = _pipeline(network, files, batch)
        result.add(*_named("pipeline", alone))
        options = [*_words(network), "--port", str(port), "--batch", str(batch), "--replicas", str(replicas)]
        options += [] if gateways is None else ["--gateways", str(gateways)]
        options += ["--queue", str(2 * clients + 16), "--deadline", str(deadline)]
        with _server(options, Path(scratch, "log.txt")) as server:
            load = Load(f"http://127.0.0.1:{port}", [file.read_bytes() for file in files], server)
            asyncio.run(load.run(clients, seconds / 10))
            row = asyncio.run(load.run(clients, seconds, requests))
            row["of_pipeline"] = row["images_per_second"] / (replicas * alone["images_per_second"])
            result.add(*_named("server", row))
            if malformed:
                row = asyncio.run(load.run_beside_malformed(clients, malformed, deadline))
                result.add(*_named("malformed requests beside", row))
            if kill:
                row = asyncio.run(load.run_beside_kill(clients, max(5.0, seconds / 4)))
                result.add(*_named("a replica killed", row))
    facts = {"clients": clients, "batch": batch, "replicas": replicas, "gateways": gateways or replicas}
    facts["distinct"] = len(files)
    result.write(network=description, **facts)
    print(f"wrote {result.path}")
    return 0


class Load:
    """Clients of a server.

    Args:
        url: address of the server.
        bodies: files to send.
        server: process whose memory, with that of all its descendants, is measured.
    """

    def __init__(self, url: str, bodies: Sequence[bytes], server: int) -> None:
        self.url, self.bodies, self.server = url, bodies, server

    async def run(self, clients: int, seconds: float, requests: int = 0) -> dict[str, Any]:
        """Sends requests for some time, and at least a number of them.

        Returns:
            Latencies, statuses, images a second, and memory over time.
        """
        import aiohttp

        latencies: list[float] = []
        statuses: Counter[str] = Counter()
        memory: list[list[float]] = []
        began = time.perf_counter()

        def goes_on() -> bool:
            return time.perf_counter() < began + seconds or statuses.total() < requests

        async def client(session: aiohttp.ClientSession, choose: random.Random) -> None:
            while goes_on():
                sent = time.perf_counter()
                try:
                    async with session.post("/v1/detect", data=choose.choice(self.bodies)) as answer:
                        await answer.read()
                except (aiohttp.ClientError, asyncio.TimeoutError):
                    statuses["lost"] += 1
                    continue
                statuses[str(answer.status)] += 1
                latencies.append(1000 * (time.perf_counter() - sent))

        async def watch() -> None:
            while goes_on():
                mebibytes = await asyncio.to_thread(memory_of, self.server)
                memory.append([round(time.perf_counter() - began, 1), mebibytes])
                await asyncio.sleep(max(0.5, seconds / 60))

        connector = aiohttp.TCPConnector(limit=clients)
        async with aiohttp.ClientSession(self.url, connector=connector) as session:
            await asyncio.gather(
                watch(), *(client(session, random.Random(index)) for index in range(clients))
            )
        elapsed = time.perf_counter() - began
        median, slow = np.percentile(latencies, [50, 99])
        quarters = np.array_split([mebibytes for _, mebibytes in memory], 4)
        return {
            "images_per_second": statuses["200"] / elapsed,
            "p50_ms": float(median),
            "p99_ms": float(slow),
            "requests": statuses.total(),
            "statuses": dict(statuses),
            "memory_mib": memory,
            "growth_mib": float(np.median(quarters[3]) - np.median(quarters[1])) if len(memory) > 3 else None,
        }

    async def run_beside_malformed(self, clients: int, count: int, deadline: float) -> dict[str, Any]:
        """Sends malformed requests, and five of slow clients, beside those of `run`."""
        row, answers, *slow = await asyncio.gather(
            self.run(clients, deadline + 2),
            send_malformed(self.url, count),
            *(send_slowly(self.url) for _ in range(5)),
        )
        every = [*answers, *slow]
        return {
            **row,
            "malformed": len(every),
            "answered_as_expected": sum(one.status == one.expected for one in every),
            "slowest_answer_s": max(one.seconds for one in answers),
            "slowest_408_s": max(one.seconds for one in slow),
        }

    async def run_beside_kill(self, clients: int, seconds: float) -> dict[str, Any]:
        """Kills a replica of the network a second after `run` begins."""
        load = asyncio.create_task(self.run(clients, seconds))
        await asyncio.sleep(1)
        before = networks(self.server)
        os.kill(before[0], signal.SIGKILL)
        killed = time.perf_counter()
        row = await load
        while len(set(networks(self.server)) - {before[0]}) < len(before):
            if time.perf_counter() > killed + _START_S:
                raise UsageError("the killed replica does not start again")
            await asyncio.sleep(0.2)
        return row


def memory_of(process: int) -> float:
    """Returns the memory of a process and all its descendants in MiB, with each shared page counted once."""
    total = 0
    for one in (process, *descendants(process)):
        with suppress(OSError):  # it ended
            text = Path(f"/proc/{one}/smaps_rollup").read_text()
            total += int(text.partition("\nPss:")[2].split()[0])
    return total / 1024


def descendants(process: int) -> list[int]:
    """Returns the processes that a process started, and those that these started."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(entry.name))
    found = [process]
    for one in found:
        found += children.get(one, [])
    return found[1:]


def networks(server: int) -> list[int]:
    """Returns the processes of a server that run the network."""
    found = []
    for process in descendants(server):
        with suppress(OSError):  # it ended
            if b"Network" in Path(f"/proc/{process}/cmdline").read_bytes():
                found.append(process)
    return found


def _pipeline(network: NetworkOptions, files: Sequence[Path], batch: int) -> tuple[dict[str, Any], str]:
    with Detector(backend=network.make_backend()) as detector:
        detector.backend.load()
        # A short run would measure the time in which the network waits for the first pictures.
        many = [*files] * -(-_PIPELINE_BATCHES * batch // len(files))
        row = Stages(detector, {"threshold": 0.3}, many, None, None).whole("best", batch, CONTEXTS)
        return row, detector.backend.description


def _words(network: NetworkOptions) -> list[str]:
    """Returns the options of the command line that give the same network."""
    given = {name: value for name, value in vars(network).items() if value is not None}
    return [word for name, value in given.items() for word in (f"--{name.replace('_', '-')}", str(value))]


@contextmanager
def _server(options: Sequence[str], log: Path) -> Iterator[int]:
    """Runs `codetr serve`; yields its process id once it is ready."""
    url = f"http://127.0.0.1:{options[options.index('--port') + 1]}/readyz"
    with log.open("wb") as output:
        command = [sys.executable, "-m", "codetr", "serve", *options]
        process = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        ends = time.monotonic() + _START_S
        while not _answers(url):
            if process.poll() is not None or time.monotonic() > ends:
                raise UsageError(f"codetr serve does not start: {log.read_text()[-2000:]}")
            time.sleep(0.5)
        yield process.pid
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(120)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return answer.status == 200
    except OSError:
        return False


def _named(name: str, row: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """Returns the row, and a line about it."""
    parts = [f"{name}: {row['images_per_second']:.1f} images/s"]
    parts += [f"{key.removesuffix('_ms')} {row[key]:.1f} ms" for key in ("p50_ms", "p99_ms") if key in row]
    if "of_pipeline" in row:
        parts.append(f"{row['of_pipeline']:.0%} of the pipeline")
    if "statuses" in row:
        statuses = ", ".join(f"{count} of {status}" for status, count in row["statuses"].items())
        first, last = row["memory_mib"][0][1], row["memory_mib"][-1][1]
        parts.append(f"answers {statuses}, memory {first:.0f} to {last:.0f} MiB")
    if "malformed" in row:
        parts.append(f"{row['answered_as_expected']} of {row['malformed']} malformed answered as expected")
    return {"measured": name, **row}, ", ".join(parts)


main = partial(run_program, measure_serving, program="python -m benchmarks.serving")

if __name__ == "__main__":
    sys.exit(main())
