"""`python -m benchmarks.surgery`: engines of DETRs' ONNX files before and after the graph surgery."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter
from cyclopts.types import PositiveInt

from benchmarks import timing
from benchmarks.result_files import ResultFile
from codetr.cli.argument_types import Folder, InputFile, OutputFile
from codetr.cli.program import run_program
from codetr.errors import UsageError, one_line
from trt_plugin import EngineRunner

if TYPE_CHECKING:
    import numpy as np

FORMS = ("original", "rewritten")
WARMUP = 20


def measure_surgery(
    *files: Annotated[InputFile, Parameter(metavar="FILE.onnx")],
    precision: Literal["fp16", "bf16", "fp32", "tf32"] = "fp16",
    iterations: PositiveInt = 100,
    seconds: PositiveInt = 600,
    work: Folder | None = None,
    out: OutputFile | None = None,
) -> int:
    """Time engines of DETRs' ONNX files before and after the graph surgery.

    The surgeon rewrites each file and compares both files' outputs in onnxruntime. `codetr build` builds an
    engine of both. The engines run as CUDA graphs on the same random inputs. A row contains the file's
    metadata "configuration", and "attentions", the number of deformable attentions.

    The result file is written after each model.

    ```
    python -m tests.onnx.zoo_files zoo
    python -m benchmarks.surgery zoo/*.onnx
    ```

    Args:
        files: models with static shapes.
        precision: precision of the engines.
        iterations: samples of each measurement.
        seconds: limit of one build.
        work: folder to keep the files in. Those of an earlier run are used again. Default: a temporary one.
        out: result file. Default: benchmarks/results/surgery_PRECISION_GPU.json.
    """
    if not files:
        raise UsageError("FILE.onnx: expected at least one file, got none")
    rows = [read_metadata(path) for path in files]
    result = ResultFile("benchmarks.surgery", out, f"surgery_{precision}")
    with tempfile.TemporaryDirectory(prefix="surgery-") as temporary:
        folder = work or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for path, row in zip(files, rows, strict=True):
            row |= measure(path, folder, precision, seconds, iterations)
            result.add(row, summary(row))
            result.write(precision=precision)
    failed = sum(bool(failures(row)) for row in rows)
    print(f"{len(rows)} models, {failed} failed: {result.path}")
    return 1 if failed else 0


def read_metadata(path: Path) -> dict:
    """Returns the beginning of a file's row: its name and metadata.

    Raises:
        UsageError: `path` is no ONNX file.
    """
    import onnx

    try:
        model = onnx.load(path, load_external_data=False)
    except Exception as error:  # protobuf's own, whose class depends on its implementation
        raise UsageError(f"FILE.onnx {path}: expected an ONNX file ({one_line(error)})") from error
    metadata = {prop.key: prop.value for prop in model.metadata_props}
    attentions = int(metadata["attentions"]) if metadata.get("attentions") else None
    configuration = metadata.get("configuration", "")
    return {"model": path.stem, "configuration": configuration, "expected_attentions": attentions}


def measure(path: Path, folder: Path, precision: str, seconds: int, iterations: int) -> dict:
    """Rewrites a file, builds and times both engines. A failure is part of the row.

    A command that takes longer than `seconds` has failed.
    """
    rewritten, report = (folder / f"{path.stem}.{end}" for end in ("rewritten.onnx", "surgery.json"))
    row: dict = {}
    try:
        if not (rewritten.exists() and report.exists()):
            row["check"] = rewrite(path, rewritten, report, seconds)
    except RuntimeError as error:
        return {"failure": str(error)}
    surgery = json.loads(report.read_text(encoding="utf-8"))
    row |= {
        "replaced": len(surgery["replacements"]),
        "nodes": [surgery["nodes_before"], surgery["nodes_after"]],
        "largest_relative_difference": surgery["max_error"],
    }
    inputs = functools.cache(lambda: draw_inputs(path))  # both engines get the same
    for form, model in zip(FORMS, (path, rewritten), strict=True):
        try:
            place = folder / f"{form}_{precision}"
            row[form] = build(model, place, precision, seconds)
            samples = run(place / f"{model.stem}.engine", inputs(), iterations)
            row[form]["timing"] = timing.Timing(samples, warmup=WARMUP).as_dict()
        except (RuntimeError, ValueError, OSError) as error:
            row[form] = {"failure": one_line(error)}
    return row


def rewrite(path: Path, rewritten: Path, report: Path, seconds: int) -> str:
    """Runs the surgeon, and again without the comparison of outputs if they differ.

    Random weights can make a deep network amplify roundings in some row of its outputs, as D-FINE's do. The
    surgeon has verified each replacement by itself in either case, and the times are the same.

    Returns:
        The message of the comparison, or "" if the outputs agree.

    Raises:
        RuntimeError: the surgeon failed for another reason.
    """
    words = ["onnx_path.surgeon", path, rewritten, "--json", report]
    try:
        command(words, seconds)
    except RuntimeError as error:
        if "is not written: output" not in str(error):
            raise
        command([*words, "--no-check"], seconds)
        return str(error)
    return ""


def build(path: Path, folder: Path, precision: str, seconds: int) -> dict:
    """Builds one engine, unless an earlier run left it in the folder.

    Raises:
        RuntimeError: the command failed.
    """
    folder.mkdir(exist_ok=True)
    report = folder / f"{path.stem}.report.json"
    if not report.exists():  # it is written last
        options = ["--out", folder, "--precision", precision, "--json", report]
        options += ["--timing-cache", folder.parent / "timing.cache"]
        command(["onnx_path.build", path, *options], seconds)
    built = json.loads(report.read_text(encoding="utf-8"))
    engine = built["report"]
    return {
        "build_seconds": built["build_seconds"],
        **{key: engine[key] for key in ("engine_bytes", "device_memory_bytes", "layers")},
        "plugin_layers": len(engine["plugin_layers"]),
    }


def command(arguments: Sequence[object], seconds: int) -> None:
    """Runs a module in a process of its own, so that a build that hangs or dies ends no other.

    Raises:
        RuntimeError: the module failed or took too long. The message has its last line.
    """
    words = [str(word) for word in arguments]
    try:
        done = subprocess.run(
            [sys.executable, "-m", *words], capture_output=True, text=True, timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"{words[0]}: not done after {seconds} s") from None
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        raise RuntimeError(f"{words[0]}: {lines[-1].rpartition('error: ')[2]}"[:500])


def draw_inputs(path: Path) -> Mapping[str, np.ndarray]:
    """Draws inputs as the surgeon's comparison does, the same in every run.

    Raises:
        ValueError: a shape is not static.
    """
    import onnx_ir as ir

    from onnx_path.model_for_tensorrt import load_model
    from onnx_path.optimization_profiles import inputs_of
    from onnx_path.surgery.verify.random_inputs import random_inputs

    model = load_model(path)
    shapes = {one.name: tuple(one.shape) for one in inputs_of(model)}
    for name, shape in shapes.items():
        if not all(isinstance(size, int) for size in shape):
            raise ValueError(f"{path}: expected static shapes, got {name} {list(shape)}")
    return random_inputs(ir.from_proto(model), shapes, seed=0)


def run(engine: Path, inputs: Mapping[str, np.ndarray], iterations: int) -> list[float]:
    """Returns GPU milliseconds of replays of the engine."""
    with EngineRunner(engine) as runner:
        return runner.time(inputs, iterations, WARMUP)


def failures(row: dict) -> list[str]:
    """Lists the failures of a model. A wrong number of attentions is one."""
    found = [part["failure"] for part in (row, *(row.get(form, {}) for form in FORMS)) if "failure" in part]
    expected = row["expected_attentions"]
    if expected is not None and row.get("replaced", expected) != expected:
        found.append(f"{row['replaced']} attentions replaced, expected {expected}")
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
