"""The batches of a replica of `codetr serve`, in this process and without Ray's."""

from __future__ import annotations

import asyncio
import io
import time
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from codetr.detector.preprocess import ImageError, ImageFile
from tests.detector.detect_runs import FakeBackend

deployments = pytest.importorskip("codetr.serving.deployments", exc_type=ImportError)

WAIT_MS = 20


class SlowBackend(FakeBackend):
    """Keeps the sizes of its batches. A run takes 0.1 s, or fails."""

    fails = False

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[int] = []

    def __call__(self, images, image_shapes):
        self.batches.append(len(images))
        time.sleep(0.1)
        if self.fails:
            raise RuntimeError("the GPU is lost")
        return super().__call__(images, image_shapes)


@pytest.fixture
def backend() -> SlowBackend:
    return SlowBackend()


@pytest.fixture
def replica(backend):
    network = SimpleNamespace(make_backend=lambda: backend, labels=None)
    made = deployments.Network.func_or_class(SimpleNamespace(network=network, batch=4, wait_ms=WAIT_MS))
    backend.batches.clear()  # of the warm-up
    yield made
    made._threads.shutdown()
    made._decoder.close()


def picture(index: int) -> ImageFile:
    file = io.BytesIO()
    Image.fromarray(np.full((20 + index, 30, 3), 100, np.uint8)).save(file, "PNG")
    return ImageFile(f"{index}", file.getvalue())


def test_batches_are_full_while_requests_wait(replica, backend):
    """While the network runs, the next batch fills. Each request gets its own result."""

    async def client(index: int):
        await asyncio.sleep(0.01 * index)
        return await replica.detect(picture(index), 0.0)

    async def run():
        return await asyncio.gather(*map(client, range(24)))

    found = asyncio.run(run())
    assert [one.height for one in found] == [20 + index for index in range(24)]
    assert sum(backend.batches) == 24 and set(backend.batches[1:-1]) == {4}


def test_an_incomplete_batch_waits(replica, backend):
    """Two requests within the wait are one batch, and a later one is another."""

    async def run():
        first = await asyncio.gather(*(replica.detect(picture(index), 0.0) for index in range(2)))
        return [*first, await replica.detect(picture(2), 0.0)]

    assert [one.height for one in asyncio.run(run())] == [20, 21, 22]
    assert backend.batches == [2, 1]


def test_errors_and_cancelled_requests(replica, backend):
    """A damaged image joins no batch, a cancelled request is left out, and a failure reaches each request."""

    async def run():
        assert isinstance(await replica.detect(ImageFile("x", b"no image"), 0.0), ImageError)
        running = asyncio.create_task(replica.detect(picture(0), 0.0))
        await asyncio.sleep(0.05 + WAIT_MS / 1000)  # the network runs
        dropped, kept = (asyncio.create_task(replica.detect(picture(i), 0.0)) for i in (1, 2))
        await asyncio.sleep(0.01)
        dropped.cancel()
        assert [one.height for one in await asyncio.gather(running, kept)] == [20, 22]
        backend.fails = True
        failed = await asyncio.gather(
            *(replica.detect(picture(i), 0.0) for i in (3, 4)), return_exceptions=True
        )
        assert list(map(str, failed)) == ["the GPU is lost"] * 2
        backend.fails = False
        await replica.check_health()
        return await replica.detect(picture(5), 0.0)

    assert asyncio.run(run()).height == 25
    assert backend.batches == [1, 1, 2, 1, 1]
