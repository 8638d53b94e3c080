"""The picture of a scene: places objects, tracks what they hide, and checks that they stand out."""

from __future__ import annotations

from typing import NamedTuple

import cv2
import numpy as np

from codetr.detector.postprocess import box_iou
from tools.scenes.colors import contrast
from tools.scenes.object_classes import NOTHING, draw_object, is_glyph
from tools.scenes.shapes import Drawing, Sprite, paint, place, rasterise, rotation, size_of, transformed

_TRIES = 8
_NOBODY = -1
_LEAST_INSIDE = 0.7  # least share of an object inside the picture, if its min_visible is less
_LEAST_OF_QUARTER = 0.25  # a quarter of an object may lose this much more than the object
_MOST_IOU = 0.6  # of two objects' boxes


class _Spot(NamedTuple):
    """The place of a sprite: a part of the picture, and the part of the sprite on it."""

    picture: tuple[slice, slice]
    sprite: tuple[slice, slice]


class Canvas:
    """A picture and the objects on it."""

    def __init__(self, image: np.ndarray, rng: np.random.Generator, split: str) -> None:
        self.image = np.ascontiguousarray(image)  # uint8 [H, W, 3], RGB
        self.boxes: list[tuple[float, float, float, float]] = []  # x0, y0, x1, y1 in pixels
        self.labels: list[int] = []  # of each object
        self.smallest_px = 64.0  # size of the smallest object, 64 at most
        self.least_contrast = 128.0  # of all objects to their surroundings, 40..128
        self.sources: set[str] = set()  # names of the fonts used
        self._rng = rng
        self._split = split
        # The owner of each pixel: 4 times the object's number, plus the quarter of the object.
        self._owner = np.full(image.shape[:2], _NOBODY, np.int16)
        self._areas = np.zeros((0, 4), int)  # pixels of each object's quarters, those cut off included
        self._visible = np.zeros((0, 4), int)  # visible pixels of each object's quarters
        self._min_visible = np.zeros(0)
        height, width = image.shape[:2]
        middle = rng.uniform((0.2 * width, 0.2 * height), (0.8 * width, 0.8 * height))
        self._cluster = middle if rng.random() < 0.4 else None

    def add(self, label: int, size_px: float) -> None:
        """Places an object where there is room, or leaves it out.

        Args:
            label: class of the object, or `NOTHING`.
            size_px: geometric mean of its box's sides.
        """
        plate = self._rng.random() < 0.18
        drawing, sprite = self._draw(label, size_px, plate)
        for attempt in range(_TRIES):
            if attempt == _TRIES // 2 and is_glyph(label) and not plate:
                plate = True  # the background may be too restless for a letter
                drawing, sprite = self._draw(label, size_px, plate)
            x, y = self._somewhere(sprite)
            spot = self._spot(sprite, x, y)
            if self._fits(label, drawing, sprite, spot) and self._put(label, drawing, sprite, x, y):
                return

    def _draw(self, label: int, size_px: float, plate: bool) -> tuple[Drawing, Sprite]:
        rng = self._rng
        drawing = draw_object(rng, label, self._split, plate)
        stretch = np.diag(np.exp(rng.uniform(-0.12, 0.12, 2)))
        shear = np.array([[1, rng.uniform(-0.12, 0.12)], [0, 1]])
        if drawing.mirrored and rng.random() < 0.5:
            stretch = stretch @ np.diag([-1, 1])
        turn = rotation(rng.uniform(-1, 1) * drawing.max_tilt_deg)
        drawing = transformed(drawing, turn @ shear @ stretch)
        drawing = place(drawing, max(size_px, drawing.min_size_px), 0.6 * max(self.image.shape[:2]))
        return drawing, rasterise(drawing)

    def _somewhere(self, sprite: Sprite) -> tuple[int, int]:
        """Chooses the pixel of the sprite's upper left corner. Some sprites reach over the border."""
        rng = self._rng
        sprite_height, sprite_width = sprite.alpha.shape
        height, width = self.image.shape[:2]
        if self._cluster is not None and rng.random() < 0.7:
            x, y = self._cluster + rng.normal(0, 0.16, 2) * (width, height)
        else:
            over = 0.25 if rng.random() < 0.15 else -0.5
            # Sorted: a sprite may be wider or higher than the picture.
            x = rng.uniform(*sorted((-over * sprite_width, width + over * sprite_width)))
            y = rng.uniform(*sorted((-over * sprite_height, height + over * sprite_height)))
        return round(x - sprite_width / 2), round(y - sprite_height / 2)

    def _spot(self, sprite: Sprite, x: int, y: int) -> _Spot:
        height, width = self.image.shape[:2]
        rows, columns = sprite.alpha.shape
        x0, x1 = (min(max(edge, 0), width) for edge in (x, x + columns))
        y0, y1 = (min(max(edge, 0), height) for edge in (y, y + rows))
        return _Spot(
            (slice(y0, y1), slice(x0, x1)),
            (slice(y0 - y, y1 - y), slice(x0 - x, x1 - x)),
        )

    def _fits(self, label: int, drawing: Drawing, sprite: Sprite, spot: _Spot) -> bool:
        """Returns whether enough of it is in the picture, and enough of all others stays visible."""
        alpha = sprite.alpha[spot.sprite]
        if not alpha.size:
            return False
        if label != NOTHING:
            least = np.array([max(_LEAST_INSIDE, drawing.min_visible)])
            quarters = _quarters(sprite)
            if not _enough(_counts(quarters[spot.sprite]), _counts(quarters), least).all():
                return False
            if self.boxes and box_iou(np.array(self.boxes), np.array([_box(alpha, spot)])).max() >= _MOST_IOU:
                return False
        left = self._visible - self._hidden(sprite, spot)
        return bool(_enough(left, self._areas, self._min_visible).all())

    def _hidden(self, sprite: Sprite, spot: _Spot) -> np.ndarray:
        """Returns the pixels of each object's quarters that a sprite hides: [n, 4]."""
        owners = self._owner[spot.picture][sprite.cover[spot.sprite] > 0.5]
        return _counts(owners, len(self.boxes))

    def _put(self, label: int, drawing: Drawing, sprite: Sprite, x: int, y: int) -> bool:
        """Paints the object. Returns False if it does not stand out."""
        rng = self._rng
        spot = self._spot(sprite, x, y)
        region, alpha = self.image[spot.picture], sprite.alpha[spot.sprite]
        mean, deviation = cv2.meanStdDev(region, mask=(alpha > 0.3).astype(np.uint8))
        colors = drawing.colors(rng, mean[:, 0])
        painted = _shaded(rng, paint(drawing, sprite, colors))[spot.sprite]
        if label != NOTHING:
            if "plate" in colors:
                found, least = contrast(colors["fill"], colors["plate"]), 60.0
            else:  # the mean over its pixels, weighted by opacity
                difference = (contrast(painted, region) * alpha).sum() / max(alpha.sum(), 1e-6)
                found, least = float(difference), 32 + 0.75 * float(deviation.mean())
            if found < least:
                return False
            self.least_contrast = min(self.least_contrast, max(found, 40.0))
        if rng.random() < 0.3:
            self._cast_shadow(sprite, x, y)
            region = self.image[spot.picture]
        cover = sprite.cover[spot.sprite]
        if rng.random() < 0.25:  # a little out of focus; the box belongs to the sharp shape
            sigma = rng.uniform(0.2, 0.3 + min(0.025 * size_of(drawing), 2.0))
            painted, cover = (cv2.GaussianBlur(layer, (0, 0), sigma) for layer in (painted, cover))
        blended = region + (painted - region) * cover[..., None]
        self.image[spot.picture] = np.clip(np.rint(blended), 0, 255).astype(np.uint8)
        self._record(label, drawing, sprite, spot)
        return True

    def _cast_shadow(self, sprite: Sprite, x: int, y: int) -> None:
        rng = self._rng
        reach = 0.02 * max(sprite.alpha.shape) + 1
        dx, dy = np.rint(rng.uniform(-2.5, 2.5, 2) * reach).astype(int)
        sigma, depth = rng.uniform(0.3, 1.2) * reach, np.float32(rng.uniform(0.25, 0.6))
        spot = self._spot(sprite, x + dx, y + dy)
        if sprite.cover[spot.sprite].size:
            light = 1 - depth * cv2.GaussianBlur(sprite.cover, (0, 0), sigma)[spot.sprite]
            self.image[spot.picture] = (self.image[spot.picture] * light[..., None]).astype(np.uint8)

    def _record(self, label: int, drawing: Drawing, sprite: Sprite, spot: _Spot) -> None:
        """Records the hidden pixels and the new object."""
        self._visible -= self._hidden(sprite, spot)
        owners = self._owner[spot.picture]
        owners[sprite.cover[spot.sprite] > 0.5] = _NOBODY
        if label == NOTHING:
            return
        quarters = _quarters(sprite)
        seen = quarters[spot.sprite]
        owners[seen != _NOBODY] = seen[seen != _NOBODY] + 4 * len(self.boxes)
        self._areas = np.concatenate([self._areas, _counts(quarters)])
        self._visible = np.concatenate([self._visible, _counts(seen)])
        self._min_visible = np.append(self._min_visible, drawing.min_visible)
        self.boxes.append(_box(sprite.alpha[spot.sprite], spot))
        self.labels.append(label)
        self.sources |= drawing.sources
        self.smallest_px = min(self.smallest_px, size_of(drawing))


