"""The emulator itself: it finds every mistake of misuses.cu, and no mistake where there is none."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path

import pytest
import torch

from tests.matrix import emulated_kernels
from tests.matrix.cuda_emulator import compile_for_cpu

LAUNCH_FAILURE, INVALID_CONFIGURATION = 719, 9
SITE = r"misuses\.cu:\d+"

MISTAKES = {
    "divergent_shuffle": rf"block 0: no thread can go on; threads 0-4, 6-36, 38-63 wait at a shuffle "
    rf"\({SITE}, mask 0xffffffff\); threads 5, 37 wait at __syncthreads \({SITE}\)",
    "divergent_barrier": rf"comes to __syncthreads \({SITE}\) while thread \d+ is at __syncthreads "
    rf"\({SITE}\)",
    "barrier_against_shuffle": r"no thread can go on; threads 0-15 wait .*; threads 16-31 wait at a shuffle",
    "shuffle_from_the_returned": r"reads from lane 3, which does not take part",
    "shuffle_outside_of_the_mask": r"reads from lane 20, which does not take part",
    "mask_without_itself": r"its own bit is not in the mask of a shuffle \(.*, mask 0x0000ffff\)",
    "different_masks": r"meet at different places: lane 0 at __any_sync",
    "different_sites": r"meet at different places: lane 0 at a shuffle",
    "read_after_the_end": rf"16 bytes after the end of y, an input, which has 268 bytes.*{SITE}",
    "read_before_the_start": rf"4 bytes before the start of y, an input.*.*{SITE}",
    "write_after_the_end": r"16 bytes after the end of x, which has 268 bytes",
    "write_just_after_the_end": r"a thread wrote 3 bytes after the end of x",
    "write_to_an_input": rf"byte 8 of y, an input.*.*{SITE}",
    "misaligned_load": rf"__ldg of 16 bytes at the misaligned address 0x\w+ \({SITE}\)",
    "misaligned_store": rf"a misaligned address.*.*{SITE}",
    "index_outside_of_its_array": rf"an index outside of its array.*.*{SITE}",
    "index_outside_of_shared_memory": rf"thread 32: .*an index outside of its array.*.*{SITE}",
    "too_many_local_variables": rf"needs more memory for its local variables than .*{SITE}",
}
IN_ONE_PLACEMENT = {"read_after_the_end": 0, "read_before_the_start": 1}
"""Mistakes that are found with tensors at the end of a page (order 0), or at the start (order 1), alone."""


class Cases:
    """The kernels of misuses.cu."""

    def __init__(self) -> None:
        self.library = emulated_kernels.library(compile_for_cpu.HERE / "misuses.cu")

    def run(self, name: str, count: int = 67, order: int = 0) -> tuple[int, str, torch.Tensor]:
        """The launch's status and message, and what it made of 0, 1, ... count - 1."""
        x = torch.arange(count, dtype=torch.float32)
        pointer, size, seed = ctypes.c_void_p(x.data_ptr()), ctypes.c_int64(count), ctypes.c_uint64(order)
        status = self.library.emulated_case(name.encode(), pointer, size, seed)
        return status, emulated_kernels.with_lines(self.library.emulated_message().decode()), x


@pytest.fixture(scope="module")
def cases() -> Cases:
    if reason := compile_for_cpu.missing():
        pytest.skip(reason)
    return Cases()


@pytest.mark.parametrize(
    ("name", "order"),
    [(name, order) for name in MISTAKES for order in (0, 1) if IN_ONE_PLACEMENT.get(name, order) == order],
)
def test_mistakes_are_found(cases: Cases, name: str, order: int) -> None:
    status, message, _ = cases.run(name, order=order)
    assert status == LAUNCH_FAILURE
    assert message.startswith(("misuses::" + name, "a thread wrote"))
    expected = MISTAKES[name].replace("block 0", r"block \d")
    assert re.search(expected, message, re.DOTALL), message
    # What was left behind does not disturb the next launch.
    assert cases.run("correct", 2)[0] == 0


def test_correct_kernel(cases: Cases) -> None:
    """Shuffles, votes, barriers and atomics, with lanes that return early, in ten orders."""
    for order in range(10):
        status, message, x = cases.run("correct", 2, order)
        assert (status, message) == (0, "")
        assert x.tolist() == [66, 166]


def test_what_lies_beside_a_tensor_is_not_a_number(cases: Cases) -> None:
    status, _, x = cases.run("read_just_after_the_end")
    assert status == 0
    assert x[0].isnan()


def test_shared_memory_is_garbage_for_every_block(cases: Cases) -> None:
    assert cases.run("stale_shared_memory", 128)[2].isnan().all()
    first, second = (cases.run("stale_shared_memory", 128, order)[2] for order in (1, 2))
    assert not first.eq(second).any()


def test_order_shows_a_race(cases: Cases) -> None:
    results = {tuple(cases.run("race", 128, order)[2].nan_to_num().tolist()) for order in range(4)}
    assert len(results) == 4


def test_same_order_twice(cases: Cases) -> None:
    assert torch.equal(cases.run("race", 128, 5)[2], cases.run("race", 128, 5)[2])


def test_launch_that_no_gpu_takes(cases: Cases) -> None:
    status, message, _ = cases.run("too_many_threads")
    assert status == INVALID_CONFIGURATION
    assert "size" in message


def test_compiler_errors_are_shown(tmp_path: Path) -> None:
    if reason := compile_for_cpu.missing():
        pytest.skip(reason)
    broken = tmp_path / "broken.cu"
    broken.write_text("__global__ void kernel() { undeclared(); }")
    with pytest.raises(compile_for_cpu.BuildError, match="undeclared"):
        compile_for_cpu.build([broken], tmp_path / "cache")
    assert not list((tmp_path / "cache").glob("*.so"))


def test_missing_compiler_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "/nowhere/g++")
    assert compile_for_cpu.missing() == "no C++ compiler: /nowhere/g++"
