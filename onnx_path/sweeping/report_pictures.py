"""The pictures of a sweep's report, drawn by matplotlib as PNG and SVG files."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator

from onnx_path.sweeping.report_tables import number
from onnx_path.sweeping.results_schema import PRECISIONS, RUNTIMES, CellResult, NetworkResult, SweepResults
from trt_plugin.atomic_files import atomic_write

COLOURS = dict(zip(PRECISIONS, ("#333333", "#CC79A7", "#0072B2", "#009E73", "#D55E00", "#E69F00")))
"""Colours of Okabe and Ito, which colour-blind readers tell apart."""

WHITE = {"torch": 0.5, "torch-compile": 0.4, "onnxruntime": 0.3, "tensorrt": 0.0}
"""Share of white that lightens a precision's colour for each runtime."""

RUNTIME_MARKERS = {"torch": "o", "torch-compile": "s", "onnxruntime": "^", "tensorrt": "D"}
NETWORK_MARKERS = "osD^vP*X<>hp8d"
CROSS = {"color": "black", "marker": "x", "linestyle": ""}
"""Mark of a throttled cell."""

SETTINGS = {
    "svg.fonttype": "none",  # text in an SVG stays text
    "font.size": 9,
    "text.parse_math": False,  # a dollar in a name is a dollar
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "axes.axisbelow": True,
    "hatch.linewidth": 0.6,
}
TIMELINES = 6
"""Most cells in a picture of the GPU over time."""

LABEL = 40
"""Longest name of a network, in characters."""


@dataclass(frozen=True)
class ReportPicture:
    """A picture of the report. `path` is the SVG; a PNG of the same name lies beside it."""

    title: str
    caption: str
    path: Path

    @property
    def paths(self) -> tuple[Path, Path]:
        return self.path, self.path.with_suffix(".png")


def draw_pictures(results: SweepResults, folder: Path) -> list[ReportPicture]:
    """Draws the pictures that the results have data for into a folder.

    Args:
        results: of a sweep.
        folder: gets `inference_time`, `throughput`, `accuracy`, `error_by_rank` and a `gpu_N_NETWORK` for
            each network, each as .svg and .png.
    """
    drawn = (
        ("inference_time", _draw_inference_time),
        ("throughput", _draw_throughput),
        ("accuracy", _draw_accuracy),
        ("error_by_rank", _draw_error_by_rank),
    )
    pictures = []
    with matplotlib.rc_context(SETTINGS):
        for name, draw in drawn:
            pictures += _save(draw(results), folder / f"{name}.svg")
        for i, network in enumerate(results.networks):
            slug = re.sub(r"[^\w.-]+", "_", network.name)[:LABEL]
            pictures += _save(_draw_gpu(results, network), folder / f"gpu_{i + 1}_{slug}.svg")
    return pictures


Drawn = tuple[Figure, str, str] | None
"""Figure, title and caption; None if there is nothing to draw."""


def _save(drawn: Drawn, path: Path) -> Iterator[ReportPicture]:
    if drawn is None:
        return
    figure, title, caption = drawn
    picture = ReportPicture(title, caption, path)
    for file in picture.paths:
        with atomic_write(file) as temporary:
            figure.savefig(temporary, dpi=150, metadata={"Date": None} if file.suffix == ".svg" else None)
    yield picture


def colour(series: tuple[str, str]) -> tuple[float, ...]:
    """Returns the colour of a runtime and precision, the same in all pictures."""
    runtime, precision = series
    white = WHITE.get(runtime, 0.2)
    return tuple(part + (1 - part) * white for part in to_rgb(COLOURS.get(precision, "#8C6D31")))


