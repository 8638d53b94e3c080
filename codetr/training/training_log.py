"""The tables of a run, their curves as a picture, and its progress on the terminal."""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from trt_plugin.atomic_files import atomic_write

LOGGED_TERMS = tuple(
    f"{part}/{term}" for part in ("encoder", "decoder", "denoising") for term in ("class", "box", "giou")
)
"""Loss terms of the log, each summed over the decoder layers."""

TRAINING_COLUMNS = (
    *("step", "epoch", "seconds", "learning_rate", "loss", *LOGGED_TERMS),
    *("gradient_norm", "skipped_steps", "images_per_second", "waiting_for_data", "gpu_memory_gib"),
)
VALIDATION_COLUMNS = (
    *("step", "epoch", "seconds", "AP", "AP50", "AP75", "APs", "APm", "APl"),
    "left_out",  # pictures since the start or --resume
)


def sum_layers(losses: Mapping[str, float]) -> dict[str, float]:
    """Adds up the terms of all layers: "decoder.0/class" and "decoder.1/class" become "decoder/class"."""
    sums: dict[str, float] = {}
    for name, value in losses.items():
        name = re.sub(r"\.\d+/", "/", name)
        sums[name] = sums.get(name, 0.0) + value
    return sums


class Table:
    """A CSV file that grows by rows, each on the disk as soon as it is written.

    Args:
        path: the file. It appears with the first row.
        columns: of the file; a row may lack some.
        last_step: rows of later steps and incomplete rows are removed from an existing file.
    """

    def __init__(self, path: Path, columns: Sequence[str], last_step: int = 0) -> None:
        self.path, self.columns = path, tuple(columns)
        self.rows = [row for row in read_table(path) if float(row["step"]) <= last_step]
        if path.exists():
            with atomic_write(path) as temporary:
                self._append(temporary, [dict(zip(self.columns, self.columns)), *self.rows])

    def add(self, row: Mapping[str, Any]) -> None:
        """Appends a row."""
        cells = {k: f"{value:.6g}" if isinstance(value, float) else str(value) for k, value in row.items()}
        header = [] if self.path.exists() else [dict(zip(self.columns, self.columns))]
        self.rows.append({name: cells.get(name, "") for name in self.columns})
        self._append(self.path, [*header, self.rows[-1]])

    def _append(self, path: Path, rows: Sequence[Mapping[str, str]]) -> None:
        with path.open("a", newline="", encoding="utf-8") as file:
            csv.DictWriter(file, self.columns, lineterminator="\n").writerows(rows)


def read_table(path: Path) -> list[dict[str, str]]:
    """Reads the complete rows of a table; none if there is no such file."""
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return [row for row in csv.DictReader(file) if None not in row and None not in row.values()]


def draw_curves(path: Path, training: Table, validation: Table) -> None:
    """Draws losses, learning rate and validation over the steps, as a PNG picture."""
    panels = (
        ("loss", training, ("loss",), "log"),
        ("terms of the loss", training, LOGGED_TERMS, "log"),
        ("validation AP", validation, ("AP", "AP50", "AP75"), "linear"),
        ("learning rate", training, ("learning_rate",), "linear"),
    )
    figure = Figure(figsize=(12, 8), layout="constrained")
    for axes, (title, table, names, scale) in zip(figure.subplots(2, 2, sharex=True).flatten(), panels):
        for name in names:
            rows = [row for row in table.rows if row.get(name)]
            if rows:
                values = [float(row[name]) for row in rows]
                axes.plot([float(row["step"]) for row in rows], values, label=name)
        axes.set(title=title, yscale=scale, xlabel="step")
        axes.grid(alpha=0.3)
        if len(axes.lines) > 1:
            axes.legend(fontsize="small")
    with atomic_write(path) as temporary:
        figure.savefig(temporary, dpi=100, format="png")


def progress_bar(shown: bool) -> Progress:
    """Makes a bar on stderr for the share of a run, 0 to 1. It appears on a terminal only.

    Unless `shown`, its console prints nothing: one process of a run prints.
    """
    console = Console(stderr=True, quiet=not shown)
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    bar = Progress(*columns, console=console, transient=True, disable=not (shown and console.is_terminal))
    bar.add_task("training", total=1.0)
    return bar
