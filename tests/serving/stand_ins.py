"""Stand-ins for the replicas, and the web application in front of them."""

from __future__ import annotations

import asyncio

import numpy as np
from starlette.testclient import TestClient

from codetr.coco_classes import COCO_CLASSES
from codetr.detector.preprocess import ImageError, load_image
from codetr.results import Detections
from codetr.serving.settings import Limits
from codetr.serving.web import Admission, make_app

CAT, DOG = COCO_CLASSES.index("cat"), COCO_CLASSES.index("dog")


class Replicas:
    """Decodes, and finds a cat and a dog."""

    def __init__(self, seconds: float = 0.0, error: Exception | None = None) -> None:
        self.seconds, self.error = seconds, error
        self.is_ready = True
        self.names: list[str] = []

    async def detect(self, image, threshold):
        self.names.append(image.name)
        await asyncio.sleep(self.seconds)
        if self.error is not None:
            raise self.error
        try:
            height, width = load_image(image).shape[:2]
        except ImageError as error:
            return error
        boxes = np.float32([[0, 0, width / 2, height], [1, 2, 3, 4]])
        return Detections(boxes, np.float32([0.9, 0.2]), np.array([CAT, DOG]), COCO_CLASSES, height, width)

    async def ready(self):
        return self.is_ready

    async def metrics(self):
        return "x 1\n"


class Server:
    """The application, and a client of it."""

    def __init__(self, replicas: Replicas | None = None, keys: tuple[bytes, ...] = (), **limits) -> None:
        self.replicas, self.limits = replicas or Replicas(), Limits(**limits)
        self.counts: list[int] = []
        self.encode_ms: list[float] = []
        self.admission = Admission(self.limits.queue, self.counts.append)
        app = make_app(self.replicas, self.admission, COCO_CLASSES, self.limits, keys, self.encode_ms.append)
        self.client = TestClient(app, raise_server_exceptions=False)

    def post(self, content: bytes | None = None, query: str = "", headers: dict | None = None, **more):
        return self.client.post(f"/v1/detect{query}", content=content, headers=headers, **more)