def _draw_inference_time(results: SweepResults) -> Drawn:
    """Draws bars of the model's time: a row of panels for each network, a column for each batch size."""
    cells = [cell for cell in results.measured() if cell.best_ms]
    networks = _networks_of(results, cells)
    if not cells:
        return None
    batches = _extreme_batches(cells)
    rows = [_series_of(cell for cell in cells if cell.network == network.name) for network in networks]
    heights = [len(series) + 1.2 for series in rows]
    size = (3 + 4.2 * len(batches), 0.9 + 0.22 * sum(heights))
    figure = Figure(size, layout="constrained")
    grid = figure.subplots(len(networks), len(batches), squeeze=False, sharex="col", height_ratios=heights)
    hatched = any(cell.throttled for cell in cells)
    for column, batch in enumerate(batches):
        chosen = [cell for cell in cells if cell.batch == batch]
        times = [cell.best_ms for cell in chosen]
        log = max(times) > 50 * min(times)
        for axis, network, series in zip(grid[:, column], networks, rows):
            _draw_time_bars(axis, [cell for cell in chosen if cell.network == network.name], series)
            if column:
                axis.tick_params(labelleft=False)
            else:
                axis.set_title(_short(network.name), loc="left", fontsize=10, fontweight="bold")
        if log:
            grid[0, column].set_xscale("log")
            grid[0, column].set_xlim(min(times) / 2, max(times) * 5)
        else:
            grid[0, column].set_xlim(0, max(times) * 1.25)
        grid[0, column].set_title(f"batch {batch}", loc="right", fontsize=10)
        _plain_numbers(grid[-1, column].xaxis, log)
        grid[-1, column].set_xlabel("ms a batch, median" + (", log scale" if log else ""))
    dynamic = any(cell.shapes == "dynamic" for cell in cells)
    marks = [Line2D([], [], color="black", marker="d", linestyle="", label="with dynamic shapes")] * dynamic
    marks += [Patch(facecolor="white", edgecolor="black", hatch="////", label="throttled")] * hatched
    if marks:
        figure.legend(handles=marks, loc="outside lower center", ncols=2, frameon=False)
    caption = "Time of the model alone, with or without a CUDA graph, whichever is quicker."
    return figure, "Inference time", caption


def _draw_time_bars(axis: Axes, cells: Sequence[CellResult], series: Sequence[tuple[str, str]]) -> None:
    for row, one in enumerate(series):
        same = {cell.shapes: cell for cell in cells if cell.series == one}
        dynamic = same.pop("dynamic", None)
        values = []
        for cell in list(same.values())[:1]:
            bar = axis.barh(row, cell.best_ms, color=colour(one), height=0.75)
            if cell.throttled:
                bar[0].set(hatch="////", edgecolor="white")
            values.append(cell.best_ms)
        if dynamic:
            axis.plot(dynamic.best_ms, row, "d", color="black", markeredgecolor="white", markersize=6)
            values.append(dynamic.best_ms)
        if values:
            texts = " / ".join(map(number, values))
            axis.annotate(
                texts, (max(values), row), (6, 0), textcoords="offset points", va="center", fontsize=7
            )
        else:
            axis.annotate("not measured", (0, row), (3, 0), xycoords=("axes fraction", "data"), va="center",
                          textcoords="offset points", fontsize=7, color="0.5")  # fmt: skip
    axis.set_yticks(range(len(series)), [_series_name(one) for one in series])
    axis.set_ylim(len(series) - 0.4, -0.6)
    axis.grid(axis="y", visible=False)


def _draw_throughput(results: SweepResults) -> Drawn:
    """Draws images per second against the batch size, a panel for each network."""
    cells = [cell for cell in results.measured() if cell.images_per_s]
    networks = _networks_of(results, cells)
    if len({cell.batch for cell in cells}) < 2:
        return None
    figure, panels = _panels(len(networks))
    for axis, network in zip(panels, networks):
        lines: dict[tuple, list[CellResult]] = {}
        for cell in cells:
            if cell.network == network.name:
                lines.setdefault((*cell.series, cell.shapes == "dynamic"), []).append(cell)
        for (*series, dynamic), line in lines.items():
            points = [(cell.batch, cell.images_per_s) for cell in line]
            axis.plot(*zip(*points), **_line_style(tuple(series)), linestyle="--" if dynamic else "-")
        drawn = itertools.chain(*lines.values())
        _cross_out(axis, [(cell.batch, cell.images_per_s) for cell in drawn if cell.throttled])
        axis.set(xscale="log", yscale="log", xlabel="batch", ylabel="images/s")
        batches = sorted({cell.batch for cell in cells})
        axis.set_xticks(batches, list(map(str, batches)))
        axis.xaxis.set_minor_locator(NullLocator())
        _plain_numbers(axis.yaxis, True)
        axis.set_title(_short(network.name), fontsize=10, fontweight="bold")
    dynamic = [Line2D([], [], color="black", linestyle="--", label="dynamic shapes")]
    dynamic *= any(cell.shapes == "dynamic" for cell in cells)
    _legend(figure, [*_series_handles(cells), *dynamic, *_throttled_handle(cells)])
    return (
        figure,
        "Throughput against batch size",
        "Images per second of the model alone; both axes are logarithmic.",
    )


