"""Drawings of tools: hammer, wrench, scissors, key, screwdriver. All are upright; scenes turn them."""

from __future__ import annotations

import numpy as np

from tools.scenes.colors import away_from, contrast, darker, hue_color
from tools.scenes.shapes import Drawing, Part, ellipse, moved, polygon, rectangle, regular, rounded, symmetric
from tools.scenes.sources import Source


def hammer(rng: np.random.Generator, fonts: tuple[Source, ...]) -> Drawing:
    """A handle and across it a head: with a claw, a wedge, or two faces."""
    length, half = rng.uniform(1.9, 2.5), rng.uniform(0.1, 0.16)
    handle = polygon((-half * 0.75, 0), (half * 0.75, 0), (half * 1.15, length), (-half * 1.15, length))
    parts = [Part((rounded(handle, 0.1),), "handle")]
    if rng.random() < 0.4:  # a grip
        grip = length * rng.uniform(0.5, 0.65)
        parts.append(Part((rounded(rectangle(-half * 1.3, grip, half * 1.3, length + 0.05), 0.12),), "grip"))
    thick, reach = rng.uniform(0.2, 0.28), rng.uniform(0.6, 0.85)
    face = rounded(rectangle(-reach, -thick * 1.15, -reach + 0.24, thick * 1.15), 0.05)
    kind = rng.integers(3)
    if kind == 0:  # claw
        x = (0.1, reach * 0.7, reach * 1.25, reach * 0.7, 0.1)
        back = np.stack((x, np.multiply(thick, (-0.9, -0.8, 1.5, 0.35, 0.9))), axis=1)
    elif kind == 1:  # wedge
        back = polygon((0.1, -thick), (reach * 1.05, -thick * 0.1), (reach * 1.05, thick * 0.2), (0.1, thick))
    else:
        back = rounded(rectangle(reach - 0.24, -thick * 1.15, reach, thick * 1.15), 0.05)
    neck = rectangle(-reach + 0.1, -thick * 0.72, reach - 0.15 if kind == 2 else 0.2, thick * 0.72)
    block = rectangle(-half * 1.6, -thick, half * 1.6, thick)
    parts += [Part((contour,), "metal") for contour in (neck, back, face, block)]
    parts.append(Part((rectangle(-reach + 0.26, -thick * 0.5, -half * 1.7, -thick * 0.25),), "shine"))
    return _tool(rng, parts)


def wrench(rng: np.random.Generator, fonts: tuple[Source, ...]) -> Drawing:
    """A shaft with an open jaw at one end and a jaw or a ring at the other."""
    length, half = rng.uniform(1.7, 2.4), rng.uniform(0.13, 0.19)
    shaft = rectangle(-half, 0.2, half, length - 0.2)
    parts = [Part((shaft,), "metal"), *_jaw(rng, 0.0, 0.0)]
    if rng.random() < 0.5:
        radius = rng.uniform(0.34, 0.42)
        hole = (
            regular(6, radius * rng.uniform(0.5, 0.6)) if rng.random() < 0.7 else ellipse(0, 0, radius * 0.55)
        )
        # The shaft ends at the ring: it must not show in the hole.
        parts[0] = Part((rectangle(-half, 0.2, half, length - radius * 0.8),), "metal")
        parts.append(Part((ellipse(0, length, radius), moved(hole, 0, length)), "metal"))
    else:
        parts += _jaw(rng, length, 180.0)
    parts.append(Part((rounded(rectangle(-half * 0.45, 0.5, half * 0.45, length - 0.5), 0.06),), "shine"))
    return _tool(rng, parts)


def _jaw(rng: np.random.Generator, y: float, turn_deg: float) -> list[Part]:
    """A disc with a gap that opens upwards, a little askew."""
    radius, gap = rng.uniform(0.42, 0.52), rng.uniform(0.18, 0.24)
    start = np.arcsin(gap / radius)
    angles = np.linspace(start, 2 * np.pi - start, 32) - np.pi / 2
    rim = radius * np.stack([np.cos(angles), np.sin(angles)], axis=1)
    depth = rng.uniform(0.0, 0.12)
    head = np.concatenate(
        [rim, polygon((-gap, -0.1 + depth), (-gap * 0.5, depth), (gap * 0.5, depth), (gap, -0.1 + depth))]
    )
    return [Part((moved(head, 0, y, turn_deg + rng.uniform(-18, 18)),), "metal")]


def scissors(rng: np.random.Generator, fonts: tuple[Source, ...]) -> Drawing:
    """Two blades that cross at a screw, each with a ring for a handle."""
    opening = rng.uniform(10, 26)
    blade, wide = rng.uniform(1.2, 1.6), rng.uniform(0.11, 0.16)
    ring_x, ring_y = rng.uniform(0.3, 0.38), rng.uniform(0.85, 1.05)
    rx, ry = rng.uniform(0.25, 0.31), rng.uniform(0.3, 0.42)
    rim = rng.uniform(0.09, 0.12)
    parts = []
    for side in (-1, 1):
        flip = np.array([side, 1.0])
        turn = side * opening
        edge = polygon((-wide * 0.4, 0.15), (wide, 0.15), (wide, -0.1), (-wide * 0.4, -blade))
        shank = polygon(
            (-wide, 0.0), (wide * 0.6, -0.1), (ring_x * 0.75, ring_y - ry * 0.8), (ring_x * 0.2, ring_y - ry)
        )
        outer, inner = ellipse(ring_x, ring_y, rx, ry), ellipse(ring_x, ring_y, rx - rim, ry - rim)
        # The side right below the screw is left above it.
        parts.append(Part((moved(edge * flip * (-1, 1), turn_deg=-turn),), "metal" if side < 0 else "metal2"))
        parts.append(Part((moved(shank * flip, turn_deg=-turn * 0.4),), "handle"))
        parts.append(Part(tuple(moved(c * flip, turn_deg=-turn * 0.4) for c in (outer, inner)), "handle"))
    parts.append(Part((ellipse(0, 0.02, 0.07, points=16),), "shine"))
    return _tool(rng, parts, min_size_px=22)


