"""Times and checks the losing launches of the forward group kernels, beside the library's kernels.

In the root of the source tree, on a machine with a GPU of compute capability 9.0:

    nvcc -std=c++20 -O3 -arch=sm_90 -Xptxas -v -shared -Xcompiler -fPIC -Ikernels/include \
        -o /tmp/forms.so kernels/lab/forward_forms.cu
    python -m kernels.lab.time_forward /tmp/forms.so

nvcc prints the registers and spills of each form. The nvcc of NVIDIA's Python packages also needs -L with
their folder nvidia/cu13/lib.
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import cyclopts
import torch

import msda
from benchmarks import operator_errors, timing
from benchmarks.problems import AttentionInputs, FusedInputs, Problem, pyramid
from kernels.lab.timed_line import print_line

TYPES = {"fp32": torch.float32, "fp16": torch.float16}
"""In the order of msda::DataType."""

LOCATIONS = ("given", "points", "boxes")
"""In the order of msda::Locations."""

Inputs = AttentionInputs | FusedInputs
Run = Callable[[Inputs], torch.Tensor]


def main(library: Path, *, height: int = 768, width: int = 1152, batch: int = 1, only: str = "") -> None:
    """Prints a line for each kernel: median, 5th and 95th percentile of its times, and its relative error.

    The problems are an encoder layer of a five-scale Co-DINO, and a decoder layer of 900 queries. Caches are
    cold, except in the rows named "warm".

    Args:
        library: made of forward_forms.cu.
        height: of the image, pixels.
        width: of the image, pixels.
        batch: images.
        only: a text that the line has to contain.
    """
    lab = ctypes.CDLL(str(library.resolve()))
    lab.lab_form.restype = ctypes.c_char_p
    levels = pyramid(height, width)
    encoder = Problem("encoder", batch, levels, sum(h * w for h, w in levels))
    decoder = Problem("decoder", batch, levels, 900, reference_dim=4)
    for problem, locations in ((encoder, "points"), (encoder, "given"), (decoder, "boxes")):
        for dtype in ("fp16", "fp32"):
            kernels = {**library_kernels(dtype), **dict(lost_forms(lab, dtype, locations))}
            for setting in ("near", "uniform") if problem is encoder else ("near", "warm"):
                title = f"{dtype} {problem.name} {locations} {setting} "
                chosen = {title + name: run for name, run in kernels.items() if only in title + name}
                if chosen:
                    measure(problem, TYPES[dtype], locations, setting, chosen)


def measure(
    problem: Problem, dtype: torch.dtype, locations: str, setting: str, kernels: dict[str, Run]
) -> None:
    """Times and checks kernels on the same inputs."""
    build = problem.attention_inputs if locations == "given" else problem.fused_inputs
    nbytes = problem.bytes_moved(dtype, fused=locations != "given")
    copies = 1 if setting == "warm" else timing.copies_for_cold_cache(nbytes)
    distribution = "uniform" if setting == "uniform" else "near"
    inputs = [build(dtype, "cuda", distribution, seed) for seed in range(copies)]
    expected = operator_errors.truth(inputs[0])
    for name, run in kernels.items():
        print_line(name, run, inputs, expected, nbytes)


def library_kernels(dtype: str) -> dict[str, Run]:
    """Returns the library's forward kernels for encoders and decoders by name."""
    names = ("general", "many", "few", *(["medium"] if dtype == "fp16" else []))

    def run(kernel: str, inputs: Inputs) -> torch.Tensor:
        os.environ["MSDA_FORWARD"] = kernel
        return (msda.fused_attention if isinstance(inputs, FusedInputs) else msda.attention)(*inputs)

    return {name: functools.partial(run, name) for name in names}


def lost_forms(lab: ctypes.CDLL, dtype: str, locations: str) -> Iterator[tuple[str, Run]]:
    """Yields name and function of each form that takes a type and locations."""
    index, numbers = 0, (list(TYPES).index(dtype), LOCATIONS.index(locations))
    while (name := lab.lab_form(index, *numbers)) != b"":
        if name:
            yield name.decode(), functools.partial(run_form, lab, index)
        index += 1


def run_form(lab: ctypes.CDLL, index: int, inputs: Inputs) -> torch.Tensor:
    """Runs a form of the lab on the current stream. Returns [N, Q, M * D]."""
    batch, cells, heads, channels = inputs.value.shape
    queries = inputs[-2].shape[1]
    output = inputs.value.new_empty(batch, queries, heads * channels)
    reference = inputs.reference_points if isinstance(inputs, FusedInputs) else None
    tensors = (*inputs[:3], reference, *inputs[-3:-1], output)
    pointers = [None if tensor is None else tensor.data_ptr() for tensor in tensors]
    sizes, stream = (batch, cells, queries), torch.cuda.current_stream().cuda_stream
    status = lab.lab_forward(
        index, (ctypes.c_int64 * 3)(*sizes), (ctypes.c_void_p * 7)(*pointers), ctypes.c_void_p(stream)
    )
    if status:
        raise RuntimeError(f"form {index}: cudaError_t {status}")
    return output


if __name__ == "__main__":
    sys.exit(cyclopts.run(main))
