"""The web application in front of stand-ins for the replicas: answers, limits, keys, and the end."""

from __future__ import annotations

import io
import threading
import time

import numpy as np
import pytest
from PIL import Image

from benchmarks.requests import bomb, form, jpeg
from codetr.serving.web import ReplicaLost
from tests.serving.stand_ins import Replicas, Server


def detail(response, status: int) -> str:
    assert response.status_code == status, response.text
    return response.json()["detail"]


def test_body_is_an_image():
    server = Server()
    (image,) = server.post(jpeg(80, 60), headers={"content-type": "image/jpeg"}).json()["images"]
    assert (image["file_name"], image["width"], image["height"]) == ("body", 80, 60)
    cat = {"category_id": 17, "category_name": "cat", "bbox": [0, 0, 40, 60], "score": 0.9}
    assert image["detections"] == [cat]
    assert len(server.encode_ms) == 1 and server.counts == [1, 0]


def test_form_of_several_images():
    server = Server()
    files = [("images", ("a.jpg", jpeg(80, 60))), ("images", ("b.png", jpeg(20, 30)))]
    images = server.post(files=files, query="?threshold=0.1").json()["images"]
    assert [image["file_name"] for image in images] == ["a.jpg", "b.png"] == server.replicas.names
    assert [(image["width"], len(image["detections"])) for image in images] == [(80, 2), (20, 2)]
    assert server.counts == [2, 0]


@pytest.mark.parametrize(
    "query", ["classes=dog", "classes=16", "classes=dog,bird", "classes=bird&classes=dog"]
)
def test_classes(query):
    (image,) = Server().post(jpeg(), query=f"?threshold=0&{query}").json()["images"]
    assert [one["category_name"] for one in image["detections"]] == ["dog"]


@pytest.mark.parametrize(("query", "accept"), [("?format=jpeg", "*/*"), ("", "image/jpeg")])
def test_annotated_image(query, accept):
    plain = jpeg(80, 60)
    response = Server().post(plain, query=query, headers={"accept": accept})
    assert (response.status_code, response.headers["content-type"]) == (200, "image/jpeg")
    drawn = np.asarray(Image.open(io.BytesIO(response.content)), dtype=int)
    difference = np.abs(drawn - np.asarray(Image.open(io.BytesIO(plain)), dtype=int)).max(axis=2)
    assert drawn.shape == (60, 80, 3) and difference[:, :44].max() > 100 and difference[30:, 60:].max() < 40


def truncated() -> bytes:
    return jpeg(200, 200)[:-500]


@pytest.mark.parametrize(
    ("body", "status", "problem"),
    [
        (b"", 400, "expected at least one image, got none"),
        (b"hello", 422, "body: not an image that Pillow can read (unknown format)"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", 422, "unknown format"),
        (jpeg()[:30], 422, "body: not an image"),
        (truncated(), 422, "body: the image is truncated or damaged"),
        (bomb(3000, 3000), 413, "body: expected at most 5000000 pixels, got 3000x3000 in the header"),
        (bomb(60000, 60000), 422, "body: not an image that Pillow can read (DecompressionBombError"),
        (bomb(1000, 1000), 422, "body: the image is truncated or damaged"),
        (b"x" * 100_001, 413, "expected at most 100000 bytes, got more"),
    ],
    ids=["empty", "text", "postscript", "header", "truncated", "large", "bomb", "pixels", "bytes"],
)
def test_unusable_image(body, status, problem, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 2**28 // 3)  # Pillow's own; other libraries lift it
    server = Server(max_bytes=100_000, max_pixels=5_000_000)
    assert problem in detail(server.post(body), status)
    assert server.admission.images == server.admission.requests == 0
    assert len(server.replicas.names) == ("damaged" in problem)  # headers are checked before


def test_bytes_without_a_declared_length():
    def chunks():
        for _ in range(11):
            yield bytes(10_000)

    assert "at most 100000 bytes" in detail(Server(max_bytes=100_000).post(chunks()), 413)


def test_file_with_an_error_is_named():
    files = [("images", ("good.jpg", jpeg())), ("images", ("cut.jpg", truncated()))]
    assert detail(Server().post(files=files), 422).startswith("cut.jpg: the image is truncated or damaged")


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (form(jpeg())[:-20], "expected at least one image"),
        (form(jpeg()).replace(b"--b", b"--c"), "the form cannot be read"),
        (form(b"text", name=None), "the form cannot be read"),
        (form(*[jpeg()] * 4), "the form cannot be read: Too many files. Maximum number of files is 3"),
    ],
    ids=["cut", "boundary", "field", "many"],
)
def test_unusable_form(body, problem):
    headers = {"content-type": "multipart/form-data; boundary=b"}
    assert problem in detail(Server(max_images=3).post(body, headers=headers), 400)


