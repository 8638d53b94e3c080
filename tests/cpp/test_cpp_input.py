"""`codetr_detect`: its network's input equals that of Python's detector, bit for bit."""

from __future__ import annotations

import os
from pathlib import Path

import cv2
import numpy as np
import pytest
from PIL import Image

from codetr.detector.preprocess import load_image
from codetr.detector.sizes import SizeRange
from tests.cpp.detect_program import (
    COFFEE,
    SCENES,
    Network,
    crowd,
    needs_program,
    options_of,
    read_document,
    run,
)

pytestmark = needs_program


HEIGHT, WIDTH = SizeRange(128, 192, 352), SizeRange(128, 256, 352)
LARGE = SizeRange(512, 768, 1344), SizeRange(512, 1152, 1344)


@pytest.mark.parametrize(
    ("size", "batch", "scale", "chosen", "together"),
    [
        ((384, 512), 1, None, {}, None),
        ((90, 70), 2, None, {}, 5),
        ((96, 100), SizeRange(2, 2, 3), (50, 40), {}, 5),
        ((HEIGHT, WIDTH), 2, None, {}, None),
        ((HEIGHT, 64), SizeRange(1, 1, 4), (300, 200), {}, 6),
        ((HEIGHT, WIDTH), 1, (300, 200), {"max_size": 150}, 3),
        ((HEIGHT, WIDTH), SizeRange(3, 3, 4), None, {"max_size": 250}, 2),
        (LARGE, SizeRange(1, 1, 8), (1333, 800), {}, 3),
        (LARGE, SizeRange(1, 1, 8), (1333, 800), {"height": 544, "width": 1344}, 3),
    ],
    ids=str,
)
def test_input_and_document_equal_python(tmp_path, size, batch, scale, chosen, together):
    """Compares photos, a strip, a pole, one pixel, and pictures of the input's and of twice its size."""
    rng = np.random.default_rng(0)
    odd = [(20, 2000), (2500, 30), (1, 1), (384, 512), (180, 140)]
    files = [tmp_path / f"{height}x{width}.png" for height, width in odd]
    for file, shape in zip(files, odd, strict=True):
        Image.fromarray(rng.integers(0, 256, (*shape, 3), dtype=np.uint8)).save(file)
    files += [COFFEE, SCENES[0]]
    shared = Path(os.path.commonpath([file.parent for file in files]))
    outputs = tuple(map(np.stack, zip(*(crowd(12, rng) for _ in files), strict=True)))
    network = Network(*size, outputs, batch=batch, scale=scale, chosen=chosen)
    images = [load_image(file) for file in files]
    expected = network.expected([str(file.relative_to(shared)) for file in files], images, batch=together)
    written = ["--dump", tmp_path / "dump", "--json", tmp_path / "out.json"]
    run(*network.save(tmp_path / "net"), *written, *options_of({"batch": together}), *files)
    assert read_document(tmp_path / "out.json")[0] == expected
    for index, one in enumerate(network.runs):
        np.testing.assert_array_equal(np.load(tmp_path / f"dump/images_{index}.npy"), one.images)
        np.testing.assert_array_equal(np.load(tmp_path / f"dump/image_shapes_{index}.npy"), one.image_shapes)
    assert len(list(tmp_path.glob("dump/images_*.npy"))) == len(network.runs)


def picture_kinds(folder: Path, side: int) -> list[Path]:
    """Writes an opaque picture of every kind, side x side."""
    rng = np.random.default_rng(1)
    rgb = Image.fromarray(cv2.resize(rng.integers(0, 256, (6, 6, 3), dtype=np.uint8), (side, side)))
    files = []

    def save(image: Image.Image, name: str, **options) -> None:
        files.append(folder / name)
        image.save(files[-1], **options)

    for sampling in (0, 1, 2):
        save(rgb, f"sampling{sampling}.jpg", subsampling=sampling, quality=80)
    save(rgb, "progressive.jpg", progressive=True)
    save(rgb, "lossless.webp", lossless=True)
    save(rgb.convert("L"), "gray.jpg")
    save(rgb.convert("L"), "gray.png")
    save(rgb.convert("1"), "bits.png")
    save(rgb.quantize(200), "palette.png")
    for suffix in ("png", "webp", "bmp", "tif"):
        save(rgb, f"rgb.{suffix}")
    exif = Image.Exif()
    for turn in range(1, 10):  # 9 is no orientation
        exif[0x0112] = turn
        save(rgb, f"exif{turn}.jpg", exif=exif)
        save(rgb, f"exif{turn}.png", exif=exif)
    return files


def test_every_kind_of_picture_is_decoded_as_in_python(tmp_path):
    files = picture_kinds(tmp_path, 48)
    network = Network(48, 48, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))
    run(*network.save(tmp_path / "net"), "--dump", tmp_path / "dump", *files)
    decoded = [np.load(tmp_path / f"dump/images_{i}.npy")[0].transpose(1, 2, 0) for i in range(len(files))]
    for pixels, file in zip(decoded, files, strict=True):
        np.testing.assert_array_equal(pixels, load_image(file), err_msg=file.name)
