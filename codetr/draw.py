"""Draws detections on a picture: boxes, class names, scores.

Line width and font size follow the size of the picture, each class has its own colour, and labels stay inside
the picture and avoid each other where there is room.
"""

from __future__ import annotations

import colorsys
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageDraw, ImageFont

_MIN_FONT_SIZE = 9
_OUTLINE = (20, 20, 20)
_Rectangle = tuple[int, int, int, int]  # left, top, right, bottom in pixels; right and bottom are outside


class _Tag(NamedTuple):
    """A label: text, font, and size in pixels."""

    text: str
    font: ImageFont.FreeTypeFont
    padding: int
    width: int
    height: int


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
    order = np.argsort(-np.asarray(scores, dtype=np.float64), kind="stable")
    rectangles = _to_pixels(np.asarray(boxes)[order], height, width)
    frames, tags = [], []
    places = np.zeros((len(order), 4), dtype=np.int64)  # of the tags so far
    for index, frame in zip(order, rectangles, strict=True):
        label = int(labels[index])
        color = color_of(label)
        frames.append((frame, color))
        tag = _make_tag(class_names[label], f"{float(scores[index]):.2f}", font_size, width, height)
        if tag is not None:
            place = _place(frame, tag, places[: len(tags)], width, height)
            places[len(tags)] = place
            tags.append((tag, place, color))

    picture = Image.fromarray(np.ascontiguousarray(image))
    canvas = ImageDraw.Draw(picture)
    rim = max(1, line_width // 3)  # a thin dark line around the box, for light backgrounds
    for (left, top, right, bottom), color in reversed(frames):
        around = left - rim, top - rim, right - 1 + rim, bottom - 1 + rim
        canvas.rectangle(around, outline=_OUTLINE, width=rim)
        canvas.rectangle((left, top, right - 1, bottom - 1), outline=color, width=line_width)
    for tag, (left, top, right, bottom), color in reversed(tags):
        canvas.rectangle((left, top, right - 1, bottom - 1), fill=color)
        luma = 0.299 * color[0] + 0.587 * color[1] + 0.114 * color[2]
        start = left + tag.padding, top + tag.padding // 2
        canvas.text(start, tag.text, font=tag.font, fill=(0, 0, 0) if luma > 130 else (255, 255, 255))
    return np.asarray(picture)


def sizes_for(height: int, width: int) -> tuple[int, int]:
    """Returns (line width, font size) in pixels for a picture of this size."""
    side = (height * width) ** 0.5
    return max(1, round(side * 0.0036)), max(_MIN_FONT_SIZE, min(round(side * 0.022) + 3, height // 4))


def color_of(label: int) -> tuple[int, int, int]:
    """Returns the RGB colour of a class. Hues of neighbouring labels are the golden angle apart."""
    color = colorsys.hsv_to_rgb(label * 0.618034 % 1, 0.55 if label % 2 else 0.86, 0.98)
    return tuple(round(255 * channel) for channel in color)


def _to_pixels(boxes: np.ndarray, height: int, width: int) -> list[_Rectangle]:
    """Rounds boxes [K, 4] to whole pixels inside the picture, at least one pixel in size."""
    boxes = np.clip(np.nan_to_num(boxes.astype(np.float64)), 0, [width, height, width, height])
    pixels = (boxes + 0.5).astype(np.int64)
    starts = np.minimum(pixels[:, :2], [width - 1, height - 1])
    ends = np.maximum(pixels[:, 2:], starts + 1)
    return list(map(tuple, np.hstack((starts, ends)).tolist()))


def _make_tag(name: str, score: str, font_size: int, width: int, height: int) -> _Tag | None:
    """Makes a label no larger than the picture: with smaller letters if necessary, then without the name.

    Returns:
        None if even the score does not fit.
    """
    texts = [(f"{name} {score}", size) for size in range(font_size, _MIN_FONT_SIZE - 1, -1)]
    for text, size in [*texts, (score, _MIN_FONT_SIZE)]:
        font = _font(size)
        padding = max(1, round(size * 0.22))
        wide = int(np.ceil(font.getlength(text))) + 2 * padding
        high = sum(font.getmetrics()) + padding
        if wide <= width and high <= height:
            return _Tag(text, font, padding, wide, high)
    return None


def _place(frame: _Rectangle, tag: _Tag, taken: np.ndarray, width: int, height: int) -> _Rectangle:
    """Returns the first free place for a label at its box; if all are taken, the one least covered.

    The places are above the box, inside at its top, below, and inside at its bottom. A place that the
    picture's edge moves off the box comes last.

    Args:
        taken: int64 [T, 4], the rectangles of other labels.
    """
    spots, moved = [], []
    for y in (frame[1] - tag.height, frame[1], frame[3], frame[3] - tag.height):
        for x in (frame[0], frame[2] - tag.width):
            left, top = max(0, min(x, width - tag.width)), max(0, min(y, height - tag.height))
            spots.append((left, top, left + tag.width, top + tag.height))
            moved.append(top != y)
    covered = _shared_pixels(np.array(spots), taken).sum(axis=1).tolist()
    return min(zip(covered, moved, range(len(spots)), spots))[-1]


def _shared_pixels(rectangles: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Returns the number of pixels that two rectangles share, [S, 4] and [T, 4] -> [S, T]."""
    ends = np.minimum(rectangles[:, None, 2:], others[:, 2:])
    sides = (ends - np.maximum(rectangles[:, None, :2], others[:, :2])).clip(min=0)
    return sides[..., 0] * sides[..., 1]


@cache
def _font(size: int) -> ImageFont.FreeTypeFont:
    """Returns Pillow's own scalable font, which needs no file of the system."""
    return ImageFont.load_default(size)
