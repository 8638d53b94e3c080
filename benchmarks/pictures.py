"""Charts of result files, for `benchmarks.report`."""

from __future__ import annotations

import math
from pathlib import Path

from benchmarks import roofline, surgery
from trt_plugin.atomic_files import atomic_write
from trt_plugin.inspection import layer_kinds

COLOURS = (
    *("#4c72b0", "#dd8452", "#55a868", "#c44e52", "#8172b3", "#937860", "#da8bc3", "#8c8c8c"),
    *("#ccb974", "#64b5cd", "#a6d854", "#f7d038", "#1f3b5c", "#5f0f40"),
)
"""One for every method of the operator, and for every problem, without a repetition."""

PROBLEMS_IN_ROW = 5


def draw(content: dict, folder: Path, stem: str) -> list[Path]:
    """Bar charts of a result file, and the operator's rooflines, as SVG and PNG; returns the files.

    Raises:
        ImportError: without matplotlib.
    """
    try:
        import matplotlib
    except ImportError:
        raise ImportError("pictures need matplotlib: pip install 'codetr-tensorrt[dev]'") from None
    matplotlib.use("Agg")
    # The same numbers give the same SVG, byte for byte.
    matplotlib.rcParams["svg.hashsalt"] = "benchmarks"
    if content["kind"] == "detector":
        figures = {stem: detector_figure(content)}
    elif content["kind"] == "accuracy":
        figures = {stem: accuracy_figure(content)}
    elif content["kind"] == "training":
        figures = {stem: training_figure(content)}
    elif content["kind"] == "surgery":
        figures = {stem: surgery_figure(content)}
    elif content["kind"] == "engines":
        figures = {stem: engines_figure(content)}
    else:
        figures = {
            f"{stem}_{dtype}_{distribution}": msda_figure(content, distribution, dtype, problems, cells)
            for distribution, dtype, problems, cells in groups(content)
        }
        for dtype in dict.fromkeys(row["dtype"] for row in content["results"]):
            if picture := roofline.figure(content, dtype, COLOURS):
                figures[f"{stem}_{dtype}_roofline"] = picture
    written = []
    for name, figure in figures.items():
        for suffix, metadata in ((".svg", {"Date": None}), (".png", None)):
            picture = folder / (name + suffix)
            with atomic_write(picture) as temporary:
                figure.savefig(temporary, format=suffix[1:], dpi=150, metadata=metadata)
            written.append(picture)
    return written


def msda_figure(content: dict, distribution: str, dtype: str, problems: list[str], cells: dict):
    """Microseconds of every method at every problem, on a logarithmic scale; a line marks the byte floor.

    Rows of up to `PROBLEMS_IN_ROW` problems, for the picture to be readable on a page.
    """
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    methods = [
        method
        for method in content["methods"]
        if any("timing" in cells.get((p, method), {}) for p in problems)
    ]
    colours = {method: COLOURS[list(content["methods"]).index(method) % len(COLOURS)] for method in methods}
    rows = math.ceil(len(problems) / PROBLEMS_IN_ROW)
    columns = math.ceil(len(problems) / rows)
    figure = Figure(figsize=(2.5 + 1.9 * columns, 0.9 + 3.6 * rows), layout="constrained")
    for row, axes in enumerate(figure.subplots(rows, sharey=True, squeeze=False)[:, 0]):
        _draw_bars(axes, problems[row * columns : (row + 1) * columns], colours, cells)
        axes.set_xlim(-0.6, columns - 0.4)
    figure.supylabel("microseconds (median); black: every byte once", fontsize=9)
    figure.suptitle(
        f"Multi-scale deformable attention, {dtype}, {distribution}: {content['gpu']['name']}", fontsize=10
    )
    handles = [Patch(color=colour, label=method) for method, colour in colours.items()]
    figure.legend(handles=handles, loc="outside lower center", fontsize=7, ncols=4)
    return figure


