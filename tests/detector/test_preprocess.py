"""Reading, resizing, normalising, padding, and boxes back to the picture: against upstream's arithmetic."""

from __future__ import annotations

import struct
import subprocess
import sys

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from codetr.config import Config
from codetr.detector.preprocess import (
    Preprocessor,
    fit_size,
    load_image,
    rescale_size,
)

SIDE = st.integers(1, 6000)
SWIN_L, R50 = (2048, 1280), (1333, 800)


def photo(height: int, width: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


@given(SIDE, SIDE, st.sampled_from([SWIN_L, R50, (608, 608), (640, 333)]))
def test_rescale_size_is_upstreams(height, width, scale):
    """mmcv: factor = min(long / longer side, short / shorter side); each side int(side * factor + 0.5)."""
    factor = min(scale[0] / max(height, width), scale[1] / min(height, width))
    expected = (int(height * factor + 0.5), int(width * factor + 0.5))
    result = rescale_size(height, width, scale)
    assert rescale_size(480, 640, R50) == rescale_size(480, 640, R50[::-1]) == (800, 1067)
    assert result == tuple(max(1, side) for side in expected)
    assert max(result) <= scale[0] and min(result) <= scale[1]


@given(SIDE, SIDE, st.integers(1, 2000), st.integers(1, 2000))
def test_fit_size_is_largest_that_fits(height, width, max_height, max_width):
    h, w = fit_size(height, width, max_height, max_width)
    assert 1 <= h <= max_height and 1 <= w <= max_width
    assert h == max_height or w == max_width
    factor = min(max_height / height, max_width / width)
    assert abs(h - height * factor) <= 0.5 + 1e-6 or h == 1
    assert abs(w - width * factor) <= 0.5 + 1e-6 or w == 1


@pytest.mark.parametrize("size", [(37, 53), (480, 640), (90, 31), (1, 1)])
def test_pixels_are_upstreams(size):
    """The 8-bit picture is resized by cv2.INTER_LINEAR, then normalised in float32."""
    image = photo(*size)
    batch = Preprocessor(scale=(200, 120)).batch([image])
    (normalised,), (shape,) = batch.images, batch.image_shapes.tolist()
    height, width = rescale_size(*size, (200, 120))
    resized = cv2.resize(image, (width, height), interpolation=cv2.INTER_LINEAR).astype(np.float32)
    expected = (resized - np.float32(Config.mean)) / np.float32(Config.std)
    assert shape == [height, width] and normalised.dtype == np.float32
    np.testing.assert_array_equal(normalised, expected.transpose(2, 0, 1))


def test_batch_pads_right_and_bottom_with_zeros():
    images = [photo(40, 100, 1), photo(90, 60, 2), photo(50, 50, 3)]
    preprocessor = Preprocessor(scale=(128, 80), pad_divisor=32)
    batch = preprocessor.batch(images)
    assert batch.images.shape == (3, 3, 128, 128) and batch.images.dtype == np.float32
    assert batch.image_shapes.dtype == np.int64
    for index, image in enumerate(images):
        alone = Preprocessor(scale=(128, 80)).batch([image])
        ((height, width),) = alone.image_shapes
        assert batch.image_shapes[index].tolist() == [height, width]
        assert tuple(batch.original_shapes[index]) == image.shape[:2]
        np.testing.assert_array_equal(batch.images[index, :, :height, :width], alone.images[0])
        assert not batch.images[index, :, height:].any() and not batch.images[index, :, :, width:].any()


@given(st.data())
def test_boxes_return_to_the_original_picture(data):
    height, width = data.draw(st.integers(1, 60)), data.draw(st.integers(1, 60))
    fixed = data.draw(st.booleans())
    preprocessor = Preprocessor(height=48, width=80) if fixed else Preprocessor(scale=(96, 64))
    batch = preprocessor.batch([photo(5, 7), np.zeros((height, width, 3), dtype=np.uint8)])
    fractions = np.array(data.draw(st.lists(st.tuples(*[st.floats(0, 1)] * 4), min_size=1, max_size=5)))
    original = fractions * (width, height, width, height)
    resized_height, resized_width = batch.image_shapes[1]
    resized = fractions * (resized_width, resized_height, resized_width, resized_height)
    np.testing.assert_allclose(batch.restore_boxes(1, resized), original, atol=1e-4)


def test_boxes_are_clipped_and_may_be_none():
    batch = Preprocessor(scale=(100, 100)).batch([photo(50, 200)])
    boxes = batch.restore_boxes(0, np.array([[-5.0, -5.0, 500.0, 500.0]]))
    np.testing.assert_array_equal(boxes, [[0, 0, 200, 50]])
    assert batch.restore_boxes(0, np.zeros((0, 4))).shape == (0, 4)


@pytest.mark.parametrize("shape", [(4, 4), (4, 4, 4), (0, 4, 3)])
def test_wrong_array(shape):
    with pytest.raises(ValueError, match=r"images: expected uint8 \[H, W, 3\]"):
        Preprocessor(scale=(8, 8)).batch([np.zeros(shape, dtype=np.uint8)])
    with pytest.raises(ValueError, match="got float32"):
        Preprocessor(scale=(8, 8)).batch([np.zeros((4, 4, 3), dtype=np.float32)])


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation(tmp_path, orientation):
    """All eight orientations show the same upright picture: red top left, green top right, blue below."""
    upright = np.zeros((32, 64, 3), dtype=np.uint8)
    upright[:16, :32, 0] = upright[:16, 32:, 1] = upright[16:, :32, 2] = 255
    stored = upright if orientation < 5 else upright.transpose(1, 0, 2)
    flips = {2: (1,), 3: (0, 1), 4: (0,), 6: (0,), 7: (0, 1), 8: (1,)}
    stored = np.flip(stored, flips.get(orientation, ()))
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = tmp_path / "rotated.png"
    Image.fromarray(np.ascontiguousarray(stored)).save(path, exif=exif)
    np.testing.assert_array_equal(load_image(path), upright)


def test_exif_tag_of_another_type(tmp_path):
    """A camera's model as a float, which Pillow reads and cannot write."""
    tags = struct.pack("<HHHIfHHIII", 2, 0x0110, 11, 1, 0.5, 0x0112, 3, 1, 6, 0)
    path = tmp_path / "rotated.jpg"
    Image.new("RGB", (20, 10)).save(path, exif=b"Exif\0\0II*\0\x08\0\0\0" + tags)
    assert load_image(path).shape == (20, 10, 3)


def test_no_warnings_without_the_file(tmp_path):
    """In a process of its own: pytest sets other filters."""
    path = tmp_path / "cut_exif.jpg"
    Image.new("RGB", (20, 10)).save(path, exif=b"Exif\0\0II*\0\x08\0\0\0\x05\0")
    code = f"from codetr.detector.preprocess import load_image; load_image({str(path)!r})"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stderr == ""


def test_color_types(tmp_path):
    rgb = photo(8, 8)
    source = Image.fromarray(rgb)

    def read(image: Image.Image, name: str) -> np.ndarray:
        image.save(tmp_path / name)
        result = load_image(tmp_path / name)
        assert result.dtype == np.uint8 and result.shape == (8, 8, 3)
        return result

    gray, bits = source.convert("L"), source.convert("1")
    for name, image, expected in (
        ("rgb.png", source, rgb),
        ("rgb.bmp", source, rgb),
        ("gray.png", gray, np.asarray(gray.convert("RGB"))),
        ("opaque.png", source.convert("RGBA"), rgb),
        ("bits.png", bits, np.asarray(bits.convert("RGB"))),
        ("transparent.png", Image.new("RGBA", (8, 8), (10, 20, 30, 0)), np.full_like(rgb, 255)),
        ("gray_alpha.png", Image.new("LA", (8, 8), (10, 0)), np.full_like(rgb, 255)),
    ):
        np.testing.assert_array_equal(read(image, name), expected, name)
    read(source.convert("P"), "palette.png")
    read(source, "lossy.webp")
    cmyk = Image.new("CMYK", (8, 8), (0, 255, 255, 0))
    assert np.abs(read(cmyk, "cmyk.jpg").astype(int) - [255, 0, 0]).max() <= 8


def test_sixteen_bits(tmp_path):
    values = np.linspace(0, 65535, 64).astype(np.uint16).reshape(8, 8)
    for name in ("deep.png", "deep.tif"):
        Image.fromarray(values).save(tmp_path / name)
        loaded = load_image(tmp_path / name)
        assert loaded.min() == 0 and loaded.max() == 255
        assert np.abs(loaded[..., 1] - values / 257.0).max() <= 0.5
