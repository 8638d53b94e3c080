"""`codetr serve` as a process, on the CPU: load, malformed requests, a killed replica, metrics, the end."""

from __future__ import annotations

import asyncio
import io
import os
import re
import shutil
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path

import aiohttp
import numpy as np
import pytest
from PIL import Image

import codetr
from benchmarks.requests import jpeg, send_malformed, send_slowly
from benchmarks.serving import Load
from tests.browser import open_page
from tests.golden_models import arguments, save_weights
from tests.project.doc_pages import blocks
from tests.serving.served_network import write_network
from tests.serving.server_process import ROOT, boxes, running

DEADLINE_S = 4
HAMMER = {"category_id": 0, "category_name": "hammer", "bbox": [0.0, 0.0, 361.412, 240.0], "score": 0.9}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("server")
    network = write_network(folder, loops=50)
    options = ("--onnx", network, "--device", "cpu", "--replicas", 2, "--batch", 4)
    with running(folder, *options, "--deadline", DEADLINE_S) as server:
        yield server


async def _post(session, url: str, body: bytes) -> tuple[int, str]:
    async with session.post(f"{url}/v1/detect", data=body) as answer:
        return answer.status, await answer.text()


async def _good_clients(url: str, clients: int, seconds: float, least: int) -> list[tuple[int, str]]:
    """Each client sends an image as soon as it has the last answer, until all have the least number."""
    answers, ends, body = [], time.monotonic() + seconds, jpeg(640, 480)
    timeout = aiohttp.ClientTimeout(30)

    async def client(session) -> None:
        while time.monotonic() < ends or len(answers) < least:
            answers.append(await _post(session, url, body))

    async with aiohttp.ClientSession(timeout=timeout) as session:
        await asyncio.gather(*(client(session) for _ in range(clients)))
    return answers


def test_malformed_requests_beside_good_ones(server):
    async def run():
        return await asyncio.gather(
            _good_clients(server.url, 4, 8, 21),
            send_malformed(server.url, 500),
            *(send_slowly(server.url) for _ in range(5)),
        )

    good, malformed, *slow = asyncio.run(run())
    assert Counter(status for status, _ in good) == {200: len(good)} and len(good) > 20
    assert all(boxes(text) == [HAMMER] for _, text in good)
    assert len(malformed) == 500 and [one for one in malformed if one.status != one.expected] == []
    assert max(seconds for *_, seconds in malformed) < DEADLINE_S
    assert [(status, expected) for status, expected, _ in slow] == [(408, 408)] * 5
    assert max(seconds for *_, seconds in slow) < DEADLINE_S + 2


def metric(text: str, name: str, tag: str = "") -> float:
    """The sum of a metric's samples that have a tag."""
    lines = re.findall(rf"^ray_{name}\{{([^}}]*)\}} (\S+)", text, re.MULTILINE)
    return sum(float(value) for tags, value in lines if tag in tags)


def test_body_of_many_megabytes(server):
    body = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (1500, 1500, 3), np.uint8)).save(body, "PNG")
    assert len(body.getvalue()) > 6e6  # gRPC's default limit is 4 MiB
    assert server.post(body.getvalue())[0] == 200


def test_metrics(server):
    assert server.post(jpeg(640, 480))[0] == 200
    assert server.post(b"text")[0] == 422
    ends = time.monotonic() + 15  # Ray's agent collects every second here
    while True:
        status, text = server.get("/metrics")
        assert status == 200
        stages = {
            stage: metric(text, "codetr_stage_milliseconds_count", f'stage="{stage}"')
            for stage in ("decode", "queue", "detect", "encode")
        }
        images, batches = metric(text, "codetr_images_total"), metric(text, "codetr_batch_images_count")
        refused = metric(text, "serve_num_http_requests_total", 'status_code="422"')
        if all(stages.values()) and images == stages["queue"] and refused:
            break
        assert time.monotonic() < ends, text
        time.sleep(0.5)
    assert images >= batches > 0
    assert metric(text, "codetr_stage_milliseconds_sum", 'stage="detect"') > 0


def test_load_of_the_benchmark(server):
    row = asyncio.run(Load(server.url, [jpeg(640, 480)], server.process.pid).run(clients=3, seconds=1.5))
    assert set(row["statuses"]) == {"200"} and 0 < row["p50_ms"] <= row["p99_ms"] < 1000 * DEADLINE_S
    answered = row["statuses"]["200"]  # the last of them after the 1.5 seconds
    assert answered / (1.5 + DEADLINE_S) < row["images_per_second"] <= answered / 1.5
    assert all(200 < mebibytes < 20_000 for _, mebibytes in row["memory_mib"])


