"""Runs an engine on arrays from a file: python -m trt_plugin.run model.engine --inputs x.npz --out y.npz

Exit status: 0, done; 1, it failed; 2, wrong arguments; 130, interrupted. Every failure is one line on stderr.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np

from trt_plugin.atomic_files import atomic_write
from trt_plugin.command import ArgumentParser, run_command, to_count, to_path
from trt_plugin.engine_tensors import format_shape
from trt_plugin.runner import EngineRunner


def main(arguments: list[str] | None = None) -> int:
    """The command; returns its exit status."""
    parser = ArgumentParser(
        prog="python -m trt_plugin.run", description="Run a TensorRT engine, without Torch."
    )
    parser.add_argument("engine", type=to_path, help="the engine file")
    parser.add_argument("--inputs", type=to_path, required=True, metavar="FILE", help=".npz with every input")
    parser.add_argument("--out", type=to_path, required=True, metavar="FILE", help=".npz for the outputs")
    parser.add_argument("--time", type=to_count, default=0, metavar="N", help="also time N runs")
    parser.add_argument("--no-cuda-graph", action="store_true", help="enqueue every run, replay no graph")
    parser.add_argument("--nvtx", action="store_true", help="name the steps for Nsight Systems (needs nvtx)")
    return run_command(lambda: _run(parser.parse_args(arguments)))


def _run(options: argparse.Namespace) -> None:
    inputs = read_arrays(options.inputs)
    with atomic_write(options.out) as temporary:  # opened first: a wrong --out shows before the work is done
        with EngineRunner(options.engine, cuda_graph=not options.no_cuda_graph, nvtx=options.nvtx) as runner:
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
        np.savez(temporary, **outputs)
    print(f"wrote {options.out}")


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """The arrays of an .npz file.

    Raises:
        ValueError: it is none, or damaged.
    """
    try:
        arrays = np.load(path)
        if not isinstance(arrays, np.lib.npyio.NpzFile):
            raise ValueError("it holds a single array without a name")
        with arrays:
            return dict(arrays)
    except OSError as error:
        raise ValueError(f"--inputs {path}: {error.strerror or error}") from error
    except Exception as error:  # NumPy raises whatever it runs into: BadZipFile, EOFError, its own advice
        raise ValueError(f"--inputs {path}: cut off, or not an .npz file with arrays ({error})") from error


if __name__ == "__main__":
    sys.exit(main())
