"""`python -m benchmarks.report`: tables and charts of result files, from the JSON alone."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

from benchmarks.pictures import draw, row_name
from benchmarks.result_files import SCHEMA_VERSION
from codetr.cli.argument_types import Folder, InputFile, Parameter
from codetr.cli.program import run_program
from codetr.errors import UsageError, one_line


def print_report(
    *results: Annotated[InputFile, Parameter(metavar="FILE")],
    pictures: Folder | None = None,
) -> int:
    """Print tables of result files as Markdown, and draw charts.

    ```
    python -m benchmarks.report benchmarks/results/msda_h200.json --pictures pictures
    ```

    Args:
        results: files that the benchmarks wrote.
        pictures: also draw charts into this folder, as PNG.
    """
    if not results:
        raise UsageError("FILE: expected at least one result file, got none")
    contents = {file: read(file) for file in results}
    for file, content in contents.items():
        try:
            text = markdown(content)
            drawn = draw(content, pictures, file.stem) if pictures else []
        except (AttributeError, IndexError, KeyError, TypeError) as error:
            raise ValueError(f"{file}: not a whole result file ({one_line(error)})") from error
        print(text)
        for picture in drawn:
            print(picture, file=sys.stderr)
    return 0


def read(file: Path) -> dict:
    """Reads a result file.

    Raises:
        ValueError: the file is no result file, or its schema version is unknown.
    """
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file}: not a JSON file: {error}") from None
    version = content.get("schema_version") if isinstance(content, dict) else None
    if version != SCHEMA_VERSION:
        raise ValueError(f"{file}: expected schema version {SCHEMA_VERSION} of a result file, got {version}")
    return content


def markdown(content: dict) -> str:
    """Returns the tables of a result file, below the machine and the command."""
    tables = operator_tables if "methods" in content else fields_table  # of an operator
    return f"{origin(content)}\n\n{tables(content)}\n"


def origin(content: dict) -> str:
    """Describes the machine, the versions and the command in one paragraph."""
    gpu = content["gpu"]
    machine = f"{gpu['name']}, driver {gpu['driver']}, CUDA {content['cuda']}" if gpu else content["cpu"]
    return (
        f"{machine}, Torch {content['torch']}, TensorRT {content['tensorrt']}, "
        f"commit {content['commit'][:12]}, {content['date_utc'][:10]}; "
        f"`{content['command']}`"
    )


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Returns a Markdown table. Every column but the first is aligned to the right."""
    ruler = ["---", *("---:" for _ in head[1:])]
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, ruler, *rows))


def fields_table(content: dict) -> str:
    """Returns a table with a line for each field and a column for each row, without lists such as samples."""
    rows = [dict(_fields(row)) for row in content["results"]]
    names = dict.fromkeys(name for row in rows for name in row)
    head = [content["kind"], *(row_name(row) for row in content["results"])]
    return table(head, [[name, *(row.get(name, "") for row in rows)] for name in names])


def _fields(row: dict, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yields the path and the text of each field, such as ("timing.median_ms", "6.17")."""
    for name, value in row.items():
        if isinstance(value, dict):
            yield from _fields(value, f"{prefix}{name}.")
        elif not isinstance(value, list) and value is not None:
            yield prefix + name, f"{value:.4g}" if isinstance(value, float) else str(value)


def operator_tables(content: dict) -> str:
    """Returns a table of microseconds for each type and distribution: a row a method, a column a problem."""
    tables: dict[tuple[str, str], dict[str, dict[str, dict]]] = {}
    for row in content["results"]:
        methods = tables.setdefault((row["dtype"], row.get("distribution")), {})
        methods.setdefault(row["method"], {})[row["problem"]["name"]] = row
    texts = []
    for (dtype, distribution), methods in tables.items():
        problems = list(dict.fromkeys(name for cells in methods.values() for name in cells))
        rows = []
        for method, cells in methods.items():
            errors = [row.get("relative_error") or 0.0 for row in cells.values()]
            times = [microseconds(cells.get(problem)) for problem in problems]
            rows.append([method, *times, f"{max(errors):.1e}" if any(errors) else ""])
        inputs = ", ".join(filter(None, (dtype, distribution)))
        head = [f"{inputs}; median us", *problems, "largest relative error"]
        texts.append(table(head, rows))
    return "\n\n".join(texts)


def microseconds(row: dict | None) -> str:
    """Returns the median, and in parentheses the median with a warm L2 cache; or "failed"."""
    if row is None:
        return ""
    if "failure" in row:
        return "failed"
    warm = f" ({digits(row['warm_timing']['median_ms'] * 1e3)})" if "warm_timing" in row else ""
    return digits(row["timing"]["median_ms"] * 1e3) + warm


def release(version: str) -> str:
    """Returns a version without its build, such as 2.11.0 of 2.11.0+cu130, and 10.6.0 of 10.6.0.post1."""
    return version.split("+")[0].split(".post")[0]


def digits(number: float) -> str:
    """Returns a number with three significant digits, and larger numbers whole."""
    return f"{number:.0f}" if number >= 100 else f"{number:#.3g}"


main = partial(run_program, print_report, program="python -m benchmarks.report")

if __name__ == "__main__":
    sys.exit(main())
