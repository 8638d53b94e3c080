"""The twenty classes, and distractors that belong to none of them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tools.scenes import sign_drawings, tool_drawings
from tools.scenes.colors import any_color
from tools.scenes.glyphs import glyph, glyph_contours
from tools.scenes.shapes import Drawing, Part, ellipse, polygon, rectangle, regular, rounded
from tools.scenes.sources import FONTS, Source

# Characters that stay apart at 16 px, blurred and turned by 25 degrees.
_LETTERS = "AEKMR"
_DIGITS = "24578"

_Drawer = Callable[[np.random.Generator, tuple[Source, ...]], Drawing]
_SHAPES: dict[str, _Drawer] = {
    "stop sign": sign_drawings.stop_sign,
    "yield sign": sign_drawings.yield_sign,
    "no entry sign": sign_drawings.no_entry_sign,
    "warning sign": sign_drawings.warning_sign,
    "arrow sign": sign_drawings.arrow_sign,
    "hammer": tool_drawings.hammer,
    "wrench": tool_drawings.wrench,
    "scissors": tool_drawings.scissors,
    "key": tool_drawings.key,
    "screwdriver": tool_drawings.screwdriver,
}
_GLYPHS = {f"letter {letter}": letter for letter in _LETTERS} | {f"digit {digit}": digit for digit in _DIGITS}

CLASS_NAMES: tuple[str, ...] = (*_GLYPHS, *_SHAPES)
NOTHING = -1  # label of a distractor

_OTHER_CHARACTERS = "%+@#*="  # "&" would look like 8, "?" like 2


def draw_object(rng: np.random.Generator, label: int, split: str, plate: bool) -> Drawing:
    """Draws an object of a class, or of none.

    Args:
        label: index into `CLASS_NAMES`, or `NOTHING` for a distractor.
        split: whose fonts to use.
        plate: put a letter or digit on a plate; signs and tools ignore it.
    """
    if label == NOTHING:
        return _distractor(rng, split)
    name = CLASS_NAMES[label]
    if name in _GLYPHS:
        return glyph(rng, _GLYPHS[name], FONTS[split], plate)
    return _SHAPES[name](rng, FONTS[split])


def is_glyph(label: int) -> bool:
    """Returns whether a label is that of a letter or digit."""
    return 0 <= label < len(_GLYPHS)


def _distractor(rng: np.random.Generator, split: str) -> Drawing:
    kinds = (_disc, _box, _star, _line, _scribble, _character, _character, _corners, _heart)
    contours = kinds[rng.integers(len(kinds))](rng, split)
    parts = [Part(contours, "fill")]
    if len(contours) == 1 and rng.random() < 0.3:
        parts.append(Part((contours[0] * rng.uniform(0.3, 0.8),), "inner"))
    outline = rng.uniform(0.02, 0.12) if rng.random() < 0.4 else 0.0
    return Drawing(tuple(parts), _distractor_colors, outline=outline, mirrored=True)


def _distractor_colors(rng: np.random.Generator, background: np.ndarray) -> dict:
    return {name: any_color(rng) for name in ("fill", "inner", "outline")}


def _disc(rng: np.random.Generator, split: str) -> tuple[np.ndarray, ...]:
    return (ellipse(0, 0, 1.0, rng.choice([1.0, rng.uniform(0.3, 1.0)])),)


def _box(rng: np.random.Generator, split: str) -> tuple[np.ndarray, ...]:
    frame = rectangle(-1, -1, 1, 1) * (1, rng.choice([1.0, rng.uniform(0.15, 1.0)]))
    return (rounded(frame, rng.choice([0.0, rng.uniform(0.0, 0.5)])),)


def _star(rng: np.random.Generator, split: str) -> tuple[np.ndarray, ...]:
    corners = int(rng.integers(4, 9))
    star = regular(2 * corners, 1.0)
    star[1::2] *= rng.uniform(0.35, 0.7)
    return (star,)


def _corners(rng: np.random.Generator, split: str) -> tuple[np.ndarray, ...]:
    """Draws a polygon of five to seven unequal corners, neither a triangle nor an octagon."""
    corners = int(rng.integers(5, 8))
    angles = (np.arange(corners) + rng.uniform(0, 0.6, corners)) * (2 * np.pi / corners)
    radii = rng.uniform(0.55, 1.0, (corners, 1))
    return (radii * np.stack([np.cos(angles), np.sin(angles)], axis=1),)


def _heart(rng: np.random.Generator, split: str) -> tuple[np.ndarray, ...]:
    t = np.linspace(0, 2 * np.pi, 48, endpoint=False)
    y = 13 * np.cos(t) - 5 * np.cos(2 * t) - 2 * np.cos(3 * t) - np.cos(4 * t)
    return (np.stack([16 * np.sin(t) ** 3, -y], axis=1) / 16,)


def _line(rng: np.random.Generator, split: str) -> tuple[np.ndarray, ...]:
    half = rng.uniform(0.01, 0.05)
    return (polygon((-1, -half), (1, -half), (1, half), (-1, half)),)


def _scribble(rng: np.random.Generator, split: str) -> tuple[np.ndarray, ...]:
    """A smooth wandering stroke of even width."""
    phases, weights = rng.uniform(0, 2 * np.pi, (2, 4)), rng.normal(0, 1, (2, 4)) / np.arange(1, 5)
    t = np.linspace(0, rng.uniform(2, 6), 60)
    path = sum(weights[:, k, None] * np.sin((k + 1) * t + phases[:, k, None]) for k in range(4)).T
    path = path / np.abs(path).max()
    along = np.gradient(path, axis=0)
    normal = np.stack([-along[:, 1], along[:, 0]], axis=1)
    normal *= rng.uniform(0.03, 0.08) / np.maximum(np.hypot(*normal.T), 1e-6)[:, None]
    left, right = path + normal, path - normal
    return (np.concatenate([left, right[::-1]]),)


def _character(rng: np.random.Generator, split: str) -> tuple[np.ndarray, ...]:
    fonts = FONTS[split]
    return glyph_contours(
        fonts[rng.integers(len(fonts))], _OTHER_CHARACTERS[rng.integers(len(_OTHER_CHARACTERS))]
    )
