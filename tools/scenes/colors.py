"""Colours, and the contrast between two of them."""

from __future__ import annotations

import colorsys

import numpy as np

LUMA = np.array([0.299, 0.587, 0.114])


def contrast(first: np.ndarray, second: np.ndarray) -> float:
    """Returns the visible difference of two RGB colours, about 0..255, mostly that of brightness."""
    difference = np.asarray(first, np.float64) - np.asarray(second, np.float64)
    luma = float(difference @ LUMA)
    chroma = float(np.abs(difference - luma).max())
    return float(np.hypot(luma, 0.55 * chroma))


def any_color(rng: np.random.Generator) -> np.ndarray:
    """A colour: grey, or of any hue."""
    if rng.random() < 0.25:
        return np.full(3, rng.uniform(0, 255))
    return hue_color(rng, rng.random())


def hue_color(rng: np.random.Generator, hue: float, spread: float = 0.0) -> np.ndarray:
    """A fairly saturated colour of a hue 0..1, give or take `spread`."""
    hue = (hue + rng.uniform(-spread, spread)) % 1.0
    return 255 * np.array(colorsys.hsv_to_rgb(hue, rng.uniform(0.45, 1.0), rng.uniform(0.25, 1.0)))


def jittered(rng: np.random.Generator, color: tuple[float, float, float], amount: float = 18) -> np.ndarray:
    """A colour near another one."""
    return np.clip(np.asarray(color) + rng.uniform(-amount, amount) + rng.normal(0, amount / 3, 3), 0, 255)


def away_from(
    rng: np.random.Generator, background: np.ndarray, least: float, draw=any_color, tries: int = 8
) -> np.ndarray:
    """Draws a colour until its contrast to another is at least `least`; the best of `tries` otherwise."""
    best, best_contrast = None, -1.0
    for _ in range(tries):
        color = draw(rng)
        found = contrast(color, background)
        if found > best_contrast:
            best, best_contrast = color, found
        if found >= least:
            break
    return best


def darker(color: np.ndarray, factor: float) -> np.ndarray:
    """Scales a colour; a factor above 1 makes it lighter."""
    color = np.asarray(color, np.float64)
    return color * factor if factor <= 1 else 255 - (255 - color) / factor