def _draw_accuracy(results: SweepResults) -> Drawn:
    """Draws accuracy against latency: a row of panels for each dataset, a column for each batch size.

    Cells with the same measure on the same number of images share a row.
    """
    cells = [x for x in results.measured() if x.best_ms and x.accuracy and x.accuracy.headline is not None]
    datasets: dict[tuple[str, int], list[CellResult]] = {}
    for cell in cells:
        measure = "AP" if cell.accuracy.top1 is None else "top-1"
        datasets.setdefault((measure, cell.accuracy.images), []).append(cell)
    if not cells:
        return None
    columns = max(len(_extreme_batches(group)) for group in datasets.values())
    figure = Figure((2 + 4.6 * columns, 1.6 + 3.2 * len(datasets)), layout="constrained")
    grid = figure.subplots(len(datasets), columns, squeeze=False)
    names = [network.name for network in _networks_of(results, cells)]
    markers = {name: NETWORK_MARKERS[i % len(NETWORK_MARKERS)] for i, name in enumerate(names)}
    for axes, ((measure, images), group) in zip(grid, datasets.items()):
        batches = _extreme_batches(group)
        for axis in axes[len(batches) :]:
            axis.remove()
        for axis, batch in zip(axes, batches):
            points = [(x.best_ms, 100 * x.accuracy.headline, x) for x in group if x.batch == batch]
            front = _pareto_front(points)
            axis.plot(*zip(*front), color="0.6", linestyle="-", zorder=1, drawstyle="steps-post")
            for ms, share, cell in points:
                style = {"color": colour(cell.series), "markersize": 7}
                style |= {"markerfacecolor": "white"} if cell.shapes == "dynamic" else {}
                axis.plot(ms, share, markers[cell.network], **style)
            _cross_out(axis, [(ms, share) for ms, share, cell in points if cell.throttled])
            axis.set_xscale("log")
            _plain_numbers(axis.xaxis, True)
            axis.set(xlabel=f"ms for a batch of {batch}, log scale", ylabel=f"{measure} %, {images:,} images")
            axis.margins(0.08, 0.12)
    shapes = [
        Line2D([], [], color="0.4", linestyle="", marker=marker, label=_short(name))
        for name, marker in markers.items()
    ]
    series = [Patch(color=colour(one), label=_series_name(one)) for one in _series_of(cells)]
    style = {"color": "0.4", "marker": "o", "markerfacecolor": "white", "linestyle": ""}
    hollow = [Line2D([], [], label="dynamic shapes", **style)] * any(x.shapes == "dynamic" for x in cells)
    front = Line2D([], [], color="0.6", label="Pareto front")
    _legend(figure, [*shapes, *series, front, *hollow, *_throttled_handle(cells)])
    caption = "Upper left is better. No cell is both quicker and more accurate than one on the Pareto front."
    return figure, "Accuracy against latency", caption


def _pareto_front(points: Iterable[tuple[float, float, CellResult]]) -> list[tuple[float, float]]:
    front: list[tuple[float, float]] = []
    for ms, share, _ in sorted(points, key=lambda point: (point[0], -point[1])):
        if not front or share > front[-1][1]:
            front.append((ms, share))
    return front


def _draw_error_by_rank(results: SweepResults) -> Drawn:
    """Draws the differences from PyTorch fp32 by rank: a row of two panels for each network."""
    cells = [
        x for x in results.measured() if x.agreement and x.agreement.by_rank and x.series != ("torch", "fp32")
    ]
    networks = _networks_of(results, cells)
    if not cells:
        return None
    figure = Figure((10, 1.2 + 2.6 * len(networks)), layout="constrained")
    grid = figure.subplots(len(networks), 2, squeeze=False)
    for axes, network in zip(grid, networks):
        detects = network.task == "detect"
        measures = (
            [("box_px", "box difference, pixels", 1), ("score", "score difference", 1)]
            if detects
            else [("mean_abs_error", "mean absolute error", 1), ("disagreement", "other label, %", 100)]
        )
        own = [cell for cell in cells if cell.network == network.name]
        for axis, (key, title, scale) in zip(axes, measures):
            for series in _series_of(own):
                cell = min(
                    (x for x in own if x.series == series), key=lambda x: (x.shapes == "dynamic", x.batch)
                )
                points = [
                    (x.rank, scale * getattr(x, key))
                    for x in cell.agreement.by_rank
                    if _is_finite(getattr(x, key))
                ]
                if points:
                    axis.plot(*zip(*points), **_line_style(series))
            values = [y for line in axis.lines for y in line.get_ydata()]
            if key != "disagreement" and any(y > 0 for y in values):
                axis.set_yscale("log", nonpositive="clip")
                axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
                axis.yaxis.set_minor_formatter(NullFormatter())
            else:
                axis.set_ylim(bottom=0)
            axis.xaxis.set_major_locator(MaxNLocator(integer=True))
            axis.set(xlabel="rank", ylabel=title)
        axes[0].set_title(_short(network.name), loc="left", fontsize=10, fontweight="bold")
    _legend(figure, _series_handles(cells))
    return (
        figure,
        "Error by rank",
        "Difference from PyTorch fp32 at each rank of the answer, best answer first.",
    )


