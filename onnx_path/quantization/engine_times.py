"""Times the engines of a file and of its quantised form. Needs a GPU."""

from __future__ import annotations

import contextlib
import io
import statistics
import tempfile
from pathlib import Path

import onnx

from codetr.errors import UsageError
from codetr.export.output_folder import stage
from onnx_path import build
from onnx_path.tensorrt.model_for_tensorrt import sixteen_bit_tensor
from trt_plugin import EngineRunner
from trt_plugin.inspection.engine_summary import example_inputs

RUNS = 200


def engine_ms(model: Path) -> float:
    """Builds an engine in fp16, or in the 16 bits of the file, and returns its GPU time.

    Returns:
        Median of 200 replays of a CUDA graph, in milliseconds.

    Raises:
        UsageError: TensorRT does not build the file.
    """
    narrow = sixteen_bit_tensor(onnx.load(model, load_external_data=False))
    with tempfile.TemporaryDirectory(prefix="codetr-times-") as folder:
        engine = Path(folder) / "model.engine"
        options = [] if narrow else ["--precision", "fp16"]
        errors = io.StringIO()
        with (
            stage(f"build an engine of {model.name}"),
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(errors),
        ):
            status = build.main([str(model), "--out", str(engine), *options])
        if status:
            raise UsageError(f"{model}: {errors.getvalue().strip().splitlines()[-1]}")
        with EngineRunner(engine) as runner:
            return statistics.median(runner.time(example_inputs(runner), RUNS))


def describe(times: dict[str, float]) -> str:
    """Returns a sentence about the times of two precisions, the 8-bit one first."""
    (narrow, fast), (wide, slow) = times.items()
    text = f"{narrow} takes {fast:.3f} ms, {wide} {slow:.3f} ms"
    if fast < slow:
        return f"{text}: {slow / fast:.2f} times as fast"
    return f"{text}: {fast / slow - 1:.1%} slower; use the model in 16 bits on this GPU"
