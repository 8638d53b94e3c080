"""`python -m benchmarks.engines`: engines side by side: times by kind of layer, size, build and memory."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

from cyclopts.types import PositiveInt

from benchmarks import timing
from benchmarks.option_types import EngineFiles, OneOrMore
from benchmarks.result_files import ResultFile
from codetr.cli.argument_types import InputFile, OutputFile
from codetr.cli.program import run_program
from codetr.errors import ArgumentError
from trt_plugin import ArtifactMetadata
from trt_plugin.inspection.engine_layers import total_ms
from trt_plugin.inspection.engine_summary import measure, read_engine
from trt_plugin.inspection.layer_kinds import LAYER_KINDS
from trt_plugin.inspection.text_report import format_bytes, plugin_name

WARMUP = 20


def measure_engines(
    *,
    engine: EngineFiles,
    plugins: Annotated[tuple[InputFile, ...], OneOrMore] = (),
    iterations: PositiveInt = 100,
    out: OutputFile | None = None,
) -> int:
    """Compare engines: GPU time, time by kind of layer, size, build time, layers, plugins and memory.

    A run is a CUDA graph without the copies of inputs and outputs. TensorRT's profiler times the layers, one
    after the other. Inputs are noise of the size that the engine is tuned for. The build time comes from the
    metadata beside the engine.

    ```
    python -m benchmarks.engines --engine onnx=onnx/model.engine --engine dynamo=dynamo/model.engine
    ```

    Args:
        engine: engine to measure. May be repeated.
        plugins: libraries of other plugins.
        iterations: samples of each measurement.
        out: result file. Default: benchmarks/results/engines_GPU.json.
    """
    labels = Counter(file.label for file in engine)
    if repeated := [label for label, count in labels.items() if count > 1]:
        raise ArgumentError("engine", f"expected a label for each engine, got {repeated[0]} twice")
    result = ResultFile("benchmarks.engines", out)
    for file in engine:
        row = measure_engine(file.label, file.path, iterations, plugins)
        times = f"{timing.spread(row['timing'])}, {row['layers']} layers, {format_bytes(row['engine_bytes'])}"
        result.add(row, f"{file.label}: {times}")
    result.write()
    print(result.path)
    return 0


def measure_engine(label: str, path: Path, iterations: int, plugins: Sequence[Path] = ()) -> dict:
    """Measures an engine and returns its row.

    Raises:
        ArgumentError: the engine has no information about its layers.
        trt_plugin.EngineError: it cannot be loaded, or does not run.
    """
    summary, layers, _ = read_engine(path, libraries=plugins)
    if not layers.detailed:
        raise ArgumentError("engine", f"expected detailed profiling verbosity, {label} was built without it")
    beside = path.with_suffix(".json")
    metadata = ArtifactMetadata.load(beside) if beside.is_file() else None
    times = measure(path, runs=iterations, warmup=WARMUP)
    layers = layers.with_times(times.layer_ms)
    kinds = {kind: [layer for layer in layers.layers if layer.kind == kind] for kind in LAYER_KINDS}
    return {
        "variant": label,
        "model": metadata.model if metadata else None,
        "precision": layers.precision,
        "inputs": {tensor.name: list(tensor.opt or tensor.shape) for tensor in summary.inputs},
        "tensorrt_built_with": summary.built_with,
        "engine_bytes": summary.engine_bytes,
        "build_seconds": metadata.build_seconds if metadata else None,
        "layers": len(layers.layers),
        "plugins": dict(Counter(map(plugin_name, layers.plugins))),
        "loaded_bytes": summary.loaded_bytes,
        "device_memory_bytes": summary.device_memory_bytes,
        "cuda_graph": times.cuda_graph,
        "kinds": {
            kind: {"layers": len(members), "ms": round(total_ms(members) or 0.0, 4)}
            for kind, members in kinds.items()
            if members
        },
        "timing": timing.Timing(times.samples_ms, warmup=WARMUP).as_dict(),
    }


main = partial(run_program, measure_engines, program="python -m benchmarks.engines")

if __name__ == "__main__":
    sys.exit(main())
