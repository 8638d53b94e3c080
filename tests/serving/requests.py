"""Bodies of requests, good and bad."""

from __future__ import annotations

import io
import struct
import zlib

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