def key(rng: np.random.Generator, fonts: tuple[Source, ...]) -> Drawing:
    """A bow with a hole, a thin shaft, and teeth on one side of its end."""
    length, half, radius = rng.uniform(1.5, 2.0), rng.uniform(0.08, 0.13), rng.uniform(0.42, 0.55)
    kind = rng.integers(4)
    if kind == 3:  # a clover
        leaf = radius * 0.55
        middles = ((-leaf * 0.95, 0.0), (leaf * 0.95, 0.0), (0.0, -leaf * 1.0))
        leaves = [ellipse(*middle, leaf) for middle in middles]
        holes = [moved(ellipse(0, 0, leaf * 0.5, points=20), *contour.mean(0)) for contour in leaves]
        parts = [Part(contours, "metal") for contours in zip(leaves, holes)]
    else:
        if kind == 0:
            bow = ellipse(0, 0, radius, radius * rng.uniform(0.8, 1.15))
        elif kind == 1:
            bow = rounded(rectangle(-radius, -radius * 0.8, radius, radius * 0.8), 0.2)
        else:
            bow = rounded(regular(6, radius * 1.1), 0.15)
        hole = radius * rng.uniform(0.35, 0.62)
        y = -radius * rng.uniform(0.0, 0.2)
        parts = [Part((bow, ellipse(0, y, hole * rng.uniform(0.8, 1.2), hole)), "metal")]
    top = radius * (0.3 if kind == 3 else 0.72)
    parts.append(Part((rectangle(-half, top, half, radius + length),), "metal"))
    end, tooth = radius + length, rng.uniform(0.14, 0.22)
    for index in range(rng.integers(2, 4)):
        y = end - 0.02 - index * tooth * 1.75
        reach = half + rng.uniform(0.2, 0.36)
        parts.append(Part((rectangle(-half, y - tooth, reach, y),), "metal"))
    parts.append(Part((rectangle(-half * 0.35, radius + 0.1, half * 0.25, end - 0.1),), "shine"))
    return _tool(rng, parts, brass=True, min_size_px=18)


def screwdriver(rng: np.random.Generator, fonts: tuple[Source, ...]) -> Drawing:
    """A thick handle and a thin blade with a flat or pointed tip."""
    grip, wide = rng.uniform(0.95, 1.25), rng.uniform(0.21, 0.29)
    blade, thin = rng.uniform(0.9, 1.3), rng.uniform(0.06, 0.085)
    waist = wide * rng.uniform(0.55, 0.8)
    handle = symmetric((waist, 0.0), (waist, 0.14), (wide, 0.34), (wide, grip))
    parts = [Part((rectangle(-thin, -blade, thin, 0.1),), "metal")]
    if rng.random() < 0.6:
        flare = thin * rng.uniform(1.3, 2.0)
        tip = symmetric((flare * 0.9, -blade - 0.26), (flare, -blade - 0.12), (thin, -blade + 0.05))
    else:
        tip = polygon((-thin, -blade + 0.02), (0, -blade - 0.2), (thin, -blade + 0.02))
    parts += [Part((tip,), "metal"), Part((rounded(handle, 0.12),), "handle")]
    if rng.random() < 0.6:  # grooves
        for x in (-0.5, 0.0, 0.5):
            groove = rectangle(wide * (x - 0.09), 0.4, wide * (x + 0.09), grip - 0.12)
            parts.append(Part((groove,), "grip"))
    elif rng.random() < 0.5:
        parts.append(Part((rectangle(-wide, grip * 0.7, wide, grip * 0.85),), "grip"))
    return _tool(rng, parts, min_size_px=18)


def _tool(
    rng: np.random.Generator, parts: list[Part], brass: bool = False, min_size_px: float = 18.0
) -> Drawing:
    outline = rng.uniform(0.025, 0.06) if rng.random() < 0.5 else 0.0
    has_shine = rng.random() < 0.7
    parts = [part for part in parts if has_shine or part.color != "shine"]

    def metal(generator: np.random.Generator) -> np.ndarray:
        if brass and generator.random() < 0.5:
            return hue_color(generator, 0.12, 0.02)
        if generator.random() < 0.12:  # painted
            return hue_color(generator, generator.random())
        grey = generator.uniform(40, 235)
        return grey + generator.uniform(-10, 10) * np.array([1.0, 0.0, -1.0])

    def choose(generator: np.random.Generator, background: np.ndarray) -> dict:
        steel = away_from(generator, background, 65, draw=metal)
        handle = away_from(generator, background, 55, draw=lambda g: away_from(g, steel, 25))
        dark = contrast(darker(steel, 0.3), background) > contrast(darker(steel, 3.0), background)
        return {
            "metal": steel,
            "metal2": darker(steel, generator.choice([0.8, 1.25])),
            "shine": darker(steel, generator.uniform(1.5, 3.0)),
            "handle": handle,
            "grip": darker(handle, generator.choice([0.5, 0.65, 1.8])),
            "outline": darker(steel, 0.3 if dark else 3.0),
        }

    return Drawing(
        tuple(parts), choose, outline=outline, mirrored=True, min_size_px=min_size_px, min_visible=0.62
    )
