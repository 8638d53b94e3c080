"""`codetr_detect`: its network's input equals that of Python's detector, bit for bit."""

from __future__ import annotations

import tempfile
from pathlib import Path

import cv2
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from PIL import Image

from codetr.detector.preprocess import load_image
from codetr.detector.sizes import SizeRange
from tests.cpp.detect_program import (
    COFFEE,
    SCENES,
    Network,
    crowd,
    needs_program,
    read_document,
    run,
    save_pictures,
)

pytestmark = needs_program


def check_dump(folder: Path, network: Network) -> None:
    """Checks the runs' inputs against those that Python's detector gave to the network."""
    assert len(list(folder.glob("images_*.npy"))) == len(network.runs)
    for index, expected in enumerate(network.runs):
        np.testing.assert_array_equal(np.load(folder / f"images_{index}.npy"), expected.images)
        np.testing.assert_array_equal(np.load(folder / f"image_shapes_{index}.npy"), expected.image_shapes)


sizes = st.tuples(st.integers(1, 90), st.integers(1, 90))
odd_sizes = (
    sizes
    | st.tuples(st.integers(1, 3), st.integers(100, 3000))  # very wide
    | st.tuples(st.integers(100, 3000), st.integers(1, 3))
    | st.tuples(st.integers(100, 300), st.integers(100, 300))  # larger than the largest input
)
ranges = st.lists(st.integers(1, 4), min_size=3, max_size=3).map(
    lambda sides: SizeRange(*(32 * side for side in sorted(sides)))
)
batches = st.integers(1, 3) | st.lists(st.integers(1, 4), min_size=3, max_size=3).map(
    lambda counts: SizeRange(*sorted(counts))
)
scales = st.none() | st.tuples(st.integers(1, 300), st.integers(1, 300)).map(
    lambda sides: tuple(sorted(sides, reverse=True))
)


@st.composite
def inputs(draw) -> tuple:
    """Draws batch, height, width, scale, the sizes that the detector is given, and sizes of pictures."""
    pictures = draw(st.lists(odd_sizes, min_size=1, max_size=7))
    if draw(st.booleans()):
        return draw(batches), *draw(sizes), None, {}, pictures
    height, width = draw(ranges), draw(ranges)
    chosen = {"max_size": draw(st.integers(1, 300))} if height.dynamic and draw(st.booleans()) else {}
    return draw(batches), height, width, draw(scales), chosen, pictures


@given(inputs(), st.none() | st.integers(1, 6), st.integers(0, 2**32 - 1))
@example((SizeRange(2, 2, 3), SizeRange(32, 32, 96), 64, None, {}, [(40, 40)] * 5), 5, 0)
@example(
    (2, SizeRange(32, 64, 96), SizeRange(32, 64, 128), None, {}, [(1, 3000), (3000, 1), (1, 1)]), None, 0
)
@example((SizeRange(1, 1, 4), 96, 100, (50, 40), {}, [(30, 40)] * 3), None, 0)
@example((1, SizeRange(32, 64, 128), SizeRange(32, 64, 128), (80, 50), {"max_size": 60}, [(30, 40)]), 1, 0)
@example((1, SizeRange(32, 64, 128), 64, (80, 50), {"height": 96, "width": 64}, [(30, 40), (40, 30)]), 2, 0)
def test_input_and_document_equal_python(shape, together, seed):
    """Compares runs of several pictures that are padded to one size."""
    rng = np.random.default_rng(seed)
    batch, height, width, scale, chosen, pictures = shape
    images = [rng.integers(0, 256, (*size, 3), dtype=np.uint8) for size in pictures]
    outputs = tuple(map(np.stack, zip(*(crowd(12, rng) for _ in images), strict=True)))
    network = Network(height, width, outputs, batch=batch, scale=scale, chosen=chosen)
    options = [] if together is None else ["--batch", together]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        files = save_pictures(folder, images)
        written = ["--dump", folder / "dump", "--json", folder / "out.json"]
        expected = network.expected([file.name for file in files], images, batch=together)
        run(*network.save(folder / "net"), *written, *options, *files)
        assert read_document(folder / "out.json")[0] == expected
        check_dump(folder / "dump", network)


@pytest.mark.parametrize(
    ("size", "scale", "chosen"),
    [
        ((384, 512), None, {}),
        ((SizeRange(512, 768, 1344), SizeRange(512, 1152, 1344)), (1333, 800), {}),
        ((SizeRange(512, 768, 1344), SizeRange(512, 1152, 1344)), None, {"max_size": 1000}),
        ((SizeRange(512, 768, 1344), SizeRange(512, 1152, 1344)), None, {"height": 544, "width": 1344}),
    ],
    ids=str,
)
def test_photos_equal_python(tmp_path, size, scale, chosen):
    """Compares photos, a strip, a pole, one pixel, and a picture larger than the largest input."""
    rng = np.random.default_rng(0)
    odd = [(20, 2000), (2500, 30), (1, 1), (1500, 1400)]
    files = save_pictures(tmp_path, [rng.integers(0, 256, (*shape, 3), dtype=np.uint8) for shape in odd])
    files += [COFFEE, *SCENES[:3]]
    network = Network(*size, batch=SizeRange(1, 1, 8), scale=scale, chosen=chosen)
    network.detect([load_image(file) for file in files], batch=3)
    run(*network.save(tmp_path / "net"), "--dump", tmp_path / "dump", "--batch", 3, *files)
    check_dump(tmp_path / "dump", network)


def picture_kinds(folder: Path, side: int) -> list[Path]:
    """Writes an opaque picture of every kind, side x side."""
    rng = np.random.default_rng(1)
    rgb = Image.fromarray(cv2.resize(rng.integers(0, 256, (6, 6, 3), dtype=np.uint8), (side, side)))
    gray = rgb.convert("L")
    exif = Image.Exif()
    files = []

    def save(image: Image.Image, name: str, **options) -> None:
        files.append(folder / name)
        image.save(files[-1], **options)

    for sampling in (0, 1, 2):
        save(rgb, f"sampling{sampling}.jpg", subsampling=sampling, quality=80)
    save(rgb, "progressive.jpg", progressive=True)
    save(gray, "gray.jpg")
    save(rgb, "rgb.png")
    save(gray, "gray.png")
    save(rgb.convert("1"), "bits.png")
    save(rgb.quantize(200), "palette.png")
    for turn in range(1, 10):  # 9 is no orientation
        exif[0x0112] = turn
        save(rgb, f"exif{turn}.jpg", exif=exif)
        save(rgb, f"exif{turn}.png", exif=exif)
    save(rgb, "lossy.webp")
    save(rgb, "lossless.webp", lossless=True)
    save(rgb, "rgb.bmp")
    save(rgb, "rgb.tif")
    return files


def test_every_kind_of_picture_is_decoded_as_in_python(tmp_path):
    files = picture_kinds(tmp_path, 48)
    network = Network(48, 48, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))
    run(*network.save(tmp_path / "net"), "--dump", tmp_path / "dump", *files)
    decoded = [np.load(tmp_path / f"dump/images_{i}.npy")[0].transpose(1, 2, 0) for i in range(len(files))]
    different = [
        file.name
        for pixels, file in zip(decoded, files, strict=True)
        if not np.array_equal(pixels, load_image(file))
    ]
    assert different == []
