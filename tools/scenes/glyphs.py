"""Letters, digits and other characters as contours, from font files."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import cv2
import numpy as np

from tools.scenes.colors import any_color, away_from, contrast, darker
from tools.scenes.shapes import Drawing, Part, ellipse, extent, rectangle, rounded
from tools.scenes.sources import Source, locate

_RASTER_PX = 400  # height of the letters whose contours are traced


@cache
def glyph_contours(source: Source, character: str) -> tuple[np.ndarray, ...]:
    """Traces a character: contours in units of half its height, centred on 0."""
    from PIL import Image, ImageDraw, ImageFont

    font = ImageFont.truetype(str(locate(source)), _RASTER_PX)
    left, top, right, bottom = font.getbbox(character)
    image = Image.new("L", (right - left + 8, bottom - top + 8))
    ImageDraw.Draw(image).text((4 - left, 4 - top), character, font=font, fill=255)
    mask = (np.asarray(image) >= 128).astype(np.uint8)
    found, _ = cv2.findContours(mask, cv2.RETR_CCOMP, cv2.CHAIN_APPROX_NONE)
    contours = [
        cv2.approxPolyDP(contour[:, 0].astype(np.float32), 0.6, True)[:, 0].astype(np.float64)
        for contour in found
        if len(contour) > 8
    ]
    points = np.concatenate(contours)
    middle, half_height = (points.max(0) + points.min(0)) / 2, np.ptp(points[:, 1]) / 2
    contours = tuple((contour - middle) / half_height for contour in contours)
    for contour in contours:
        contour.setflags(write=False)  # shared by all scenes
    return contours


def glyph(rng: np.random.Generator, character: str, fonts: tuple[Source, ...], plate: bool) -> Drawing:
    """A letter or digit of any colour, perhaps outlined, on a plate if asked for."""
    source = fonts[rng.integers(len(fonts))]
    outline = rng.uniform(0.05, 0.12) if rng.random() < 0.3 else 0.0

    def choose(generator: np.random.Generator, background: np.ndarray) -> dict:
        if plate:
            background = any_color(generator)
        fill = away_from(generator, background, *((95, 20) if plate else (50,) if outline else (85,)))
        colors = {"plate": background} if plate else {}
        if plate or outline:
            colors["outline"] = _outline_for(generator, fill, background)
        return {**colors, "fill": fill}

    drawing = Drawing(
        (Part(glyph_contours(source, character), "fill"),),
        choose,
        outline=outline,
        max_tilt_deg=25,
        min_size_px=14,  # letters are higher than wide: 16 px and more in height
        min_visible=0.85,
        sources=frozenset({source.file}),
    )
    return replace(drawing, parts=(_plate(rng, drawing), *drawing.parts)) if plate else drawing


def _plate(rng: np.random.Generator, drawing: Drawing) -> Part:
    x0, y0, x1, y1 = extent(drawing)
    margin_x, margin_y = rng.uniform(0.15, 0.6, 2)
    kind = rng.random()
    if kind < 0.25:
        rx, ry = (x1 - x0) * 0.75 + margin_x * 0.5, (y1 - y0) * 0.75 + margin_y * 0.3
        return Part((ellipse((x0 + x1) / 2, (y0 + y1) / 2, rx, ry),), "plate", True)
    frame = rectangle(x0 - margin_x, y0 - margin_y, x1 + margin_x, y1 + margin_y)
    if kind < 0.6:
        frame = rounded(frame, rng.uniform(0.1, 0.5))
    return Part((frame,), "plate", True)


def _outline_for(rng: np.random.Generator, fill: np.ndarray, background: np.ndarray) -> np.ndarray:
    choices = [darker(fill, 0.3), darker(fill, 3.5), np.zeros(3), np.full(3, 255.0)]
    rng.shuffle(choices)
    return max(choices, key=lambda color: min(contrast(color, fill), 90) + 0.3 * contrast(color, background))
