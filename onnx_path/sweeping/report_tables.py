"""The tables of a sweep's report: which columns they have and how their values read."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from onnx_path.sweeping.report_rows import Row, clocks
from onnx_path.sweeping.results_schema import RUNTIMES, CellResult, NetworkResult, SweepResults

MARK = "⚠"
"""Marks a row whose times are in doubt."""


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        key: of the row.
        title: head of the column, with the unit.
        text: words a value.
        choice: has few values, so that the report offers a list of them as a filter.
        detail: only in report.html, hidden at first.
    """

    key: str
    title: str
    text: Callable[..., str] = str
    choice: bool = False
    detail: bool = False


@dataclass(frozen=True)
class TextCell:
    """A value of a table: its text, and what the table sorts by."""

    text: str
    order: object


@dataclass(frozen=True)
class TextTable:
    """A table in words. `doubtful` says for each row whether its times are in doubt."""

    columns: Sequence[Column]
    rows: Sequence[Sequence[TextCell]]
    doubtful: Sequence[bool]


def number(value: float) -> str:
    """Words a number with three significant digits."""
    return f"{value:,.0f}" if abs(value) >= 99.95 else f"{value:.3g}"


def percent(share: float) -> str:
    """Words a share of 1 in percent. Only a share of 1 reads "100.00"."""
    text = f"{100 * share:.2f}"
    return ">99.99" if text == "100.00" and share < 1 else text


def _points(change: float) -> str:
    return f"{round(100 * change, 2) + 0.0:+.2f}"  # + 0.0 turns -0.0 into 0.0


def _mebibytes(count: int) -> str:
    return number(count / 2**20)


def _doubt(clocks: str) -> str:
    return f"{MARK} {clocks}"


_IDENTITY = (
    Column("network", "network", choice=True),
    Column("runtime", "runtime", lambda runtime: RUNTIMES.get(runtime, runtime), choice=True),
    Column("precision", "precision", choice=True),
    Column("shapes", "shapes", choice=True),
)
_STATISTICS = {"mean": "mean", "p95": "p95", "p99": "p99", "max": "maximum"}
_STATISTICS |= {"ci95_low": "95 % CI from", "ci95_high": "95 % CI to"}


def _time_columns(key: str, title: str) -> list[Column]:
    """Returns the columns of a time: its median, and the other statistics as details."""
    more = [
        Column(f"{key}_{name}", f"{title}, {words}", number, detail=True)
        for name, words in _STATISTICS.items()
    ]
    return [Column(f"{key}_median", title, number), *more]


CELL_COLUMNS = (
    *_IDENTITY,
    Column("batch", "batch", choice=True),
    Column("clocks", "clocks", _doubt),
    *_time_columns("model_ms", "model ms"),
    *_time_columns("model_graph_ms", "model ms, CUDA graph"),
    *_time_columns("total_ms", "total ms"),
    Column("images_per_s", "images/s", number),
    Column("images_per_s_total", "images/s in total", number, detail=True),
    Column("speed", "speedup", number),
    Column("top1", "top-1 %", percent),
    Column("top5", "top-5 %", percent),
    *(
        Column(key, f"{key} %", percent, detail=key != "AP")
        for key in ("AP", "AP50", "AP75", "APs", "APm", "APl")
    ),
    Column("accuracy_change", "change in points", _points),
    Column("agreement_close", "equal %", percent),
    Column("agreement_matched", "matched %", percent),
    Column("file_bytes", "file MiB", _mebibytes),
    Column("weights_bytes", "weights MiB", _mebibytes, detail=True),
    Column("context_bytes", "context MiB", _mebibytes),
    Column("peak_gpu_bytes", "GPU memory MiB", _mebibytes),
    Column("layers", "layers", number),
    Column("parameters", "parameters", number, detail=True),
    Column("build_s", "build s", number),
    Column("seconds", "cell s", number, detail=True),
    Column("bad_images", "unreadable images", lambda count: number(count) if count else ""),
    Column("file", "file", detail=True),
)
_BATCHES = Column("batches", "batch")
_PROBLEMS = (*_IDENTITY, _BATCHES, Column("status", "status", choice=True), Column("reason", "reason"))


def cell_table(rows: Iterable[Row], details: bool = False) -> TextTable:
    """Returns the table of the measured cells.

    Args:
        rows: flat rows; those of cells that were not measured are left out.
        details: with the columns that are details.
    """
    columns = [column for column in CELL_COLUMNS if details or not column.detail]
    return _table(columns, [row for row in rows if row["status"] == "ok"])


def problem_table(results: SweepResults) -> TextTable:
    """Returns the cells without a measurement and the reasons. Cells that differ in the batch share a row."""
    rows = [
        {**_identity(cell), "status": cell.status, "reason": cell.reason or "not run yet"}
        for cell in results.cells
        if cell.status != "ok"
    ]
    return _table(_PROBLEMS, _join_batches(rows))