def _draw_bars(axes, problems: list[str], colours: dict[str, object], cells: dict) -> None:
    width = 0.85 / max(1, len(colours))
    for index, (method, colour) in enumerate(colours.items()):
        points = [
            (position + (index - (len(colours) - 1) / 2) * width, cells[(problem, method)])
            for position, problem in enumerate(problems)
            if "timing" in cells.get((problem, method), {})
        ]
        heights = [row["timing"]["median_ms"] * 1e3 for _, row in points]
        bars = axes.bar([x for x, _ in points], heights, width, color=colour)
        labels = [f"{height:.0f}" if height >= 100 else f"{height:.1f}" for height in heights]
        axes.bar_label(bars, labels, fontsize=6, rotation=90, padding=2)
        for x, row in points:
            axes.plot([x - width / 2, x + width / 2], [row["floor_us"]] * 2, color="black", linewidth=1)
    axes.set_yscale("log")
    axes.margins(y=0.12)
    axes.set_xticks(range(len(problems)), [name.replace("_", "\n") for name in problems], fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)


def detector_figure(content: dict):
    """Milliseconds of every variant of a detector."""
    from matplotlib.figure import Figure

    rows = content["results"]
    figure = Figure(figsize=(7.5, 1.2 + 0.4 * len(rows)), layout="constrained")
    axes = figure.add_subplot()
    backends = list(dict.fromkeys(row["backend"] for row in rows))
    colours = [COLOURS[backends.index(row["backend"]) % len(COLOURS)] for row in rows]
    names = [f"{row['backend']} {row['variant']}" for row in rows]
    bars = axes.barh(names, [row["timing"]["median_ms"] for row in rows], color=colours)
    axes.bar_label(bars, fmt="%.1f", padding=3, fontsize=8)
    size = f"{content['height']}x{content['width']}, batch {content['batch']}"
    title = f"{content['model']}, {size}: {content['gpu']['name']}"
    _label_bars(axes, "milliseconds an image batch (median)", title)
    return figure


