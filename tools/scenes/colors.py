"""Colours, and the contrast between two of them."""

from __future__ import annotations

import colorsys

import numpy as np

_LUMA = np.array([0.299, 0.587, 0.114])


def contrast(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Returns the visible difference of RGB colours [..., 3], about 0..255, mostly that of brightness."""
    difference = np.asarray(first) - np.asarray(second)
    luma = difference @ _LUMA.astype(difference.dtype)
    chroma = np.abs(difference - luma[..., None]).max(axis=-1)
    return np.hypot(luma, 0.55 * chroma)


def any_color(rng: np.random.Generator) -> np.ndarray:
    """A colour: grey, or of any hue."""
    if rng.random() < 0.25:
        return np.full(3, rng.uniform(0, 255))
    return hue_color(rng, rng.random())


def hue_color(rng: np.random.Generator, hue: float, spread: float = 0.0) -> np.ndarray:
    """A fairly saturated colour of a hue 0..1, give or take `spread`."""
    hue = (hue + rng.uniform(-spread, spread)) % 1.0
    return 255 * np.array(colorsys.hsv_to_rgb(hue, rng.uniform(0.45, 1.0), rng.uniform(0.25, 1.0)))


def jittered(rng: np.random.Generator, color: tuple[float, float, float]) -> np.ndarray:
    """A colour near another one."""
    return np.clip(np.asarray(color) + rng.uniform(-18, 18) + rng.normal(0, 6, 3), 0, 255)


def away_from(
    rng: np.random.Generator, background: np.ndarray, least: float, tries: int = 8, draw=any_color
) -> np.ndarray:
    """Draws a colour until its contrast to another is at least `least`; the best of `tries` otherwise."""
    colors = []
    for _ in range(tries):
        colors.append(draw(rng))
        if contrast(colors[-1], background) >= least:
            return colors[-1]
    return max(colors, key=lambda color: contrast(color, background))


def darker(color: np.ndarray, factor: float) -> np.ndarray:
    """Scales a colour; a factor above 1 makes it lighter."""
    color = np.asarray(color, np.float64)
    return color * factor if factor <= 1 else 255 - (255 - color) / factor
