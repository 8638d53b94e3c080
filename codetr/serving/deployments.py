"""The application on Ray Serve: its two deployments, and the builder that Ray's configuration names."""

from __future__ import annotations

import asyncio
import collections
import re
import time
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import ray
from fastapi import FastAPI
from ray import serve
from ray.exceptions import RayActorError
from ray.serve.exceptions import ReplicaUnavailableError
from ray.serve.handle import DeploymentHandle
from ray.util.metrics import Counter, Gauge, Histogram

from codetr.detector.decoding import make_decoder
from codetr.detector.detector import Detector
from codetr.detector.pipeline import BLACK, Contexts, keep_collections_short
from codetr.detector.preprocess import ImageError, ImageFile
from codetr.detector.sizes import SizeRange
from codetr.errors import one_line
from codetr.results import Detections
from codetr.serving.settings import Settings
from codetr.serving.web import Admission, ReplicaLost, make_app

GATEWAY_REQUESTS = 1024
"""Requests that a gateway works on, those that still arrive among them."""
_BATCH = 8
# One batch runs while the next one fills. A third would leave fewer images for each.
_CONTEXTS = 2
_CALLS = 2 * _CONTEXTS  # of a gateway to a replica, so that the network never waits for the next one
_BOUNDARIES_MS = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 30000]
_BATCH_BOUNDARIES = [1, 2, 4, 8, 16, 32, 64]
# Of the hundreds of metrics of a node, those that `docs/serving.md` explains.
_METRICS = re.compile(
    r"(?:# (?:HELP|TYPE) )?ray_(?:codetr_|node_(?:gpus|gram)_|serve_(?:deployment_replica_(?:healthy|starts)"
    r"|http_request_latency_ms|num_http_requests))"
)


class _Job(NamedTuple):
    """A decoded image, and the future of what is found in it."""

    pixels: Any
    threshold: float
    waited_s: float  # before it was decoded
    decoded_s: float  # time of `time.perf_counter`
    found: asyncio.Future[Detections | ValueError]


def _stage_times() -> Histogram:
    return Histogram(
        "codetr_stage_milliseconds",
        "Milliseconds of a stage: decode, queue and encode of an image, detect of a batch.",
        boundaries=_BOUNDARIES_MS,
        tag_keys=("stage",),
    )


