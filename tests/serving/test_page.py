"""The page in Chromium: of a server that needs an API key, and with answers in another order."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn

from benchmarks.requests import jpeg
from tests.browser import open_page
from tests.serving.stand_ins import Replicas, Server


@contextmanager
def served(stand_in: Server) -> Iterator[str]:
    """Runs a server in a thread; yields its address."""
    server = uvicorn.Server(uvicorn.Config(stand_in.client.app, port=0, log_level="error"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


class SlowFirst(Replicas):
    """Answers for first.jpg after the others."""

    async def detect(self, image, threshold):
        await asyncio.sleep(1.0 if image.name == "first.jpg" else 0.0)
        return await super().detect(image, threshold)


def test_a_photo_that_was_chosen_before_the_last_answer(tmp_path):
    """The page shows the last photo with its own boxes."""
    with served(Server(SlowFirst())) as address, open_page() as page:
        page.goto(address)
        for name, width in (("first.jpg", 64), ("second.jpg", 200)):
            (tmp_path / name).write_bytes(jpeg(width, 48))
            page.set_input_files("#file", tmp_path / name)
        page.wait_for_selector("#rows tr")
        page.wait_for_timeout(1500)  # the other answer
        assert page.evaluate("[photo.width, detections[0].bbox[2]]") == [200, 100]
        assert "1 of 2 boxes" in page.inner_text("#status")


def test_the_threshold_keeps_an_error(tmp_path):
    with served(Server()) as address, open_page() as page:
        page.goto(address)
        for name, content in (("photo.jpg", jpeg(64, 48)), ("damaged.jpg", b"no image")):
            (tmp_path / name).write_bytes(content)
            page.set_input_files("#file", tmp_path / name)
            page.wait_for_selector("#rows tr" if name == "photo.jpg" else "#status.error")
        page.fill("#threshold", "0.5")
        assert "damaged.jpg" in page.inner_text("#status.error")
        assert page.inner_text("#value") == "0.50"


def test_key(tmp_path):
    with served(Server(keys=(b"open",))) as address, open_page() as page:
        page.goto(address)
        assert page.locator("#key").is_hidden()
        (tmp_path / "photo.jpg").write_bytes(jpeg(64, 48))
        page.set_input_files("#file", tmp_path / "photo.jpg")
        page.wait_for_selector("#status.error")
        assert page.inner_text("#status") == "the API key is missing or wrong"
        page.fill("#key input", "open")
        page.keyboard.press("Tab")
        page.wait_for_selector("#rows tr")
        assert page.locator("#rows tr").all_inner_texts() == ["cat\t0.90"]
