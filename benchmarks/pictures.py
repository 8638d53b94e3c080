"""Charts of result files, for `benchmarks.report`."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

from benchmarks import roofline
from trt_plugin.atomic_files import atomic_write

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
    figures = msda_figures(content) if content["kind"] == "msda" else time_figure(content)
    written = []
    for name, figure in figures.items():
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


def time_figure(content: dict) -> dict:
    """Draws the milliseconds of each row that has a time. Returns {} if no row has one."""
    rows = [row for row in content["results"] if "timing" in row]
    if not rows:
        return {}
    figure = _figure(7.5, 1.2 + 0.4 * len(rows))
    axes = figure.add_subplot()
    order = dict(zip(dict.fromkeys(map(_colour_group, rows)), itertools.cycle(COLOURS)))
    times = [row["timing"]["median_ms"] for row in rows]
    bars = axes.barh(range(len(rows)), times, 0.6, color=[order[_colour_group(row)] for row in rows])
    axes.bar_label(bars, [f"{time:.1f}" for time in times], padding=3, fontsize=8)
    axes.set_yticks(range(len(rows)), map(row_name, rows))
    axes.margins(x=0.12)
    axes.invert_yaxis()  # the first bar is on top
    axes.set_xlabel("milliseconds (median)")
    size = f"{content['model']}, {content['height']}x{content['width']}" if "height" in content else ""
    axes.set_title(f"{size or content['kind']}: {_machine(content)}", fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    return {"": figure}


def row_name(row: dict) -> str:
    """Names a row by the fields that tell it from the others of its file."""
    size = [f"{row['height']}x{row['width']} batch {row['batch']}"] if "height" in row else []
    names = [row[key] for key in ("model", "backend", "variant", "attention") if row.get(key)]
    return " ".join(names + size)


def groups(content: dict) -> list[tuple[str, str, list[str], dict[tuple[str, str], dict]]]:
    """Returns (distribution, type, problems, rows by problem and method) of the operator's results."""
    results = content["results"]
    found = []
    for distribution, dtype in dict.fromkeys((row["distribution"], row["dtype"]) for row in results):
        rows = [row for row in results if (row["distribution"], row["dtype"]) == (distribution, dtype)]
        problems = list(dict.fromkeys(row["problem"]["name"] for row in rows))
        found.append((distribution, dtype, problems, {(r["problem"]["name"], r["method"]): r for r in rows}))
    return found


def _colour_group(row: dict) -> str:
    return row.get("backend") or row.get("attention", "")


def _figure(width: float, height: float):
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def _machine(content: dict) -> str:
    return content["gpu"]["name"] if content["gpu"] else content["cpu"]
