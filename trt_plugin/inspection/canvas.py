"""Pictures of rectangles, text and curves: SVG, with a tooltip for every shape, or, by Pillow, PNG."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import groupby
from pathlib import Path
from typing import Any

from trt_plugin.atomic_files import atomic_write
from trt_plugin.engine_error import EngineError

Point = tuple[float, float]

FONT = "Helvetica, Arial, 'Liberation Sans', sans-serif"
WIDTHS = {"narrow": 0.3, "wide": 0.86, "capital": 0.68, "other": 0.545}
"""Widths of letters in units of the font's size, for layouts that fit in any of these fonts."""

SCALE = 2
"""Pixels of a PNG for a unit of the picture."""

CORNER = 7.0
"""Radius of the corners of arrows."""

_CORNER_STEPS = 6


@dataclass(frozen=True)
class _Shape:
    """A rectangle ("rect"), a text ("text") or a line with an arrow's head ("arrow")."""

    kind: str
    points: tuple[Point, ...]
    colour: str
    size: float = 0.0
    text: str = ""
    anchor: str = "start"
    bold: bool = False
    outline: str = ""
    tip: str = ""


@dataclass
class Canvas:
    """A picture to be drawn from back to front.

    Attributes:
        width, height: in units of about a pixel of a screen.
    """

    width: float
    height: float
    _shapes: list[_Shape] = field(default_factory=list)

    def rectangle(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        fill: str,
        *,
        outline: str = "",
        radius: float = 0.0,
        tip: str = "",
    ) -> None:
        """Draws a filled rectangle with its upper left corner at (x, y); `tip` shows under the mouse."""
        corners = ((x, y), (x + width, y + height))
        self._shapes.append(_Shape("rect", corners, fill, radius, outline=outline, tip=tip))

    def text(
        self,
        x: float,
        y: float,
        text: str,
        *,
        size: float = 11,
        colour: str = "#222222",
        anchor: str = "start",
        bold: bool = False,
        tip: str = "",
    ) -> None:
        """Writes a line whose baseline begins ("start"), is centred ("middle") or ends ("end") at (x, y)."""
        self._shapes.append(_Shape("text", ((x, y),), colour, size, text, anchor, bold, tip=tip))

    def arrow(self, points: Sequence[Point], colour: str, width: float = 1.0, tip: str = "") -> None:
        """Draws a line along points, its corners rounded, with a head at its end."""
        self._shapes.append(_Shape("arrow", tuple(points), colour, width, tip=tip))

    def save(self, path: Path) -> None:
        """Writes the picture whole or not at all, as .svg or .png by the file's name.

        Raises:
            EngineError: another suffix, or Pillow is missing for a PNG.
        """
        suffix = path.suffix.lower()
        if suffix not in (".svg", ".png"):
            raise EngineError(f"{path}: expected a name that ends in .svg or .png")
        if suffix == ".svg":
            content = self.svg().encode()
            with atomic_write(path) as temporary:
                temporary.write_bytes(content)
            return
        image = self._image()
        with atomic_write(path) as temporary:
            image.save(temporary, "PNG", optimize=True)

    def svg(self) -> str:
        """The picture as the text of an SVG file."""
        size = f"{_number(self.width)} {_number(self.height)}"
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size}" width="{_number(self.width)}" '
            f'height="{_number(self.height)}" font-family="{FONT}">'
        )
        back = '<rect width="100%" height="100%" fill="#ffffff"/>'
        lines = [head, back]
        for tip, shapes in groupby(self._shapes, key=lambda shape: shape.tip):  # a tooltip only once
            drawn = map(_svg_shape, shapes)
            lines += [f"<g><title>{escape(tip)}</title>", *drawn, "</g>"] if tip else drawn
        return "\n".join([*lines, "</svg>"]) + "\n"

    def _image(self) -> Any:
        """The picture as Pillow's image."""
        try:
            from PIL import Image, ImageDraw
        except ImportError as error:
            raise EngineError(f"a PNG needs Pillow ({error}): pip install pillow, or write an SVG") from error
        image = Image.new("RGB", (round(self.width * SCALE), round(self.height * SCALE)), "white")
        draw = ImageDraw.Draw(image)
        for shape in self._shapes:
            _draw_shape(draw, shape)
        return image


def text_width(text: str, size: float) -> float:
    """About how wide a line is; rather too wide than too narrow."""
    return size * sum(map(_letter_width, text))


def shorten(text: str, size: float, width: float) -> str:
    """The text, cut with … in its middle to fit into a width."""
    if text_width(text, size) <= width:
        return text
    keep = len(text)
    while keep > 1:
        keep -= 1
        cut = f"{text[: (keep + 1) // 2]}…{text[len(text) - keep // 2 :]}"
        if text_width(cut, size) <= width:
            return cut
    return "…"


