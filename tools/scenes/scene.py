"""Draws one scene: a background, objects of the twenty classes, distractors, and camera effects."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tools.scenes import camera_effects
from tools.scenes.backgrounds import background
from tools.scenes.canvas import Canvas
from tools.scenes.object_classes import CLASS_NAMES, NOTHING
from tools.scenes.sources import SPLITS

DEFAULT_SIZE_PX = 640
_LEAST_OBJECT_PX = 16.0
_ASPECTS = (4 / 3, 4 / 3, 3 / 4, 1.0, 1.0, 1.2, 0.85)
STRENGTH = {"train": 1.0, "val": 0.75}  # of light, blur and noise
_EMPTY_SHARE = {"train": 0.03, "val": 0.0}  # scenes with distractors only


class Scene(NamedTuple):
    """A picture and its objects."""

    image: np.ndarray  # uint8 [H, W, 3], RGB
    # float32 [n, 4], each object's extent including hidden parts: tight around opacity above 0.1, clipped to
    # the picture
    boxes_xyxy_px: np.ndarray
    labels: np.ndarray  # int64 [n], indices into `CLASS_NAMES`
    jpeg_quality: int  # 75..95, for writing the picture
    sources: frozenset[str]  # names of the fonts, photographs and textures in it


def make_scene(seed: int, split: str, index: int, size: int = DEFAULT_SIZE_PX) -> Scene:
    """Makes a scene. It depends only on the arguments and on the versions of the installed packages.

    The size of an object is the geometric mean of its box's sides. Sizes are even on a logarithmic scale from
    16 pixels to half of the picture's. An object has a place where at least 60% of it (85% of a letter or
    digit) stays visible, where the border cuts off at most 30%, and where its colour differs enough from its
    surroundings.

    Args:
        seed: 0 or more.
        split: "train" or "val", which selects fonts, photographs and textures; train is a little harder.
        index: the scene's number in its split, 0 or more.
        size: limit of the longer side in pixels, at least 160. The limit of the shorter side is 3/4 of it.

    Raises:
        MissingSourceError: a package with fonts or photographs is not installed.
    """
    rng = np.random.default_rng([seed, SPLITS.index(split), index])
    width, height = _picture_size(rng, size)
    image, names = background(rng, split, width, height)
    canvas = Canvas(image, rng, split)
    for label, size_px in _plan(rng, split, width, height):
        canvas.add(label, size_px)
    image = camera_effects.apply(
        rng, canvas.image, canvas.smallest_px, canvas.least_contrast, STRENGTH[split]
    )
    return Scene(
        image,
        np.array(canvas.boxes, np.float32).reshape(-1, 4),
        np.array(canvas.labels, np.int64),
        int(rng.integers(75, 96)),
        frozenset(canvas.sources | names),
    )


def _picture_size(rng: np.random.Generator, size: int) -> tuple[int, int]:
    """Chooses width and height."""
    aspect = _ASPECTS[rng.integers(len(_ASPECTS))]
    limit = size if rng.random() < 0.7 else size * rng.uniform(0.75, 1.0)
    ratio = max(aspect, 1 / aspect)
    shorter = min(0.75 * limit, limit / ratio)
    width, height = (shorter * ratio, shorter) if aspect >= 1 else (shorter, shorter * ratio)
    return round(width), round(height)


def _plan(rng: np.random.Generator, split: str, width: int, height: int) -> list[tuple[int, float]]:
    """Chooses labels and sizes. Large objects mostly come first, so that small ones lie on them."""
    kind = rng.random()
    least, most = (1, 4) if kind < 0.3 else (3, 10) if kind < 0.7 else (8, 20)
    count = int(rng.integers(least, most + 1))
    if rng.random() < _EMPTY_SHARE[split]:
        count = 0
    largest = np.sqrt(width * height) * (0.5 if count <= 10 else 0.3)
    labels = rng.integers(len(CLASS_NAMES), size=count)
    things = [(int(label), _log_uniform(rng, _LEAST_OBJECT_PX, largest)) for label in labels]
    distractors = int(rng.poisson(2.5)) + (4 if count == 0 else 0)
    limit = 0.35 * min(width, height)
    things += [(NOTHING, _log_uniform(rng, 10, limit)) for _ in range(distractors)]
    return sorted(things, key=lambda thing: -thing[1] * np.exp(rng.normal(0, 0.5)))


def _log_uniform(rng: np.random.Generator, low: float, high: float) -> float:
    return float(np.exp(rng.uniform(np.log(low), np.log(high))))
