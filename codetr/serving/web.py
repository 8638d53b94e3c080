"""The web application: routes, limits, answers. The network is behind the interface `Replicas`."""

from __future__ import annotations

import asyncio
import hmac
import io
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.resources import files
from typing import Annotated, Any, Literal, Protocol

from fastapi import Depends, FastAPI, HTTPException, Query, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from PIL import Image

import codetr
from codetr.cli.pictures import JPEG, draw_on
from codetr.detector.detector import labels_of, split_at_commas
from codetr.detector.preprocess import ImageError, ImageFile, load_image
from codetr.errors import ArgumentError
from codetr.results import Detections
from codetr.serving.settings import Limits
from codetr.serving.uploads import receive_images

RETRY_AFTER = {"Retry-After": "1"}
_NOT_LOADED = "no network is loaded"
_PARAMETERS = ("threshold", "classes", "format")
_BEARER = HTTPBearer(auto_error=False, description="a key of the server's --api-key-file")
_Credentials = Annotated[HTTPAuthorizationCredentials | None, Depends(_BEARER)]
_FILE = {"type": "string", "format": "binary"}
_BODY = {
    "requestBody": {
        "required": True,
        "content": {
            "image/*": {"schema": _FILE},
            "multipart/form-data": {
                "schema": {"type": "object", "properties": {"images": {"type": "array", "items": _FILE}}}
            },
        },
    }
}
_EXAMPLE = {
    "file_name": "street.jpg",
    "width": 1920,
    "height": 1080,
    "detections": [
        {"category_id": 3, "category_name": "car", "bbox": [12.0, 40.5, 80.2, 31.0], "score": 0.91}
    ],
}
_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The detections of each image, or the annotated image.",
        "content": {"application/json": {"example": {"images": [_EXAMPLE]}}, "image/jpeg": {}},
    },
    400: {"description": "The form is damaged, has too many images, or none."},
    401: {"description": "The API key is missing or wrong."},
    408: {"description": "The body did not arrive within the deadline."},
    413: {"description": "The body has too many bytes, or an image too many pixels."},
    422: {"description": "A file is no image or is damaged, or a parameter is wrong."},
    429: {"description": "The queue is full."},
    500: {"description": "The network failed."},
    503: {
        "description": "The server stops, loads its network, or lost the process that worked on the request."
    },
    504: {"description": "The answer was not ready within the deadline."},
}


class Replicas(Protocol):
    """The processes that run the network."""

    async def detect(self, image: ImageFile, threshold: float) -> Detections | ImageError:
        """Detects objects in an image, or returns why it cannot be decoded.

        Raises:
            ReplicaLost: a process ended while it worked on the image, and so did the next one.
        """

    async def ready(self) -> bool:
        """Whether a replica has loaded its network."""

    async def metrics(self) -> str:
        """Returns the metrics in Prometheus' text format."""


class ReplicaLost(Exception):
    """A process ended before its answer."""


class Admission:
    """Counts the requests and images that the application works on.

    Args:
        limit: most images.
        changed: called with each new number of images.

    Attributes:
        stopping: refuse all new requests.
    """

    def __init__(self, limit: int, changed: Callable[[int], None]) -> None:
        self._limit, self._changed = limit, changed
        self.stopping = False
        self.requests = self.images = 0

    @contextmanager
    def request(self) -> Iterator[None]:
        """Counts a request."""
        if self.stopping:
            raise HTTPException(503, "the server stops", RETRY_AFTER)
        self.requests += 1
        try:
            yield
        finally:
            self.requests -= 1

    @contextmanager
    def admit(self, count: int) -> Iterator[None]:
        """Counts the images of a request, or refuses them with status 429."""
        if self.images + count > self._limit:
            problem = f"the queue is full: {self.images} images of {self._limit}"
            raise HTTPException(429, problem, RETRY_AFTER)
        self._change(count)
        try:
            yield
        finally:
            self._change(-count)

    async def drain(self, timeout_s: float) -> None:
        """Refuses new requests, and waits until the others are answered."""
        self.stopping = True
        ends = time.monotonic() + timeout_s
        while self.requests and time.monotonic() < ends:
            await asyncio.sleep(0.02)

    def _change(self, count: int) -> None:
        self.images += count
        self._changed(self.images)