def _quarters(sprite: Sprite) -> np.ndarray:
    """Numbers an object's solid pixels by the quarter of its box, 0..3: int16 [h, w]; `_NOBODY` elsewhere."""
    solid = sprite.alpha > 0.5
    rows, columns = solid.shape
    lower, right = np.arange(rows) >= rows / 2, np.arange(columns) >= columns / 2
    numbers = (2 * lower[:, None] + right).astype(np.int16)
    return np.where(solid, numbers, np.int16(_NOBODY))


def _counts(quarters: np.ndarray, objects: int = 1) -> np.ndarray:
    """Pixels of each object's quarters: [n, 4]."""
    return np.bincount(quarters[quarters != _NOBODY], minlength=4 * objects).reshape(-1, 4)


def _enough(visible: np.ndarray, areas: np.ndarray, least: np.ndarray) -> np.ndarray:
    """Returns whether enough of each object [n, 4] is visible, in total and in each of its quarters: [n]."""
    total = areas.sum(axis=1)
    slight = areas <= 0.08 * total[:, None]
    quarters = slight | (visible >= (least - _LEAST_OF_QUARTER)[:, None] * areas)
    return (visible.sum(axis=1) >= least * total) & quarters.all(axis=1)


def _box(alpha: np.ndarray, spot: _Spot) -> tuple[float, float, float, float]:
    """Returns the tight box, in the picture, of a mask on a spot."""
    x, y, width, height = cv2.boundingRect((alpha > 0.1).astype(np.uint8))
    x, y = x + spot.picture[1].start, y + spot.picture[0].start
    return float(x), float(y), float(x + width), float(y + height)


def _shaded(rng: np.random.Generator, painted: np.ndarray) -> np.ndarray:
    """Adds light that falls off across the object, to most of them."""
    if rng.random() < 0.35:
        return painted
    rows, columns = painted.shape[:2]
    dx, dy = rng.normal(0, 0.22, 2)
    across = np.linspace(-dx, dx, columns, dtype=np.float32)
    ramp = across + np.linspace(-dy, dy, rows, dtype=np.float32)[:, None]
    return painted * (1 + np.clip(ramp, -0.4, 0.4))[..., None]
