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


@contextmanager
def progress(total: int, doing: str = "detecting") -> Iterator[Callable[[int], None]]:
    """Shows a progress bar on stderr while the block runs; yields a function that advances it.

    A bar appears on a terminal only, and from three steps on. The word `doing` stands before it.
    """
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    hidden = total < 3 or not sys.stderr.isatty()
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=hidden) as bar:
        task = bar.add_task(doing, total=total)
        yield lambda count: bar.advance(task, count)


def print_results(pictures: Sequence[tuple[str, Detections]]) -> None:
    """Prints a table: the detections of a single picture, or one row for each of many pictures."""
    if len(pictures) == 1:
        ((name, found),) = pictures
        title, headers = f"{name}: ", ("class", "score", "x", "y", "width", "height")
        rows = [
            (row["category_name"], f"{row['score']:.3f}", *(f"{side:.1f}" for side in row["bbox"]))
            for row in found.as_dicts()
        ]
    else:
        title, headers = f"{len(pictures)} pictures: ", ("picture", "size", "found", "classes")
        rows = [
            (
                name,
                f"{found.width}x{found.height}",
                str(len(found)),
                ", ".join(f"{count} {label}" for label, count in Counter(found.names()).most_common()),
            )
            for name, found in pictures
        ]
    count = sum(len(found) for _, found in pictures)
    title += f"{count} detection{'' if count == 1 else 's'}"
    table = Table(title=escape(title), title_justify="left", title_style="bold")
    for header in headers:
        words = header in ("class", "picture", "classes")
        table.add_column(header, justify="left" if words else "right", overflow="fold")
    for row in rows[:MAX_ROWS]:
        table.add_row(*map(escape, row))
    # A pipe has no width, so nothing is cut there.
    (Console() if sys.stdout.isatty() else Console(width=200)).print(table)
    if len(rows) > MAX_ROWS:
        print(f"… and {len(rows) - MAX_ROWS} more rows; detections.json has all")


def print_times(times: Sequence[Mapping[str, float]]) -> None:
    """Prints the milliseconds per picture by stage: of the only run, or the median of all runs but the first.

    Args:
        times: milliseconds by stage for each run of the network. The first run contains the warm-up.
    """
    first, steady = times[0], times[1:] or times
    parts = [
        f"{stage} {statistics.median(run[stage] for run in steady):.1f}"
        for stage in ("read", "preprocess", "inference", "postprocess", "draw")
        if stage in first
    ]
    note = "one run, warm-up included"
    if len(times) > 1:
        note = f"median; the first run, with the warm-up, took {first['inference']:.1f} for inference"
    print(f"ms per picture: {', '.join(parts)} ({note})")
