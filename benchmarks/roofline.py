"""Rooflines of the operator's forward pass, from a result file of `benchmarks.msda`.

A roofline compares the speed of each method with the limits of the GPU's memory and arithmetic.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from operator import itemgetter

MARKERS = {
    "attention": "o",
    "plugin": "+",
    "fused_attention": "s",
    "fused_attention_int8": "*",
    "fused_plugin": "x",
    "nvidia_plugin": "^",
    "reference": "v",
    "reference_compiled": "D",
}
"""The forward methods and their markers. A plugin runs the operator's kernel, so its marker fits inside."""

FLOP_PER_SAMPLE_AND_CHANNEL = 2 * (4 + 1)
"""Four multiply-adds with the weights of the corners, one with the attention weight."""

FP32_LANES = {"7.5": 64, "8.0": 64, "8.6": 128, "8.9": 128, "9.0": 128, "12.0": 128}
"""Results of 32-bit floating-point multiply-add per clock cycle and multiprocessor, by compute capability:
CUDA C++ Programming Guide, "Arithmetic Instructions", table "Throughput of Native Arithmetic
Instructions"."""


def forward_flop(problem: Mapping) -> int:
    """Returns the floating-point operations of a forward pass: N * Q * M * K samples of D channels each.

    The weights of the corners, the locations and the softmax do not count: the D channels share them.

    Args:
        problem: sizes of a row, see `benchmarks.problems.Problem`.
    """
    points = problem["points_per_level"] or [problem["num_points"]] * len(problem["spatial_shapes"])
    samples = problem["batch"] * problem["num_queries"] * problem["num_heads"] * sum(points)
    return FLOP_PER_SAMPLE_AND_CHANNEL * samples * problem["head_dim"]


def points(content: Mapping, dtype: str) -> list[tuple[dict, float, float]]:
    """Returns the forward measurements of a type: row, flop per byte, and flop per second.

    The bytes are those of every input read once and every output written once. Failures are left out.
    """
    found = []
    for row in content["results"]:
        if row["dtype"] == dtype and row["method"] in MARKERS and "failure" not in row:
            flop = forward_flop(row["problem"])
            found.append((row, flop / row["bytes_moved"], flop / (row["timing"]["median_ms"] * 1e-3)))
    return found


def clock_hertz(gpu: Mapping) -> float | None:
    """Returns the largest clock of the multiprocessors; None if the result file has none."""
    match = re.match(r"(\d+) MHz", gpu.get("clocks", ""))
    return float(match[1]) * 1e6 if match else None


def peak_flop_per_second(gpu: Mapping) -> float | None:
    """Returns the peak of fp32 multiply-adds at the largest clock, two flop each.

    It is None for an unknown compute capability or clock.
    """
    lanes, clock = FP32_LANES.get(gpu.get("compute_capability", "")), clock_hertz(gpu)
    return 2.0 * lanes * gpu["multiprocessors"] * clock if lanes and clock else None


def figure(content: Mapping, dtype: str):
    """Draws the rooflines of a type, one for each distribution: problems by colour, methods by marker.

    A point may lie above the slope: the few queries of a decoder do not read all of the value. Markers shrink
    from problem to problem, so that all markers of one place are visible.

    Returns:
        The picture, or None without a forward method.
    """
    import matplotlib
    from matplotlib.figure import Figure

    drawn = points(content, dtype)
    if not drawn:
        return None
    distributions, problems, methods = (
        list(dict.fromkeys(name(row) for row, _, _ in drawn))
        for name in (itemgetter("distribution"), lambda row: row["problem"]["name"], itemgetter("method"))
    )
    colours = matplotlib.colormaps["tab20"].colors
    picture = Figure(figsize=(2.6 + 4.6 * len(distributions), 6), layout="constrained")
    panels = picture.subplots(1, len(distributions), sharex=True, sharey=True, squeeze=False)[0]
    for axes, distribution in zip(panels, distributions):
        _draw_roofs(axes, content, [intensity for _, intensity, _ in drawn])
        # Markers are hollow, so that those below stay visible.
        style = {"linestyle": "none", "markerfacecolor": "none"}
        for row, intensity, speed in drawn:
            if row["distribution"] == distribution:
                index = problems.index(row["problem"]["name"])
                size = (10 - 5 * index / len(problems)) * (0.7 if MARKERS[row["method"]] in "+x" else 1)
                look = {"marker": MARKERS[row["method"]], "color": colours[index % len(colours)], **style}
                axes.plot([intensity], [speed / 1e12], markersize=size, **look)
        for method in methods:
            axes.plot([], [], label=method, marker=MARKERS[method], color="black", **style)
        for problem, colour in zip(problems, itertools.cycle(colours)):
            axes.plot([], [], "s", label=problem, color=colour)
        axes.set(xscale="log", yscale="log", xlabel="flop per byte (every input and output moved once)")
        axes.set_title(f"{distribution} locations", fontsize=9)
        axes.grid(color="#e6e6e6", linewidth=0.6, which="both")
        axes.margins(x=0)
    panels[0].set_ylabel("achieved TFLOP/s (median)")
    handles = panels[0].get_legend_handles_labels()
    picture.legend(*handles, loc="outside right center", fontsize=7, frameon=False)
    picture.suptitle(f"Multi-scale deformable attention, forward, {dtype}", fontsize=10)
    return picture


def _draw_roofs(axes, content: Mapping, intensities: Sequence[float]) -> None:
    """Draws the copy bandwidth as a slope, and the arithmetic peak, if known, as a horizontal line."""
    bandwidth = content["copy_bandwidth_bytes_per_second"]
    peak = peak_flop_per_second(content["gpu"])
    right = max(intensities) * 1.5
    ridge = right if peak is None else peak / bandwidth
    ends = [min(*intensities, ridge) / 1.5, ridge]
    black = {"color": "black", "linewidth": 1.2}
    label = f"{bandwidth / 1e12:.3g} TB/s, as a large copy"
    axes.plot(ends, [bandwidth * end / 1e12 for end in ends], label=label, **black)
    if peak is not None:
        label = f"{peak / 1e12:.3g} TFLOP/s, fp32 at {clock_hertz(content['gpu']) / 1e6:.0f} MHz"
        ends = [ridge, max(right, ridge * 2.5)]
        axes.plot(ends, [peak / 1e12] * 2, label=label, linestyle="--", **black)
