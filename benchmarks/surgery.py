"""Times engines of DETRs' ONNX files before and after the graph surgery, on the GPU:

    python -m tests.onnx_zoo_files zoo          # DETRs in published configurations, with random weights
    python -m benchmarks.surgery zoo/*.onnx

A file goes the way a user takes: `onnx_path.surgeon`, which compares both files' outputs in onnxruntime, then
`onnx_path.build` of the file as it was and as it became, in one precision. Either engine is timed as a CUDA
graph, on the same random inputs. What a file says in its metadata, as the zoo's do, becomes part of the row:
"configuration", as published, and "attentions", how many times it attends.

With `--jobs` some files are rewritten and built at the same time; engines are timed afterwards, alone on the
GPU. The result file is written after every model, so that a run that is cut short leaves what it has.
"""

from __future__ import annotations

import functools
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import environment, timing
from benchmarks.arguments import check_out, result_file, run_benchmark
from codetr.cli.command import (
    ArgumentParser,
    UsageError,
    check_file,
    one_line,
    positive,
    to_path,
)

if TYPE_CHECKING:
    import numpy as np

PRECISIONS = ("fp16", "bf16", "fp32", "tf32")
FORMS = ("original", "rewritten")
WARMUP = 20
SECONDS = 600
"""Limit for one command."""


