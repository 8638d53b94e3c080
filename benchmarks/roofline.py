"""Rooflines of the operator's forward pass, from a result file of `benchmarks.msda`.

A roofline compares the speed of each method with the limits of the GPU's memory and arithmetic.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

MARKERS = {
    "attention": "o",
    "plugin": "+",
    "fused_attention": "s",
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


def figure(content: Mapping, dtype: str, colours: Sequence[str]):
    """Draws the rooflines of a type, one for each distribution: problems by colour, methods by marker.

    A point may lie above the slope: the few queries of a decoder do not read all of the value. Markers shrink
    from problem to problem, so that all markers of one place are visible.

    Returns:
        The picture, or None without a forward method.
    """
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    drawn = points(content, dtype)
    if not drawn:
        return None
    distributions = list(dict.fromkeys(row["distribution"] for row, _, _ in drawn))
    problems = list(dict.fromkeys(row["problem"]["name"] for row, _, _ in drawn))
    methods = [method for method in MARKERS if any(row["method"] == method for row, _, _ in drawn)]
    colour = {name: colours[index % len(colours)] for index, name in enumerate(problems)}
    size = {name: 10 - 5 * index / len(problems) for index, name in enumerate(problems)}
    picture = Figure(figsize=(2.6 + 4.6 * len(distributions), 6), layout="constrained")
    panels = picture.subplots(1, len(distributions), sharex=True, sharey=True, squeeze=False)[0]
    for axes, distribution in zip(panels, distributions):
        roofs = _draw_roofs(axes, content, [intensity for _, intensity, _ in drawn])
        for row, intensity, speed in drawn:
            if row["distribution"] == distribution:
                name = row["problem"]["name"]
                axes.plot([intensity], [speed / 1e12], **_marker(row["method"], colour[name], size[name]))
        _style(axes, distribution)
    panels[0].set_ylabel("achieved TFLOP/s (median)")
    picture.suptitle(
        f"Multi-scale deformable attention, forward, {dtype}: {content['gpu']['name']}", fontsize=10
    )
    blank = Line2D([], [], linestyle="none")
    lines = [(roof, roof.get_label()) for roof in roofs]
    shapes = [(Line2D([], [], **_marker(method, "black", 7)), method) for method in methods]
    patches = [(Line2D([], [], color=colour[name], linewidth=5), name) for name in problems]
    legend = [*lines, (blank, ""), *shapes, (blank, ""), *patches]
    picture.legend(*zip(*legend), loc="outside right center", fontsize=7, frameon=False)
    return picture


def _draw_roofs(axes, content: Mapping, intensities: Sequence[float]) -> list:
    """Draws the copy bandwidth as a slope, and the arithmetic peak, if known, as a horizontal line."""
    bandwidth = content["copy_bandwidth_bytes_per_second"]
    peak = peak_flop_per_second(content["gpu"])
    right = max(intensities) * 1.5
    ridge = right if peak is None else peak / bandwidth
    ends = [min(min(intensities), ridge) / 1.5, ridge]
    black = {"color": "black", "linewidth": 1.2}
    label = f"{bandwidth / 1e12:.3g} TB/s, as a large copy"
    lines = axes.plot(ends, [bandwidth * end / 1e12 for end in ends], label=label, **black)
    if peak is not None:
        label = f"{peak / 1e12:.3g} TFLOP/s, fp32 at {clock_hertz(content['gpu']) / 1e6:.0f} MHz"
        ends = [ridge, max(right, ridge * 2.5)]
        lines += axes.plot(ends, [peak / 1e12] * 2, label=label, linestyle="--", **black)
    return lines


def _marker(method: str, colour: str, size: float) -> dict:
    """Returns the style of a hollow marker, so that markers below it stay visible."""
    marker = MARKERS[method]
    return {
        "linestyle": "none",
        "marker": marker,
        "markersize": size * (0.7 if marker in "+x" else 1),
        "markeredgewidth": 1.1,
        "markeredgecolor": colour,
        "markerfacecolor": "none",
    }


def _style(axes, distribution: str) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.autoscale_view()
    axes.margins(x=0)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.set_major_formatter(FuncFormatter(lambda number, _: f"{number:g}"))
        axis.set_minor_formatter(NullFormatter())
    axes.tick_params(labelsize=8)
    axes.grid(color="#e6e6e6", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.set_xlabel("flop per byte (every input and output moved once)")
    axes.set_title(f"{distribution} locations", fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)