@serve.deployment
class Network:
    """A process with a network: decodes images, and runs batches of them.

    A batch begins once it is full. An incomplete one waits until the network is free. `ray.serve.batch` forms
    batches of what arrives within its wait and queues them, so that they stay small where requests wait.
    """

    def __init__(self, settings: Settings) -> None:
        network = settings.network
        self._detector = Detector(backend=network.make_backend(), labels=network.labels)
        backend = self._detector.backend
        backend.load()
        self._batch = settings.batch or _batch_of(backend.batch)
        self._wait_s = settings.wait_ms / 1000
        self._contexts = Contexts(self._detector, _CONTEXTS)
        self._threads = ThreadPoolExecutor(self._contexts.count, "detect")
        self._decoder = make_decoder(backend)
        self._slots = asyncio.Semaphore(2 * self._contexts.count * self._batch)  # bounds the decoded images
        self._jobs: asyncio.Queue[_Job] = asyncio.Queue()
        self._one_forms = asyncio.Lock()
        self._runs: set[asyncio.Task[None]] = set()  # of batches
        self._workers: list[asyncio.Task[None]] = []
        self._failed = False
        self._times = _stage_times()
        self._images = Counter("codetr_images", "Images that the network ran on.")
        self._sizes = Histogram("codetr_batch_images", "Images of a batch.", boundaries=_BATCH_BOUNDARIES)
        self._contexts.warm_up(self._batch)
        keep_collections_short()

    async def detect(
        self, images: Sequence[ImageFile], thresholds: Sequence[float]
    ) -> list[Detections | ImageError]:
        """Detects objects in images. A damaged image gets its error, and never enters a batch."""
        if not self._workers:
            self._workers = [asyncio.create_task(self._run_batches()) for _ in range(self._contexts.count)]
        return await asyncio.gather(*map(self._detect_one, images, thresholds))

    async def _detect_one(self, image: ImageFile, threshold: float) -> Detections | ImageError:
        arrived = time.perf_counter()
        async with self._slots:
            waited = time.perf_counter() - arrived
            try:
                pixels, decode_ms = await asyncio.wrap_future(self._decoder.start([image])[0])
            except ImageError as error:
                return error
            self._times.observe(decode_ms, {"stage": "decode"})
            result = asyncio.get_running_loop().create_future()
            self._jobs.put_nowait(_Job(pixels, threshold, waited, time.perf_counter(), result))
            found = await result
        return ImageError(f"{image.name}: {one_line(found)}") if isinstance(found, Exception) else found

    async def _run_batches(self) -> None:
        """Runs one batch after the other, in one of the contexts."""
        while True:
            async with self._one_forms:
                jobs = [job for job in await self._form() if not job.found.cancelled()]
                if not jobs:
                    continue
                run = asyncio.create_task(self._run(jobs))
                self._runs.add(run)
                run.add_done_callback(self._runs.discard)
            await run

    async def _form(self) -> list[_Job]:
        """Takes a batch: a full one, or what there is after the wait once the network is free."""
        jobs = [await self._jobs.get()]

        async def fill() -> None:
            while len(jobs) < self._batch:
                jobs.append(await self._jobs.get())

        filling = asyncio.create_task(fill())
        try:
            await asyncio.wait([filling], timeout=self._wait_s)
            while self._runs and not filling.done():
                await asyncio.wait([filling, *self._runs], return_when=asyncio.FIRST_COMPLETED)
        finally:
            filling.cancel()
        return jobs

    async def _run(self, jobs: Sequence[_Job]) -> None:
        began = time.perf_counter()
        for job in jobs:
            self._times.observe(1000 * (job.waited_s + began - job.decoded_s), {"stage": "queue"})
        try:
            # A box below the threshold changes none above it. The gateway drops what was not asked for.
            results = await self._in_thread([job.pixels for job in jobs], min(job.threshold for job in jobs))
        except Exception as error:
            _fail(jobs, error)
            return
        self._times.observe(1000 * (time.perf_counter() - began), {"stage": "detect"})
        self._images.inc(len(jobs))
        self._sizes.observe(len(jobs))
        _answer(jobs, results)

    async def _in_thread(self, images: Sequence[Any], threshold: float) -> list[Detections | ValueError]:
        def run() -> list[Detections | ValueError]:
            return self._contexts.detect(images, threshold=threshold)

        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, run)
        except RuntimeError:
            self._failed = True
            raise

    async def check_health(self) -> None:
        """Runs the network after a failure. If it fails again, Ray Serve restarts the process."""
        if self._failed:
            await self._in_thread([BLACK], 1.0)
            self._failed = False


