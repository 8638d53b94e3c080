"""Small datasets of class folders for the tests of classification."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

COLOURS = {"blue": (40, 40, 230), "green": (40, 200, 40), "red": (230, 40, 40), "white": (240, 240, 240)}


def write_classes(folder: Path, count: int, seed: int = 0, names: tuple[str, ...] = tuple(COLOURS)) -> Path:
    """Writes `count` noisy pictures of about 40 pixels, the classes in turns. A class has a colour."""
    draws = np.random.default_rng(seed)
    for index in range(count):
        name = names[index % len(names)]
        colour = list(COLOURS.values())[index % len(names)]
        height, width = draws.integers(36, 48, 2)
        pixels = np.clip(draws.normal(colour, 30, (height, width, 3)), 0, 255).astype(np.uint8)
        (folder / name).mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(folder / name / f"{index:03d}.png")
    return folder
