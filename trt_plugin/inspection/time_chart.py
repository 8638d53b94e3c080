"""Draws an engine's times as bar charts: by kind of layer, by part of the model, and the slowest layers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

from trt_plugin.atomic_files import atomic_write
from trt_plugin.inspection.engine_layers import Layer, LayerList, layers_by_kind, total_ms
from trt_plugin.inspection.layer_kinds import KIND_COLOURS
from trt_plugin.inspection.text_report import count, format_ms, shorten

SLOWEST, PARTS = 12, 12
"""Most bars of layers and of parts of the model."""

LABEL = 42
"""Longest name of a bar, in characters."""

SETTINGS = {"svg.fonttype": "none", "font.size": 9}
"""Text in an SVG stays text."""

Bar = tuple[str, Sequence[Layer]]
"""Name and layers of a bar. Each kind of layer is a segment."""


def write_chart(path: Path, layers: LayerList, title: str, gpu_ms: float | None = None) -> None:
    """Draws the times of an engine's layers into a file .svg, .png or .pdf.

    `gpu_ms` is the GPU time of a whole run, in milliseconds.
    """
    total = layers.time_ms
    below = f"sum of the layers {format_ms(total)} ms"
    if gpu_ms is not None:
        below = f"a run takes {format_ms(gpu_ms)} ms; {below}, which wait for each other when profiled"
    kinds = layers_by_kind(layers.layers)
    slowest = layers.slowest(SLOWEST)
    charts = {
        "by kind": [(f"{kind} ({count(len(members), 'layer')})", members) for kind, members in kinds.items()],
        "by part of the model": _by_part(layers.layers),
        f"the {len(slowest)} slowest layers": [(layer.place, [layer]) for layer in slowest],
    }
    heights = [len(bars) + 1 for bars in charts.values()]
    with matplotlib.rc_context(SETTINGS):
        figure = Figure((10, 1 + 0.26 * (sum(heights) + len(heights))), layout="constrained")
        figure.suptitle(f"{title}\n{below}", x=0.02, ha="left", fontsize=11)
        axes = figure.subplots(len(charts), 1, height_ratios=heights)
        for (name, bars), axis in zip(charts.items(), axes):
            _draw_bars(axis, bars, total)
            axis.set_title(name, loc="left", fontsize=10, fontweight="bold")
        with atomic_write(path) as temporary:
            figure.savefig(temporary, dpi=150)


def _draw_bars(axis: matplotlib.axes.Axes, bars: Sequence[Bar], total: float) -> None:
    longest = max(total_ms(layers) for _, layers in bars)
    for row, (_, layers) in enumerate(bars):
        left = 0.0
        for kind, members in layers_by_kind(layers).items():
            time = total_ms(members)
            axis.barh(row, time, left=left, height=0.75, color=KIND_COLOURS[kind])
            if time < total_ms(layers) and time > 0.06 * longest:
                axis.text(left + time / 2, row, format_ms(time), ha="center", va="center", color="w", size=7)
            left += time
        axis.text(left + longest / 100, row, f"{format_ms(left)} ms ({left / total:.1%})", va="center")
    axis.set_yticks(range(len(bars)), [shorten(name, LABEL) for name, _ in bars])
    axis.set_xlim(0, 1.2 * longest)
    axis.set_ylim(len(bars) - 0.5, -0.5)
    axis.set_xticks([])
    axis.tick_params(length=0)
    axis.set_frame_on(False)


def _by_part(layers: Sequence[Layer]) -> list[Bar]:
    """Returns the outermost modules in execution order, the smallest of them joined as "others"."""
    parts: dict[str, list[Layer]] = {}
    for layer in layers:
        parts.setdefault(layer.origin.path[0] if layer.origin.path else "between the parts", []).append(layer)
    large = sorted(parts, key=lambda part: -total_ms(parts[part]))[:PARTS]
    others = [layer for part, members in parts.items() if part not in large for layer in members]
    shown = [(part, members) for part, members in parts.items() if part in large]
    return [*shown, ("others", others)] if others else shown
