"""The search for the first node that differs, with stand-ins for engines."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import pytest
from onnx import helper

from onnx_path.comparison.comparable_tensors import ComparableTensors, names_of
from onnx_path.comparison.first_difference import SearchOutcome, first_difference
from onnx_path.comparison.tensor_errors import TensorError


def graph_of(edges: Mapping[str, Sequence[str]], outputs: Sequence[str]) -> ComparableTensors:
    """Tensors by the tensors that each is computed from; "x" is the input."""
    nodes = [helper.make_node("Sum", inputs, [name], name=f"node {name}") for name, inputs in edges.items()]
    infos = [[helper.make_tensor_value_info(name, 1, [1]) for name in names] for names in (["x"], outputs)]
    graph = helper.make_graph(nodes, "graph", *infos)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])
    return ComparableTensors(model, names_of(model))


def error(name: str, differs: bool) -> TensorError:
    return TensorError(name, (1,), "float32", float(differs), float(differs), 1e-4)


class Engines:
    """Engines that differ in some tensors. Lists what was asked for.

    Args:
        outputs: that all have.
        differs: tells of a tensor, and of the marks of its engine, whether it differs.
        lacking: tensors that no engine gives.
    """

    def __init__(
        self,
        outputs: Sequence[str],
        differs: Callable[[str, Collection[str]], bool],
        lacking: Collection[str] = (),
    ) -> None:
        self.outputs, self.differs, self.lacking = outputs, differs, lacking
        self.asked: list[list[str]] = []

    def __call__(self, marks: Sequence[str]) -> dict[str, TensorError]:
        self.asked.append(list(marks))
        names = [x for x in {*marks, *self.outputs} if x not in self.lacking]
        return {name: error(name, self.differs(name, marks)) for name in names}


def chain(length: int) -> ComparableTensors:
    """t0 to t<length - 1>, each computed from the one before."""
    return graph_of({f"t{i}": [f"t{i - 1}" if i else "x"] for i in range(length)}, [f"t{length - 1}"])


@pytest.mark.parametrize("first", [0, 1, 15, 16, 777, 1998, 1999])
def test_four_engines_find_the_first_of_2000(first):
    tensors = chain(2000)
    engines = Engines(["t1999"], lambda name, marks: int(name[1:]) >= first)
    found = first_difference(tensors, ["t1999"], engines)
    assert (found.outcome, found.error.name, str(found.node)) == (
        SearchOutcome.NODE,
        f"t{first}",
        f"node t{first} (Sum)",
    )
    assert [x.name for x in found.inputs] == [f"t{first - 1}"] * (first > 0)
    assert all(x.within for x in found.inputs) and not found.error.within
    assert found.engines == len(engines.asked) <= 4
    assert all(len(marks) <= 17 for marks in engines.asked)
    assert found.measured[-1][1].name == f"t{first}"
    assert all(node.name == f"node {tensor.name}" for node, tensor in found.measured)


def test_other_branches_do_not_mislead():
    """Two branches, later joined; the one that comes second in the file differs from its middle on."""
    edges = {f"a{i}": [f"a{i - 1}" if i else "x"] for i in range(40)}
    edges |= {f"b{i}": [f"b{i - 1}" if i else "x"] for i in range(40)} | {"y": ["a39", "b39"], "z": ["a39"]}
    tensors = graph_of(edges, ["y", "z"])
    wrong = {f"b{i}" for i in range(23, 40)} | {"y"}
    engines = Engines(["y", "z"], lambda name, _: name in wrong)
    found = first_difference(tensors, ["y"], engines, marks=4)
    assert (found.error.name, [x.name for x in found.inputs]) == ("b23", ["b22"])
    # Where both differ, the join is not to blame.
    wrong |= {f"a{i}" for i in range(3, 40)} | {"z"}
    assert first_difference(tensors, ["y", "z"], engines, marks=4).error.name in ("a3", "b23")


def test_a_difference_that_a_later_tensor_hides_is_found():
    """t3 agrees though t2 differs; t6 differs by t2 again."""
    edges = {f"t{i}": [f"t{i - 1}" if i else "x"] for i in range(6)} | {"t6": ["t5", "t2"]}
    engines = Engines(["t6"], lambda name, _: name in ("t2", "t6"))
    found = first_difference(graph_of(edges, ["t6"]), ["t6"], engines, marks=1)
    assert (found.error.name, [x.name for x in found.inputs]) == ("t2", ["t1"])


def test_tensors_that_an_engine_does_not_give_are_passed_over():
    engines = Engines(["t9"], lambda name, _: int(name[1:]) >= 5, lacking={"t4", "t5", "t7"})
    found = first_difference(chain(10), ["t9"], engines, marks=2)
    assert found.outcome is SearchOutcome.NODE and found.error.name == "t6"
    assert [x.name for x in found.inputs] == ["t3"]
    assert [x.name for x in found.nodes] == ["node t4", "node t5", "node t6"]


@pytest.mark.parametrize("marks", [3, 100])
def test_a_fault_of_fused_layers_is_told(marks):
    """t7 and what follows differ unless t6 is an output."""
    engines = Engines(["t99"], lambda name, marks: int(name[1:]) >= 7 and "t6" not in marks)
    found = first_difference(chain(100), ["t99"], engines, marks)
    assert found.outcome is SearchOutcome.FUSION
    assert found.error.name in (("t7", "t8") if marks == 3 else ("t99",))
