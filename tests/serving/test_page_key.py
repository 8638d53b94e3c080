"""The page of a server that needs an API key, in Chromium."""

from __future__ import annotations

import threading
import time

import pytest
import uvicorn

from benchmarks.requests import jpeg
from tests.browser import open_page
from tests.serving.stand_ins import Server


@pytest.fixture
def address():
    """A server in a thread, whose key is "open"."""
    app = Server(keys=(b"open",)).client.app
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    thread.join()


def test_key(address, tmp_path):
    with open_page() as page:
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
