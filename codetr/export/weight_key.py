"""Names layers by their weights, so that both export paths and every file of a model know them."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable

import numpy as np

OUTPUT = " output"
"""End of the name of a layer's output. The name alone is that of its input."""


def weight_key(weight: np.ndarray) -> str:
    """Hashes weights, output channels first.

    Weights in 16 bits have another key than in float32, since their layers have other ranges.
    """
    content = hashlib.sha256(repr((weight.dtype.name, weight.shape)).encode())
    content.update(np.ascontiguousarray(weight).view(np.uint8).data)
    return content.hexdigest()[:32]


def number_keys(keys: Iterable[str]) -> list[str]:
    """Names layers by their keys, with numbers for those that share weights: a/0, b/0, a/1."""
    seen: Counter[str] = Counter()
    names = []
    for key in keys:
        names.append(f"{key}/{seen[key]}")
        seen[key] += 1
    return names
