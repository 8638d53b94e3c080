"""Procedural textures as grey fields, uint8 [height, width]; a palette colours them afterwards."""

from __future__ import annotations

from collections.abc import Callable

import cv2
import numpy as np

Field = Callable[[np.random.Generator, int, int], np.ndarray]


def noise(rng: np.random.Generator, width: int, height: int, coarsest: float, octaves: int, fall: float):
    """Fractal noise: float32 [height, width], 0..1.

    The knots of the first octave are `coarsest` pixels apart. Each octave is twice as fine as the one before
    it and `fall` times as strong.
    """
    total = np.zeros((height, width), np.float32)
    weight = 1.0
    for _ in range(octaves):
        rows, columns = max(2, round(height / coarsest)), max(2, round(width / coarsest))
        knots = rng.random((rows, columns), dtype=np.float32) * np.float32(weight)
        total += cv2.resize(knots, (width, height), interpolation=cv2.INTER_CUBIC)
        coarsest, weight = max(coarsest / 2, 1.0), weight * fall
    return cv2.normalize(total, None, 0.0, 1.0, cv2.NORM_MINMAX)


def _grid(rng: np.random.Generator, width: int, height: int) -> tuple[np.ndarray, np.ndarray]:
    """Turned coordinates u, v in pixels: float32 [height, width] each."""
    angle = rng.uniform(0, 2 * np.pi)
    x = np.arange(width, dtype=np.float32)[None]
    y = np.arange(height, dtype=np.float32)[:, None]
    cos, sin = np.float32(np.cos(angle)), np.float32(np.sin(angle))
    return x * cos + y * sin, y * cos - x * sin


def _to_bytes(field: np.ndarray) -> np.ndarray:
    return cv2.convertScaleAbs(np.clip(field, 0, 1), alpha=255)


def _clouds(rng: np.random.Generator, width: int, height: int) -> np.ndarray:
    octaves, fall = int(rng.integers(3, 8)), rng.uniform(0.4, 0.75)
    return _to_bytes(noise(rng, width, height, rng.uniform(40, 300), octaves, fall))


def _paper(rng: np.random.Generator, width: int, height: int) -> np.ndarray:
    fine = noise(rng, width, height, rng.uniform(2, 5), 2, 0.7)
    stains = noise(rng, width, height, rng.uniform(80, 300), 2, 0.5)
    weight = rng.uniform(0.1, 0.45)
    return _to_bytes(weight * fine + (1 - weight) * stains)


def _gradient(rng: np.random.Generator, width: int, height: int) -> np.ndarray:
    u, v = _grid(rng, width, height)
    field = (
        np.hypot(u - u.mean(), v - v.mean()) if rng.random() < 0.3 else u + v * np.float32(rng.uniform(0, 1))
    )
    return _to_bytes(cv2.normalize(field, None, 0.0, 1.0, cv2.NORM_MINMAX))


def _stripes(rng: np.random.Generator, width: int, height: int) -> np.ndarray:
    u, _ = _grid(rng, width, height)
    period = np.exp(rng.uniform(np.log(8), np.log(120)))
    bend = noise(rng, width, height, 200, 2, 0.5) * rng.uniform(0, 60) if rng.random() < 0.4 else 0
    wave = np.sin((u + bend) * np.float32(2 * np.pi / period))
    sharp = rng.choice([1.0, 4.0, 20.0])
    return _to_bytes(0.5 + 0.5 * np.tanh(wave * np.float32(sharp)))


def _checker(rng: np.random.Generator, width: int, height: int) -> np.ndarray:
    u, v = _grid(rng, width, height)
    cell = np.exp(rng.uniform(np.log(10), np.log(120)))
    cells = np.floor(u / cell).astype(np.int32) + np.floor(v / cell * rng.uniform(0.6, 1.6)).astype(np.int32)
    return ((cells & 1) * np.uint8(255)).astype(np.uint8)


def _cells(rng: np.random.Generator, width: int, height: int) -> np.ndarray:
    """Voronoi cells: each of its own shade, or dark towards its edge."""
    seeds = np.full((height, width), 255, np.uint8)
    count = int(np.exp(rng.uniform(np.log(15), np.log(600))))
    seeds[rng.integers(0, height, count), rng.integers(0, width, count)] = 0
    distance, label = cv2.distanceTransformWithLabels(seeds, cv2.DIST_L2, 3, labelType=cv2.DIST_LABEL_PIXEL)
    if rng.random() < 0.5:
        return rng.integers(0, 256, label.max() + 1, dtype=np.uint8)[label]
    return _to_bytes(distance * np.float32(0.8 * np.sqrt(count / (width * height))))


