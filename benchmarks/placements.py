"""`python -m benchmarks.placements`: engines of a model with more or fewer layers in 8 bits."""

from __future__ import annotations

import contextlib
import functools
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Literal

from cyclopts.types import PositiveInt

from benchmarks import onnx_engines
from benchmarks.option_types import OneOrMore
from benchmarks.result_files import ResultFile
from codetr.cli.argument_types import Folder, InputFile, OutputFile, Parameter
from codetr.cli.program import run_program
from onnx_path.quantization.policy import ATTENTION, CONVOLUTIONS, DECODER
from onnx_path.quantization.quantizer import Quantizer
from onnx_path.tensorrt.model_for_tensorrt import load_model, save_model

PLACEMENTS = {
    "policy": (),
    "and the decoder": (DECODER,),
    "and around attention": (ATTENTION,),
    "and all convolutions": (CONVOLUTIONS,),
}
"""Reasons to keep layers in 16 bits that a placement is without."""


def measure_placements(
    file: Annotated[InputFile, Parameter(metavar="FILE.onnx")],
    /,
    *,
    precision: Annotated[tuple[Literal["int8", "fp8"], ...], OneOrMore] = ("int8", "fp8"),
    jobs: PositiveInt = 1,
    iterations: PositiveInt = 100,
    seconds: PositiveInt = 1800,
    work: Folder | None = None,
    out: OutputFile | None = None,
) -> int:
    """Time engines of a model with more layers in 8 bits than the policy chooses.

    Each placement adds the layers that one rule of `onnx_path.quantization.policy` keeps in 16 bits. All
    ranges are 8, since times do not depend on them. The result file is written after each engine.

    Args:
        file: float32 model after surgery, with static shapes.
        jobs: builds at the same time. Engines are timed one by one afterwards.
        iterations: samples of each measurement.
        seconds: limit of one build.
        work: folder to keep the files in. Those of an earlier run are used again. Default: a temporary one.
        out: result file. Default: benchmarks/results/placements_MODEL_GPU.json.
    """
    result = ResultFile("benchmarks.placements", out, f"placements_{file.stem}")
    inputs = next(onnx_engines.draw_inputs(file))
    with tempfile.TemporaryDirectory(prefix="placements-") as temporary:
        folder = work or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        rows = [{"precision": "fp16", "placement": "none", "model": file}]
        for kind in precision:
            rows += [quantize(file, folder, kind, placement) for placement in PLACEMENTS]

        def build(row: dict) -> None:
            with contextlib.suppress(RuntimeError):  # a row says so
                onnx_engines.build(row["model"], folder / "engines", "fp16", seconds)

        with ThreadPoolExecutor(jobs) as pool:
            list(pool.map(build, rows))
        for row in rows:
            part, _ = onnx_engines.measure_engine(
                row.pop("model"), folder / "engines", "fp16", lambda: inputs, seconds, iterations
            )
            result.add(row | part, summary(row, part))
            result.write(model=file.stem)
    return 1 if any("failure" in row for row in result.rows) else 0


def quantize(file: Path, folder: Path, precision: str, placement: str) -> dict:
    """Writes a placement's file, and returns the beginning of its row."""
    quantizer = Quantizer(load_model(file), precision, file.parent, PLACEMENTS[placement])
    model = folder / f"{precision}_{placement.replace(' ', '_')}.onnx"
    if not model.exists():
        quantizer.assume_ranges(8.0)
        save_model(quantizer.quantize(quantizer.layers), model, file.parent)
    return {
        "precision": precision,
        "placement": placement,
        "quantized": len(quantizer.layers),
        "kept": quantizer.kept,
        "model": model,
    }


def summary(row: dict, part: dict) -> str:
    """Describes an engine on one line."""
    text = f"{row['precision']:5} {row['placement']:22} {row.get('quantized', 0):4} layers"
    time = part.get("timing", {}).get("median_ms")
    return f"{text}  {time:.3f} ms" if time else f"{text}  failed: {part['failure']}"


main = functools.partial(run_program, measure_placements, program="python -m benchmarks.placements")

if __name__ == "__main__":
    sys.exit(main())