def accuracy_figure(content: dict):
    """AP differences inside their bounds, and milliseconds, of every variant of a detector."""
    from matplotlib.figure import Figure

    rows = content["results"]
    figure = Figure(figsize=(10, 1.4 + 0.4 * len(rows)), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    backends = list(dict.fromkeys(row["backend"] for row in rows))
    colours = [COLOURS[backends.index(row["backend"]) % len(COLOURS)] for row in rows]
    names = [f"{row['backend']} {row['variant']}: AP {row['metrics']['ap']:.4f}" for row in rows]
    places = range(len(rows))
    bounds = [row["bound"] for row in rows]
    left.barh(places, [2 * bound for bound in bounds], 0.8, [-bound for bound in bounds], color="#eeeeee")
    left.barh(places, [row["ap_difference"] for row in rows], 0.5, color=colours)
    left.axvline(0, color="black", linewidth=0.8)
    left.set_yticks(places, names)
    left.set_xlabel(f"AP difference to {content['compared_with']}; grey: the bound")
    bars = right.barh(places, [row["timing"]["median_ms"] for row in rows], 0.5, color=colours)
    right.bar_label(bars, fmt="%.1f", padding=3, fontsize=8)
    right.set_xlabel("milliseconds a picture (median)")
    left.invert_yaxis()
    machine = content["gpu"]["name"] if content["gpu"] else content["cpu"]
    size = f"{content['height']}x{content['width']}, {content['pictures']} pictures"
    figure.suptitle(f"{content['model']}, {size}: {machine}", fontsize=10)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def training_figure(content: dict):
    """Images per second of every training step; what ran out of memory has no bar."""
    from matplotlib.figure import Figure

    rows = content["results"]
    figure = Figure(figsize=(8.5, 1.2 + 0.4 * len(rows)), layout="constrained")
    axes = figure.add_subplot()
    attentions = list(dict.fromkeys(row["attention"] for row in rows))
    colours = [COLOURS[attentions.index(row["attention"]) % len(COLOURS)] for row in rows]
    names = [training_step(row) for row in rows]
    speeds = [row.get("images_per_second", 0.0) for row in rows]
    bars = axes.barh(range(len(rows)), speeds, color=colours)
    labels = [f"{speed:.1f}" if speed else "out of memory" for speed in speeds]
    axes.bar_label(bars, labels, padding=3, fontsize=8)
    axes.set_yticks(range(len(rows)), names)
    axes.margins(x=0.12)
    machine = content["gpu"]["name"] if content["gpu"] else content["cpu"]
    _label_bars(axes, "images a second", f"Training steps: {machine}")
    return figure


def surgery_figure(content: dict):
    """Milliseconds of every model before and after the surgery."""
    from matplotlib.figure import Figure

    rows = content["results"]
    figure = Figure(figsize=(8.5, 1.4 + 0.6 * len(rows)), layout="constrained")
    axes = figure.add_subplot()
    for index, form in enumerate(surgery.FORMS):
        times = [row.get(form, {}).get("timing", {}).get("median_ms", 0.0) for row in rows]
        places = [place + (index - 0.5) * 0.4 for place in range(len(rows))]
        bars = axes.barh(places, times, 0.4, label=form, color=COLOURS[index])
        axes.bar_label(bars, [f"{t:.2f}" if t else "failed" for t in times], padding=3, fontsize=8)
    axes.set_yticks(range(len(rows)), [row["model"] for row in rows])
    axes.margins(x=0.12)
    axes.legend(fontsize=8, loc="lower right")
    title = f"TensorRT engines of ONNX files, {content['precision']}: {content['gpu']['name']}"
    _label_bars(axes, "GPU milliseconds (median)", title)
    return figure


def engines_figure(content: dict):
    """Milliseconds of every engine's layers by kind, and a mark at what a whole run takes."""
    from matplotlib.figure import Figure

    rows = content["results"]
    figure = Figure(figsize=(9.5, 1.9 + 0.55 * len(rows)), layout="constrained")
    axes = figure.add_subplot()
    ends = [0.0] * len(rows)
    for kind in (kind for kind in layer_kinds.LAYER_KINDS if any(kind in row["kinds"] for row in rows)):
        times = [row["kinds"].get(kind, {}).get("ms", 0.0) for row in rows]
        bars = axes.barh(range(len(rows)), times, 0.6, ends, label=kind, color=layer_kinds.KIND_COLOURS[kind])
        shown = [f"{time:.1f}" if time >= 0.04 * max(sum_of(row) for row in rows) else "" for time in times]
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
    _label_bars(axes, label, f"TensorRT engines by kind of layer: {content['gpu']['name']}")
    return figure


def sum_of(row: dict) -> float:
    """Milliseconds of all layers of an engine."""
    return sum(part["ms"] for part in row["kinds"].values())


def _label_bars(axes, label: str, title: str) -> None:
    """What every picture of horizontal bars gets; the first bar is on top."""
    axes.invert_yaxis()
    axes.set_xlabel(label)
    axes.set_title(title, fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)


def groups(content: dict) -> list[tuple[str, str, list[str], dict[tuple[str, str], dict]]]:
    """The operator's results: distribution, type, problems, results by problem and method."""
    results = content["results"]
    found = []
    for distribution, dtype in dict.fromkeys((row["distribution"], row["dtype"]) for row in results):
        rows = [row for row in results if (row["distribution"], row["dtype"]) == (distribution, dtype)]
        problems = list(dict.fromkeys(row["problem"]["name"] for row in rows))
        found.append((distribution, dtype, problems, {(r["problem"]["name"], r["method"]): r for r in rows}))
    return found


def training_step(row: dict) -> str:
    """What is trained and how, in words."""
    size = f"{row['height']}x{row['width']}, batch {row['batch']}"
    return f"{Path(row['model']).stem} {size}, {row['precision']}, {row['attention']}"
