"""`python -m benchmarks.surgery`: engines of DETRs' ONNX files before and after the graph surgery."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

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


class Subject(NamedTuple):
    """A file to measure.

    Attributes:
        path: the ONNX file, with static shapes.
        configuration: the published configuration, or "".
        attentions: number of deformable attentions, if it is known.
    """

    path: Path
    configuration: str = ""
    attentions: int | None = None

    @property
    def name(self) -> str:
        """Name of the row."""
        return self.path.stem


def measure_surgery(
    *files: Annotated[InputFile, Parameter(metavar="FILE.onnx")],
    precision: Literal["fp16", "bf16", "fp32", "tf32"] = "fp16",
    iterations: PositiveInt = 100,
    seconds: PositiveInt = 600,
    jobs: PositiveInt = 1,
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
        jobs: files that are rewritten and built at the same time. Engines are timed alone.
        work: folder to keep the files in. Those of an earlier run are used again. Default: a temporary one.
        out: result file. Default: benchmarks/results/surgery_PRECISION_GPU.json.
    """
    if not files:
        raise UsageError("FILE.onnx: expected at least one file, got none")
    subjects = [read_subject(path) for path in files]
    result = ResultFile("benchmarks.surgery", out, f"surgery_{precision}")
    with tempfile.TemporaryDirectory(prefix="surgery-") as temporary, ThreadPoolExecutor(jobs) as pool:
        folder = work or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)

        def make(subject: Subject) -> dict:
            row = prepare(subject, folder, precision, seconds)
            print(f"{subject.name}: {'; '.join(failures(row)) or 'built'}", flush=True)
            return row

        made = map(make, subjects) if jobs == 1 else list(pool.map(make, subjects))
        for subject, row in zip(subjects, made, strict=True):
            time_engines(row, subject, folder, precision, iterations)
            result.add(row, summary(row))
            result.write(precision=precision, jobs=jobs)
    failed = sum(bool(failures(row)) for row in result.rows)
    print(f"{len(subjects)} models, {failed} failed: {result.path}")
    return 1 if failed else 0


def read_subject(path: Path) -> Subject:
    """Reads the name and the metadata of a file.

    Raises:
        UsageError: `path` is no ONNX file.
    """
    import onnx

    try:
        model = onnx.load(path, load_external_data=False)
    except Exception as error:  # protobuf's own, whose class depends on its implementation
        raise UsageError(f"FILE.onnx {path}: expected an ONNX file ({one_line(error)})") from error
    metadata = {prop.key: prop.value for prop in model.metadata_props}
    attentions = metadata.get("attentions")
    return Subject(path, metadata.get("configuration", ""), int(attentions) if attentions else None)


def prepare(subject: Subject, folder: Path, precision: str, seconds: int) -> dict:
    """Rewrites one file and builds both engines in `folder`; a failure is part of the row.

    A command that takes longer than `seconds` has failed.
    """
    row: dict = {
        "model": subject.name,
        "configuration": subject.configuration,
        "expected_attentions": subject.attentions,
    }
    files = forms(subject, folder)
    report = folder / f"{subject.name}.surgery.json"
    try:
        if not (files["rewritten"].exists() and report.exists()):
            row["check"] = rewrite(subject.path, files["rewritten"], report, seconds)
    except RuntimeError as error:
        return row | {"failure": str(error)}
    surgery = json.loads(report.read_text(encoding="utf-8"))
    row |= {
        "replaced": len(surgery["replacements"]),
        "nodes": [surgery["nodes_before"], surgery["nodes_after"]],
        "largest_relative_difference": surgery["max_error"],
    }
    for form, path in files.items():
        try:
            row[form] = build(path, folder / f"{form}_{precision}", precision, seconds)
        except RuntimeError as error:
            row[form] = {"failure": str(error)}
    return row


def time_engines(row: dict, subject: Subject, folder: Path, precision: str, iterations: int) -> None:
    """Adds the times of the engines, or the failures, to the row that `prepare` made with these arguments."""
    inputs = functools.cache(lambda: draw_inputs(subject.path))  # both engines get the same
    for form, path in forms(subject, folder).items():
        if "failure" in row.get(form, {"failure": ""}):
            continue
        try:
            samples = run(folder / f"{form}_{precision}" / f"{path.stem}.engine", inputs(), iterations)
            row[form]["timing"] = timing.Timing(samples, warmup=WARMUP).as_dict()
        except (RuntimeError, ValueError, OSError) as error:
            row[form] = {"failure": one_line(error)}


def forms(subject: Subject, folder: Path) -> dict[str, Path]:
    """Returns the paths of the original and the rewritten file."""
    return dict(zip(FORMS, (subject.path, folder / f"{subject.name}.rewritten.onnx"), strict=True))


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
