"""Requests of a server under load, good and bad."""

from __future__ import annotations

import asyncio
import io
import itertools
import struct
import time
import zlib
from typing import NamedTuple

import numpy as np
from PIL import Image


def jpeg(width: int = 64, height: int = 48) -> bytes:
    """A photo: a gradient, which JPEG keeps well."""
    rows, columns = np.mgrid[:height, :width]
    pixels = np.stack([columns * 255 / width, rows * 255 / height, 128 + 0 * rows], axis=-1).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=95)
    return file.getvalue()


def bomb(width: int, height: int) -> bytes:
    """A PNG file of some bytes whose header promises a large image."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    pixels = zlib.compress(bytes(1000), 9)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


def form(*files: bytes, name: str | None = "a.jpg") -> bytes:
    """The body of multipart/form-data with the boundary b.

    Args:
        name: of each file; None for fields that are no files.
    """
    file_name = "" if name is None else f'; filename="{name}"'
    head = f'--b\r\nContent-Disposition: form-data; name="images"{file_name}\r\n\r\n'.encode()
    return b"".join(head + data + b"\r\n" for data in files) + b"--b--\r\n"


MALFORMED = [
    (jpeg(300, 200)[:-700], {}, 422),
    (bomb(20000, 20000), {}, 422),
    (bomb(9000, 9000), {}, 413),
    (bomb(3000, 3000), {}, 422),
    (b"text", {}, 422),
    (b"GIF89a" + bytes(100), {}, 422),
    (b"", {}, 400),
    (form(jpeg())[:-30], {"content-type": "multipart/form-data; boundary=b"}, 400),
    (form(jpeg()), {"content-type": "multipart/form-data; boundary=c"}, 400),
    (b'{"image": 1}', {"content-type": "application/json"}, 422),
]
"""Body, headers and the status of the answer."""


class Answer(NamedTuple):
    """The answer to a malformed request."""

    status: int
    expected: int
    seconds: float


async def send_malformed(url: str, count: int) -> list[Answer]:
    """Sends malformed requests, 8 at a time."""
    import aiohttp

    slots, answers = asyncio.Semaphore(8), []

    async def one(session: aiohttp.ClientSession, body: bytes, headers: dict, expected: int) -> None:
        async with slots:
            began = time.monotonic()
            async with session.post(f"{url}/v1/detect", data=body, headers=headers) as answer:
                await answer.read()
            answers.append(Answer(answer.status, expected, time.monotonic() - began))

    async with aiohttp.ClientSession() as session:
        chosen = itertools.islice(itertools.cycle(MALFORMED), count)
        await asyncio.gather(*(one(session, *request) for request in chosen))
    return answers


async def send_slowly(url: str) -> Answer:
    """Sends a byte a second of the thousand that the request promises."""
    host, port = url.removeprefix("http://").split(":")
    began = time.monotonic()
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"POST /v1/detect HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n")
    answer = asyncio.create_task(reader.readline())
    while not answer.done():
        writer.write(b"x")
        await asyncio.wait([answer], timeout=1)
    writer.close()
    return Answer(int(answer.result().split()[1]), 408, time.monotonic() - began)
