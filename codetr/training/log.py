"""What a run leaves to look at: tables of numbers, their curves, and a progress bar while it goes."""

from __future__ import annotations

import csv
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trt_plugin.atomic_files import atomic_write

TERMS = tuple(
    f"{part}/{term}" for part in ("encoder", "decoder", "denoising") for term in ("class", "box", "giou")
)
"""Loss terms of the log; those of all decoder layers are one sum."""

TRAINING_COLUMNS = (
    *("step", "epoch", "seconds", "learning_rate", "loss", *TERMS),
    *("gradient_norm", "skipped_steps", "images_per_second", "waiting_for_data", "gpu_memory_gib"),
)
VALIDATION_COLUMNS = (
    *("step", "epoch", "seconds", "loss", "AP", "AP50", "AP75", "APs", "APm", "APl"),
    "left_out",  # pictures, since the run or --resume began
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
        path: of the file; it appears with the first row.
        columns: of the file; a row may leave some out.
        last_step: rows of later steps, and what a killed process left of a row, are dropped from a file that
            is there; 0 begins anew.
    """

    def __init__(self, path: Path, columns: Sequence[str], last_step: int = 0) -> None:
        self.path, self.columns = path, tuple(columns)
        self.rows = [row for row in read_table(path) if float(row["step"]) <= last_step]
        if path.exists():
            with atomic_write(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
                self._writer(file).writeheader()
                self._writer(file).writerows(self.rows)

    def add(self, row: Mapping[str, Any]) -> None:
        """Adds a row."""
        cells = {name: _cell(value) for name, value in row.items()}
        fresh = not self.path.exists()
        with self.path.open("a", newline="", encoding="utf-8") as file:
            if fresh:
                self._writer(file).writeheader()
            self._writer(file).writerow(cells)
        self.rows.append({name: cells.get(name, "") for name in self.columns})

    def _writer(self, file: Any) -> csv.DictWriter:
        return csv.DictWriter(file, self.columns, restval="", lineterminator="\n")


def read_table(path: Path) -> list[dict[str, str]]:
    """The whole rows of a table; none if there is no such file."""
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        columns = len(reader.fieldnames or ())
        rows = [row for row in reader if None not in row and None not in row.values()]
    return [row for row in rows if len(row) == columns and _is_number(row.get("step", ""))]


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _cell(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def draw_curves(path: Path, training: Table, validation: Table) -> None:
    """Draws losses, learning rate and validation over the steps, as a picture.

    Raises:
        ImportError: Matplotlib is not installed.
    """
    from matplotlib.figure import Figure

    def curve(rows: list[dict[str, str]], name: str) -> tuple[list[float], list[float]]:
        there = [row for row in rows if row.get(name)]
        return [float(row["step"]) for row in there], [float(row[name]) for row in there]

    figure = Figure(figsize=(12, 8), layout="constrained")
    panels = figure.subplots(2, 2, sharex=True).flatten()
    panels[0].plot(*curve(training.rows, "loss"), label="training")
    if any(row.get("loss") for row in validation.rows):
        panels[0].plot(*curve(validation.rows, "loss"), marker=".", label="validation, no denoising")
    panels[0].set(title="loss", yscale="log")
    for term in TERMS:
        if any(row.get(term) for row in training.rows):
            panels[1].plot(*curve(training.rows, term), label=term)
    panels[1].set(title="terms of the loss", yscale="log")
    for name in ("AP", "AP50", "AP75"):
        if any(row.get(name) for row in validation.rows):
            panels[2].plot(*curve(validation.rows, name), marker=".", label=name)
    panels[2].set(title="validation AP", xlabel="step")
    panels[3].plot(*curve(training.rows, "learning_rate"))
    panels[3].set(title="learning rate", xlabel="step")
    for panel in panels:
        panel.grid(alpha=0.3)
        if panel.get_legend_handles_labels()[0]:
            panel.legend(fontsize="small")
    with atomic_write(path) as temporary:
        figure.savefig(temporary, dpi=100, format="png")


class Progress:
    """A bar on stderr, or plain lines where that is no terminal. A context manager.

    Args:
        shown: whether to show anything: one of many processes does.
    """

    def __init__(self, shown: bool) -> None:
        self.shown = shown
        self._bar: Any = None

    def __enter__(self) -> Progress:
        if self.shown and sys.stderr.isatty():
            try:
                from rich.console import Console
                from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
                from rich.progress import Progress as Bar
            except ImportError:
                return self
            columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn())
            self._bar = Bar(*columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True)
            self._task = self._bar.add_task("training", total=1.0)
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def advance(self, progress: float) -> None:
        """Moves the bar.

        Args:
            progress: of the run, 0 to 1.
        """
        if self._bar is not None:
            self._bar.update(self._task, completed=progress)

    def report(self, line: str, bar: str | None = None) -> None:
        """Prints a line; where there is a bar, `bar` is shown beside it in the line's place."""
        if not self.shown:
            return
        if self._bar is not None and bar is not None:
            self._bar.update(self._task, description=bar)
        elif self._bar is not None:
            self._bar.console.print(line, markup=False, highlight=False)
        else:
            print(line, file=sys.stderr, flush=True)
