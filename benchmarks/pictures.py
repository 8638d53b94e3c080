"""Charts of result files, for `benchmarks.report`."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from pathlib import Path

from benchmarks import roofline, surgery
from trt_plugin.atomic_files import atomic_write
from trt_plugin.inspection import layer_kinds

COLOURS = (
    *("#4c72b0", "#dd8452", "#55a868", "#c44e52", "#8172b3", "#937860", "#da8bc3", "#8c8c8c"),
    *("#ccb974", "#64b5cd", "#a6d854", "#f7d038", "#1f3b5c", "#5f0f40"),
)
"""One for each method of the operator, and for each problem."""

PROBLEMS_IN_ROW = 5


def draw(content: dict, folder: Path, stem: str) -> list[Path]:
    """Draws the charts of a result file as SVG and PNG, and returns the files.

    Raises:
        ModuleNotFoundError: matplotlib is missing.
    """
    import matplotlib

    # The same numbers give the same SVG, byte for byte.
    matplotlib.rcParams["svg.hashsalt"] = "benchmarks"
    written = []
    for name, figure in FIGURES[content["kind"]](content).items():
        for suffix, metadata in ((".svg", {"Date": None}), (".png", None)):
            picture = folder / f"{stem}{name}{suffix}"
            with atomic_write(picture) as temporary:
                figure.savefig(temporary, format=suffix[1:], dpi=150, metadata=metadata)
            written.append(picture)
    return written


def msda_figures(content: dict) -> dict:
    """Returns a bar chart for each type and distribution, and a roofline for each type, by name."""
    figures = {
        f"_{dtype}_{distribution}": _msda_bars(content, distribution, dtype, problems, cells)
        for distribution, dtype, problems, cells in groups(content)
    }
    for dtype in dict.fromkeys(row["dtype"] for row in content["results"]):
        if picture := roofline.figure(content, dtype, COLOURS):
            figures[f"_{dtype}_roofline"] = picture
    return figures


def _msda_bars(content: dict, distribution: str, dtype: str, problems: list[str], cells: dict):
    """Draws the microseconds of each method and problem, with a mark at the time to move every byte once."""
    from matplotlib.patches import Patch

    timed = {key: row for key, row in cells.items() if "timing" in row}
    colours = {
        method: COLOURS[index % len(COLOURS)]
        for index, method in enumerate(content["methods"])
        if any((problem, method) in timed for problem in problems)
    }
    rows = math.ceil(len(problems) / PROBLEMS_IN_ROW)
    columns = math.ceil(len(problems) / rows)
    figure = _figure(2.5 + 1.9 * columns, 0.9 + 3.6 * rows)
    width = 0.85 / max(1, len(colours))
    for row, axes in enumerate(figure.subplots(rows, sharey=True, squeeze=False)[:, 0]):
        shown = problems[row * columns : (row + 1) * columns]
        for index, (method, colour) in enumerate(colours.items()):
            points = [
                (place + (index - (len(colours) - 1) / 2) * width, timed[problem, method])
                for place, problem in enumerate(shown)
                if (problem, method) in timed
            ]
            heights = [cell["timing"]["median_ms"] * 1e3 for _, cell in points]
            bars = axes.bar([x for x, _ in points], heights, width, color=colour)
            labels = [f"{height:.0f}" if height >= 100 else f"{height:.1f}" for height in heights]
            axes.bar_label(bars, labels, fontsize=6, rotation=90, padding=2)
            for x, cell in points:
                axes.plot([x - width / 2, x + width / 2], [cell["floor_us"]] * 2, color="black", linewidth=1)
        axes.set_yscale("log")
        axes.margins(y=0.12)
        axes.set_xticks(range(len(shown)), [name.replace("_", "\n") for name in shown], fontsize=8)
        axes.set_xlim(-0.6, columns - 0.4)
        axes.spines[["top", "right"]].set_visible(False)
    figure.supylabel("microseconds (median); black: every byte once", fontsize=9)
    figure.suptitle(
        f"Multi-scale deformable attention, {dtype}, {distribution}: {_machine(content)}", fontsize=10
    )
    handles = [Patch(color=colour, label=method) for method, colour in colours.items()]
    figure.legend(handles=handles, loc="outside lower center", fontsize=7, ncols=4)
    return figure


def detector_figure(content: dict) -> dict:
    """Draws the milliseconds of the variants of a detector."""
    rows = content["results"]
    figure = _figure(7.5, 1.2 + 0.4 * len(rows))
    axes = figure.add_subplot()
    names = [f"{row['backend']} {row['variant']}" for row in rows]
    colours = _colours([row["backend"] for row in rows])
    _bars(axes, names, [row["timing"]["median_ms"] for row in rows], colours)
    size = f"{content['height']}x{content['width']}, batch {content['batch']}"
    _label(axes, "milliseconds an image batch (median)", f"{content['model']}, {size}: {_machine(content)}")
    return {"": figure}


def accuracy_figure(content: dict) -> dict:
    """Draws the AP differences with their bounds, and the milliseconds, of the variants of a detector."""
    rows = content["results"]
    figure = _figure(10, 1.4 + 0.4 * len(rows))
    left, right = figure.subplots(1, 2, sharey=True)
    colours = _colours([row["backend"] for row in rows])
    names = [f"{row['backend']} {row['variant']}: AP {row['metrics']['ap']:.4f}" for row in rows]
    places, bounds = range(len(rows)), [row["bound"] for row in rows]
    left.barh(places, [2 * bound for bound in bounds], 0.8, [-bound for bound in bounds], color="#eeeeee")
    left.barh(places, [row["ap_difference"] for row in rows], 0.5, color=colours)
    left.axvline(0, color="black", linewidth=0.8)
    _bars(right, names, [row["timing"]["median_ms"] for row in rows], colours)
    size = f"{content['height']}x{content['width']}, {content['pictures']} pictures"
    _label(left, f"AP difference to {content['compared_with']}; grey: the bound")
    _label(right, "milliseconds a picture (median)", inverted=False)  # it shares the left axis
    figure.suptitle(f"{content['model']}, {size}: {_machine(content)}", fontsize=10)
    return {"": figure}


def training_figure(content: dict) -> dict:
    """Draws the images per second of the training steps. A step that ran out of memory has no bar."""
    rows = content["results"]
    figure = _figure(8.5, 1.2 + 0.4 * len(rows))
    axes = figure.add_subplot()
    speeds = [row.get("images_per_second", 0.0) for row in rows]
    labels = [f"{speed:.1f}" if speed else "out of memory" for speed in speeds]
    colours = _colours([row["attention"] for row in rows])
    _bars(axes, [training_step(row) for row in rows], speeds, colours, labels)
    _label(axes, "images a second", f"Training steps: {_machine(content)}")
    return {"": figure}


def surgery_figure(content: dict) -> dict:
    """Draws the milliseconds of the models before and after the surgery."""
    rows = content["results"]
    figure = _figure(8.5, 1.4 + 0.6 * len(rows))
    axes = figure.add_subplot()
    for index, form in enumerate(surgery.FORMS):
        times = [row.get(form, {}).get("timing", {}).get("median_ms", 0.0) for row in rows]
        places = [place + (index - 0.5) * 0.4 for place in range(len(rows))]
        bars = axes.barh(places, times, 0.4, label=form, color=COLOURS[index])
        axes.bar_label(bars, [f"{t:.2f}" if t else "failed" for t in times], padding=3, fontsize=8)
    axes.set_yticks(range(len(rows)), [row["model"] for row in rows])
    axes.margins(x=0.12)
    axes.legend(fontsize=8, loc="lower right")
    title = f"TensorRT engines of ONNX files, {content['precision']}: {_machine(content)}"
    _label(axes, "GPU milliseconds (median)", title)
    return {"": figure}


def engines_figure(content: dict) -> dict:
    """Draws the milliseconds of each engine's layers by kind, with a mark at the time of a run."""
    rows = content["results"]
    figure = _figure(9.5, 1.9 + 0.55 * len(rows))
    axes = figure.add_subplot()
    ends = [0.0] * len(rows)
    longest = max(sum_of(row) for row in rows)
    for kind in (kind for kind in layer_kinds.LAYER_KINDS if any(kind in row["kinds"] for row in rows)):
        times = [row["kinds"].get(kind, {}).get("ms", 0.0) for row in rows]
        bars = axes.barh(range(len(rows)), times, 0.6, ends, label=kind, color=layer_kinds.KIND_COLOURS[kind])
        shown = [f"{time:.1f}" if time >= 0.04 * longest else "" for time in times]
        axes.bar_label(bars, shown, label_type="center", fontsize=8, color="white")
        ends = [end + time for end, time in zip(ends, times)]
    for place, row in enumerate(rows):
        run = row["timing"]["median_ms"]
        axes.plot([run, run], [place - 0.4, place + 0.4], color="black", linewidth=1.5)
        axes.text(max(run, ends[place]), place, f"  {run:.2f} ms a run", va="center", fontsize=8)
    axes.set_yticks(range(len(rows)), [row["variant"] for row in rows])
    axes.margins(x=0.16)
    figure.legend(loc="outside lower center", fontsize=8, ncols=4)
    label = "GPU milliseconds of the layers, which wait for each other when profiled; black: a run (median)"
    _label(axes, label, f"TensorRT engines by kind of layer: {_machine(content)}")
    return {"": figure}