@serve.deployment
@serve.ingress()
class Gateway:
    """A process with the web application."""

    def __init__(self, settings: Settings, network: DeploymentHandle) -> None:
        self._images = Gauge("codetr_accepted_images", "Images that wait or run, of a gateway.")
        self._settings, self._replicas = settings, RayReplicas(network, settings.replicas)
        share = -(-settings.limits.queue * settings.replicas // _gateways(settings))
        self._admission = Admission(max(share, settings.limits.max_images), self._images.set)
        keep_collections_short()

    def __serve_build_asgi_app__(self) -> FastAPI:
        settings, times = self._settings, _stage_times()
        network = settings.network
        return make_app(
            self._replicas,
            self._admission,
            Detector(backend=network.make_backend(), labels=network.labels).class_names,
            settings.limits,
            settings.api_keys(),
            lambda milliseconds: times.observe(milliseconds, {"stage": "encode"}),
        )

    async def check_health(self) -> None:
        """Sets the gauge. Ray forgets a gauge that is not set for some seconds."""
        self._images.set(self._admission.images)

    async def drain(self) -> None:
        """Refuses new requests, and waits until the others are answered."""
        await self._admission.drain(2 * self._settings.limits.deadline)


class _Wanted(NamedTuple):
    """An image, and the future of what is found in it."""

    image: ImageFile
    threshold: float
    found: asyncio.Future[Detections | ImageError]


class RayReplicas:
    """The deployment `Network`, see `codetr.serving.web.Replicas`.

    A call of Ray Serve costs both processes time. Images that arrive while calls run share the next one.
    """

    def __init__(self, network: DeploymentHandle, replicas: int) -> None:
        self._network = network
        self._idle = _CALLS * replicas  # calls that may begin
        self._waiting: collections.deque[_Wanted] = collections.deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._app_name = serve.get_replica_context().app_name

    async def detect(self, image: ImageFile, threshold: float) -> Detections | ImageError:
        one = _Wanted(image, threshold, asyncio.get_running_loop().create_future())
        self._waiting.append(one)
        if self._idle:
            self._idle -= 1
            task = asyncio.create_task(self._call_while_images_wait())
            self._tasks.add(task)  # the loop itself keeps no reference
            task.add_done_callback(self._tasks.discard)
        return await one.found

    async def _call_while_images_wait(self) -> None:
        while self._waiting:
            images = [self._waiting.popleft() for _ in range(min(_BATCH, len(self._waiting)))]
            if images := [one for one in images if not one.found.cancelled()]:
                await self._call(images)
        self._idle += 1

    async def _call(self, images: Sequence[_Wanted]) -> None:
        try:
            results = await self._results(images)
        except Exception as error:
            _fail(images, error)
        else:
            _answer(images, results)

    async def _results(self, images: Sequence[_Wanted]) -> Sequence[Detections | ImageError | None]:
        """Returns the results; None for each if all requests are cancelled, as by their deadlines."""
        for _ in range(2):
            response = self._network.detect.remote(
                [one.image for one in images], [one.threshold for one in images]
            )

            def cancel(_: object, response: Any = response) -> None:
                if all(one.found.cancelled() for one in images):
                    response.cancel()

            for one in images:
                one.found.add_done_callback(cancel)
            try:
                return await response
            except (asyncio.CancelledError, RayActorError, ReplicaUnavailableError) as error:
                if all(one.found.cancelled() for one in images):
                    return [None] * len(images)
                lost = error
        raise ReplicaLost("the processes that worked on the image ended") from lost

    async def ready(self) -> bool:
        status = await asyncio.to_thread(serve.status)
        return status.applications[self._app_name].deployments["Network"].replica_states.get("RUNNING", 0) > 0

    async def metrics(self) -> str:
        """Returns metrics of this node, from Ray's agent."""
        own = ray.get_runtime_context().get_node_id()
        node = next(node for node in ray.nodes() if node["NodeID"] == own)
        url = f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics"
        text = await asyncio.to_thread(lambda: urllib.request.urlopen(url, timeout=5).read().decode())
        return "".join(f"{line}\n" for line in text.splitlines() if _METRICS.match(line))


def _answer(waiting: Sequence[_Job] | Sequence[_Wanted], results: Sequence[Any]) -> None:
    """Hands each result to its request, unless the request is cancelled."""
    for one, found in zip(waiting, results, strict=True):
        if not one.found.done():
            one.found.set_result(found)


def _fail(waiting: Sequence[_Job] | Sequence[_Wanted], error: Exception) -> None:
    """Hands an error to each request that is not cancelled."""
    for one in waiting:
        if not one.found.done():
            one.found.set_exception(error)


def bind(settings: Settings) -> serve.Application:
    """Returns the application."""
    limits = settings.limits
    network = Network.options(
        num_replicas=settings.replicas,
        # The gateways bound the queue. Ray would let requests beyond this number wait longer than necessary.
        max_ongoing_requests=2 * limits.queue,
        max_constructor_retry_count=1,
        graceful_shutdown_wait_loop_s=0.2,
        ray_actor_options={"num_cpus": 0, "num_gpus": int(settings.gpu)},
    )
    gateway = Gateway.options(
        num_replicas=_gateways(settings),
        max_ongoing_requests=GATEWAY_REQUESTS,
        max_constructor_retry_count=1,
        graceful_shutdown_wait_loop_s=0.2,
        graceful_shutdown_timeout_s=2 * limits.deadline,
        ray_actor_options={"num_cpus": 0},
    )
    return gateway.bind(settings, network.bind(settings))


def _gateways(settings: Settings) -> int:
    return settings.gateways or settings.replicas


def build(arguments: dict[str, Any]) -> serve.Application:
    """Builds the application of a Ray Serve configuration, see `codetr serve --print-config`."""
    return bind(Settings.from_json(arguments))


def _batch_of(size: int | SizeRange | None) -> int:
    """Returns the largest batch that a backend runs at once, see `codetr.detector.backend.Backend.batch`."""
    if size is None:
        return _BATCH
    return size.max if isinstance(size, SizeRange) else size
