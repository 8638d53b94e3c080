"""The command that runs an engine on arrays from a file, without Torch: python -m trt_plugin.run."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Annotated

import numpy as np
from cyclopts.types import NonNegativeInt

from codetr.cli.argument_types import InputFile, OutputFile, Parameter
from codetr.cli.program import run_program
from trt_plugin.atomic_files import atomic_write
from trt_plugin.engine_tensors import format_shape
from trt_plugin.runner import EngineRunner


def run(
    engine: Annotated[InputFile, Parameter(metavar="ENGINE")],
    /,
    *,
    inputs: InputFile,
    out: OutputFile,
    time: NonNegativeInt = 0,
    no_cuda_graph: bool = False,
    nvtx: bool = False,
) -> int:
    """Run a TensorRT engine on arrays, without Torch.

    Example: python -m trt_plugin.run model.engine --inputs x.npz --out y.npz

    Args:
        engine: the engine file
        inputs: .npz file with every input
        out: .npz file for the outputs
        time: also time this number of runs
        no_cuda_graph: enqueue every run and replay no CUDA graph
        nvtx: name the steps for Nsight Systems; needs the package nvtx
    """
    arrays = read_arrays(inputs)
    with atomic_write(out) as temporary:  # first: a wrong --out shows before the work is done
        with EngineRunner(engine, cuda_graph=not no_cuda_graph, nvtx=nvtx) as runner:
            outputs = runner(arrays)
            for name, array in outputs.items():
                print(f"{name}: {format_shape(array.shape)} {runner.outputs[name].dtype}")
            if time:
                samples = runner.time(arrays, iterations=time)
                how = "CUDA graph" if runner.uses_cuda_graph else "no CUDA graph"
                print(
                    f"GPU time of {len(samples)} runs ({how}): median {np.median(samples):.3f} ms, "
                    f"{min(samples):.3f} to {max(samples):.3f} ms"
                )
        with temporary.open("wb") as file:  # given a name, NumPy would add a suffix to it
            np.savez(file, **outputs)
    print(f"wrote {out}")
    return 0


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """Reads the arrays of an .npz file.

    Raises:
        ValueError: the file cannot be read, is damaged, or of another kind.
    """
    try:
        with np.load(path) as arrays:
            return dict(arrays)
    except Exception as error:  # NumPy raises many types: BadZipFile, EOFError, its own advice
        raise ValueError(f"--inputs {path}: cut off, or not an .npz file with arrays ({error})") from error


main = partial(run_program, run, program="python -m trt_plugin.run")

if __name__ == "__main__":
    sys.exit(main())