@pytest.mark.parametrize(
    ("query", "problem"),
    [
        ("?threshold=2", "less than or equal to 1"),
        ("?classes=fly", "got 'fly'"),
        ("?format=gif", "'jpeg'"),
        ("?treshold=0.5", "expected threshold, classes, format, got the parameter 'treshold'"),
    ],
)
def test_wrong_parameter(query, problem):
    server = Server()
    assert problem in str(detail(server.post(jpeg(), query=query), 422))
    assert not server.replicas.names


def test_two_annotated_images():
    files = [("images", ("a.jpg", jpeg())), ("images", ("b.jpg", jpeg()))]
    assert "expected one image" in detail(Server().post(files=files, query="?format=jpeg"), 400)


def test_deadline():
    server = Server(Replicas(seconds=5), deadline=0.1)
    assert "no answer within 0.1 s" in detail(server.post(jpeg()), 504)
    assert server.counts == [1, 0]
    server.replicas.is_ready = False  # the only process was killed, and another loads the network
    assert "no network is loaded" in detail(server.post(jpeg()), 503)
    assert server.counts == [1, 0, 1, 0]


def test_lost_replica():
    response = Server(Replicas(error=ReplicaLost("the processes ended"))).post(jpeg())
    assert detail(response, 503) == "the processes ended" and response.headers["retry-after"] == "1"


def test_failed_network():
    server = Server(Replicas(error=RuntimeError("secret path")))
    response = server.post(jpeg())
    assert detail(response, 500) == "the server failed; its log has the error" and server.counts == [1, 0]


def test_full_queue():
    server = Server(Replicas(seconds=0.5), queue=2, max_images=2)
    with server.client:  # one event loop for both requests
        first = threading.Thread(target=server.post, args=(jpeg(),))
        first.start()
        while not server.admission.images:
            time.sleep(0.01)
        response = server.post(files=[("images", ("a.jpg", jpeg()))] * 2)
        first.join()
    assert "the queue is full: 1 images of 2" in detail(response, 429)
    assert response.headers["retry-after"] == "1" and server.counts == [1, 0]


def test_end():
    server = Server(Replicas(seconds=0.3))
    answers = []
    with server.client:
        first = threading.Thread(target=lambda: answers.append(server.post(jpeg())))
        first.start()
        while not server.admission.images:
            time.sleep(0.01)
        server.client.portal.call(server.admission.drain, 5.0)
        assert server.admission.requests == 0
        first.join()
        response = server.post(jpeg())
        assert server.client.get("/readyz").status_code == 503
    assert answers[0].status_code == 200
    assert detail(response, 503) == "the server stops" and response.headers["retry-after"] == "1"


def test_api_key():
    server = Server(keys=(b"one", b"two"))
    for headers in ({}, {"authorization": "Bearer three"}, {"authorization": "Basic one"}):
        response = server.post(jpeg(), headers=headers)
        assert detail(response, 401) and response.headers["www-authenticate"] == "Bearer"
        assert server.client.get("/metrics", headers=headers).status_code == 401
    for key in ("one", "two"):
        headers = {"authorization": f"Bearer {key}"}
        assert server.post(jpeg(), headers=headers).status_code == 200
        assert server.client.get("/metrics", headers=headers).text == "x 1\n"
    assert len(server.replicas.names) == 2


def test_pages():
    server = Server()
    assert "<canvas" in server.client.get("/").text
    assert server.client.get("/docs").status_code == server.client.get("/healthz").status_code == 200
    assert server.client.get("/readyz").status_code == server.client.head("/readyz").status_code == 200
    assert server.client.head("/healthz").status_code == 200
    server.replicas.is_ready = False
    assert detail(server.client.get("/readyz"), 503) == "no network is loaded"
    operation = server.client.get("/openapi.json").json()["paths"]["/v1/detect"]["post"]
    assert {"multipart/form-data", "image/*"} == set(operation["requestBody"]["content"])
    assert {"200", "401", "408", "413", "422", "429", "503", "504"} <= set(operation["responses"])
    assert {one["name"] for one in operation["parameters"]} == {"threshold", "classes", "format"}
