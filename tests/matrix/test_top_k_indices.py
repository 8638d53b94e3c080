"""The indices of the largest numbers of rows: every backend against the reference, index by index."""

from __future__ import annotations

import doctest
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import msda
from tests.matrix import backends, emulated_kernels
from tests.matrix.cuda_emulator import compile_for_cpu
from tests.matrix.map_operators import Row


class Inputs(NamedTuple):
    """The arguments of the operator."""

    x: Tensor
    count: int


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


@dataclass(frozen=True)
class Backend:
    """One way to compute the operator. MSDA_TOP_K forces its kernel."""

    name: str
    kernel: str | None = None
    longest: int = 6000  # rows that it is tested with

    def __str__(self) -> str:
        return f"{self.name}-{self.kernel or 'chosen'}"

    def skip_unless_ready(self) -> None:
        if reason := backends.no_gpu() if self.name == "cuda" else self._missing():
            pytest.skip(reason)

    def _missing(self) -> str | None:
        return compile_for_cpu.missing() if self.name == "emulator" else None

    def check(self, inputs: Inputs, order: int = 0) -> None:
        """Fails unless all indices are those of the reference."""
        expected = msda.top_k_reference.top_k_indices(*inputs)
        with pytest.MonkeyPatch.context() as patch:
            if self.kernel:
                patch.setenv("MSDA_TOP_K", self.kernel)
            if self.name == "emulator":
                found = emulated_kernels.top_k_indices(*inputs, order)
            else:
                found = msda.top_k_indices(
                    inputs.x.to("cuda" if self.name == "cuda" else "cpu"), inputs.count
                )
        assert found.dtype == torch.int32 and torch.equal(found.cpu(), expected)


CHOSEN = [Backend("cpu"), Backend("emulator"), pytest.param(Backend("cuda"), marks=pytest.mark.gpu)]
ALL = [
    *CHOSEN,
    Backend("emulator", "plain", longest=300),
    pytest.param(Backend("cuda", "plain"), marks=pytest.mark.gpu),
]
every_backend = pytest.mark.parametrize("backend", ALL, ids=str)


@st.composite
def cases(draw: st.DrawFn, longest: int) -> Case:
    size = draw(st.integers(1, longest))
    count = draw(st.integers(0, min(size, 1024)))
    values = draw(st.sampled_from((0, 1, 2, 9)))
    return Case(draw(st.integers(1, 3)), size, count, values, seed=draw(st.integers(0, 2**16)))


@every_backend
def test_drawn_cases(backend: Backend) -> None:
    backend.skip_unless_ready()

    @settings(max_examples=settings.default.max_examples // 2)
    @given(case=cases(backend.longest))
    def check(case: Case) -> None:
        backend.check(case.inputs(), order=case.seed)

    check()


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


@pytest.mark.parametrize("case", EDGES, ids=str)
@pytest.mark.parametrize("backend", CHOSEN, ids=str)
def test_edges(backend: Backend, case: Case) -> None:
    backend.skip_unless_ready()
    backend.check(case.inputs(), order=7)


@pytest.mark.gpu
@pytest.mark.parametrize(
    "case",
    [Case(8, 73656, 900), Case(8, 72000, 300), Case(1, 204600, 900), Case(1, 1_000_000, 16)],
    ids=str,
)
def test_large_cases(case: Case) -> None:
    backend = Backend("cuda", "parts")
    backend.skip_unless_ready()
    backend.check(case.inputs())


@every_backend
def test_numbers_that_are_not_finite(backend: Backend) -> None:
    """NaN of either sign is the largest number, and -0 equals 0."""
    backend.skip_unless_ready()
    x = torch.tensor([[0.0, -0.0, torch.nan, -torch.inf, torch.inf, 0.0, -torch.nan, 1e-45, -1e-45, 1.0]])
    assert msda.top_k_reference.top_k_indices(x, 10).tolist() == [[2, 6, 4, 9, 7, 0, 1, 5, 8, 3]]
    for count in range(11):
        backend.check(Inputs(x, count))


def test_sizes_that_parts_cannot_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """More than 1024 numbers, and parts that give more candidates than a block holds."""
    Backend("emulator").skip_unless_ready()
    Backend("emulator").check(Case(1, 1100, 1025).inputs())
    monkeypatch.setenv("MSDA_TOP_K", "parts")
    for case in (Case(1, 1100, 1025), Case(1, 300_000, 900)):
        with pytest.raises(emulated_kernels.NotSupported):
            emulated_kernels.top_k_indices(*case.inputs())


def test_name_of_no_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    Backend("emulator").skip_unless_ready()
    monkeypatch.setenv("MSDA_TOP_K", "fastest")
    with pytest.raises(
        emulated_kernels.EmulatorError, match=r"MSDA_TOP_K: expected one of plain, parts, or no value"
    ):
        emulated_kernels.top_k_indices(*Case(1, 9, 3).inputs())


# In PyTorch.


def test_as_torch_topk(device: str) -> None:
    """Where all numbers differ. Rows need not be contiguous."""
    x = torch.randperm(3 * 5000, generator=torch.Generator().manual_seed(0)).float().reshape(5000, 3)
    x = x.mT.to(device)
    assert torch.equal(msda.top_k_indices(x, 100), x.topk(100, dim=1).indices.int())


def test_opcheck(device: str) -> None:
    torch.library.opcheck(torch.ops.msda.top_k_indices.default, (torch.randn(2, 50, device=device), 7))


def test_export() -> None:
    """torch.export, strict, with dynamic sizes; the graph keeps the operator whole."""

    class Call(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return msda.top_k_indices(x, 4)

    dynamic = tuple(torch.export.Dim(name, min=4, max=4096) for name in ("N", "S"))
    program = torch.export.export(Call(), (torch.randn(5, 30),), dynamic_shapes=(dynamic,), strict=True)
    targets = [node.target for node in program.graph.nodes if node.op == "call_function"]
    assert targets == [torch.ops.msda.top_k_indices.default]
    again = torch.randn(6, 77)
    assert torch.equal(program.module()(again), msda.top_k_indices(again, 4))


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
    """A replay reads the present numbers, and every run gives the same indices."""
    Backend("cuda").skip_unless_ready()
    x = Case(2, 73656, 900, values=2000).inputs("cuda").x
    run = functools.partial(msda.top_k_indices, x, 900)
    run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        indices = run()
    x.neg_()
    for _ in range(20):
        graph.replay()
        assert torch.equal(indices, run())


def test_docstring() -> None:
    names: dict[str, Any] = {"torch": torch, "top_k_indices": msda.top_k_indices}
    (example,) = doctest.DocTestFinder().find(msda.top_k_indices, "top_k_indices", globs=names)
    assert not doctest.DocTestRunner().run(example).failed


@pytest.mark.parametrize("count", [1, 300, 900, 1024])
def test_longest_row(count: int) -> None:
    """The kernel runs rows of this length, and none that are longer."""
    Backend("emulator").skip_unless_ready()
    longest = min(msda.longest_top_k_row(count), 2**28 - 1)
    assert emulated_kernels.runs_top_k_parts(longest, count)
    assert count == 1 or not emulated_kernels.runs_top_k_parts(longest + 1, count)
    assert msda.longest_top_k_row(1025) == 0 and not emulated_kernels.runs_top_k_parts(1025, 1025)
