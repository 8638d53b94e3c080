"""`python -m benchmarks.report`: tables and pictures of result files, from the JSON alone."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from benchmarks import surgery
from benchmarks.pictures import draw, groups, sum_of, training_step
from benchmarks.result_files import SCHEMA_VERSION
from codetr.cli.argument_types import Folder, InputFile
from codetr.cli.program import run_program
from codetr.errors import UsageError, one_line
from trt_plugin.inspection.layer_kinds import LAYER_KINDS


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command with `argv` (default: sys.argv[1:]) and returns its exit status."""
    return run_program(print_report, argv, "python -m benchmarks.report")


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
        pictures: also draw charts into this folder, as SVG and PNG.
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
        ValueError: the file is no result file, or its schema version or kind is unknown.
    """
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file}: not a JSON file: {error}") from None
    version, kind = (
        (content.get("schema_version"), content.get("kind")) if isinstance(content, dict) else (None, None)
    )
    if version != SCHEMA_VERSION or kind not in TABLES:
        raise ValueError(
            f"{file}: expected a result file of schema version {SCHEMA_VERSION} and of the kind "
            f"{', '.join(TABLES)}, got version {version} and kind {kind}"
        )
    return content


def markdown(content: dict) -> str:
    """Returns the tables of a result file, below the machine and the command."""
    return f"{origin(content)}\n\n{TABLES[content['kind']](content)}\n"


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


def msda_tables(content: dict) -> str:
    """Returns a table of microseconds for each distribution and type: a row a method, a column a problem."""
    tables = []
    for distribution, dtype, problems, cells in groups(content):
        methods = [method for method in content["methods"] if any((p, method) in cells for p in problems)]
        rows = []
        for method in methods:
            rows.append([method, *(microseconds(cells.get((problem, method))) for problem in problems)])
            errors = [cells[key].get("relative_error") for key in cells if key[1] == method]
            errors = [error for error in errors if error is not None]
            rows[-1].append(f"{max(errors):.1e}" if errors else "")
        firsts = [cells.get((problem, methods[0])) for problem in problems]
        floor = [f"{row['floor_us']:.0f}" if row else "" for row in firsts]
        rows.append([f"every byte of {methods[0]} once", *floor, ""])
        head = [f"{dtype}, {distribution}; median us", *problems, "largest relative error"]
        tables.append(table(head, rows))
    return "\n\n".join(tables)


def microseconds(row: dict | None) -> str:
    """Returns the median of a row, and that with a warm cache if it was timed; or "failed"."""
    if row is None:
        return ""
    if "failure" in row:
        return "failed"
    warm = f" ({row['warm_timing']['median_ms'] * 1e3:.1f} warm)" if "warm_timing" in row else ""
    return f"{row['timing']['median_ms'] * 1e3:.1f}{warm}"


def detector_table(content: dict) -> str:
    """Returns times and differences of the variants of a detector."""
    rows = []
    for row in content["results"]:
        spread, same = row["timing"], row["detections"]
        rows.append(
            [
                f"{row['backend']} {row['variant']}",
                f"{spread['median_ms']:.2f}",
                f"{spread['p05_ms']:.2f} to {spread['p95_ms']:.2f}",
                f"{same['matched']} of {same['expected']}",
                f"{same['median_box_difference_px']:.2g}",
                f"{same['max_box_difference_px']:.2g}",
                f"{same['max_score_difference']:.1e}",
            ]
        )
    size = f"{content['model']}, {content['height']}x{content['width']}, batch {content['batch']}"
    head = [
        size,
        "median ms",
        "5% to 95%",
        "detections matched",
        "median box difference px",
        "largest px",
        "largest score difference",
    ]
    return table(head, rows)


def accuracy_table(content: dict) -> str:
    """Returns average precision and differences of the variants of a detector."""
    rows = []
    for row in content["results"]:
        metrics, same = row["metrics"], row["agreement"]
        names = ("ap", "ap50", "ap75", "ap_small", "ap_medium", "ap_large")
        difference = f"{row['ap_difference']:+.4f}" + ("" if row["holds"] else f" (bound {row['bound']})")
        rows.append(
            [
                f"{row['backend']} {row['variant']}",
                *("" if metrics[name] is None else f"{metrics[name]:.4f}" for name in names),
                difference,
                f"{same['share']:.2%}, {same['share_back']:.2%}",
                f"{same['worst_box_px']:.2g}",
                f"{same['worst_score']:.1e}",
                f"{row['timing']['median_ms']:.2f}",
            ]
        )
    threshold = content["results"][0]["agreement"]["threshold"]
    head = [
        f"{content['model']}, {content['height']}x{content['width']}, {content['pictures']} pictures",
        *("AP", "AP50", "AP75", "small", "medium", "large"),
        "AP difference",
        f"detections from {threshold:g} on that agree, both ways",
        "worst box px",
        "worst score",
        "median ms",
    ]
    return table(head, rows)


def training_table(content: dict) -> str:
    """Returns times, images per second and memory of training steps."""
    rows = []
    for row in content["results"]:
        name = training_step(row)
        if "timing" not in row:
            rows.append([name, "out of memory", "", "", ""])
            continue
        spread = row["timing"]
        rows.append(
            [
                name,
                f"{spread['median_ms']:.1f}",
                f"{spread['p05_ms']:.1f} to {spread['p95_ms']:.1f}",
                f"{row['images_per_second']:.1f}",
                f"{row['peak_memory_bytes'] / 2**30:.1f}",
            ]
        )
    head = ["training step", "median ms", "5% to 95%", "images/s", "largest memory GiB"]
    return table(head, rows)


def surgery_table(content: dict) -> str:
    """Returns times before and after the surgery, and the counts of attentions and nodes."""
    rows = []
    for row in content["results"]:
        before, after = (row.get(form, {}) for form in surgery.FORMS)
        times = [
            f"{part['timing']['median_ms']:.2f}" if "timing" in part else "failed" for part in (before, after)
        ]
        factor = surgery.speedup(row)
        builds = [f"{part['build_seconds']:.0f}" if "timing" in part else "" for part in (before, after)]
        rows.append(
            [
                row["model"] + (f" ({row['configuration']})" if row["configuration"] else ""),
                str(row.get("replaced", "")),
                *times,
                f"{factor:.2f}" if factor is not None else "",
                " to ".join(map(str, row.get("nodes", []))),
                " and ".join(builds),
            ]
        )
    head = [
        f"{content['precision']}",
        "attentions",
        "before, ms",
        "after, ms",
        "times faster",
        "nodes",
        "builds, s",
    ]
    return table(head, rows)


def engines_table(content: dict) -> str:
    """Returns a column for each engine: its properties, then the times of its layers."""
    rows = content["results"]
    kinds = [kind for kind in LAYER_KINDS if any(kind in row["kinds"] for row in rows)]
    lines = {
        "GPU time, ms": [f"{row['timing']['median_ms']:.2f}" for row in rows],
        "5% to 95%": [f"{row['timing']['p05_ms']:.2f} to {row['timing']['p95_ms']:.2f}" for row in rows],
        "engine, MiB": [f"{row['engine_bytes'] / 2**20:.0f}" for row in rows],
        "build, s": ["" if row["build_seconds"] is None else f"{row['build_seconds']:.0f}" for row in rows],
        "layers": [str(row["layers"]) for row in rows],
        "of plugins": [", ".join(f"{n} {name}" for name, n in row["plugins"].items()) or "0" for row in rows],
        "weights and code on the GPU, MiB": [f"{row['loaded_bytes'] / 2**20:.0f}" for row in rows],
        "intermediate results, MiB": [f"{row['device_memory_bytes'] / 2**20:.0f}" for row in rows],
        "sum of the layers, ms": [f"{sum_of(row):.2f}" for row in rows],
    }
    for kind in kinds:
        parts = [row["kinds"].get(kind) for row in rows]
        lines[kind] = [f"{part['ms']:.2f} ({part['layers']} layers)" if part else "" for part in parts]
    return table(["", *(row["variant"] for row in rows)], [[name, *cells] for name, cells in lines.items()])


TABLES = {
    "msda": msda_tables,
    "detector": detector_table,
    "accuracy": accuracy_table,
    "training": training_table,
    "surgery": surgery_table,
    "engines": engines_table,
}
"""The tables of each kind of result file."""


if __name__ == "__main__":
    sys.exit(main())
