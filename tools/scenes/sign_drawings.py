"""Drawings of traffic signs: stop, yield, no entry, warning, arrow."""

from __future__ import annotations

import numpy as np

from tools.scenes.colors import jittered
from tools.scenes.glyphs import glyph_contours
from tools.scenes.shapes import Drawing, Part, ellipse, moved, polygon, rectangle, regular, rounded
from tools.scenes.sources import Source

_RED, _WHITE, _BLACK = (196, 24, 32), (240, 240, 238), (24, 24, 26)
_BLUE, _GREEN, _YELLOW = (20, 70, 170), (0, 110, 70), (250, 200, 30)
_TILT_DEG = 20


def stop_sign(rng: np.random.Generator, fonts: tuple[Source, ...]) -> Drawing:
    """A red octagon with a white rim and the word STOP."""
    source = fonts[rng.integers(len(fonts))]
    rim = rng.uniform(0.84, 0.93)
    word, cursor = [], 0.0
    for letter in "STOP":
        contours = glyph_contours(source, letter)
        low = min(contour[:, 0].min() for contour in contours)
        high = max(contour[:, 0].max() for contour in contours)
        word += [moved(contour, cursor - low) for contour in contours]
        cursor += high - low + 0.3
    half = (cursor - 0.3) / 2
    width = rng.uniform(0.64, 0.74)
    word = [moved(contour, -half) * (width / half, 0.31 * rng.uniform(0.9, 1.25)) for contour in word]
    rim, field = ("rim", _WHITE, regular(8, 1.0, 22.5)), ("field", _RED, regular(8, rim, 22.5))
    return _sign(rng, rim, field, ("word", _WHITE, *word), sources=(source.file,))


def yield_sign(rng: np.random.Generator, fonts: tuple[Source, ...]) -> Drawing:
    """A triangle that stands on its point: red border, white field."""
    border = rng.uniform(0.45, 0.68)
    corner = rng.uniform(0.05, 0.35)
    field = _WHITE if rng.random() < 0.85 else (250, 235, 150)
    return _sign(
        rng,
        ("border", _RED, rounded(regular(3, 1.0, 180), corner)),
        ("field", field, rounded(regular(3, border, 180), corner * 0.6)),
    )


def no_entry_sign(rng: np.random.Generator, fonts: tuple[Source, ...]) -> Drawing:
    """A red disc with a white bar."""
    bar = rectangle(-rng.uniform(0.6, 0.75), -0.5, rng.uniform(0.6, 0.75), 0.5)
    bar = bar * (1, 2 * rng.uniform(0.13, 0.2))
    field = ellipse(0, 0, rng.uniform(0.9, 0.97))
    bar = rounded(bar, rng.choice([0.0, 0.08]))
    rim = _WHITE if rng.random() < 0.8 else (120, 14, 20)
    return _sign(rng, ("rim", rim, ellipse(0, 0, 1.0)), ("field", _RED, field), ("bar", _WHITE, bar))


def warning_sign(rng: np.random.Generator, fonts: tuple[Source, ...]) -> Drawing:
    """A triangle with its point up and a black mark: red and white, red and yellow, or yellow and black."""
    border = rng.uniform(0.66, 0.8)
    corner = rng.uniform(0.05, 0.35)
    mark = _mark(rng)
    border_color, field = ((_RED, _WHITE), (_RED, _YELLOW), (_BLACK, _YELLOW))[rng.integers(3)]
    return _sign(
        rng,
        ("border", border_color, rounded(regular(3, 1.0), corner)),
        ("field", field, rounded(regular(3, border), corner * 0.6)),
        *(("mark", _BLACK, contour) for contour in mark),
    )


def _mark(rng: np.random.Generator) -> list[np.ndarray]:
    kind = rng.integers(4)
    if kind <= 1:  # an exclamation mark
        width = rng.uniform(0.08, 0.12)
        bar = polygon((-width, -0.42), (width, -0.42), (width * 0.6, 0.1), (-width * 0.6, 0.1))
        return [bar, ellipse(0, 0.25, width)]
    if kind == 2:  # a flash of lightning
        return [
            polygon((0.08, -0.42), (-0.2, 0.02), (-0.02, 0.02), (-0.1, 0.36), (0.2, -0.08), (0.02, -0.08))
        ]
    # crossing roads
    width = rng.uniform(0.06, 0.09)
    return [rectangle(-width, -0.36, width, 0.32), rectangle(-0.28, -0.02, 0.28, 0.1)]


def arrow_sign(rng: np.random.Generator, fonts: tuple[Source, ...]) -> Drawing:
    """A white arrow to the left, right or up on a blue, green or black plate."""
    kind = rng.integers(3)
    if kind == 0:
        plate, inner = ellipse(0, 0, 1.0), ellipse(0, 0, 0.93)
        reach = 0.68
    else:
        ratio = 1.0 if kind == 1 else rng.uniform(0.5, 0.75)
        corner = rng.uniform(0.0, 0.25)
        plate = rounded(rectangle(-1, -ratio, 1, ratio), corner)
        inner = rounded(rectangle(-0.94, -ratio + 0.06, 0.94, ratio - 0.06), corner)
        reach = 0.78
    tall = 1.0 if kind < 2 else ratio
    shaft, head = rng.uniform(0.13, 0.2) * tall, rng.uniform(0.42, 0.55) * tall
    neck = reach - head * rng.uniform(0.9, 1.3)
    x = (-reach, neck, neck, reach, neck, neck, -reach)
    arrow = np.stack((x, (-shaft, -shaft, -head, 0, head, shaft, shaft)), axis=1)
    turn = (0, 180) if kind == 2 else (0, 180, 270)
    arrow = moved(arrow, turn_deg=turn[rng.integers(len(turn))])
    field = (_BLUE, _BLUE, _GREEN, _BLACK)[rng.integers(4)]
    rim = _WHITE if rng.random() < 0.6 else field
    return _sign(rng, ("rim", rim, plate), ("field", field, inner), ("arrow", _WHITE, arrow))


def _sign(rng: np.random.Generator, *layers: tuple, sources: tuple[str, ...] = ()) -> Drawing:
    """Makes a sign of layers, from the lowest to the topmost: name, colour, contours."""
    parts = [Part(tuple(contours), name) for name, _, *contours in layers]
    colors = {name: color for name, color, *_ in layers}
    outline = rng.uniform(0.02, 0.05) if rng.random() < 0.4 else 0.0
    if rng.random() < 0.2:
        half, length = rng.uniform(0.05, 0.1), rng.uniform(1.3, 3.0)
        parts = [Part((rectangle(-half, 0.0, half, length),), "pole", True), *parts]

    def choose(generator: np.random.Generator, background: np.ndarray) -> dict:
        # One lamp lights the whole sign: the colours stay apart.
        light = generator.uniform(0.72, 1.05)
        chosen = {name: jittered(generator, color) * light for name, color in colors.items()}
        dark = generator.random() < 0.5
        chosen["outline"] = np.full(3, generator.uniform(0, 60) if dark else generator.uniform(150, 235))
        chosen["pole"] = np.full(3, generator.uniform(70, 190))
        return chosen

    return Drawing(
        tuple(parts),
        choose,
        outline=outline,
        max_tilt_deg=_TILT_DEG,
        min_visible=0.62,
        sources=frozenset(sources),
    )
