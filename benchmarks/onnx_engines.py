"""Benchmarks of engines of ONNX files: builds in processes of their own, random inputs, times, failures."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import timing
from benchmarks.result_files import ResultFile
from codetr.errors import UsageError, one_line
from trt_plugin import EngineRunner

if TYPE_CHECKING:
    import numpy as np

WARMUP = 20


def measure_files(
    files: Sequence[Path],
    measure: Callable[[Path, Path], dict],
    failures: Callable[[dict], list[str]],
    summary: Callable[[dict], str],
    make_result: Callable[[], ResultFile],
    work: Path | None,
    **facts: object,
) -> int:
    """Measures ONNX files. The result file is written after each of them.

    Args:
        measure: a file and the folder for its engines -> fields of its row. It fails for no file.
        failures: a row -> its failures.
        summary: a row -> its line on the console.
        make_result: makes the result file, once all files are read.
        work: the folder. Default: a temporary one.
        facts: other fields of the result file.

    Returns:
        The exit status: 1 if a row has a failure.

    Raises:
        UsageError: there is no file, or one is no ONNX file.
    """
    if not files:
        raise UsageError("FILE.onnx: expected at least one file, got none")
    rows = [read_metadata(path) for path in files]
    result = make_result()
    with tempfile.TemporaryDirectory(prefix="engines-") as temporary:
        folder = work or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for path, row in zip(files, rows, strict=True):
            row |= measure(path, folder)
            result.add(row, summary(row))
            result.write(**facts)
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


def measure_engine(
    model: Path,
    folder: Path,
    precision: str,
    inputs: Callable[[], Mapping[str, np.ndarray]],
    seconds: int,
    iterations: int,
) -> tuple[dict, Mapping[str, np.ndarray]]:
    """Builds, runs and times an engine.

    Args:
        model: ONNX file.
        folder: folder of the engine. One that an earlier run left there is used again.
        inputs: makes the inputs.
        seconds: limit of the build.
        iterations: number of samples.

    Returns:
        The engine's part of a row, and its outputs. A failure is part of the row; there are no outputs then.
    """
    try:
        part = build(model, folder, precision, seconds)
        outputs, samples = run(folder / f"{model.stem}.engine", inputs(), iterations)
    except (RuntimeError, ValueError, OSError) as error:
        return {"failure": one_line(error)}, {}
    return {**part, "timing": timing.Timing(samples, warmup=WARMUP).as_dict()}, outputs


def build(path: Path, folder: Path, precision: str, seconds: int, *options: str) -> dict:
    """Builds one engine, unless an earlier run left it in the folder.

    Args:
        options: further options of `codetr build`.

    Raises:
        RuntimeError: the command failed.
    """
    folder.mkdir(exist_ok=True)
    report = folder / f"{path.stem}.report.json"
    if not report.exists():  # it is written last
        words = ["--out", folder, "--precision", precision, "--json", report, *options]
        words += ["--timing-cache", folder.parent / "timing.cache"]
        command(["onnx_path.build", path, *words], seconds)
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


def draw_inputs(path: Path) -> Iterator[dict[str, np.ndarray]]:
    """Draws inputs of one run after the other as the surgeon's comparison does, the same in every call.

    Raises:
        ValueError: a shape is not static.
    """
    import onnx_ir as ir

    from onnx_path.surgery.verify.random_inputs import random_inputs
    from onnx_path.tensorrt.model_for_tensorrt import load_model
    from onnx_path.tensorrt.optimization_profiles import inputs_of

    model = load_model(path)
    shapes = {one.name: tuple(one.shape) for one in inputs_of(model)}
    for name, shape in shapes.items():
        if not all(isinstance(size, int) for size in shape):
            raise ValueError(f"{path}: expected static shapes, got {name} {list(shape)}")
    for seed in itertools.count():
        yield random_inputs(ir.from_proto(model), shapes, seed)


def run(
    engine: Path, inputs: Mapping[str, np.ndarray], iterations: int
) -> tuple[Mapping[str, np.ndarray], list[float]]:
    """Returns an engine's outputs by name, and GPU milliseconds of replays."""
    with EngineRunner(engine) as runner:
        return runner(inputs), runner.time(inputs, iterations, WARMUP)
