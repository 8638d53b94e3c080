"""Drawings made of polygons in their own units, and their rasterisation.

A drawing is a list of parts, each some contours (filled by the even-odd rule, so that a contour inside
another is a hole) and the name of a colour. Contours are float [n, 2], x to the right, y down, about 2 units
large.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import cv2
import numpy as np

Color = tuple[float, float, float]  # RGB, 0..255
_SHIFT = 4  # fractional bits of the coordinates that OpenCV gets
_MARGIN_PX = 2


class Part(NamedTuple):
    """A filled area.

    Attributes:
        contours: float [n, 2] each.
        color: a key of the drawing's colours.
        backing: a plate or pole behind the object. It hides the pixels below and is outside the object's box.
    """

    contours: tuple[np.ndarray, ...]
    color: str
    backing: bool = False


@dataclass(frozen=True)
class Drawing:
    """A shape and its rules.

    Attributes:
        parts: from the lowest to the topmost.
        colors: chooses the colours for parts and "outline", from a generator and the mean colour below.
        outline: width of the outline around everything, in the drawing's units; 0 for none.
        max_tilt_deg: largest turn to either side.
        mirrored: whether it may be mirrored.
        min_size_px: least size at which the shape is recognisable, see `place`.
        min_visible: least visible share, likewise.
    """

    parts: tuple[Part, ...]
    colors: Callable[[np.random.Generator, np.ndarray], Mapping[str, Color]]
    outline: float = 0.0
    max_tilt_deg: float = 180.0
    mirrored: bool = False
    min_size_px: float = 16.0
    min_visible: float = 0.6
    sources: frozenset[str] = field(default_factory=frozenset)


def transformed(drawing: Drawing, matrix: np.ndarray) -> Drawing:
    """Applies a linear map [2, 2] to all contours."""
    parts = tuple(
        part._replace(contours=tuple(contour @ matrix.T for contour in part.contours))
        for part in drawing.parts
    )
    return replace(drawing, parts=parts)


def extent(drawing: Drawing) -> np.ndarray:
    """Returns the object's bounds without backing, outline included: [x0, y0, x1, y1]."""
    points = np.concatenate([c for part in drawing.parts if not part.backing for c in part.contours])
    return np.concatenate([points.min(axis=0) - drawing.outline, points.max(axis=0) + drawing.outline])


def place(drawing: Drawing, size_px: float, longest_px: float) -> Drawing:
    """Scales a drawing to pixels: the geometric mean of its box's sides becomes `size_px`.

    Args:
        drawing: any units.
        size_px: the size; less where the longer side would be above `longest_px`.
        longest_px: limit of the longer side.
    """
    x0, y0, x1, y1 = extent(drawing)
    scale = min(size_px / np.sqrt((x1 - x0) * (y1 - y0)), longest_px / max(x1 - x0, y1 - y0))
    return replace(transformed(drawing, np.eye(2) * scale), outline=drawing.outline * scale)


class Sprite(NamedTuple):
    """A drawing in pixels.

    Attributes:
        cover: float32 [h, w], 0..1, opacity of object and backing.
        alpha: float32 [h, w], 0..1, opacity of the object alone.
        scale: samples per pixel of `paint`.
        origin: [2], the drawing's coordinates of the sprite's left upper corner.
    """

    cover: np.ndarray
    alpha: np.ndarray
    scale: int
    origin: np.ndarray


def rasterise(drawing: Drawing) -> Sprite:
    """Makes the masks of a drawing whose units are pixels."""
    points = np.concatenate([contour for part in drawing.parts for contour in part.contours])
    pad = drawing.outline + _MARGIN_PX
    origin = np.floor(points.min(axis=0) - pad)
    width, height = (np.ceil(points.max(axis=0) + pad) - origin).astype(int)
    scale = 4 if max(width, height) <= 90 else 3 if max(width, height) <= 180 else 2
    size = (height * scale, width * scale)
    alpha = np.zeros(size, np.uint8)
    backing = [part for part in drawing.parts if part.backing]
    for part in drawing.parts:
        if not part.backing:
            _fill(alpha, part.contours, 255, origin, scale)
            _stroke(alpha, part.contours, 255, origin, scale, drawing.outline)
    cover = alpha
    if backing:
        cover = alpha.copy()
        for part in backing:
            _fill(cover, part.contours, 255, origin, scale)
    small = _shrink(alpha, scale)
    return Sprite(_shrink(cover, scale) if backing else small, small, scale, origin)


def paint(drawing: Drawing, sprite: Sprite, colors: Mapping[str, Color]) -> np.ndarray:
    """Paints a drawing whose masks are `sprite`: float32 [h, w, 3], RGB, 0..255.

    Outside the masks the picture continues in the colour of the edge, so that antialiasing adds no fringe.
    """
    height, width = sprite.alpha.shape
    canvas = np.empty((height * sprite.scale, width * sprite.scale, 3), np.uint8)
    rims = [part for part in drawing.parts if part.backing] or drawing.parts
    has_outline = drawing.outline > 0
    canvas[:] = _bytes(colors["outline" if has_outline and not rims[0].backing else rims[0].color])
    for part in drawing.parts:
        if part.backing:
            _fill(canvas, part.contours, _bytes(colors[part.color]), sprite.origin, sprite.scale)
    if has_outline:
        for part in drawing.parts:
            if not part.backing:
                outline = _bytes(colors["outline"])
                _stroke(canvas, part.contours, outline, sprite.origin, sprite.scale, drawing.outline)
    for part in drawing.parts:
        if not part.backing:
            _fill(canvas, part.contours, _bytes(colors[part.color]), sprite.origin, sprite.scale)
    return _shrink(canvas, sprite.scale, 1.0)


def _bytes(color: Color) -> tuple[int, int, int]:
    return tuple(int(min(255.0, max(0.0, channel))) for channel in color)


def _integer(contour: np.ndarray, origin: np.ndarray, scale: int) -> np.ndarray:
    # OpenCV's coordinates refer to the centres of samples.
    return np.rint(((contour - origin) * scale - 0.5) * (1 << _SHIFT)).astype(np.int32)


def _fill(image: np.ndarray, contours: tuple, value, origin: np.ndarray, scale: int) -> None:
    cv2.fillPoly(image, [_integer(c, origin, scale) for c in contours], value, cv2.LINE_8, _SHIFT)


def _stroke(image: np.ndarray, contours: tuple, value, origin, scale: int, width: float) -> None:
    thickness = round(2 * width * scale)
    if thickness > 0:
        points = [_integer(c, origin, scale) for c in contours]
        cv2.polylines(image, points, True, value, thickness, cv2.LINE_8, _SHIFT)


def _shrink(image: np.ndarray, scale: int, factor: float = 1 / 255) -> np.ndarray:
    height, width = image.shape[:2]
    small = cv2.resize(image, (width // scale, height // scale), interpolation=cv2.INTER_AREA)
    return small.astype(np.float32) * np.float32(factor)


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


def regular(corners: int, radius: float, turn_deg: float = 0.0) -> np.ndarray:
    """A regular polygon around 0; unturned, a corner points up."""
    angles = np.arange(corners) * (2 * np.pi / corners) + np.deg2rad(turn_deg - 90)
    return radius * np.stack([np.cos(angles), np.sin(angles)], axis=1)


def rounded(contour: np.ndarray, radius: float, points: int = 6) -> np.ndarray:
    """Rounds a convex or concave contour's corners.

    Args:
        contour: [n, 2].
        radius: distance from a corner at which the rounding starts; at most half of the shorter side.
        points: of each corner's curve, a parabola.
    """
    t = np.linspace(0, 1, points)[:, None]
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
