"""Camera effects: light, blur, noise. The smallest object limits them, for it must stay readable."""

from __future__ import annotations

from statistics import NormalDist

import cv2
import numpy as np

# Maps a random byte to a normally distributed number, which is much faster than drawing a million normals.
_NORMAL = np.array([NormalDist().inv_cdf((i + 0.5) / 256) for i in range(256)], np.float32)


def apply(
    rng: np.random.Generator, image: np.ndarray, smallest_px: float, least_contrast: float, strength: float
) -> np.ndarray:
    """Lights, blurs and grains a picture.

    Args:
        image: uint8 [H, W, 3], RGB.
        smallest_px: size of the smallest object.
        least_contrast: of the objects to their surroundings, about 0..255; noise stays well below it.
        strength: of all effects, 0..1.

    Returns:
        uint8 [H, W, 3].
    """
    if rng.random() < 0.6:
        image = cv2.LUT(image, _tone_curves(rng, strength))
    if rng.random() < 0.25:
        image = _uneven_light(rng, image, strength)
    if rng.random() < 0.45:
        limit = min(0.045 * smallest_px, 2.2) * strength
        sigma = rng.uniform(0.3, max(0.35, limit))
        image = cv2.GaussianBlur(image, (0, 0), sigma)
    if rng.random() < 0.5:
        most = min(4 + 0.25 * smallest_px, 0.18 * least_contrast, 22) * strength
        image = _add_noise(rng, image, rng.uniform(1, max(1.5, most)))
    return image


def _tone_curves(rng: np.random.Generator, strength: float) -> np.ndarray:
    """Returns a table of brightness, contrast, gamma and a colour cast: uint8 [1, 256, 3]."""
    x = np.linspace(0, 1, 256)
    gamma = np.exp(rng.uniform(-0.35, 0.35) * strength)
    contrast = 1 + rng.uniform(-0.3, 0.25) * strength
    brightness = rng.uniform(-0.1, 0.1) * strength
    cast = 1 + rng.normal(0, 0.05, 3) * strength
    curves = ((x[:, None] ** gamma - 0.5) * contrast + 0.5 + brightness) * cast
    return (np.clip(curves, 0, 1) * 255).round().astype(np.uint8)[None]


def _uneven_light(rng: np.random.Generator, image: np.ndarray, strength: float) -> np.ndarray:
    """Adds soft shade to a part of the picture."""
    height, width = image.shape[:2]
    knots = 1 - rng.uniform(0, 0.4 * strength, (3, 4)).astype(np.float32)
    light = cv2.resize(knots, (width, height), interpolation=cv2.INTER_CUBIC)
    return cv2.multiply(image, cv2.merge([light] * 3), dtype=cv2.CV_8U)


def _add_noise(rng: np.random.Generator, image: np.ndarray, sigma: float) -> np.ndarray:
    grey = rng.random() < 0.4
    shape = image.shape[:2] if grey else image.shape
    drawn = np.frombuffer(rng.bytes(int(np.prod(shape))), np.uint8).reshape(shape)
    table = np.clip(np.rint(128 + sigma * _NORMAL), 0, 255).astype(np.uint8)
    noise = cv2.LUT(drawn, table)
    if grey:
        noise = cv2.merge([noise] * 3)
    return cv2.addWeighted(image, 1, noise, 1, -128)
