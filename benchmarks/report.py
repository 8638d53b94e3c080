"""Tables and pictures of result files, made from the JSON alone:

python -m benchmarks.report benchmarks/results/*.json                # Markdown on standard output
python -m benchmarks.report benchmarks/results/*.json --pictures DIR # charts, SVG and PNG
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks import surgery
from benchmarks.environment import SCHEMA_VERSION
from benchmarks.pictures import draw, groups, sum_of, training_step
from codetr.cli.command import ArgumentParser, one_line, run_command, to_path
from trt_plugin.inspection.layer_kinds import LAYER_KINDS

KINDS = ("msda", "detector", "accuracy", "training", "surgery", "engines")


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; returns the exit status."""
    return run_command(lambda: _main(arguments), "benchmarks.report")


def _main(arguments: Sequence[str] | None) -> int:
    parser = ArgumentParser(prog="python -m benchmarks.report", description=__doc__.split(":")[0])
    parser.add_argument("results", nargs="+", type=to_path, help="files that the benchmarks wrote")
    parser.add_argument("--pictures", type=to_path, metavar="DIR", help="also draw charts there")
    options = parser.parse_args(arguments)
    contents = {file: read(file) for file in options.results}
    for file, content in contents.items():
        try:
            text = markdown(content)
            pictures = draw(content, options.pictures, file.stem) if options.pictures else []
        except (AttributeError, IndexError, KeyError, TypeError) as error:
            raise ValueError(f"{file}: not a whole result file ({one_line(error)})") from error
        print(text)
        for picture in pictures:
            print(picture, file=sys.stderr)
    return 0


def read(file: Path) -> dict:
    """A result file.

    Raises:
        ValueError: for a file that no benchmark wrote, or one of another schema version.
    """
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file}: not a JSON file: {error}") from None
    version = content.get("schema_version") if isinstance(content, dict) else None
    if version != SCHEMA_VERSION or content.get("kind") not in KINDS:
        raise ValueError(f"{file}: expected a result file of schema version {SCHEMA_VERSION}, got {version}")
    return content


def markdown(content: dict) -> str:
    """All tables of a result file, with the machine and the command above them."""
    if content["kind"] == "msda":
        tables = msda_tables(content)
    else:
        make = {
            "detector": detector_table,
            "accuracy": accuracy_table,
            "training": training_table,
            "surgery": surgery_table,
            "engines": engines_table,
        }
        tables = [make[content["kind"]](content)]
    return "\n\n".join([origin(content), *tables]) + "\n"


def origin(content: dict) -> str:
    """Where the numbers come from, in one paragraph."""
    gpu = content["gpu"]
    machine = f"{gpu['name']}, driver {gpu['driver']}, CUDA {content['cuda']}" if gpu else content["cpu"]
    return (
        f"{machine}, Torch {content['torch']}, "
        f"TensorRT {content['tensorrt']}, commit {content['commit'][:12]}, {content['date_utc'][:10]}; "
        f"`{content['command']}`"
    )


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; every column but the first is aligned to the right."""
    ruler = ["---", *("---:" for _ in head[1:])]
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, ruler, *rows))


def msda_tables(content: dict) -> list[str]:
    """A table of microseconds for each distribution and type: methods down, problems across."""
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
    return tables


def microseconds(row: dict | None) -> str:
    """The median of a result, and with a warm cache where that was timed; or what became of it."""
    if row is None:
        return ""
    if "failure" in row:
        return "failed"
    warm = f" ({row['warm_timing']['median_ms'] * 1e3:.1f} warm)" if "warm_timing" in row else ""
    return f"{row['timing']['median_ms'] * 1e3:.1f}{warm}"


def detector_table(content: dict) -> str:
    """Milliseconds and differences of every variant of a detector."""
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
    """Average precision and differences of every variant of a detector."""
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
    """Milliseconds, images per second and memory of a training step, by problem and attention."""
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
    """Milliseconds before and after the surgery, and what it did."""
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
    """Engines side by side: a column for each, what they are above and the times of their layers below."""
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


if __name__ == "__main__":
    sys.exit(main())