def make_app(
    replicas: Replicas,
    admission: Admission,
    class_names: Sequence[str],
    limits: Limits,
    keys: Sequence[bytes] = (),
    record_encode_ms: Callable[[float], None] = lambda _: None,
) -> FastAPI:
    """Makes the application.

    Args:
        class_names: a name for each label of the network.
        keys: accepted API keys. Default: none is needed.
        record_encode_ms: called with the milliseconds of each answer that was written.
    """
    app = FastAPI(
        title="codetr serve",
        version=codetr.__version__,
        description="Detects objects in images.",
        redoc_url=None,
    )
    page = files("codetr.serving").joinpath("page.html").read_text(encoding="utf-8")

    async def check_key(given: _Credentials) -> None:  # FastAPI would run a function in a thread
        word = b"" if given is None else given.credentials.encode()
        if keys and not any([hmac.compare_digest(word, key) for key in keys]):
            raise HTTPException(401, "the API key is missing or wrong", {"WWW-Authenticate": "Bearer"})

    @app.exception_handler(Exception)
    async def failed(*_: object) -> JSONResponse:
        return JSONResponse({"detail": "the server failed; its log has the error"}, 500)

    @app.get("/", response_class=HTMLResponse, include_in_schema=False)
    async def index() -> str:
        return page

    @app.head("/healthz", include_in_schema=False)
    @app.get("/healthz", response_class=PlainTextResponse)
    async def alive() -> str:
        """Whether the server runs."""
        return "ok"

    @app.head("/readyz", include_in_schema=False)
    @app.get("/readyz", response_class=PlainTextResponse, responses={503: {}})
    async def ready() -> str:
        """Whether the server takes images: its network is loaded, and it does not stop."""
        if admission.stopping or not await replicas.ready():
            raise HTTPException(503, "the server stops" if admission.stopping else _NOT_LOADED)
        return "ok"

    @app.get("/metrics", response_class=PlainTextResponse, dependencies=[Depends(check_key)])
    async def metrics() -> str:
        """Metrics in Prometheus' text format."""
        return await replicas.metrics()

    @app.post(
        "/v1/detect",
        response_class=Response,
        responses=_RESPONSES,
        openapi_extra=_BODY,
        dependencies=[Depends(check_key)],
    )
    async def detect(
        request: Request,
        threshold: Annotated[float, Query(ge=0, le=1, description="least score")] = 0.3,
        classes: Annotated[
            list[str] | None, Query(description="names or numbers of classes, separated by commas")
        ] = None,
        format: Annotated[
            Literal["json", "jpeg"] | None, Query(description="default: jpeg if Accept is image/jpeg")
        ] = None,
    ) -> Response:
        """Detects objects in the images of a form, or in the image that is the body.

        The answer has the boxes as x, y, width and height in pixels of the upright image, as COCO has them.
        """
        if unknown := [name for name in request.query_params if name not in _PARAMETERS]:
            raise HTTPException(422, f"expected {', '.join(_PARAMETERS)}, got the parameter {unknown[0]!r}")
        with admission.request():
            labels = _parse_classes(classes, class_names)
            picture = (format or _accepted(request)) == "jpeg"
            images = await receive_images(request, limits)
            if picture and len(images) > 1:
                raise HTTPException(400, f"expected one image for an annotated image, got {len(images)}")
            with admission.admit(len(images)):
                try:
                    found = await asyncio.wait_for(_detect(replicas, images, threshold), limits.deadline)
                except asyncio.TimeoutError:
                    if not await replicas.ready():
                        raise HTTPException(503, _NOT_LOADED, RETRY_AFTER) from None
                    raise HTTPException(504, f"no answer within {limits.deadline:g} s") from None
                except ReplicaLost as error:
                    raise HTTPException(503, str(error), RETRY_AFTER) from error
                found = [one.select(threshold, labels=labels) for one in found]
                began = time.perf_counter()
                if picture:
                    response = Response(
                        await asyncio.to_thread(_draw, images[0], found[0]), media_type="image/jpeg"
                    )
                else:
                    response = JSONResponse({"images": [*map(_as_dict, images, found)]})
                record_encode_ms(1000 * (time.perf_counter() - began))
                return response

    return app


def _accepted(request: Request) -> str:
    return "jpeg" if request.headers.get("accept", "").startswith("image/jpeg") else "json"


def _parse_classes(classes: Sequence[str] | None, names: Sequence[str]) -> list[int] | None:
    try:
        return None if classes is None else labels_of(split_at_commas(classes, names), names)
    except ArgumentError as error:
        raise HTTPException(422, str(error)) from error


async def _detect(replicas: Replicas, images: Sequence[ImageFile], threshold: float) -> list[Detections]:
    found = await asyncio.gather(*(replicas.detect(image, threshold) for image in images))
    for one in found:
        if isinstance(one, ImageError):
            raise HTTPException(422, str(one))
    return found


def _as_dict(image: ImageFile, found: Detections) -> dict[str, Any]:
    size = {"width": found.width, "height": found.height}
    return {"file_name": image.name, **size, "detections": found.as_dicts()}


def _draw(image: ImageFile, found: Detections) -> bytes:
    file = io.BytesIO()
    Image.fromarray(draw_on(load_image(image), found)).save(file, **JPEG)
    return file.getvalue()