def _letter_width(letter: str) -> float:
    if letter in "iljtfrI.,:;|'!()[] /":
        return WIDTHS["narrow"]
    if letter in "mwMW%@…":
        return WIDTHS["wide"]
    return WIDTHS["capital" if letter.isupper() else "other"]


def _number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _svg_shape(shape: _Shape) -> str:
    if shape.kind == "rect":
        (x, y), (right, bottom) = shape.points
        radius = f' rx="{_number(shape.size)}"' if shape.size else ""
        outline = f' stroke="{shape.outline}"' if shape.outline else ""
        place = f'x="{_number(x)}" y="{_number(y)}"'
        size = f'width="{_number(right - x)}" height="{_number(bottom - y)}"'
        return f'<rect {place} {size} fill="{shape.colour}"{radius}{outline}/>'
    if shape.kind == "text":
        ((x, y),) = shape.points
        style = ' font-weight="bold"' if shape.bold else ""
        style += f' text-anchor="{shape.anchor}"' if shape.anchor != "start" else ""
        place = f'x="{_number(x)}" y="{_number(y)}" font-size="{_number(shape.size)}"'
        return f'<text {place} fill="{shape.colour}"{style}>{escape(shape.text)}</text>'
    steps = [f"M{_pair(shape.points[0])}"]
    for corner, (before, after) in zip(shape.points[1:-1], _corners(shape.points)):
        steps.append(f"L{_pair(before)} Q{_pair(corner)} {_pair(after)}")
    steps.append(f"L{_pair(shape.points[-1])}")
    head = " ".join(f"{_number(x)},{_number(y)}" for x, y in _head(shape.points, shape.size))
    line = f'fill="none" stroke="{shape.colour}" stroke-width="{_number(shape.size)}"'
    path = f'<path d="{" ".join(steps)}" {line}/>'
    return f'{path}<polygon points="{head}" fill="{shape.colour}"/>'


def _pair(point: Point) -> str:
    return f"{_number(point[0])} {_number(point[1])}"


def _corners(points: Sequence[Point]) -> list[tuple[Point, Point]]:
    """Where the rounding of each corner begins and ends."""
    found = []
    for before, corner, after in zip(points, points[1:], points[2:]):
        ends = []
        for x, y in (before, after):
            length = max(math.hypot(x - corner[0], y - corner[1]), 1e-6)
            share = min(CORNER, length / 2) / length
            ends.append((corner[0] + (x - corner[0]) * share, corner[1] + (y - corner[1]) * share))
        found.append((ends[0], ends[1]))
    return found


def _head(points: Sequence[Point], width: float) -> list[Point]:
    """The triangle at a curve's end."""
    (x1, y1), (x2, y2) = points[-2:]
    length = max(((x2 - x1) ** 2 + (y2 - y1) ** 2) ** 0.5, 1e-6)
    dx, dy, size = (x2 - x1) / length, (y2 - y1) / length, 3.5 + 1.5 * width
    back = x2 - dx * size, y2 - dy * size
    return [
        (x2, y2),
        (back[0] - dy * size / 2, back[1] + dx * size / 2),
        (back[0] + dy * size / 2, back[1] - dx * size / 2),
    ]


def _draw_shape(draw: Any, shape: _Shape) -> None:
    """Draws with Pillow."""
    from PIL import ImageFont

    points = [(x * SCALE, y * SCALE) for x, y in shape.points]
    if shape.kind == "rect":
        (x, y), (right, bottom) = points
        box = [x, y, max(right - 1, x), max(bottom - 1, y)]
        outline = shape.outline or None
        draw.rounded_rectangle(box, shape.size * SCALE, shape.colour, outline, SCALE if outline else 0)
    elif shape.kind == "text":
        font = ImageFont.load_default(shape.size * SCALE)
        anchor = {"start": "ls", "middle": "ms", "end": "rs"}[shape.anchor]
        stroke = 0.3 * SCALE if shape.bold else 0
        draw.text(points[0], shape.text, shape.colour, font, anchor, stroke_width=stroke)
    else:
        line = [shape.points[0]]
        for corner, (before, after) in zip(shape.points[1:-1], _corners(shape.points)):
            line += [_on_curve(before, corner, after, i / _CORNER_STEPS) for i in range(_CORNER_STEPS + 1)]
        line = [(x * SCALE, y * SCALE) for x, y in (*line, shape.points[-1])]
        draw.line(line, shape.colour, max(1, round(shape.size * SCALE)), joint="curve")
        draw.polygon([(x * SCALE, y * SCALE) for x, y in _head(shape.points, shape.size)], shape.colour)


def _on_curve(start: Point, control: Point, end: Point, t: float) -> Point:
    """A point of a quadratic Bézier curve."""
    weights = ((1 - t) ** 2, 2 * t * (1 - t), t**2)
    points = (start, control, end)
    return tuple(sum(weight * point[axis] for weight, point in zip(weights, points)) for axis in (0, 1))
