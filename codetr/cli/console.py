"""Output of the commands: tables, times, a progress bar."""

from __future__ import annotations

import statistics
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from codetr.results import Detections

MAX_ROWS = 50
_MANY = 3  # steps from which a progress bar helps
_STAGES = ("read", "preprocess", "inference", "postprocess", "draw")


@contextmanager
def progress(total: int, doing: str = "detecting") -> Iterator[Callable[[int], None]]:
    """Shows a progress bar on stderr while the block runs; yields a function that advances it.

    A bar appears on a terminal only, and from three steps on.

    Args:
        total: number of steps.
        doing: word before the bar.
    """
    if total < _MANY or not sys.stderr.isatty():
        yield lambda count: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(doing, total=total)
        yield lambda count: bar.advance(task, count)


def print_results(pictures: Sequence[tuple[str, Detections]]) -> None:
    """Prints a table: the detections of a single picture, or one row for each of many pictures."""
    if len(pictures) == 1:
        name, detections = pictures[0]
        title = f"{name}: {_count(len(detections), 'detection')}"
        headers = ("class", "score", "x", "y", "width", "height")
        rows = [
            (row["category_name"], f"{row['score']:.3f}", *(f"{side:.1f}" for side in row["bbox"]))
            for row in detections.as_dicts()
        ]
        numeric = range(1, 6)
    else:
        title = f"{len(pictures)} pictures: {_count(sum(len(found) for _, found in pictures), 'detection')}"
        headers = ("picture", "size", "found", "classes")
        rows = [
            (name, f"{found.width}x{found.height}", str(len(found)), _summary(found.names()))
            for name, found in pictures
        ]
        numeric = range(1, 3)
    hidden = len(rows) - MAX_ROWS
    _print_table(title, headers, rows[:MAX_ROWS], right_aligned=numeric)
    if hidden > 0:
        print(f"… and {hidden} more rows; detections.json has all")


def print_times(times: Sequence[Mapping[str, float]]) -> None:
    """Prints the milliseconds per picture by stage: of the only run, or the median of all runs but the first.

    Args:
        times: milliseconds by stage for each run of the network. The first run contains the warm-up.
    """
    first = times[0]
    steady = times[1:] if len(times) > 1 else times
    parts = [
        f"{stage} {statistics.median(run[stage] for run in steady):.1f}"
        for stage in _STAGES
        if stage in first
    ]
    if len(times) == 1:
        note = "one run, warm-up included"
    else:
        note = f"median; the first run, with the warm-up, took {first['inference']:.1f} for inference"
    print(f"ms per picture: {', '.join(parts)} ({note})")


def _print_table(
    title: str, headers: Sequence[str], rows: Sequence[Sequence[str]], right_aligned: range
) -> None:
    # A pipe has no width, so nothing is cut there.
    console = Console() if sys.stdout.isatty() else Console(width=200)
    table = Table(title=escape(title), title_justify="left", title_style="bold")
    for column, header in enumerate(headers):
        table.add_column(header, justify="right" if column in right_aligned else "left", overflow="fold")
    for row in rows:
        table.add_row(*(escape(cell) for cell in row))
    console.print(table)


def _summary(names: Sequence[str]) -> str:
    """Turns ["cup", "spoon", "cup"] into "2 cup, 1 spoon"."""
    return ", ".join(f"{count} {name}" for name, count in Counter(names).most_common())


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
