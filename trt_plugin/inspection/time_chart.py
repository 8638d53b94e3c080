"""Bar charts of an engine's times: by kind, by part of the model and kind, and the slowest layers."""

from __future__ import annotations

from collections.abc import Sequence

from trt_plugin.inspection import module_names
from trt_plugin.inspection.canvas import Canvas, shorten, text_width
from trt_plugin.inspection.engine_layers import Layer, LayerList
from trt_plugin.inspection.layer_kinds import COLOURS, KINDS
from trt_plugin.inspection.module_blocks import total_ms
from trt_plugin.inspection.text_report import count, format_ms

MARGIN = 28
LABEL = 230
"""Columns for the names on the left."""
BARS = 520
FIGURES = 130
ROW, SECTION = 24, 34
SLOWEST = 12
PARTS = 12

Segments = list[tuple[str, float]]
"""Kind and milliseconds of each piece of a bar."""


def draw(layers: LayerList, title: str, gpu_ms: float | None = None) -> Canvas:
    """Draws the times of an engine's layers.

    Args:
        layers: of the engine, with times.
        title: of the picture.
        gpu_ms: what a run takes as a whole.
    """
    total = layers.time_ms or 0.0
    sections = [
        ("by kind", _by_kind(layers.layers)),
        ("by part of the model", _by_part(layers.layers)),
        (f"the {SLOWEST} slowest layers", _slowest(layers.layers)),
    ]
    sections = [(name, rows) for name, rows in sections if rows]
    height = 92 + sum(SECTION + ROW * len(rows) + 14 for _, rows in sections)
    canvas = Canvas(2 * MARGIN + LABEL + BARS + FIGURES, height)
    canvas.text(MARGIN, 34, title, size=18, bold=True)
    text = f"sum of the layers {format_ms(total)} ms"
    if gpu_ms is not None:
        text = f"a run takes {format_ms(gpu_ms)} ms; {text}, which wait for each other when profiled"
    canvas.text(MARGIN, 53, text, colour="#666666")
    y = 62.0
    for name, rows in sections:
        canvas.text(MARGIN, y + 22, name, size=13, bold=True)
        y = _draw_bars(canvas, y + SECTION, rows, total) + 14
    return canvas


def _by_kind(layers: Sequence[Layer]) -> list[tuple[str, Segments]]:
    rows = []
    for kind in KINDS:
        members = [layer for layer in layers if layer.kind == kind]
        if members:
            rows.append((f"{kind} ({count(len(members), 'layer')})", [(kind, total_ms(members) or 0.0)]))
    return rows


def _by_part(layers: Sequence[Layer]) -> list[tuple[str, Segments]]:
    """A bar for each outermost module in the order in which they begin, the smallest as one."""
    parts: dict[str, list[Layer]] = {}
    for layer in layers:
        parts.setdefault(layer.origin.path[0] if layer.origin.path else "", []).append(layer)
    if len(parts) == 1:
        return []
    large = sorted(parts, key=lambda part: -(total_ms(parts[part]) or 0.0))[:PARTS]
    rest = [layer for part, members in parts.items() if part not in large for layer in members]
    shown = [(part or "between the parts", members) for part, members in parts.items() if part in large]
    return [(name, _segments(members)) for name, members in [*shown, *([("others", rest)] if rest else [])]]


def _segments(layers: Sequence[Layer]) -> Segments:
    times = ((kind, total_ms([layer for layer in layers if layer.kind == kind]) or 0.0) for kind in KINDS)
    return [(kind, time) for kind, time in times if time]


def _slowest(layers: Sequence[Layer]) -> list[tuple[str, Segments]]:
    ordered = sorted(layers, key=lambda layer: -(layer.time_ms or 0.0))[:SLOWEST]
    return [(_name(layer), [(layer.kind, layer.time_ms)]) for layer in ordered if layer.time_ms]


def _name(layer: Layer) -> str:
    return f"{module_names.text(layer.origin.path)} {layer.title}" if layer.origin.path else layer.title


def _draw_bars(canvas: Canvas, y: float, rows: Sequence[tuple[str, Segments]], total: float) -> float:
    """Draws bars below each other; returns where they end."""
    longest = max((sum(time for _, time in segments) for _, segments in rows), default=0.0) or 1.0
    for name, segments in rows:
        x = float(MARGIN + LABEL)
        canvas.text(x - 10, y + 15, shorten(name, 11, LABEL - 12), anchor="end", tip=name)
        for kind, time in segments:
            width = BARS * time / longest
            canvas.rectangle(x, y + 3, width, ROW - 6, COLOURS[kind], tip=f"{kind}: {format_ms(time)} ms")
            text = format_ms(time)
            if len(segments) > 1 and text_width(text, 9) + 8 < width:
                canvas.text(x + width / 2, y + 15, text, size=9, colour="#ffffff", anchor="middle")
            x += width
        time = sum(time for _, time in segments)
        share = f" ({time / total:.1%})" if total else ""
        canvas.text(x + 8, y + 15, f"{format_ms(time)} ms{share}", size=11)
        y += ROW
    return y
