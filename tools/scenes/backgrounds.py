"""Backgrounds: photographs changed at random, and procedural textures. Train and val share neither."""

from __future__ import annotations

from collections.abc import Callable

import cv2
import numpy as np

from tools.scenes.colors import any_color
from tools.scenes.sources import PHOTOS, photo
from tools.scenes.textures import TEXTURES

_PHOTO_SHARE = {"train": 0.62, "val": 0.6}


def background(rng: np.random.Generator, split: str, width: int, height: int) -> tuple[np.ndarray, set[str]]:
    """Makes a background.

    Returns:
        uint8 [height, width, 3], RGB, and the names of the photographs and textures in it.
    """
    draws: tuple[Callable, Callable] = (_photograph, _texture)
    first = draws[int(rng.random() >= _PHOTO_SHARE[split])]
    image, name = first(rng, split, width, height)
    if rng.random() >= 0.15:
        return image, {name}
    other, other_name = draws[int(rng.random() >= 0.5)](rng, split, width, height)
    if rng.random() < 0.5:  # both shine through
        weight = rng.uniform(0.3, 0.7)
        image = cv2.addWeighted(image, weight, other, 1 - weight, 0)
    else:  # side by side, like a wall and a floor
        angle = rng.uniform(0, 2 * np.pi)
        x, y = np.cos(angle), np.sin(angle)
        offset = x * width * rng.uniform(0.3, 0.7) + y * height * rng.uniform(0.3, 0.7)
        side = np.arange(width, dtype=np.float32) * np.float32(x) + np.arange(height, dtype=np.float32)[
            :, None
        ] * np.float32(y)
        image = np.where((side > offset)[..., None], image, other)
    return image, {name, other_name}


def _photograph(rng: np.random.Generator, split: str, width: int, height: int) -> tuple[np.ndarray, str]:
    source = PHOTOS[split][rng.integers(len(PHOTOS[split]))]
    image = photo(source)
    rows, columns = image.shape[:2]
    # The largest crop of the scene's shape (stretched a little), or a part of it.
    ratio = width / height * rng.uniform(0.85, 1.18)
    crop_width = min(columns, rows * ratio) * np.sqrt(rng.uniform(0.2, 1.0))
    crop_height = min(rows, crop_width / ratio)
    x, y = rng.uniform(0, columns - crop_width), rng.uniform(0, rows - crop_height)
    crop = image[int(y) : int(y + crop_height), int(x) : int(x + crop_width)]
    grows = crop.shape[1] < width
    crop = cv2.resize(crop, (width, height), interpolation=cv2.INTER_LINEAR if grows else cv2.INTER_AREA)
    if rng.random() < 0.5:
        crop = crop[:, ::-1]
    if rng.random() < 0.2:
        crop = crop[::-1]
    crop = np.ascontiguousarray(crop)
    if rng.random() < 0.25 or (_is_grey(image) and rng.random() < 0.6):
        grey = cv2.cvtColor(crop, cv2.COLOR_RGB2GRAY)
        crop = apply_palette(grey, palette(rng, 2))
    elif rng.random() < 0.5:
        crop = _mix_channels(rng, crop)
    return crop, source.file


def _is_grey(image: np.ndarray) -> bool:
    sample = image[::16, ::16].astype(np.int16)
    return bool(np.abs(sample[..., 0] - sample[..., 2]).max() < 8)


def _mix_channels(rng: np.random.Generator, image: np.ndarray) -> np.ndarray:
    """Another saturation and hue, by a matrix near the identity."""
    grey = np.full((3, 3), 1 / 3)
    saturation = rng.uniform(0.3, 1.5)
    matrix = saturation * np.eye(3) + (1 - saturation) * grey + rng.normal(0, 0.08, (3, 3))
    if rng.random() < 0.3:
        matrix = matrix[rng.permutation(3)]
    return cv2.transform(image, matrix.astype(np.float32))


def _texture(rng: np.random.Generator, split: str, width: int, height: int) -> tuple[np.ndarray, str]:
    makers = TEXTURES[split]
    maker = makers[rng.integers(len(makers))]
    field = maker(rng, width, height)
    image = apply_palette(field, palette(rng, int(rng.integers(2, 5))))
    return image, maker.__name__.lstrip("_")


def palette(rng: np.random.Generator, stops: int) -> np.ndarray:
    """A ramp of colours through some random ones, uint8 [256, 3]; often muted."""
    colors = np.array([any_color(rng) for _ in range(stops)])
    colors = colors.mean(axis=0) + (colors - colors.mean(axis=0)) * rng.uniform(0.25, 1.0)
    at = np.linspace(0, 255, stops)
    return np.stack([np.interp(np.arange(256), at, colors[:, c]) for c in range(3)], axis=1).astype(np.uint8)


def apply_palette(field: np.ndarray, colors: np.ndarray) -> np.ndarray:
    """Colours a field uint8 [H, W] by a ramp: uint8 [H, W, 3]."""
    return cv2.LUT(cv2.merge([field, field, field]), colors[None])
