"""The batches of a replica of `codetr serve`, and the calls of a gateway, without Ray's processes."""

from __future__ import annotations

import asyncio
import gc
import io
import time
from contextlib import contextmanager
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


@contextmanager
def make_replica(backend):
    network = SimpleNamespace(make_backend=lambda: backend, labels=None)
    made = deployments.Network.func_or_class(SimpleNamespace(network=network, batch=4, wait_ms=WAIT_MS))
    backend.batches.clear()  # of the warm-up
    yield made
    made._threads.shutdown()
    made._decoder.close()


@pytest.fixture
def replica(backend):
    with make_replica(backend) as made:
        yield made


async def detect(replica, image: ImageFile):
    (found,) = await replica.detect([image], [0.0])
    return found


def picture(index: int) -> ImageFile:
    file = io.BytesIO()
    Image.fromarray(np.full((20 + index, 30, 3), 100, np.uint8)).save(file, "PNG")
    return ImageFile(f"{index}", file.getvalue())


def test_batches_are_full_while_requests_wait(replica, backend):
    """While the network runs, the next batch fills. Each request gets its own result."""

    async def client(index: int):
        await asyncio.sleep(0.01 * index)
        return await detect(replica, picture(index))

    async def run():
        return await asyncio.gather(*map(client, range(24)))

    found = asyncio.run(run())
    assert [one.height for one in found] == [20 + index for index in range(24)]
    assert sum(backend.batches) == 24 and set(backend.batches[1:-1]) == {4}


def test_an_incomplete_batch_waits(replica, backend):
    """Two requests within the wait are one batch, and a later one is another."""

    async def run():
        first = await asyncio.gather(*(detect(replica, picture(index)) for index in range(2)))
        return [*first, await detect(replica, picture(2))]

    assert [one.height for one in asyncio.run(run())] == [20, 21, 22]
    assert backend.batches == [2, 1]


def test_an_incomplete_batch_waits_for_the_network(backend):
    """A second context begins no batch that fills further while the first one runs."""
    backend.fork = lambda: backend
    with make_replica(backend) as replica:

        async def client(delay: float):
            await asyncio.sleep(delay)
            return await detect(replica, picture(0))

        async def run():
            await asyncio.gather(*map(client, (0, 0.05, 0.075, 0.1)))

        asyncio.run(run())
    assert backend.batches == [1, 3]


def test_collections_of_a_loaded_replica_are_short(backend):
    gc.unfreeze()
    with make_replica(backend):
        assert gc.get_freeze_count() > 10_000  # the objects of the imports


def test_errors_and_cancelled_requests(replica, backend):
    """A damaged image joins no batch, a cancelled request is left out, and a failure reaches each request."""

    async def run():
        error, found = await replica.detect([ImageFile("x", b"no image"), picture(6)], [0.0] * 2)
        assert isinstance(error, ImageError) and found.height == 26
        running = asyncio.create_task(detect(replica, picture(0)))
        await asyncio.sleep(0.05 + WAIT_MS / 1000)  # the network runs
        dropped, kept = (asyncio.create_task(detect(replica, picture(i))) for i in (1, 2))
        await asyncio.sleep(0.01)
        dropped.cancel()
        assert [one.height for one in await asyncio.gather(running, kept)] == [20, 22]
        backend.fails = True
        failed = await asyncio.gather(*(detect(replica, picture(i)) for i in (3, 4)), return_exceptions=True)
        assert list(map(str, failed)) == ["the GPU is lost"] * 2
        backend.fails = False
        await replica.check_health()
        return await detect(replica, picture(5))

    assert asyncio.run(run()).height == 25
    assert backend.batches == [1, 1, 1, 2, 1, 1]


class Response:
    """The response to a call: ends when the test says so."""

    def __init__(self, images: list[str]) -> None:
        self.images, self.end = images, asyncio.get_running_loop().create_future()

    def __await__(self):
        return self.end.__await__()

    def cancel(self) -> None:
        self.end.cancel()


@pytest.fixture
def calls(monkeypatch) -> list[Response]:
    """The calls of `replicas`."""
    monkeypatch.setattr(deployments.serve, "get_replica_context", lambda: SimpleNamespace(app_name=""))
    return []


@pytest.fixture
def replicas(calls):
    """What a gateway has of a network of one replica."""

    def remote(images: list[str], thresholds: list[float]) -> Response:
        assert thresholds == [0.5] * len(images)
        calls.append(Response(images))
        return calls[-1]

    return deployments.RayReplicas(SimpleNamespace(detect=SimpleNamespace(remote=remote)), 1)


async def begin(replicas, names: str) -> list[asyncio.Task]:
    tasks = [asyncio.create_task(replicas.detect(name, 0.5)) for name in names]
    await asyncio.sleep(0.01)
    return tasks


def test_images_share_calls(replicas, calls):
    """An image alone waits for nothing. Images that arrive while four calls run share the next."""

    async def run():
        tasks = [task for name in "abcd" for task in await begin(replicas, name)]
        assert ["".join(call.images) for call in calls] == ["a", "b", "c", "d"]
        tasks += await begin(replicas, "efghijklmno")
        assert len(calls) == 4
        calls[2].end.set_result(["C"])
        calls[0].end.set_result(["A"])
        await asyncio.sleep(0.01)
        assert ["".join(call.images) for call in calls[4:]] == ["efghijkl", "mno"]
        for call in (calls[1], *calls[3:]):
            call.end.set_result([name.upper() for name in call.images])
        assert "".join(await asyncio.gather(*tasks)) == "ABCDEFGHIJKLMNO"
        await begin(replicas, "p")
        assert calls[-1].images == ["p"]

    asyncio.run(run())


def test_cancelled_images_end_their_call(replicas, calls):
    """A call goes on while one of its images is wanted. A cancelled image that waits joins no call."""

    async def run():
        tasks = await begin(replicas, "abcdefghijklmnopqrstuvwxyz0123456789")
        assert [len(call.images) for call in calls] == [8, 8, 8, 8]
        for task in (*tasks[:8], tasks[8], *tasks[32:34]):
            task.cancel()
        await asyncio.sleep(0.01)
        assert calls[0].end.cancelled() and not calls[1].end.done()
        assert "".join(calls[4].images) == "89"
        for call in calls[1:]:
            call.end.set_result([name.upper() for name in call.images])
        assert "".join(await asyncio.gather(*tasks[9:32], *tasks[34:])) == "JKLMNOPQRSTUVWXYZ01234589"

    asyncio.run(run())


def test_a_lost_call_is_repeated_once(replicas, calls):
    async def run():
        tasks = await begin(replicas, "ab")
        for _ in range(2):
            calls[-1].end.set_exception(deployments.RayActorError())
            await asyncio.sleep(0.01)
        assert [call.images for call in calls] == [["a", "b"]] * 2
        errors = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(error) for error in errors] == [deployments.ReplicaLost] * 2

    asyncio.run(run())
