"""Quantisation scales, the same for both export paths."""

from __future__ import annotations

import numpy as np

LARGEST = {"int8": 127.0, "fp8": 448.0}
"""Number that the largest magnitude of a range becomes; fp8 is E4M3."""


def scales_of(largest: np.ndarray, precision: str) -> np.ndarray:
    """Returns scales that float16 holds too, so that a conversion to 16 bits changes no number.

    Args:
        largest: fp32, largest magnitudes; 0 gets the scale 1.
        precision: "int8" or "fp8".
    """
    most = np.float32(LARGEST[precision])
    scale = np.where(largest > 0, largest, most) / most
    half = scale.astype(np.float16)
    half = np.where(half.astype(np.float32) < scale, np.nextafter(half, np.float16(np.inf)), half)
    return np.where(np.isfinite(half), half.astype(np.float32), scale)
