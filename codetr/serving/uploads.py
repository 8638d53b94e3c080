"""Receives the images of a request within the limits, and checks their headers before they are decoded."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import AsyncIterator

from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect, Request

from codetr.detector.preprocess import ImageError, ImageFile, open_image
from codetr.serving.settings import Limits

logging.getLogger("python_multipart").setLevel(logging.ERROR)  # it warns of each form that is damaged

FORMATS = ("BMP", "GIF", "JPEG", "PNG", "TIFF", "WEBP")
"""Formats that the server decodes, by Pillow's names. Pillow runs other programs for some of the rest."""


class _FormParser(MultiPartParser):
    spool_max_size = sys.maxsize  # no temporary files: the body is in memory already


async def receive_images(request: Request, limits: Limits) -> list[ImageFile]:
    """Receives the images of a request: the files of a form, or one image as the body itself.

    Raises:
        HTTPException: 400, the form is damaged, has too many images, or none; 408, the body did not arrive
            within the deadline; 413, it has too many bytes, or an image too many pixels; 422, a file is no
            image.
    """
    try:
        body = await asyncio.wait_for(_receive(request, limits.max_bytes), limits.deadline)
    except asyncio.TimeoutError:
        raise HTTPException(408, f"the body did not arrive within {limits.deadline:g} s") from None
    except ClientDisconnect:
        raise HTTPException(400, "the client closed the connection before its request was complete") from None
    if request.headers.get("content-type", "").startswith("multipart/form-data"):
        images = await _split_form(request, body, limits.max_images)
    else:
        images = [ImageFile("body", body)] if body else []
    if not images:
        raise HTTPException(400, "expected at least one image, got none")
    for image in images:
        _check(image, limits.max_pixels)
    return images


async def _receive(request: Request, max_bytes: int) -> bytes:
    too_large = HTTPException(413, f"expected at most {max_bytes} bytes, got more")
    declared = request.headers.get("content-length", "0")
    if declared.isdecimal() and int(declared) > max_bytes:
        raise too_large
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > max_bytes:
            raise too_large
    return bytes(body)


async def _split_form(request: Request, body: bytes, max_images: int) -> list[ImageFile]:
    async def stream() -> AsyncIterator[bytes]:
        yield body

    try:
        form = await _FormParser(request.headers, stream(), max_files=max_images, max_fields=0).parse()
    except MultiPartException as error:
        raise HTTPException(400, f"the form cannot be read: {error.message}") from error
    files = [item for _, item in form.multi_items() if isinstance(item, UploadFile)]
    return [ImageFile(file.filename or "unnamed", await file.read()) for file in files]


def _check(image: ImageFile, max_pixels: int) -> None:
    """Reads the header of an image."""
    try:
        with open_image(image, FORMATS) as header:
            width, height = header.size
    except ImageError as error:
        raise HTTPException(422, str(error)) from error
    if width * height > max_pixels:
        raise HTTPException(
            413, f"{image.name}: expected at most {max_pixels} pixels, got {width}x{height} in the header"
        )