def test_examples_of_the_documentation(server, tmp_path, monkeypatch, capsys):
    """The requests in docs/serving.md, at this server's address."""
    if shutil.which("curl") is None:
        pytest.skip("needs curl")
    monkeypatch.chdir(tmp_path)
    for name in ("photo.jpg", "scene.png"):
        Path(name).write_bytes(jpeg(640, 480))
    examples = [block for block in blocks("serving.md") if block.reason == "needs the server"]
    printed = []
    for block in examples:
        code = block.code.replace("http://localhost:8000", server.url)
        if block.language == "python":
            exec(compile(code, "serving.md", "exec"), {})
            printed.append(capsys.readouterr().out)
        else:
            command = ["bash", "-euo", "pipefail", "-c", code.replace("curl", "curl -sSf")]
            printed.append(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    answers, found = printed
    assert answers.count('"hammer"') == 3 and answers.count('"file_name"') == 3
    assert found == "hammer 0.9 [0.0, 0.0, 361.412, 240.0]\n"
    assert Image.open("annotated.jpg").size == (640, 480)


def test_page_in_a_browser(server, tmp_path):
    with open_page(viewport={"width": 1200, "height": 900}) as page:
        problems, posts = [], []
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("request", lambda one: posts.append(one.url) if one.method == "POST" else None)
        page.goto(server.url)
        (tmp_path / "photo.jpg").write_bytes(jpeg(640, 480))
        page.set_input_files("#file", tmp_path / "photo.jpg")
        page.wait_for_selector("#rows tr")
        assert page.locator("#rows tr").all_inner_texts() == ["hammer\t0.90"]
        assert page.inner_text("#status").startswith("1 of 2 boxes")
        page.screenshot(path=tmp_path / "one.png")
        page.locator("#threshold").fill("0.1")
        assert page.locator("#rows tr").all_inner_texts() == ["hammer\t0.90", "wrench\t0.20"]
        page.screenshot(path=tmp_path / "two.png")
        assert len(posts) == 1  # the slider sends nothing
        (tmp_path / "bad.jpg").write_text("no image")
        page.set_input_files("#file", tmp_path / "bad.jpg")
        page.wait_for_selector("#status.error")
        assert page.inner_text("#status") == "bad.jpg: not an image that Pillow can read (unknown format)"
        assert page.locator("#result").is_hidden() and not problems
    one, two = (np.asarray(Image.open(tmp_path / f"{name}.png").convert("L")) for name in ("one", "two"))
    assert len(np.unique(one)) > 50 and (one != two).mean() > 0.001


def test_killed_replica(server):
    """The other replica answers the requests that the killed one had."""
    before = server.networks()
    assert len(before) == 2

    async def run():
        load = asyncio.create_task(_good_clients(server.url, 6, 4, 11))
        await asyncio.sleep(1)
        os.kill(before[0], signal.SIGKILL)
        return await load

    answers = asyncio.run(run())
    assert Counter(status for status, _ in answers) == {200: len(answers)} and len(answers) > 10
    ends = time.monotonic() + 30
    while len(server.networks()) < 2:
        assert time.monotonic() < ends
        time.sleep(0.2)
    assert before[0] not in server.networks() and server.post(jpeg())[0] == 200


def test_end_under_load(server):
    """The last test of the server. SIGTERM: accepted requests are answered, later ones refused."""

    answers: list[list[int | str]] = [[] for _ in range(6)]

    async def client(session, statuses: list[int | str]) -> None:
        while statuses[-1:] in ([], [200]):
            try:
                statuses.append((await _post(session, server.url, jpeg(640, 480)))[0])
            except aiohttp.ClientConnectorError:  # there is no server any more
                statuses.append("refused")

    async def run() -> None:
        # Each request has a connection of its own, which the server accepts or refuses.
        connector = aiohttp.TCPConnector(force_close=True)
        async with aiohttp.ClientSession(connector=connector) as session:
            load = [asyncio.create_task(client(session, statuses)) for statuses in answers]
            await asyncio.sleep(1)
            while sum(map(len, answers)) <= 6:
                await asyncio.sleep(0.01)
            server.process.send_signal(signal.SIGTERM)
            await asyncio.wait_for(asyncio.gather(*load), 30)

    asyncio.run(asyncio.wait_for(run(), 60))
    assert sum(status == 200 for statuses in answers for status in statuses) > 6
    assert {statuses[-1] for statuses in answers} <= {503, 404, "refused"}  # none is lost
    assert server.process.wait(30) == 0
    # Before the signal, Ray may have logged a traceback of the killed replica.
    _, stopping, log = server.log.read_text().partition("stopping: answering the accepted requests\n")
    assert stopping and "Traceback" not in log


@pytest.mark.gpu
def test_engine(tmp_path):
    """An engine finds what `codetr.Detector` does with it, and the metrics have the GPU's memory."""
    for package in ("tensorrt", "polygraphy"):
        pytest.importorskip(package, reason=f"{package} is not installed", exc_type=ImportError)
    from onnx_path.export import main

    options = {"batch": 2, "precision": "fp16"}
    assert main(arguments(save_weights(tmp_path), tmp_path / "engine", "codino_swin_tiny", **options)) == 0
    engine, scene = tmp_path / "engine/model.engine", tmp_path / "scene.png"
    Image.open(ROOT / "assets/scene.jpg").save(scene)  # Pillow decodes it for both
    with codetr.Detector(backend="tensorrt", engine=engine) as detector:
        (expected,) = detector.detect([scene], threshold=0)
    with running(tmp_path, "--engine", engine) as server:
        status, text = server.post(scene.read_bytes(), "?threshold=0")
        ends = time.monotonic() + 30
        while not metric(server.get("/metrics")[1], "node_gram_used"):
            assert time.monotonic() < ends
            time.sleep(1)
    assert status == 200 and len(boxes(text)) == len(expected) > 0
    found = np.array([one["bbox"] for one in boxes(text)])
    wanted = np.array([one["bbox"] for one in expected.as_dicts()])
    assert np.abs(found - wanted).max() < 0.01