@dataclass(frozen=True)
class Subject:
    """A file to measure.

    Attributes:
        name: of the row.
        configuration: as published, or "".
        path: the ONNX file, with static shapes.
        attentions: how many times it attends, if that is known.
    """

    name: str
    configuration: str
    path: Path
    attentions: int | None = None


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; returns the exit status."""
    return run_benchmark(_main, arguments, "benchmarks.surgery")


def _main(arguments: list[str]) -> int:
    options = _parser().parse_args(arguments)
    for path in options.files:
        check_file("FILE.onnx", path)
    check_out(options.out)
    timing.require_gpu()
    head = environment.describe("benchmarks.surgery", arguments)
    slug = environment.slug(head["gpu"]["name"])
    out = result_file(options.out, f"surgery_{options.precision}", slug)
    subjects = [read_subject(path) for path in options.files]
    started = time.monotonic()
    rows: list[dict] = []
    with working_folder(options.work) as folder, ThreadPoolExecutor(options.jobs) as pool:

        def make(subject: Subject) -> dict:
            row = prepare(subject, folder, options.precision, options.seconds)
            print(f"{subject.name}: {'; '.join(failures(row)) or 'built'}", flush=True)
            return row

        made = map(make, subjects) if options.jobs == 1 else list(pool.map(make, subjects))
        for subject, row in zip(subjects, made, strict=True):
            rows.append(row)
            time_engines(row, subject, folder, options.precision, options.iterations)
            print(summary(row), flush=True)
            content = {
                **head,
                "kind": "surgery",
                "precision": options.precision,
                "jobs": options.jobs,
                "seconds": round(time.monotonic() - started, 1),
                "results": rows,
            }
            environment.write_json(out, content)
    failed = [row for row in rows if failures(row)]
    print(f"{len(rows)} models, {len(failed)} failed: {out}")
    return 1 if failed else 0


def _parser() -> ArgumentParser:
    parser = ArgumentParser(prog="python -m benchmarks.surgery", description=__doc__.split("\n")[0][:-1])
    parser.add_argument(
        "files", nargs="+", type=to_path, metavar="FILE.onnx", help="models with static shapes"
    )
    parser.add_argument("--precision", choices=PRECISIONS, default="fp16")
    parser.add_argument("--iterations", type=positive, default=100, help="samples of each measurement")
    parser.add_argument(
        "--seconds", type=positive, default=SECONDS, help="limit for one build (default: %(default)s)"
    )
    parser.add_argument(
        "--jobs", type=positive, default=1, help="files rewritten and built at the same time (default: 1)"
    )
    parser.add_argument(
        "--work",
        type=to_path,
        metavar="DIR",
        help="keep files there, and use those of an earlier run again (default: a temporary folder)",
    )
    parser.add_argument(
        "--out",
        type=to_path,
        help="result file; benchmarks/results/surgery_<precision>_<gpu>.json by default",
    )
    return parser


@contextmanager
def working_folder(given: Path | None) -> Iterator[Path]:
    """A folder for files: the one given, which stays, or a temporary one."""
    if given is not None:
        given.mkdir(parents=True, exist_ok=True)
        yield given
        return
    with tempfile.TemporaryDirectory(prefix="surgery-") as temporary:
        yield Path(temporary)


def read_subject(path: Path) -> Subject:
    """What a file is, by its name and its metadata.

    Raises:
        UsageError: it is no ONNX file.
    """
    import onnx

    try:
        model = onnx.load(path, load_external_data=False)
    except Exception as error:  # protobuf's own, whose class depends on its implementation
        raise UsageError(f"FILE.onnx {path}: expected an ONNX file ({one_line(error)})") from error
    said = {prop.key: prop.value for prop in model.metadata_props}
    attentions = said.get("attentions", "")
    return Subject(
        path.stem, said.get("configuration", ""), path, int(attentions) if attentions.isdecimal() else None
    )


def prepare(subject: Subject, folder: Path, precision: str, seconds: int) -> dict:
    """Rewrites one file and builds both engines; a failure is part of the row.

    Args:
        subject: the file.
        folder: for what is made of it.
        precision: of both engines.
        seconds: limit for one command.
    """
    row: dict = {
        "model": subject.name,
        "configuration": subject.configuration,
        "expected_attentions": subject.attentions,
    }
    files = forms(subject, folder)
    report = folder / f"{subject.name}.surgery.json"
    if not (files["rewritten"].exists() and report.exists()):
        try:
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
            row[form] = build(path, _engines(folder, form, precision), precision, seconds)
        except RuntimeError as error:
            row[form] = {"failure": str(error)}
    return row


def time_engines(row: dict, subject: Subject, folder: Path, precision: str, iterations: int) -> None:
    """Times the engines that `prepare` built, and adds it to the row; a failure takes an engine's place.

    Args:
        row: of `prepare`.
        subject, folder, precision: as given to it.
        iterations: samples of each measurement.
    """
    inputs = functools.cache(lambda: random_inputs(subject.path))  # of both, drawn when one is wanted
    for form, path in forms(subject, folder).items():
        if "failure" in row.get(form, {"failure": ""}):
            continue
        try:
            engine = _engines(folder, form, precision) / f"{path.stem}.engine"
            samples = run(engine, inputs(), iterations)
            row[form]["timing"] = timing.Timing(samples, 1, WARMUP, "warm").as_dict()
        except (RuntimeError, ValueError, OSError) as error:
            row[form] = {"failure": " ".join(str(error).split())[:500]}


def forms(subject: Subject, folder: Path) -> dict[str, Path]:
    """The file as it is and as it becomes."""
    return dict(zip(FORMS, (subject.path, folder / f"{subject.name}.rewritten.onnx"), strict=True))


def rewrite(path: Path, rewritten: Path, report: Path, seconds: int) -> str:
    """Runs the surgeon; where it finds that outputs differ, once more without that comparison.

    Random weights can make a deep network magnify roundings a hundred thousand times in some row of its
    outputs (D-FINE's do). Every replacement has been proven by itself either way, and times are the same.

    Returns:
        What the comparison of outputs said, or "" if they agree.

    Raises:
        RuntimeError: the surgeon failed otherwise.
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


def _engines(folder: Path, form: str, precision: str) -> Path:
    return folder / f"{form}_{precision}"


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
    return {
        "build_seconds": built["build_seconds"],
        "engine_bytes": built["report"]["engine_bytes"],
        "device_memory_bytes": built["report"]["device_memory_bytes"],
        "layers": built["report"]["layers"],
        "plugin_layers": len(built["report"]["plugin_layers"]),
    }


def command(arguments: Sequence[object], seconds: int) -> None:
    """Runs a module of ours in a process of its own: a build that hangs or dies ends no other.

    Raises:
        RuntimeError: it failed or took too long; with its last line.
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


def random_inputs(path: Path) -> Mapping[str, np.ndarray]:
    """Inputs as the surgeon's comparison draws them, the same for every run.

    Raises:
        ValueError: a shape is not static.
    """
    from onnx_path.comparison.input_arrays import make_inputs
    from onnx_path.model_for_tensorrt import load_model
    from onnx_path.optimization_profiles import inputs_of

    model = load_model(path)
    inputs = inputs_of(model)
    for one in inputs:
        if not all(isinstance(size, int) for size in one.shape):
            raise ValueError(f"{path}: expected static shapes, got {one.name} {list(one.shape)}")
    return make_inputs(model, {one.name: tuple(one.shape) for one in inputs}, {}, seed=0)


def run(engine: Path, inputs: Mapping[str, np.ndarray], iterations: int) -> list[float]:
    """GPU milliseconds of replays of the engine."""
    import trt_plugin

    trt_plugin.load()
    with trt_plugin.EngineRunner(engine) as runner:
        runner(inputs)
        return runner.time(inputs, iterations, WARMUP)


def failures(row: dict) -> list[str]:
    """What went wrong with a model, the wrong number of attentions included."""
    found = [part["failure"] for part in (row, *(row.get(form, {}) for form in FORMS)) if "failure" in part]
    expected = row["expected_attentions"]
    if expected is not None and row.get("replaced", expected) != expected:
        found.append(f"{row['replaced']} attentions replaced, expected {expected}")
    return found


def speedup(row: dict) -> float | None:
    """How many times faster the rewritten file's engine is; None if either has no time."""
    times = [row.get(form, {}).get("timing", {}).get("median_ms") for form in FORMS]
    return None if None in times else times[0] / times[1]


def summary(row: dict) -> str:
    """One line for a model."""
    parts = [f"{row['model']:26}"]
    for form in FORMS:
        timed = row.get(form, {}).get("timing")
        parts.append(f"{form} {timed['median_ms']:8.3f} ms" if timed else f"{form} failed")
    if (factor := speedup(row)) is not None:
        parts.append(f"{factor:.2f} times")
    notes = [row["check"]] if row.get("check") else []
    return "  ".join([*parts, *notes, *failures(row)])


if __name__ == "__main__":
    sys.exit(main())
