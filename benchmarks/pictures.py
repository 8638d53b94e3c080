"""Charts of result files, for `benchmarks.report`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import roofline
from trt_plugin.atomic_files import atomic_write


def draw(content: dict, folder: Path, stem: str) -> list[Path]:
    """Draws the charts of a result file as PNG, and returns the files.

    An operator's result has a bar chart for each type and distribution, and a roofline for each type. Other
    results have a bar chart if their rows have times.

    Raises:
        ModuleNotFoundError: matplotlib is missing.
    """
    rows = [row for row in content["results"] if "timing" in row]
    figures = {}
    for name in dict.fromkeys(map(_chart, rows)):
        figures[name] = _bars(f"{content['kind']}{name}", [row for row in rows if _chart(row) == name])
    if content["kind"] == "msda":
        for dtype in dict.fromkeys(row["dtype"] for row in rows):
            if picture := roofline.figure(content, dtype):
                figures[f"_{dtype}_roofline"] = picture
    written = [folder / f"{stem}{name}.png" for name in figures]
    for path, figure in zip(written, figures.values()):
        with atomic_write(path) as temporary:
            figure.suptitle(f"{figure.get_suptitle()}: {(content['gpu'] or {}).get('name', content['cpu'])}")
            figure.savefig(temporary, format="png", dpi=150)
    return written


def row_name(row: dict) -> str:
    """Names a row by the fields that tell it from the others of its file."""
    return " ".join(filter(None, (_series(row), _group(row))))


def _chart(row: dict) -> str:
    return "".join(f"_{row[key]}" for key in ("dtype", "distribution") if key in row)


def _group(row: dict) -> str:
    if "problem" in row:
        return row["problem"]["name"]
    size = [f"{row['height']}x{row['width']} batch {row['batch']}"] if "height" in row else []
    return " ".join([row[key] for key in ("model", "variant") if row.get(key)] + size)


def _series(row: dict) -> str:
    return next((row[key] for key in ("method", "backend", "attention") if key in row), "")


def _bars(title: str, rows: Sequence[dict]) -> Any:
    """Draws the median times, a group of bars for each problem, variant or size."""
    import matplotlib
    from matplotlib.figure import Figure

    groups, series = (list(dict.fromkeys(map(name, rows))) for name in (_group, _series))
    figure = Figure(figsize=(min(16, 4 + 0.4 * len(rows)), 5), layout="constrained")
    axes = figure.add_subplot()
    axes.set_prop_cycle(color=matplotlib.colormaps["tab20"].colors)
    width = 0.85 / len(series)
    for index, name in enumerate(series):
        times = {_group(row): row["timing"]["median_ms"] for row in rows if _series(row) == name}
        middle = (index - (len(series) - 1) / 2) * width
        bars = axes.bar([groups.index(group) + middle for group in times], times.values(), width, label=name)
        axes.bar_label(bars, fmt="{:.3g}", fontsize=6, rotation=90, padding=2)
    axes.set_xticks(range(len(groups)), [group.replace("_", "\n").replace(" ", "\n") for group in groups])
    heights = [row["timing"]["median_ms"] for row in rows]
    scale = "log" if max(heights) > 30 * min(heights) else "linear"
    axes.set(yscale=scale, ylabel="milliseconds (median)")
    axes.tick_params(labelsize=8)
    axes.margins(y=0.12)
    axes.spines[["top", "right"]].set_visible(False)
    if series != [""]:
        figure.legend(loc="outside lower center", fontsize=7, ncols=4)
    figure.suptitle(title, fontsize=10)
    return figure
