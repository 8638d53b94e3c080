"""`python -m benchmarks.surgery`: engines of DETRs' ONNX files before and after the graph surgery."""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from cyclopts.types import PositiveInt

from benchmarks import onnx_engines
from benchmarks.result_files import ResultFile
from codetr.cli.argument_types import Folder, InputFile, OutputFile, Parameter
from codetr.cli.program import run_program
from onnx_path.surgeon import Kind

FORMS = ("original", "rewritten")


def measure_surgery(
    *files: Annotated[InputFile, Parameter(metavar="FILE.onnx")],
    only: Annotated[tuple[Kind, ...], Parameter(consume_multiple=True)] = ("msda",),
    precision: Literal["fp16", "bf16", "fp32", "tf32"] = "fp16",
    iterations: PositiveInt = 100,
    seconds: PositiveInt = 600,
    work: Folder | None = None,
    out: OutputFile | None = None,
) -> int:
    """Time engines of DETRs' ONNX files before and after the graph surgery.

    The surgeon rewrites each file and compares both files' outputs in onnxruntime. `codetr build` builds an
    engine of both. The engines run as CUDA graphs on the same random inputs. A row contains the file's
    metadata "configuration", and "attentions", the number of deformable attentions. "replaced" is the number
    of replacements, and "kinds" the same for each kind.

    The result file is written after each model.

    ```
    python -m tests.onnx.zoo_files zoo
    python -m benchmarks.surgery zoo/*.onnx
    python -m tests.onnx.zoo_files zoo/swin --models swin_torchvision --batch 32
    python -m benchmarks.surgery zoo/swin/*.onnx --only window-attention
    ```

    Args:
        files: models with static shapes.
        only: the kinds that the surgeon replaces.
        precision: precision of the engines.
        iterations: samples of each measurement.
        seconds: limit of one build.
        work: folder to keep the files in. Those of an earlier run are used again. Default: a temporary one.
        out: result file. Default: surgery_[KINDS_]PRECISION_GPU.json in benchmarks/results.
    """
    stem = "_".join(["surgery", *([] if only == ("msda",) else only), precision])
    return onnx_engines.measure_files(
        files,
        lambda path, folder: measure(path, folder, only, precision, seconds, iterations),
        failures,
        summary,
        lambda: ResultFile("benchmarks.surgery", out, stem),
        work,
        precision=precision,
        only=only,
    )


def measure(
    path: Path, folder: Path, only: Sequence[Kind], precision: str, seconds: int, iterations: int
) -> dict:
    """Rewrites a file, builds and times both engines. A failure is part of the row.

    A command that takes longer than `seconds` has failed.
    """
    rewritten, report = (folder / f"{path.stem}.{'_'.join(only)}.{end}" for end in ("onnx", "json"))
    row: dict = {}
    try:
        if not (rewritten.exists() and report.exists()):
            row["check"] = rewrite(path, rewritten, report, only, seconds)
    except RuntimeError as error:
        return {"failure": str(error)}
    surgery = json.loads(report.read_text(encoding="utf-8"))
    found = [one["kind"] for one in surgery["replacements"]]
    kinds = {kind: found.count(kind) for kind in only}
    row |= {
        "replaced": sum(kinds.values()),
        "kinds": kinds,
        "nodes": [surgery["nodes_before"], surgery["nodes_after"]],
        "largest_relative_difference": surgery["max_error"],
    }
    inputs = functools.cache(lambda: next(onnx_engines.draw_inputs(path)))  # both engines get the same
    for form, model in zip(FORMS, (path, rewritten), strict=True):
        place = folder / f"{form}_{precision}"
        row[form], _ = onnx_engines.measure_engine(model, place, precision, inputs, seconds, iterations)
    return row


def rewrite(path: Path, rewritten: Path, report: Path, only: Sequence[Kind], seconds: int) -> str:
    """Runs the surgeon, and again without the comparison of outputs if they differ.

    Random weights can make a deep network amplify roundings in some row of its outputs, as D-FINE's do. The
    surgeon has verified each replacement by itself in either case, and the times are the same.

    Returns:
        The message of the comparison, or "" if the outputs agree.

    Raises:
        RuntimeError: the surgeon failed for another reason.
    """
    words = ["onnx_path.surgeon", path, rewritten, "--only", *only, "--json", report]
    try:
        onnx_engines.command(words, seconds)
    except RuntimeError as error:
        if "is not written: output" not in str(error):
            raise
        onnx_engines.command([*words, "--no-check"], seconds)
        return str(error)
    return ""


def failures(row: dict) -> list[str]:
    """Lists the failures of a model. A wrong number of attentions is one."""
    found = [part["failure"] for part in (row, *(row.get(form, {}) for form in FORMS)) if "failure" in part]
    expected = row["expected_attentions"]
    replaced = row.get("kinds", {}).get("msda", expected)
    if expected is not None and replaced != expected:
        found.append(f"{replaced} attentions replaced, expected {expected}")
    return found


def summary(row: dict) -> str:
    """Describes a row on one line."""
    times = [row.get(form, {}).get("timing", {}).get("median_ms") for form in FORMS]
    parts = [f"{form} {time:.3f} ms" if time else f"{form} failed" for form, time in zip(FORMS, times)]
    if all(times):
        parts.append(f"{times[0] / times[1]:.2f} times")
    notes = [row["check"]] if row.get("check") else []
    return "  ".join([f"{row['model']:26}", *parts, *notes, *failures(row)])


main = functools.partial(run_program, measure_surgery, program="python -m benchmarks.surgery")

if __name__ == "__main__":
    sys.exit(main())
