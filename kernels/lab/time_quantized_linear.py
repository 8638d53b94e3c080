"""Times and checks other forms of linear layers with int8 inputs, beside the library's kernels.

In the root of the source tree, on a machine with a GPU of compute capability 9.0:

    for ending in kMasked kResidual kQuantized; do
        nvcc -std=c++17 -O3 -gencode arch=compute_90a,code=sm_90a --expt-relaxed-constexpr -DNDEBUG \
            -DMSDA_WITH_SM90 -DCUTLASS_ENABLE_GDC_FOR_SM90 -DMSDA_LAB_ENDING=$ending -Ikernels/include \
            -I$CUTLASS_ROOT/include -shared -Xcompiler -fPIC -o /tmp/$ending.so \
            kernels/lab/quantized_linear_forms.cu
    done
    python -m kernels.lab.time_quantized_linear /tmp
"""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import cyclopts
import torch

import msda
from benchmarks import timing
from benchmarks.linear import PROBLEMS, LinearProblem, QuantizedInputs, quantized
from kernels.lab.timed_line import print_line
from msda.checks import ACTIVATIONS

Run = Callable[[QuantizedInputs], torch.Tensor]
ENDINGS = "kMasked", "kResidual", "kQuantized"
"""Of msda::Ending."""


def main(folder: Path, *, only: str = "") -> None:
    """Prints a line for each form: median, 5th and 95th percentile of its times, and its relative error.

    The problems are layers of Swin-L and of Co-DETR's encoder at 768x1152, with a cold L2 cache.

    Args:
        folder: has the libraries made of quantized_linear_forms.cu.
        only: a text that the line has to contain.
    """
    labs = {ending: ctypes.CDLL(str((folder / f"{ending}.so").resolve())) for ending in ENDINGS}
    for problem in PROBLEMS:
        if problem.normed:
            continue
        moved = problem.bytes_moved(torch.float16) // 2
        copies = timing.copies_for_cold_cache(moved)
        inputs = [quantized(problem.inputs(torch.float16, seed=seed), torch.int8) for seed in range(copies)]
        expected = msda.quantized_linear_reference.quantized_linear(*inputs[0]).double()
        kernels = {"library": lambda one: msda.quantized_linear(*one)}
        kernels |= dict(forms(labs[ending_of(problem)]))
        for name, run in kernels.items():
            title = f"{problem.name} {name}"
            if only in title:
                print_line(title, run, inputs, expected, moved)


def ending_of(problem: LinearProblem) -> str:
    """Returns what follows the product of a problem, of ENDINGS."""
    if problem.residual:
        return "kResidual"
    return "kMasked" if problem.activation == "none" else "kQuantized"


def forms(lab: ctypes.CDLL) -> Iterator[tuple[str, Run]]:
    """Yields name and function of each form."""
    lab.lab_form.restype = ctypes.c_char_p
    index = 0
    while name := lab.lab_form(index):
        yield name.decode(), functools.partial(run_form, lab, index)
        index += 1


def run_form(lab: ctypes.CDLL, index: int, inputs: QuantizedInputs) -> torch.Tensor:
    """Runs a form of the lab on the current stream. Returns [M, N]."""
    x, weight, scale, bias, residual, activation, mask, output_scale, dtype = inputs
    output = x.new_empty(len(x), len(weight), dtype=dtype if output_scale is None else x.dtype)
    sizes = (ctypes.c_int64 * 4)(len(x), x.shape[1], len(weight), ACTIVATIONS.index(activation))
    tensors = (x, weight, scale, bias, residual, mask, output)
    pointers = (ctypes.c_void_p * 7)(*(None if one is None else one.data_ptr() for one in tensors))
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    step = ctypes.c_float(output_scale or 1)
    if status := lab.lab_quantized_linear(index, sizes, step, pointers, stream):
        raise RuntimeError(f"form {index}: cudaError_t {status}")
    return output


if __name__ == "__main__":
    sys.exit(cyclopts.run(main))
