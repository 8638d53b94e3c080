"""Drawings made of polygons in their own units, and their rasterisation.

A drawing is a list of parts, each some contours (filled by the even-odd rule, so that a contour inside
another is a hole) and the name of a colour. Contours are float [n, 2], x to the right, y down, about 2 units
large.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import cv2
import numpy as np

Color = tuple[float, float, float]  # RGB, 0..255
_SHIFT = 4  # fractional bits of the coordinates that OpenCV gets
_MARGIN_PX = 2


class Part(NamedTuple):
    """A filled area."""

    contours: tuple[np.ndarray, ...]  # float [n, 2] each
    color: str  # a key of the drawing's colours
    # a plate or pole behind the object. It hides the pixels below and is outside the object's box
    backing: bool = False


@dataclass(frozen=True)
class Drawing:
    """A shape and its rules."""

    parts: tuple[Part, ...]  # from the lowest to the topmost
    # chooses the colours for parts and "outline", from a generator and the mean colour below
    colors: Callable[[np.random.Generator, np.ndarray], Mapping[str, Color]]
    outline: float = 0.0  # width of the outline around everything, in the drawing's units; 0 for none
    max_tilt_deg: float = 180.0  # largest turn to either side
    mirrored: bool = False  # whether it may be mirrored
    min_size_px: float = 16.0  # least size at which the shape is recognisable, see `place`
    min_visible: float = 0.6  # least visible share, likewise
    sources: frozenset[str] = frozenset()

    @property
    def backing(self) -> list[Part]:
        """The parts behind the object."""
        return [part for part in self.parts if part.backing]

    @property
    def front(self) -> list[Part]:
        """The parts of the object."""
        return [part for part in self.parts if not part.backing]


def transformed(drawing: Drawing, matrix: np.ndarray) -> Drawing:
    """Applies a linear map [2, 2] to all contours."""
    parts = tuple(
        part._replace(contours=tuple(contour @ matrix.T for contour in part.contours))
        for part in drawing.parts
    )
    return replace(drawing, parts=parts)


def extent(drawing: Drawing) -> np.ndarray:
    """Returns the object's bounds without backing, outline included: [x0, y0, x1, y1]."""
    points = np.concatenate([contour for part in drawing.front for contour in part.contours])
    return np.concatenate([points.min(axis=0) - drawing.outline, points.max(axis=0) + drawing.outline])


def size_of(drawing: Drawing) -> float:
    """Returns the geometric mean of the sides of the object's box."""
    x0, y0, x1, y1 = extent(drawing)
    return float(np.sqrt((x1 - x0) * (y1 - y0)))


def place(drawing: Drawing, size_px: float, longest_px: float) -> Drawing:
    """Scales a drawing to pixels: to the size `size_px`, or less if a side would exceed `longest_px`."""
    x0, y0, x1, y1 = extent(drawing)
    scale = min(size_px / size_of(drawing), longest_px / max(x1 - x0, y1 - y0))
    return replace(transformed(drawing, np.eye(2) * scale), outline=drawing.outline * scale)


class Sprite(NamedTuple):
    """A drawing in pixels."""

    cover: np.ndarray  # float32 [h, w], 0..1, opacity of object and backing
    alpha: np.ndarray  # float32 [h, w], 0..1, opacity of the object alone
    scale: int  # samples per pixel of `paint`
    origin: np.ndarray  # [2], the drawing's coordinates of the sprite's left upper corner


def rasterise(drawing: Drawing) -> Sprite:
    """Makes the masks of a drawing whose units are pixels."""
    points = np.concatenate([contour for part in drawing.parts for contour in part.contours])
    pad = drawing.outline + _MARGIN_PX
    origin = np.floor(points.min(axis=0) - pad)
    width, height = (np.ceil(points.max(axis=0) + pad) - origin).astype(int)
    scale = 4 if max(width, height) <= 90 else 3 if max(width, height) <= 180 else 2
    alpha = np.zeros((height * scale, width * scale), np.uint8)
    for part in drawing.front:
        _fill(alpha, part, 255, origin, scale)
        _stroke(alpha, part, 255, origin, scale, drawing.outline)
    cover = alpha.copy()
    for part in drawing.backing:
        _fill(cover, part, 255, origin, scale)
    share = np.float32(1 / 255)
    return Sprite(_shrink(cover, scale) * share, _shrink(alpha, scale) * share, scale, origin)


