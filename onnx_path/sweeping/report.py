"""Writes the report of a sweep from its results.json: report.html, report.md, results.csv and pictures."""

from __future__ import annotations

import base64
import importlib.resources
from collections.abc import Mapping
from pathlib import Path

import jinja2

from onnx_path.sweeping.report_pictures import ReportPicture, draw_pictures
from onnx_path.sweeping.report_rows import Row, csv_text, flat_row
from onnx_path.sweeping.report_tables import (
    MARK,
    cell_table,
    difference_table,
    escape_markdown,
    example_table,
    markdown,
    network_facts,
    problem_table,
)
from onnx_path.sweeping.results_schema import SweepResults, read_results
from trt_plugin.atomic_files import atomic_write

NOTE = (
    "Times are medians a batch. Total is host to device, model, device to host. Images/s and speedup are of "
    "the model alone, with or without a CUDA graph, whichever is quicker. The speedup is over PyTorch fp32 "
    "without a CUDA graph at the same batch size. Change is the accuracy minus that of PyTorch fp32."
)
NOTE_ON_MARKS = f"{MARK} marks times in doubt: the GPU throttled, or its clocks were not watched."


def write_report(folder: Path) -> list[Path]:
    """Writes the report of a sweep beside its results.json and returns the files.

    Nothing is run: the report follows from the file. Each file appears whole or not at all.

    Args:
        folder: of the sweep. It gets report.html, which needs no other file and no network, report.md,
            results.csv, and pictures/ as .svg and .png. Pictures without data are not drawn.

    Raises:
        UsageError: results.json is missing or damaged.
        OSError: a file cannot be written.
    """
    folder = Path(folder)
    results = read_results(folder / "results.json")
    rows = [flat_row(results, cell) for cell in results.cells]
    pictures = draw_pictures(results, folder / "pictures")
    texts = {
        "results.csv": csv_text(rows),
        "report.md": _markdown(results, rows, pictures),
        "report.html": _html(results, rows, pictures),
    }
    for name, text in texts.items():
        with atomic_write(folder / name) as temporary:
            temporary.write_text(text, encoding="utf-8")
    return [*(folder / name for name in texts), *(path for picture in pictures for path in picture.paths)]


def _markdown(results: SweepResults, rows: list[Row], pictures: list[ReportPicture]) -> str:
    parts = ["# Sweep", _summary(results), *_notes(rows)]
    for network in results.networks:
        parts += [f"## {escape_markdown(network.name)}", escape_markdown(network_facts(network))]
        own = [{**row, "network": None} for row in rows if row["network"] == network.name]
        table = cell_table(own)
        parts.append(markdown(table) if table.rows else "No cell was measured.")
    if (problems := problem_table(results)).rows:
        parts += ["## Cells without a measurement", markdown(problems)]
    for network in results.networks:
        name = escape_markdown(network.name)
        for title, make in (("How the outputs of", difference_table), ("An answer of", example_table)):
            if (table := make(results, network)).rows:
                differ = " differ from PyTorch fp32" if make is difference_table else " side by side"
                parts += [f"## {title} {name}{differ}", markdown(table)]
    for picture in pictures:
        title = escape_markdown(picture.title)
        parts += [f"## {title}", picture.caption, f"![{title}](pictures/{picture.path.name})"]
    parts.append("## Machine and versions")
    parts.append(
        "\n".join(f"- {escape_markdown(f'{key}: {value}')}" for key, value in _facts(results).items())
    )
    parts += ["## Command", "\n".join(f"    {line}" for line in results.command.splitlines())]
    return "\n\n".join(parts) + "\n"


def _html(results: SweepResults, rows: list[Row], pictures: list[ReportPicture]) -> str:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    datatables = importlib.resources.files("itables") / "html"
    return environment.get_template("report.html.jinja").render(
        summary=_summary(results),
        notes=_notes(rows),
        networks=[
            {
                "name": network.name,
                "facts": network_facts(network),
                "differences": difference_table(results, network),
                "example": example_table(results, network),
            }
            for network in results.networks
        ],
        cells=cell_table(rows, details=True),
        problems=problem_table(results),
        pictures=[(picture, _base64(picture.path.read_bytes())) for picture in pictures],
        facts=_facts(results),
        command=results.command,
        # DataTables, jQuery and their licences; in base64 they cannot end the script element
        datatables_js=_base64((datatables / "dt_bundle.js").read_bytes()),
        datatables_css=_base64((datatables / "dt_bundle.css").read_bytes()),
    )


def _notes(rows: list[Row]) -> list[str]:
    return [NOTE, *([NOTE_ON_MARKS] if any(row["clocks"] for row in rows) else [])]


def _summary(results: SweepResults) -> str:
    done, networks = len(results.measured()), len(results.networks)
    machine = results.machine.get("gpu") or results.machine.get("cpu") or "an unknown machine"
    throttled = sum(cell.throttled for cell in results.measured())
    text = f"{done} of {len(results.cells)} cells measured on {machine}, {networks} "
    text += "network" if networks == 1 else "networks"
    return f"{text}. {throttled} measured under throttling." if throttled else f"{text}."


def _facts(results: SweepResults) -> Mapping[str, object]:
    facts = {**results.machine, **results.versions}
    return {key: value for key, value in facts.items() if value is not None}


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode("ascii")
