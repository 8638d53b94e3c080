"""Times and checks other launches of window attention on tensor cores, beside the library's kernels.

In the root of the source tree, on a machine with a GPU of compute capability 9.0:

    nvcc -std=c++20 -O3 -arch=sm_90 -Xptxas -v -shared -Xcompiler -fPIC -Ikernels/include \
        -o /tmp/windows.so kernels/lab/window_forms.cu
    python -m kernels.lab.time_window /tmp/windows.so

nvcc prints the registers and spills of each form. The nvcc of NVIDIA's Python packages also needs -L with
their folder nvidia/cu13/lib.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import cyclopts
import torch

import msda
from benchmarks import timing
from benchmarks.map_operators import forced
from benchmarks.window_attention import PROBLEMS, Inputs, truth
from kernels.lab.timed_line import print_line

Run = Callable[[Inputs], torch.Tensor]


def main(library: Path, *, only: str = "") -> None:
    """Prints a line for each kernel: median, 5th and 95th percentile of its times, and its relative error.

    The problems are the stages of Swin-L at 768x1152 in fp16, with a cold L2 cache and with a warm one.

    Args:
        library: made of window_forms.cu.
        only: a text that the line has to contain.
    """
    lab = ctypes.CDLL(str(library.resolve()))
    lab.lab_window_form.restype = ctypes.c_char_p
    kernels = {name: functools.partial(run_library, name) for name in ("rows", "tensor_core")}
    kernels |= dict(forms(lab))
    for problem in PROBLEMS:
        if problem.window_size != 12:
            continue
        moved = problem.bytes_moved(torch.float16)
        inputs = [
            problem.inputs(torch.float16, seed=seed) for seed in range(timing.copies_for_cold_cache(moved))
        ]
        expected = truth(inputs[0])
        for (kernel, run), setting in itertools.product(kernels.items(), ("cold", "warm")):
            title = f"{problem.name} {setting} {kernel}"
            given = (inputs, expected, moved) if setting == "cold" else (inputs[:1], expected, 0)
            if only in title:
                print_line(title, run, *given)


def run_library(kernel: str, inputs: Inputs) -> torch.Tensor:
    """Runs one of the library's kernels."""
    with forced("MSDA_WINDOW", kernel):
        return msda.window_attention(*inputs)


def forms(lab: ctypes.CDLL) -> Iterator[tuple[str, Run]]:
    """Yields name and function of each form."""
    index = 0
    while name := lab.lab_window_form(index):
        yield name.decode(), functools.partial(run_form, lab, index)
        index += 1


def run_form(lab: ctypes.CDLL, index: int, inputs: Inputs) -> torch.Tensor:
    """Runs a form of the lab on the current stream. Returns [N, H, W, C]."""
    qkv, bias, padding, _, shift = inputs
    output = qkv.new_empty(*qkv.shape[:3], qkv.shape[3] // 3)
    sizes = (ctypes.c_int64 * 5)(*qkv.shape[:3], len(bias), shift)
    pointers = (ctypes.c_void_p * 4)(*(x.data_ptr() for x in (qkv, bias, padding, output)))
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    if status := lab.lab_window_attention(index, sizes, pointers, stream):
        raise RuntimeError(f"form {index}: cudaError_t {status}")
    return output


if __name__ == "__main__":
    sys.exit(cyclopts.run(main))
