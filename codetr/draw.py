"""Draws detections on a picture: boxes, class names, scores.

Line width and font size follow the size of the picture, each class has its own colour, and labels stay inside
the picture and avoid each other where there is room.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageDraw, ImageFont

# RGB of each class. Each colour is as far as possible from all before it in OKLab (B. Ottosson, perceived
# distance).
_COLORS = (
    0x963bf9, 0x6bf61a, 0xe45706, 0x56d0f6, 0xf015a6, 0x728426, 0xf8b6fe, 0x2275e8, 0xfcc771, 0xb05a7f,
    0x96e7a7, 0x8f7bcc, 0xef71fc, 0xd0dd16, 0x07a285, 0xde1356, 0x3eb845, 0xb77d29, 0xf08e88, 0x0685b6,
    0xa74cc1, 0xf381be, 0xacb657, 0xc70cc1, 0x86acfa, 0x6d5bf8, 0x0df1d5, 0xb65e46, 0xaf7bfe, 0xc03f99,
    0xf78f41, 0x79f07b, 0x29cb8f, 0xf85e8a, 0xca77d2, 0x119245, 0x13a6f1, 0x2dc5c1, 0x8fc102, 0xe29f06,
    0xe11e0e, 0x9d60a2, 0x5578c1, 0x6baf6b, 0xc099e9, 0xc83eed, 0xf642d7, 0xfc615f, 0xc7dd81, 0x14aecb,
    0x8e57d8, 0xddbe2b, 0xcd3976, 0x5ce9ed, 0xc54c57, 0xd87b99, 0xfe9ebc, 0x737fe7, 0x669d2b, 0xfe4da5,
    0xca67fe, 0xf578da, 0xd16c0f, 0xa18a21, 0x58cc16, 0x8971f5, 0x1de289, 0x8bd670, 0xc857c1, 0xeb7454,
    0xfea779, 0xd891d1, 0xcc5e9b, 0x5b9cfa, 0x4b66fd, 0x5cd8b9, 0x5df0b2, 0xa26fd4, 0xff8093, 0xd88457,
    0xcbaa4a, 0xe19d55, 0xc96b6f, 0x5eb7f1, 0xf698ee, 0x9ca503, 0xbec943, 0xa35efc, 0xf353c2, 0x97ee2e,
    0x7867cf, 0xd55c7c, 0x998af5, 0xd51d83, 0xde81fa, 0xb637c3,
)  # fmt: skip
_MIN_FONT_SIZE = 9
_OUTLINE = (20, 20, 20)


class _Rectangle(NamedTuple):
    """Pixels of a rectangle; right and bottom are outside."""

    left: int
    top: int
    right: int
    bottom: int

    def overlap(self, other: _Rectangle) -> int:
        width = min(self.right, other.right) - max(self.left, other.left)
        height = min(self.bottom, other.bottom) - max(self.top, other.top)
        return max(0, width) * max(0, height)


class _Tag(NamedTuple):
    """A label: text, font and place."""

    text: str
    font: ImageFont.FreeTypeFont
    padding: int
    place: _Rectangle


def draw_detections(
    image: np.ndarray,
    boxes: np.ndarray,
    scores: np.ndarray,
    labels: np.ndarray,
    class_names: Sequence[str],
) -> np.ndarray:
    """Draws boxes with class name and score, the best score on top.

    Args:
        image: uint8 [H, W, 3], RGB; not changed.
        boxes: [K, 4], x1 y1 x2 y2 in pixels of the image.
        scores: [K], 0..1.
        labels: [K], indices into class_names.
        class_names: a name for each label.

    Returns:
        uint8 [H, W, 3], the annotated picture, of the same size.
    """
    height, width = image.shape[:2]
    line_width, font_size = sizes_for(height, width)
    frames, tags, colors = [], [], []
    for index in np.argsort(-np.asarray(scores, dtype=np.float64), kind="stable"):
        label = int(labels[index])
        frames.append(_to_pixels(boxes[index], height, width))
        colors.append(color_of(label))
        placed = [tag.place for tag in tags if tag is not None]
        name, score = str(class_names[label]), f"{float(scores[index]):.2f}"
        tags.append(_make_tag(name, score, frames[-1], font_size, placed, (width, height)))

    picture = Image.fromarray(np.ascontiguousarray(image))
    canvas = ImageDraw.Draw(picture)
    for frame, color in zip(reversed(frames), reversed(colors), strict=True):
        _draw_frame(canvas, frame, color, line_width)
    for tag, color in zip(reversed(tags), reversed(colors), strict=True):
        if tag is not None:
            _draw_tag(canvas, tag, color)
    return np.asarray(picture)


def sizes_for(height: int, width: int) -> tuple[int, int]:
    """Returns (line width, font size) in pixels for a picture of this size."""
    side = (height * width) ** 0.5
    return max(1, round(side * 0.0036)), max(_MIN_FONT_SIZE, min(round(side * 0.022) + 3, height // 4))


def color_of(label: int) -> tuple[int, int, int]:
    """Returns the RGB colour of a class; the first 96 labels all differ."""
    rgb = _COLORS[label % len(_COLORS)]
    return rgb >> 16, rgb >> 8 & 255, rgb & 255


def _to_pixels(box: np.ndarray, height: int, width: int) -> _Rectangle:
    """Rounds a box to whole pixels inside the picture, at least one pixel in size."""
    box = np.clip(np.nan_to_num(np.asarray(box, dtype=np.float64)), 0, [width, height, width, height])
    left, top = min(int(box[0] + 0.5), width - 1), min(int(box[1] + 0.5), height - 1)
    return _Rectangle(left, top, max(left + 1, int(box[2] + 0.5)), max(top + 1, int(box[3] + 0.5)))


def _draw_frame(
    canvas: ImageDraw.ImageDraw, frame: _Rectangle, color: tuple[int, int, int], line_width: int
) -> None:
    """Draws the coloured line on the box's edge, and a thin dark line around it for light backgrounds."""
    left, top, right, bottom = frame
    rim = max(1, line_width // 3)
    canvas.rectangle((left - rim, top - rim, right - 1 + rim, bottom - 1 + rim), outline=_OUTLINE, width=rim)
    canvas.rectangle((left, top, right - 1, bottom - 1), outline=color, width=line_width)


def _make_tag(
    name: str,
    score: str,
    frame: _Rectangle,
    font_size: int,
    placed: list[_Rectangle],
    limits: tuple[int, int],
) -> _Tag | None:
    """Makes a label no larger than the picture: with smaller letters if necessary, then without the name.

    Args:
        frame: the box.
        placed: places of the labels with better scores.
        limits: (width, height) of the picture.

    Returns:
        None if even the score does not fit.
    """
    for text, size in [(f"{name} {score}", size) for size in range(font_size, _MIN_FONT_SIZE - 1, -1)] + [
        (score, _MIN_FONT_SIZE)
    ]:
        font = _font(size)
        padding = max(1, round(size * 0.22))
        width = int(np.ceil(font.getlength(text))) + 2 * padding
        height = sum(font.getmetrics()) + padding
        if width <= limits[0] and height <= limits[1]:
            return _Tag(text, font, padding, _place(frame, width, height, placed, limits))
    return None


def _place(
    frame: _Rectangle, width: int, height: int, placed: list[_Rectangle], limits: tuple[int, int]
) -> _Rectangle:
    """Returns the first free place for a label at its box; if all are taken, the one least covered.

    The places are above the box, inside at its top, below, and inside at its bottom. A place that the
    picture's edge moves off the box comes last.
    """
    spots = []
    for y in (frame.top - height, frame.top, frame.bottom, frame.bottom - height):
        for x in (frame.left, frame.right - width):
            left, top = max(0, min(x, limits[0] - width)), max(0, min(y, limits[1] - height))
            spot = _Rectangle(left, top, left + width, top + height)
            spots.append((sum(spot.overlap(other) for other in placed), top != y, len(spots), spot))
    return min(spots)[-1]


def _draw_tag(canvas: ImageDraw.ImageDraw, tag: _Tag, color: tuple[int, int, int]) -> None:
    """Draws black text on light colours, white text on dark colours."""
    left, top, right, bottom = tag.place
    canvas.rectangle((left, top, right - 1, bottom - 1), fill=color)
    luma = 0.299 * color[0] + 0.587 * color[1] + 0.114 * color[2]
    start = left + tag.padding, top + tag.padding // 2
    canvas.text(start, tag.text, font=tag.font, fill=(0, 0, 0) if luma > 130 else (255, 255, 255))


@cache
def _font(size: int) -> ImageFont.FreeTypeFont:
    """Returns Pillow's own scalable font, which needs no file of the system."""
    return ImageFont.load_default(size)
