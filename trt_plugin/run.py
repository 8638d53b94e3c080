"""Runs an engine on arrays from a file: python -m trt_plugin.run model.engine --inputs x.npz --out y.npz

Exit status: 0, done; 1, it failed; 2, wrong arguments; 130, interrupted. Every failure is one line on stderr.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import NoReturn

import numpy as np

from trt_plugin.errors import EngineError
from trt_plugin.files import atomic_write
from trt_plugin.runner import EngineRunner
from trt_plugin.tensors import format_shape


class _UsageError(ValueError):
    """Wrong arguments."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise _UsageError(f"{message} (see {self.prog} --help)")


def main(arguments: list[str] | None = None) -> int:
    """The command; returns its exit status."""
    parser = _Parser(prog="python -m trt_plugin.run", description="Run a TensorRT engine, without Torch.")
    parser.add_argument("engine", type=_path, help="the engine file")
    parser.add_argument("--inputs", type=_path, required=True, metavar="FILE", help=".npz with every input")
    parser.add_argument("--out", type=_path, required=True, metavar="FILE", help=".npz for the outputs")
    parser.add_argument("--time", type=_count, default=0, metavar="N", help="also time N runs")
    parser.add_argument("--no-cuda-graph", action="store_true", help="enqueue every run, replay no graph")
    try:
        _run(parser.parse_args(arguments))
        sys.stdout.flush()
    except KeyboardInterrupt:
        return _complain("interrupted", 130)
    except _UsageError as error:
        return _complain(str(error), 2)
    except (EngineError, ValueError, TypeError) as error:
        return _complain(str(error), 1)
    except OSError as error:
        return _complain(f"{error.filename}: {error.strerror}" if error.filename else str(error), 1)
    except Exception as error:
        return _complain(f"{type(error).__name__}: {error}", 1)
    return 0


def _complain(message: str, status: int) -> int:
    print(f"error: {' '.join(message.split())}", file=sys.stderr)
    return status


def _path(text: str) -> Path:
    if not text:
        raise argparse.ArgumentTypeError("expected a path, got ''")
    return Path(text)


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"expected a number of runs, got {text!r}")
    return int(text)


def _run(options: argparse.Namespace) -> None:
    inputs = _read(options.inputs)
    with atomic_write(options.out) as file:  # opened first: a wrong --out shows before the work is done
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
        np.savez(file, **outputs)
    print(f"wrote {options.out}")


def _read(path: Path) -> dict[str, np.ndarray]:
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