def _draw_gpu(results: SweepResults, network: NetworkResult) -> Drawn:
    """Draws GPU memory, SM utilisation and power over time, of a cell of each runtime and precision."""
    cells = [x for x in results.measured(network.name) if x.gpu and len(x.gpu.samples) > 1]
    chosen = []
    for series in _series_of(cells):
        same = [cell for cell in cells if cell.series == series]
        chosen.append(max(same, key=lambda x: (x.batch, x.shapes != "dynamic")))
    if not chosen:
        return None
    chosen.sort(key=lambda x: (x.series != ("torch", "fp32"), x.runtime != "tensorrt", x.order))
    chosen = sorted(chosen[:TIMELINES], key=lambda x: x.order)
    figure = Figure((10, 6.5), layout="constrained")
    axes = figure.subplots(3, 1, sharex=True)
    for axis, title, field in zip(axes, ("GPU memory, MiB", "SM utilisation, %", "power, W"), (2, 1, 3)):
        for cell in chosen:
            points = [(sample[0], sample[field]) for sample in cell.gpu.samples if _is_finite(sample[field])]
            if points:
                axis.plot(*zip(*points), color=colour(cell.series), linewidth=1.6)
        axis.set_ylabel(title)
        axis.set_ylim(0, 105 if field == 1 else None)
        _plain_numbers(axis.yaxis, False)
    axes[-1].set_xlabel("seconds since the start of the cell")
    figure.suptitle(_short(network.name), x=0.01, ha="left", fontsize=10, fontweight="bold")
    handles = []
    for cell in chosen:
        words = [
            cell.label,
            f"batch {cell.batch}",
            cell.shapes * (cell.shapes == "dynamic"),
            "throttled" * cell.throttled,
        ]
        handles.append(
            Line2D([], [], color=colour(cell.series), linewidth=2, label=", ".join(filter(None, words)))
        )
    _legend(figure, handles, columns=3)
    return figure, f"GPU over time: {network.name}", "At most six cells, each at its largest batch size."


def _panels(count: int) -> tuple[Figure, list[Axes]]:
    """Returns a figure with panels in rows of up to three."""
    columns = min(3, count)
    rows = math.ceil(count / columns)
    figure = Figure((max(6.5, 4.2 * columns), 1.2 + 3.4 * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).flatten()
    for axis in axes[count:]:
        axis.remove()
    return figure, list(axes[:count])


def _networks_of(results: SweepResults, cells: Iterable[CellResult]) -> list[NetworkResult]:
    names = {cell.network for cell in cells}
    return [network for network in results.networks if network.name in names]


def _series_of(cells: Iterable[CellResult]) -> list[tuple[str, str]]:
    """Returns the runtimes and precisions of some cells, in the order of tables."""
    return list({cell.series: None for cell in sorted(cells, key=lambda cell: cell.order)})


def _extreme_batches(cells: Iterable[CellResult]) -> list[int]:
    """Returns the smallest and the largest batch size."""
    batches = {cell.batch for cell in cells}
    return sorted({min(batches), max(batches)})


def _series_name(series: tuple[str, str]) -> str:
    return f"{RUNTIMES.get(series[0], series[0])} {series[1]}"


def _line_style(series: tuple[str, str]) -> dict:
    return {"color": colour(series), "marker": RUNTIME_MARKERS.get(series[0], "*"), "markersize": 4.5}


def _series_handles(cells: Iterable[CellResult]) -> list[Line2D]:
    return [Line2D([], [], label=_series_name(one), **_line_style(one)) for one in _series_of(cells)]


def _cross_out(axis: Axes, throttled: Sequence[tuple[float, float]]) -> None:
    """Draws a cross on the point of each throttled cell."""
    if throttled:
        axis.plot(*zip(*throttled), markersize=9, **CROSS)


def _throttled_handle(cells: Iterable[CellResult]) -> list[Line2D]:
    """Returns the legend's entry for these crosses, if there are any."""
    return [Line2D([], [], label="throttled", **CROSS)] * any(cell.throttled for cell in cells)


def _legend(figure: Figure, handles: Sequence, columns: int = 5) -> None:
    columns = min(columns, max(2, int(figure.get_figwidth() / 2)))
    figure.legend(handles=handles, loc="outside lower center", ncols=columns, frameon=False, fontsize=8)


def _plain_numbers(axis, log: bool) -> None:
    """Writes the numbers of an axis without powers of ten."""
    if log:
        low, high = axis.get_view_interval()
        axis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 200 * low else (1, 3)))
        axis.set_minor_formatter(NullFormatter())
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))


def _is_finite(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


def _short(name: str) -> str:
    return name if len(name) <= LABEL else f"{name[: LABEL - 1]}…"
