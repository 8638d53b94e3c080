"""The indices of the largest numbers of rows: every backend against the reference, index by index."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor

import msda
from benchmarks.top_k_indices import Inputs
from tests.matrix import emulated_kernels, operator_checks
from tests.matrix.map_operators import Backend, Row, emulator, emulator_or_skip, matrix, on_gpu

VARIABLE, SINGLE = "MSDA_TOP_K", (torch.float32,)


@dataclass(frozen=True)
class Case:
    """Sizes and contents of a call."""

    rows: int
    size: int
    count: int
    values: int = 0  # of different numbers; 0: most are different
    seed: int = 0

    def inputs(self, device: str = "cpu") -> Inputs:
        """Normal numbers, or multiples of 0.5 around 0, which are often equal."""
        generator = torch.Generator().manual_seed(self.seed)
        if self.values:
            x = torch.randint(self.values, (self.rows, self.size), generator=generator) - self.values // 2
            return Inputs((x * 0.5).to(device), self.count)
        return Inputs(torch.randn(self.rows, self.size, generator=generator).to(device), self.count)


def check(backend: Backend, inputs: Inputs, order: int = 0) -> None:
    """Fails unless all indices are those of the reference."""
    found = backend.compute(inputs, order)
    expected = msda.top_k_reference.top_k_indices(inputs.x.cpu(), inputs.count)
    assert found.dtype == torch.int32 and torch.equal(found.cpu(), expected)


CHOSEN = (
    Backend("torch-cpu", msda.top_k_indices, dtypes=SINGLE),
    *(make(msda.top_k_indices, dtypes=SINGLE) for make in (emulator, on_gpu)),
)
PLAIN = tuple(make(msda.top_k_indices, VARIABLE, "plain", SINGLE) for make in (emulator, on_gpu))


@st.composite
def cases(draw: st.DrawFn, longest: int) -> Case:
    size = draw(st.integers(1, longest))
    count = draw(st.integers(0, min(size, 1024)))
    values = draw(st.sampled_from((0, 1, 2, 9)))
    return Case(draw(st.integers(1, 3)), size, count, values, seed=draw(st.integers(0, 2**16)))


@matrix((*CHOSEN, *PLAIN))
def test_drawn_cases(backend: Backend, dtype: torch.dtype) -> None:
    backend.skip_unless_ready(dtype)
    longest = 300 if backend.emulated and backend.kernel == "plain" else 6000

    def check_case(case: Case) -> None:
        check(backend, case.inputs(backend.device), order=case.seed)

    operator_checks.drawn_cases(backend, cases(longest), check_case)


EDGES = [
    Case(0, 5, 3),
    Case(3, 0, 0),
    Case(2, 7, 7),
    Case(2, 4096, 1024),  # every thread of a block has all of its numbers
    Case(1, 4097, 1),
    Case(1, 16384, 900),  # the longest row of one part
    Case(1, 16385, 900),
    Case(2, 17001, 300, values=3),  # parts with the same numbers
    Case(1, 20000, 1024, values=1),
    Case(1, 73656, 900),  # the encoder's cells at 768x1152
    Case(1, 73656, 900, values=9),
    Case(2, 72000, 300),  # 900 queries of 80 classes
]


@matrix(CHOSEN)
@pytest.mark.parametrize("case", EDGES, ids=str)
def test_edges(backend: Backend, dtype: torch.dtype, case: Case) -> None:
    backend.skip_unless_ready(dtype)
    check(backend, case.inputs(backend.device), order=7)


@pytest.mark.gpu
@pytest.mark.parametrize(
    "case",
    [Case(8, 73656, 900), Case(8, 72000, 300), Case(1, 204600, 900), Case(1, 1_000_000, 16)],
    ids=str,
)
def test_large_cases(case: Case) -> None:
    check(on_gpu(msda.top_k_indices, VARIABLE, "parts"), case.inputs("cuda"))


@matrix((*CHOSEN, *PLAIN))
def test_numbers_that_are_not_finite(backend: Backend, dtype: torch.dtype) -> None:
    """NaN of either sign is the largest number, and -0 equals 0."""
    backend.skip_unless_ready(dtype)
    x = torch.tensor([[0.0, -0.0, torch.nan, -torch.inf, torch.inf, 0.0, -torch.nan, 1e-45, -1e-45, 1.0]])
    assert msda.top_k_reference.top_k_indices(x, 10).tolist() == [[2, 6, 4, 9, 7, 0, 1, 5, 8, 3]]
    for count in range(11):
        check(backend, Inputs(x.to(backend.device), count))


def test_sizes_that_parts_cannot_run() -> None:
    """More than 1024 numbers, and parts that give more candidates than a block holds."""
    emulator_or_skip()
    check(emulator(msda.top_k_indices), Case(1, 1100, 1025).inputs())
    parts = emulator(msda.top_k_indices, VARIABLE, "parts")
    for case in (Case(1, 1100, 1025), Case(1, 300_000, 900)):
        with pytest.raises(emulated_kernels.NotSupported):
            parts.compute(case.inputs())


def test_name_of_no_kernel() -> None:
    operator_checks.unknown_kernel(msda.top_k_indices, Case(1, 9, 3).inputs(), VARIABLE, "plain, parts")


# In PyTorch.


def test_as_torch_topk(device: str) -> None:
    """Where all numbers differ. Rows need not be contiguous."""
    x = torch.randperm(3 * 5000, generator=torch.Generator().manual_seed(0)).float().reshape(5000, 3)
    x = x.mT.to(device)
    assert torch.equal(msda.top_k_indices(x, 100), x.topk(100, dim=1).indices.int())


def test_opcheck(device: str) -> None:
    torch.library.opcheck(torch.ops.msda.top_k_indices.default, (torch.randn(2, 50, device=device), 7))


def test_export() -> None:
    """All sizes are dynamic."""
    operator, call = torch.ops.msda.top_k_indices.default, functools.partial(msda.top_k_indices, count=4)
    tensors, others = [torch.randn(5, 30)], [torch.randn(6, 77)]
    operator_checks.exports(operator, call, tensors, others, dynamic=2, smallest=4)


WRONG = [
    Row("x", lambda x: x.tolist(), ("a torch.Tensor, got list",), TypeError),
    Row("x", Tensor.double, ("expected float32, got torch.float64",), TypeError),
    Row("x", lambda x: x[0], ("[N, S], got [9]",)),
    Row("count", lambda count: 2.0, ("expected an int, got 2.0",), TypeError),
    Row("count", lambda count: -1, ("expected 0 to S = 9, got -1",)),
    Row("count", lambda count: 10, ("expected 0 to S = 9, got 10",)),
]


@pytest.mark.parametrize("row", WRONG, ids=str)
@pytest.mark.parametrize("function", [msda.top_k_indices, msda.top_k_reference.top_k_indices])
def test_wrong_arguments(row: Row, function: Callable[..., Tensor], device: str) -> None:
    row.check(function, Inputs(torch.randn(2, 9, device=device), 3))


@pytest.mark.gpu
def test_graph_replays() -> None:
    inputs = Case(2, 73656, 900, values=2000).inputs("cuda")
    operator_checks.replays(msda.top_k_indices, inputs, lambda inputs: inputs.x.neg_())


@pytest.mark.parametrize("count", [1, 300, 900, 1024])
def test_longest_row(count: int) -> None:
    """The kernel runs rows of this length, and none that are longer."""
    emulator_or_skip()
    longest = min(msda.longest_top_k_row(count), 2**28 - 1)
    assert emulated_kernels.runs_top_k_parts(longest, count)
    assert count == 1 or not emulated_kernels.runs_top_k_parts(longest + 1, count)
    assert msda.longest_top_k_row(1025) == 0 and not emulated_kernels.runs_top_k_parts(1025, 1025)