FIGURES = {
    "msda": msda_figures,
    "detector": detector_figure,
    "accuracy": accuracy_figure,
    "training": training_figure,
    "surgery": surgery_figure,
    "engines": engines_figure,
}
"""The charts of each kind of result file, by the end of the file's name."""


def sum_of(row: dict) -> float:
    """Returns the milliseconds of all layers of an engine."""
    return sum(part["ms"] for part in row["kinds"].values())


def groups(content: dict) -> list[tuple[str, str, list[str], dict[tuple[str, str], dict]]]:
    """Returns (distribution, type, problems, rows by problem and method) of the operator's results."""
    results = content["results"]
    found = []
    for distribution, dtype in dict.fromkeys((row["distribution"], row["dtype"]) for row in results):
        rows = [row for row in results if (row["distribution"], row["dtype"]) == (distribution, dtype)]
        problems = list(dict.fromkeys(row["problem"]["name"] for row in rows))
        found.append((distribution, dtype, problems, {(r["problem"]["name"], r["method"]): r for r in rows}))
    return found


def training_step(row: dict) -> str:
    """Describes a training step: model, size, precision and attention."""
    size = f"{row['height']}x{row['width']}, batch {row['batch']}"
    return f"{Path(row['model']).stem} {size}, {row['precision']}, {row['attention']}"


def _figure(width: float, height: float):
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def _machine(content: dict) -> str:
    return content["gpu"]["name"] if content["gpu"] else content["cpu"]


def _colours(groups: Sequence[str]) -> list[str]:
    """Returns a colour for each row, the same for rows of one group."""
    order = dict(zip(dict.fromkeys(groups), itertools.cycle(COLOURS)))
    return [order[group] for group in groups]


def _bars(axes, names: Sequence[str], values: Sequence[float], colours: Sequence[str], labels=None) -> None:
    bars = axes.barh(range(len(names)), values, 0.6, color=colours)
    axes.bar_label(bars, labels or [f"{value:.1f}" for value in values], padding=3, fontsize=8)
    axes.set_yticks(range(len(names)), names)
    axes.margins(x=0.12)


def _label(axes, label: str, title: str = "", inverted: bool = True) -> None:
    """Labels an axis of horizontal bars. The first bar is on top."""
    if inverted:
        axes.invert_yaxis()
    axes.set_xlabel(label)
    axes.set_title(title, fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