def difference_table(results: SweepResults, network: NetworkResult) -> TextTable:
    """Returns how the outputs of a network's cells differ from PyTorch fp32.

    Cells that differ only in the batch share a row. Errors are those of ranks 1, 5 and 10.
    """
    rows, columns = [], [*_IDENTITY[1:], _BATCHES, Column("data", "inputs")]
    columns += [Column("close", "equal %", percent), Column("matched", "matched %", percent)]
    measures = {
        "mean_abs_error": ("mean absolute error", number),
        "disagreement": ("other label %", percent),
        "box_px": ("box px", number),
        "score": ("score", number),
    }
    columns += [
        Column(f"rank{rank}_{name}", f"rank {rank}, {title}", text)
        for name, (title, text) in measures.items()
        for rank in (1, 5, 10)
    ]
    for cell in results.measured(network.name):
        if (agreement := cell.agreement) is None or cell.series == ("torch", "fp32"):
            continue
        mark = f" {MARK}" if clocks(results, cell) else ""
        row = {**_identity(cell, mark), "data": f"{agreement.inputs:,} {agreement.data}"}
        row |= {"close": agreement.close, "matched": agreement.matched}
        for x in agreement.by_rank:
            row |= {f"rank{x.rank}_{name}": getattr(x, name) for name in measures}
        rows.append(row)
    return _table(columns, _join_batches(rows))


def example_table(results: SweepResults, network: NetworkResult) -> TextTable:
    """Returns the answers to one input side by side: of PyTorch fp32 and of each runtime and precision."""
    cells = [x for x in results.measured(network.name) if x.agreement and x.agreement.example]
    if not cells:
        return _table([], [])
    reference = cells[0].agreement.example.reference
    answers = {"reference": reference}
    titles = {"rank": "rank", "reference": "PyTorch fp32"}
    for cell in cells:
        if cell.series != ("torch", "fp32") and cell.agreement.example.reference == reference:
            answers.setdefault(cell.label, cell.agreement.example.got)
    columns = [Column(key, titles.get(key, key)) for key in ("rank", *answers)]
    rows = []
    for rank in range(len(reference)):
        texts = {key: f"{got[rank][0]} {got[rank][1]:.3f}" for key, got in answers.items() if rank < len(got)}
        rows.append({"rank": rank + 1, **texts})
    return _table(columns, rows)


def markdown(table: TextTable) -> str:
    """Returns a table as Markdown, numbers to the right."""
    numeric = [
        not any(row[i].text and isinstance(row[i].order, str) for row in table.rows)
        for i in range(len(table.columns))
    ]
    head = [escape_markdown(column.title) for column in table.columns]
    rule = ["---:" if right else "---" for right in numeric]
    body = [[escape_markdown(cell.text) for cell in row] for row in table.rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, rule, *body))


def escape_markdown(text: str) -> str:
    """Returns text that Markdown shows as it is, on one line."""
    text = " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return "".join(f"\\{letter}" if letter in "\\|`*[]" else letter for letter in text)


def network_facts(network: NetworkResult) -> str:
    """Returns a line about a network."""
    facts = [network.source, f"{network.weights} weights" if network.weights else None]
    facts.append(f"{network.parameters:,} parameters" if network.parameters else None)
    facts.append(f"input {' x '.join(map(str, network.input))}" if network.input else None)
    return ", ".join(fact for fact in facts if fact)


def _identity(cell: CellResult, mark: str = "") -> dict[str, object]:
    row = {column.key: getattr(cell, column.key) for column in _IDENTITY}
    return {**row, "batches": f"{cell.batch}{mark}"}


def _join_batches(rows: Iterable[dict[str, object]]) -> list[Row]:
    """Joins rows that are equal but for the batch."""
    joined: dict[tuple, list[dict[str, object]]] = {}
    for row in rows:
        joined.setdefault(tuple(value for key, value in row.items() if key != "batches"), []).append(row)
    return [
        {**same[0], "batches": ", ".join(str(row["batches"]) for row in same)} for same in joined.values()
    ]


def _table(columns: Sequence[Column], rows: Sequence[Row]) -> TextTable:
    """Words the rows, without the columns that no row has a value for."""
    texts = {column: [_cell(column, row.get(column.key)) for row in rows] for column in columns}
    texts = {column: cells for column, cells in texts.items() if any(cell.text for cell in cells)}
    body = list(zip(*texts.values()))
    return TextTable(list(texts), body, [any(MARK in cell.text for cell in row) for row in body])


def _cell(column: Column, value: object) -> TextCell:
    if value is None:
        return TextCell("", "")
    if isinstance(value, float) and not math.isfinite(value):
        return TextCell("not finite", "")
    return TextCell(column.text(value), value)