def paint(drawing: Drawing, sprite: Sprite, colors: Mapping[str, Color]) -> np.ndarray:
    """Paints a drawing whose masks are `sprite`: float32 [h, w, 3], RGB, 0..255.

    Outside the masks the picture continues in the colour of the edge, so that antialiasing adds no fringe.
    """
    origin, scale = sprite.origin, sprite.scale
    height, width = sprite.alpha.shape
    values = {name: np.clip(color, 0, 255).astype(int).tolist() for name, color in colors.items()}
    rim = (drawing.backing or drawing.parts)[0]
    canvas = np.empty((height * scale, width * scale, 3), np.uint8)
    canvas[:] = values["outline" if drawing.outline > 0 and not rim.backing else rim.color]
    for part in drawing.backing:
        _fill(canvas, part, values[part.color], origin, scale)
    if drawing.outline > 0:
        for part in drawing.front:
            _stroke(canvas, part, values["outline"], origin, scale, drawing.outline)
    for part in drawing.front:
        _fill(canvas, part, values[part.color], origin, scale)
    return _shrink(canvas, scale)


def _points(part: Part, origin: np.ndarray, scale: int) -> list[np.ndarray]:
    # OpenCV's coordinates refer to the centres of samples.
    return [
        np.rint(((contour - origin) * scale - 0.5) * (1 << _SHIFT)).astype(np.int32)
        for contour in part.contours
    ]


def _fill(image: np.ndarray, part: Part, value, origin: np.ndarray, scale: int) -> None:
    cv2.fillPoly(image, _points(part, origin, scale), value, cv2.LINE_8, _SHIFT)


def _stroke(image: np.ndarray, part: Part, value, origin: np.ndarray, scale: int, width: float) -> None:
    if thickness := round(2 * width * scale):
        cv2.polylines(image, _points(part, origin, scale), True, value, thickness, cv2.LINE_8, _SHIFT)


def _shrink(image: np.ndarray, scale: int) -> np.ndarray:
    height, width = image.shape[:2]
    size = width // scale, height // scale
    return cv2.resize(image, size, interpolation=cv2.INTER_AREA).astype(np.float32)


# Contours.


def polygon(*points: tuple[float, float]) -> np.ndarray:
    """The contour through some points."""
    return np.array(points, np.float64)


def rectangle(x0: float, y0: float, x1: float, y1: float) -> np.ndarray:
    """An upright rectangle."""
    return polygon((x0, y0), (x1, y0), (x1, y1), (x0, y1))


def ellipse(x: float, y: float, rx: float, ry: float | None = None, points: int = 40) -> np.ndarray:
    """An upright ellipse, a circle without `ry`."""
    angles = np.arange(points) * (2 * np.pi / points)
    return np.stack([x + rx * np.cos(angles), y + (rx if ry is None else ry) * np.sin(angles)], axis=1)


def symmetric(*right: tuple[float, float]) -> np.ndarray:
    """The contour through points on the right and, back up, through their mirror images on the left."""
    half = polygon(*right)
    return np.concatenate([half, half[::-1] * (-1, 1)])


def regular(corners: int, radius: float, turn_deg: float = 0.0) -> np.ndarray:
    """A regular polygon around 0; unturned, a corner points up."""
    angles = np.arange(corners) * (2 * np.pi / corners) + np.deg2rad(turn_deg - 90)
    return radius * np.stack([np.cos(angles), np.sin(angles)], axis=1)


def rounded(contour: np.ndarray, radius: float) -> np.ndarray:
    """Rounds a convex or concave contour's corners. The curve of a corner is a parabola of six points.

    Args:
        contour: [n, 2].
        radius: distance from a corner at which the rounding starts; at most half of the shorter side.
    """
    t = np.linspace(0, 1, 6)[:, None]
    corners = []
    for before, corner, after in zip(np.roll(contour, 1, 0), contour, np.roll(contour, -1, 0)):
        ends = []
        for other in (before, after):
            length = np.hypot(*(other - corner))
            ends.append(corner + (other - corner) * min(0.5, radius / max(length, 1e-9)))
        corners.append((1 - t) ** 2 * ends[0] + 2 * t * (1 - t) * corner + t**2 * ends[1])
    return np.concatenate(corners)


def moved(contour: np.ndarray, x: float = 0.0, y: float = 0.0, turn_deg: float = 0.0) -> np.ndarray:
    """Turns a contour around 0 (clockwise as seen), then moves it."""
    return contour @ rotation(turn_deg).T + (x, y)


def rotation(degrees: float) -> np.ndarray:
    """The matrix [2, 2] of a rotation, clockwise as seen (y points down)."""
    cos, sin = np.cos(np.deg2rad(degrees)), np.sin(np.deg2rad(degrees))
    return np.array([[cos, -sin], [sin, cos]])
