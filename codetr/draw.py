"""Draws detections on a picture: boxes, class names, scores. Pillow and NumPy only.

Line width and font size follow the size of the picture, each class has its own colour, labels stay inside the
picture and avoid each other where there is room.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

_Rectangle = tuple[int, int, int, int]  # left, top, right, bottom; right and bottom are outside

_NUM_COLORS = 96
_MIN_FONT_SIZE = 9
_OUTLINE = (20, 20, 20)


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
    from PIL import Image, ImageDraw

    picture = Image.fromarray(np.ascontiguousarray(image))
    height, width = image.shape[:2]
    line_width, font_size = sizes_for(height, width)
    order = np.argsort(-np.asarray(scores, dtype=np.float64), kind="stable")
    frames = [_to_pixels(boxes[index], height, width) for index in order]
    texts = [(str(class_names[int(labels[index])]), f"{float(scores[index]):.2f}") for index in order]
    colors = [color_of(int(labels[index])) for index in order]
    tags = _place_labels(texts, frames, font_size, (width, height))

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
    """Returns the RGB colour of a class; the first 96 labels all differ, those after repeat them."""
    return _palette()[label % _NUM_COLORS]


@cache
def _palette() -> tuple[tuple[int, int, int], ...]:
    """Picks colours one by one, each as far as possible from those before in OKLab (perceived distance)."""
    lightness, chroma, hue = np.meshgrid(
        np.linspace(0.58, 0.86, 6), np.linspace(0.12, 0.26, 5), np.linspace(0, 2 * np.pi, 60, endpoint=False)
    )
    lab = np.stack([lightness, chroma * np.cos(hue), chroma * np.sin(hue)], axis=-1).reshape(-1, 3)
    linear = _oklab_to_linear_rgb(lab)
    visible = ((linear >= 0) & (linear <= 1)).all(axis=1)  # OKLab holds colours that no screen shows
    lab, linear = lab[visible], linear[visible]
    # The first class gets the most saturated colour. Lightness counts half, or many differ only in it.
    points = lab * (0.5, 1.0, 1.0)
    chosen = [int(np.argmax(np.hypot(lab[:, 1], lab[:, 2])))]
    distance = np.full(len(points), np.inf)
    while len(chosen) < _NUM_COLORS:
        distance = np.minimum(distance, np.linalg.norm(points - points[chosen[-1]], axis=1))
        chosen.append(int(np.argmax(distance)))
    picked = linear[chosen]
    encoded = np.where(picked <= 0.0031308, 12.92 * picked, 1.055 * picked ** (1 / 2.4) - 0.055)  # sRGB
    return tuple(tuple(int(channel) for channel in color) for color in np.rint(encoded * 255))


def _oklab_to_linear_rgb(lab: np.ndarray) -> np.ndarray:
    """OKLab [K, 3] to linear sRGB [K, 3]; B. Ottosson, "A perceptual color space for image processing"."""
    to_lms = np.array(
        [
            [1.0, 0.3963377774, 0.2158037573],
            [1.0, -0.1055613458, -0.0638541728],
            [1.0, -0.0894841775, -1.2914855480],
        ]
    )
    to_rgb = np.array(
        [
            [4.0767416621, -3.3077115913, 0.2309699292],
            [-1.2684380046, 2.6097574011, -0.3413193965],
            [-0.0041960863, -0.7034186147, 1.7076147010],
        ]
    )
    return (lab @ to_lms.T) ** 3 @ to_rgb.T


def _to_pixels(box: np.ndarray, height: int, width: int) -> _Rectangle:
    """Rounds a box to whole pixels inside the picture, at least one pixel in size."""
    limits = np.array([width, height, width, height], dtype=np.float64)
    box = np.clip(np.nan_to_num(np.asarray(box, dtype=np.float64)), 0, limits)
    left, top = min(int(box[0] + 0.5), width - 1), min(int(box[1] + 0.5), height - 1)
    return left, top, max(left + 1, int(box[2] + 0.5)), max(top + 1, int(box[3] + 0.5))


def _draw_frame(canvas: Any, frame: _Rectangle, color: tuple[int, int, int], line_width: int) -> None:
    """Draws a box: the coloured line on the box's edge, a thin dark line around it for light backgrounds."""
    left, top, right, bottom = frame
    rim = max(1, line_width // 3)
    canvas.rectangle((left - rim, top - rim, right - 1 + rim, bottom - 1 + rim), outline=_OUTLINE, width=rim)
    canvas.rectangle((left, top, right - 1, bottom - 1), outline=color, width=line_width)


class _Tag:
    """A label: its text, font and rectangle in the picture."""

    def __init__(self, text: str, font: Any, padding: int) -> None:
        self.text, self.font, self.padding = text, font, padding
        ascent, descent = font.getmetrics()
        self.width = int(np.ceil(font.getlength(text))) + 2 * padding
        self.height = ascent + descent + padding
        self.left = self.top = 0

    def moved(self, left: int, top: int, limits: tuple[int, int]) -> _Rectangle:
        """Rectangle at (left, top), pushed inside a picture of limits = (width, height)."""
        left = max(0, min(left, limits[0] - self.width))
        top = max(0, min(top, limits[1] - self.height))
        return left, top, left + self.width, top + self.height


def _place_labels(
    texts: list[tuple[str, str]],
    frames: list[_Rectangle],
    font_size: int,
    limits: tuple[int, int],
) -> list[_Tag | None]:
    """Finds a place for each label, best score first: on top of its box, else inside, else below.

    The first place that lies in the picture and is free wins; if all are taken, the one least covered. A
    label that fits nowhere in a tiny picture is left out (None).
    """
    placed: list[_Rectangle] = []
    tags: list[_Tag | None] = []
    for (name, score), (left, top, right, bottom) in zip(texts, frames, strict=True):
        tag = _fit_tag(name, score, font_size, limits)
        tags.append(tag)
        if tag is None:
            continue
        corners = (
            (left, top - tag.height),  # above, flush left
            (right - tag.width, top - tag.height),  # above, flush right
            (left, top),  # inside
            (right - tag.width, top),
            (left, bottom),  # below
            (right - tag.width, bottom),
            (left, bottom - tag.height),  # inside, at the bottom
            (right - tag.width, bottom - tag.height),
        )
        spots = []
        for preference, (x, y) in enumerate(corners):
            spot = tag.moved(x, y, limits)
            # A spot that had to be pushed up or down no longer touches its edge of the box: it comes last.
            spots.append((sum(_overlap(spot, other) for other in placed), spot[1] != y, preference, spot))
        spot = min(spots)[-1]
        tag.left, tag.top = spot[:2]
        placed.append(spot)
    return tags


def _fit_tag(name: str, score: str, font_size: int, limits: tuple[int, int]) -> _Tag | None:
    """Makes a label no larger than the picture: smaller letters first, then a shorter text, then none."""
    texts = [
        f"{name} {score}",
        *(f"{name[:count].rstrip()}… {score}" for count in range(len(name) - 1, 2, -1)),
        score,
    ]
    for text in texts:
        for size in range(font_size, _MIN_FONT_SIZE - 1, -1) if text == texts[0] else (_MIN_FONT_SIZE,):
            tag = _Tag(text, _font(size), max(1, round(size * 0.22)))
            if tag.width <= limits[0] and tag.height <= limits[1]:
                return tag
    return None


def _draw_tag(canvas: Any, tag: _Tag, color: tuple[int, int, int]) -> None:
    """Draws a label: a rectangle filled with the class colour, text black on light colours, white on dark."""
    canvas.rectangle((tag.left, tag.top, tag.left + tag.width - 1, tag.top + tag.height - 1), fill=color)
    red, green, blue = color
    luma = 0.299 * red + 0.587 * green + 0.114 * blue
    canvas.text(
        (tag.left + tag.padding, tag.top + tag.padding // 2),
        tag.text,
        font=tag.font,
        fill=(0, 0, 0) if luma > 130 else (255, 255, 255),
    )


@cache
def _font(size: int) -> Any:
    """Pillow's own scalable font, which needs no file of the system."""
    from PIL import ImageFont

    return ImageFont.load_default(size)


def _overlap(first: _Rectangle, second: _Rectangle) -> int:
    """Shared area of two rectangles, pixels."""
    width = min(first[2], second[2]) - max(first[0], second[0])
    height = min(first[3], second[3]) - max(first[1], second[1])
    return max(0, width) * max(0, height)
