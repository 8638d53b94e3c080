"""The emulator itself: it finds every mistake of misuses.cu, and no mistake where there is none."""

from __future__ import annotations

import ctypes
import re

import pytest
import torch

from tests.matrix import emulated_kernels
from tests.matrix.cuda_emulator import compile_for_cpu
from tests.matrix.map_operators import emulator_or_skip

LAUNCH_FAILURE = 719
SITE = r"misuses\.cu:\d+"
INDEX = "an index outside of its array"

MISTAKES = {
    "divergent_shuffle": (
        rf"no thread can go on; 2 threads from 5 on waiting at __syncthreads \({SITE}\); "
        rf"62 threads from 0 on waiting at a shuffle \({SITE}, mask 0xffffffff\)"
    ),
    "divergent_barrier": rf"comes to __syncthreads \({SITE}\) while thread \d+ is at __syncthreads",
    "shuffle_from_the_returned": "reads from lane 3, which does not take part",
    "mask_without_itself": r"its own bit is not in the mask of a shuffle \(.*, mask 0x0000ffff\)",
    "different_sites": "meet at different places: lane 0 at a shuffle",
    "read_after_the_end": "reads 16 bytes after the end of y, an input, which has 268 bytes",
    "write_just_after_the_end": "a thread wrote 3 bytes after the end of x",
    "write_to_an_input": "writes byte 8 of y, an input",
    "misaligned_load": rf"__ldg of 16 bytes at the misaligned address 0x\w+ \({SITE}\)",
    "index_outside_of_shared_memory": rf"thread \(32, 0, 0\): .*{INDEX}",
}


def run(name: str, count: int = 67, order: int = 0) -> tuple[int, str, torch.Tensor]:
    """Runs a kernel of misuses.cu on x = 0, 1, ... count - 1. Returns status, message and x."""
    emulator_or_skip()
    library = emulated_kernels.library(compile_for_cpu.HERE / "misuses.cu")
    launch = {"index_outside_of_shared_memory": (1, 33), "correct": (2, 100)}.get(name, (2, 64))
    x = torch.arange(count, dtype=torch.float32)
    data, size = ctypes.c_void_p(x.data_ptr()), ctypes.c_int64(count)
    status = library.emulated_case(getattr(library, name), *launch, data, size, ctypes.c_uint64(order))
    return status, library.emulated_message().decode(), x


@pytest.mark.parametrize("order", [0, 1])
@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_found(name: str, order: int) -> None:
    """Tensors lie at the end of a page in order 0, at the start in order 1."""
    status, message, _ = run(name, order=order)
    if (name, order) == ("read_after_the_end", 1):
        assert status == 0  # the page goes on after the tensor
        return
    assert status == LAUNCH_FAILURE
    assert message.startswith((name, "a thread wrote"))
    assert re.search(MISTAKES[name], message, re.DOTALL), message
    # What was left behind does not disturb the next launch.
    assert run("correct", 2)[0] == 0


def test_correct_kernel() -> None:
    """Shuffles, votes, barriers and atomics, with lanes that return early, in ten orders."""
    for order in range(10):
        status, message, x = run("correct", 2, order)
        assert (status, message) == (0, "")
        assert x.tolist() == [66, 166]


def test_numbers_beside_a_tensor_are_nan() -> None:
    status, _, x = run("read_just_after_the_end")
    assert status == 0
    assert x[0].isnan()


def test_shared_memory_is_garbage_for_every_block() -> None:
    assert run("stale_shared_memory", 128)[2].isnan().all()
    first, second = (run("stale_shared_memory", 128, order)[2] for order in (1, 2))
    assert not first.eq(second).any()


def test_order_shows_a_race() -> None:
    """Four orders give four results, and the same order the same result."""
    results = {tuple(run("race", 128, order)[2].nan_to_num().tolist()) for order in range(4)}
    assert len(results) == 4
    assert torch.equal(run("race", 128, 5)[2], run("race", 128, 5)[2])
