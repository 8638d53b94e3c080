"""Runs an engine on arrays from a file: python -m trt_plugin.run model.engine --inputs x.npz --out y.npz"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import zipfile
from pathlib import Path

import numpy as np

from trt_plugin.errors import EngineError
from trt_plugin.runner import EngineRunner
from trt_plugin.tensors import format_shape


def main(arguments: list[str] | None = None) -> int:
    """The command; returns its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m trt_plugin.run", description="Run a TensorRT engine, without Torch."
    )
    parser.add_argument("engine", type=Path, help="the engine file")
    parser.add_argument("--inputs", type=Path, required=True, metavar="FILE", help=".npz with every input")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help=".npz for the outputs")
    parser.add_argument("--time", type=int, default=0, metavar="N", help="also time N runs")
    parser.add_argument("--no-cuda-graph", action="store_true", help="enqueue every run, replay no graph")
    options = parser.parse_args(arguments)
    try:
        _run(options)
    except (EngineError, OSError, TypeError, ValueError, zipfile.BadZipFile) as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 1
    return 0


def _run(options: argparse.Namespace) -> None:
    if options.time < 0:
        raise ValueError(f"--time: expected a number of runs, got {options.time}")
    with np.load(options.inputs) as file:
        inputs = dict(file)
    with EngineRunner(options.engine, cuda_graph=not options.no_cuda_graph) as runner:
        outputs = runner(inputs)
        for name, array in outputs.items():
            print(f"{name}: {format_shape(array.shape)} {runner.outputs[name].dtype}")
        if options.time:
            samples = runner.time(inputs, iterations=options.time)
            how = "CUDA graph" if runner.uses_cuda_graph else "no CUDA graph"
            print(
                f"GPU time of {len(samples)} runs ({how}): median {np.median(samples):.3f} ms, "
                f"{min(samples):.3f} to {max(samples):.3f} ms"
            )
    _save(options.out, outputs)
    print(f"wrote {options.out}")


def _save(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """Writes the file whole or not at all."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".npz")
    try:
        with os.fdopen(descriptor, "wb") as file:
            np.savez(file, **arrays)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


if __name__ == "__main__":
    sys.exit(main())