def _bricks(rng: np.random.Generator, width: int, height: int) -> np.ndarray:
    x, y = np.arange(width)[None], np.arange(height)[:, None]
    high = rng.uniform(14, 60)
    long, joint = high * rng.uniform(1.5, 3.5), rng.uniform(1, 0.15 * high + 1)
    row = np.floor(y / high).astype(np.int32)
    along = x + (row & 1) * (long / 2)
    column = np.floor(along / long).astype(np.int32)
    shades = rng.uniform(0.5, 1.0, 4096).astype(np.float32)
    field = shades[(row * 61 + column + 7) & 4095]
    field[((y % high < joint) | (along % long < joint))] = 0.1
    return _to_bytes(0.85 * field + 0.15 * noise(rng, width, height, 8, 3, 0.7))


def _blobs(rng: np.random.Generator, width: int, height: int) -> np.ndarray:
    field = noise(rng, width, height, rng.uniform(25, 160), int(rng.integers(1, 4)), 0.45)
    levels = float(rng.integers(2, 6))
    return _to_bytes(np.floor(field * levels) / (levels - 1))


def _patches(rng: np.random.Generator, width: int, height: int) -> np.ndarray:
    """Rectangles over each other."""
    field = np.full((height, width), rng.integers(256), np.uint8)
    for _ in range(int(rng.integers(5, 60))):
        x, y = rng.integers(-40, width), rng.integers(-40, height)
        w, h = np.exp(rng.uniform(np.log(10), np.log(250), 2)).astype(int)
        shade = int(rng.integers(256))
        cv2.rectangle(field, (int(x), int(y)), (int(x + w), int(y + h)), shade, cv2.FILLED)
    return field


def _grain(rng: np.random.Generator, width: int, height: int) -> np.ndarray:
    """Brushed metal or cloth: noise drawn out along a line."""
    rows, columns = (height, max(2, width // 60)) if rng.random() < 0.5 else (max(2, height // 60), width)
    streaks = cv2.resize(rng.random((rows, columns), dtype=np.float32), (width, height))
    return _to_bytes(0.6 * streaks + 0.4 * noise(rng, width, height, 150, 3, 0.6))


def _wood(rng: np.random.Generator, width: int, height: int) -> np.ndarray:
    """Rings of a tree, cut along."""
    u, v = _grid(rng, width, height)
    warp = noise(rng, width, height, rng.uniform(100, 300), 3, 0.5) * rng.uniform(20, 90)
    rings = np.sin((u + v * np.float32(0.05) + warp) * np.float32(2 * np.pi / rng.uniform(10, 40)))
    return _to_bytes(0.5 + 0.3 * rings + 0.2 * (noise(rng, width, height, 6, 2, 0.7) - 0.5))


def _marble(rng: np.random.Generator, width: int, height: int) -> np.ndarray:
    veins = np.abs(noise(rng, width, height, rng.uniform(60, 250), 6, 0.6) - np.float32(0.5))
    return _to_bytes(np.sqrt(veins) * 1.4)


def _ripples(rng: np.random.Generator, width: int, height: int) -> np.ndarray:
    """Waves from several points."""
    x, y = np.arange(width, dtype=np.float32)[None], np.arange(height, dtype=np.float32)[:, None]
    field = np.zeros((height, width), np.float32)
    for _ in range(3):
        distance = np.hypot(x - np.float32(rng.uniform(0, width)), y - np.float32(rng.uniform(0, height)))
        field += np.sin(distance * np.float32(2 * np.pi / rng.uniform(30, 140)))
    return _to_bytes(0.5 + field / 6)


def _hexagons(rng: np.random.Generator, width: int, height: int) -> np.ndarray:
    """Tiles with dark joints: Voronoi cells of a triangular lattice."""
    pitch = rng.uniform(24, 90)
    seeds = np.full((height, width), 255, np.uint8)
    for index, y in enumerate(np.arange(0, height, pitch * 0.866)):
        xs = np.arange(pitch / 2 * (index & 1), width, pitch).astype(int)
        seeds[int(y), xs] = 0
    distance, label = cv2.distanceTransformWithLabels(seeds, cv2.DIST_L2, 5, labelType=cv2.DIST_LABEL_PIXEL)
    shades = rng.uniform(0.6, 1.0, label.max() + 1).astype(np.float32)[label]
    return _to_bytes(np.where(distance > pitch * np.float32(0.47), np.float32(0.1), shades))


TEXTURES: dict[str, tuple[Field, ...]] = {
    "train": (_clouds, _paper, _gradient, _stripes, _checker, _cells, _bricks, _blobs, _patches, _grain),
    "val": (_wood, _marble, _ripples, _hexagons),
}
