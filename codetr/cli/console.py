"""What the command line prints: tables, times, a progress bar. Plain without rich."""

from __future__ import annotations

import statistics
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from codetr.results import Detections

MAX_ROWS = 50
_STAGES = ("read", "preprocess", "inference", "postprocess", "draw")


@contextmanager
def progress(total: int, shown: bool, doing: str = "detecting") -> Iterator[Callable[[int], None]]:
    """Shows a progress bar on stderr while the block runs; yields a function that advances it.

    Args:
        total: the number that is to be reached.
        shown: whether to show it; where stderr is no terminal or rich is missing, nothing is shown.
        doing: the word before the bar.
    """
    try:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
    except ImportError:
        shown = False
    if not shown or not sys.stderr.isatty():
        yield lambda count: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(doing, total=total)
        yield lambda count: bar.advance(task, count)


def print_results(pictures: Sequence[tuple[str, Detections]]) -> None:
    """Prints a table: the detections of a single picture, or one row a picture of many."""
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
    """Prints the milliseconds a picture took by stage: the only run's, or the median without the first run.

    Args:
        times: a mapping from stage to milliseconds for each run of the network; the first holds the warm-up.
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
    try:
        from rich.console import Console
        from rich.markup import escape
        from rich.table import Table
    except ImportError:
        _print_plain_table(title, headers, rows, right_aligned)
        return
    # A pipe has no width to keep to; nothing is cut there.
    console = Console() if sys.stdout.isatty() else Console(width=200)
    table = Table(title=escape(title), title_justify="left", title_style="bold")
    for column, header in enumerate(headers):
        table.add_column(header, justify="right" if column in right_aligned else "left", overflow="fold")
    for row in rows:
        table.add_row(*(escape(cell) for cell in row))
    console.print(table)


def _print_plain_table(
    title: str, headers: Sequence[str], rows: Sequence[Sequence[str]], right_aligned: range
) -> None:
    widths = [max(len(row[column]) for row in (headers, *rows)) for column in range(len(headers))]
    print(title)
    for row in (headers, *rows):
        cells = (
            cell.rjust(width) if column in right_aligned else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        print("  ".join(cells).rstrip())


def _summary(names: Sequence[str]) -> str:
    """["cup", "spoon", "cup"] -> "2 cup, 1 spoon"."""
    return ", ".join(f"{count} {name}" for name, count in Counter(names).most_common())


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
