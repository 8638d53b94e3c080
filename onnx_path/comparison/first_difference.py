"""The search for the first tensor that differs, with few engines.

An engine gives tensors between its layers only if they were marked as outputs before the build, and each mark
prevents a fusion. `polygraphy run --onnx-outputs mark all --trt-outputs mark all` marks all of them in one
build. That is another network: nothing is fused, so a fault of a fusion is gone, and all tensors are in
memory together. One mark at a time keeps the network and takes many builds. The search marks a few at a time,
evenly spread over the suspects. It finds the first of 2000 differing tensors with four engines.

The suspects are the tensors that the differing tensor depends on, without those on paths to a tensor that
agrees. The search ends at a tensor that differs although all of its sources agree, in one and the same
engine.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from onnx_path.comparison.comparable_tensors import ComparableTensors, NodeName
from onnx_path.comparison.tensor_errors import TensorError

MARKS = 16
"""Tensors that one engine gives in addition to the outputs."""

Measure = Callable[[Sequence[str]], Mapping[str, TensorError]]
"""Builds an engine with marks; returns the errors of the marks that it gives and of its outputs."""


class SearchOutcome(enum.Enum):
    """The end of a search."""

    NODE = "a node differs"
    FUSION = "the difference is gone if the tensors before it are outputs"
    OTHER_ENGINE = "an engine of this file does not differ"


@dataclass(frozen=True)
class FirstDifference:
    """The result of a search.

    Attributes:
        outcome: unless it is NODE, the other attributes describe the tensor that differed before.
        error: the tensor that differs first, in the last engine that gave it.
        nodes: all nodes that compute it from its `inputs`, the one that gives it last. There are several if
            tensors between them cannot be compared.
        inputs: errors of the tensors that it is computed from and that an engine can give.
        measured: all tensors that were compared before it, with their nodes, in the graph's order.
        engines: number of engines built.
    """

    outcome: SearchOutcome
    error: TensorError
    nodes: tuple[NodeName, ...]
    inputs: tuple[TensorError, ...]
    measured: tuple[tuple[NodeName, TensorError], ...]
    engines: int

    @property
    def node(self) -> NodeName:
        """The node that gives the tensor."""
        return self.nodes[-1]


def first_difference(
    tensors: ComparableTensors, outputs: Sequence[str], measure: Measure, marks: int = MARKS
) -> FirstDifference:
    """Searches for the first tensor that differs.

    Args:
        tensors: tensors that can be compared.
        outputs: the outputs of the graph that differ, at least one.
        measure: builds and compares. Its errors pass through.
        marks: see `MARKS`.
    """
    return _Search(tensors, measure, marks).run(outputs)


class _Search:
    def __init__(self, tensors: ComparableTensors, measure: Measure, marks: int) -> None:
        self._tensors, self._measure_marks, self._marks = tensors, measure, marks
        self._place = {name: i for i, name in enumerate(tensors.names)}
        self._measured: dict[str, TensorError] = {}
        self._missing: set[str] = set()  # marks that engines do not give
        self._engines = 0

    def run(self, outputs: Sequence[str]) -> FirstDifference:
        target = self._ordered(outputs)[0]
        cleared: set[str] = set()
        while True:
            suspects = self._ordered(self._tensors.ancestors(target) - cleared - self._missing)
            asked = _spread(suspects, self._marks) if suspects else self._sources(target)[0]
            errors = self._measure([*asked, target])
            candidates = self._ordered(x for x in {*asked, target} if x in errors)
            differing = [name for name in candidates if not errors[name].within]
            if not differing:
                return self._none_differs(target, outputs, errors)
            target = differing[0]
            if all(name in errors for name in self._sources(target)[0]):
                return self._result(SearchOutcome.NODE, target)
            if not suspects:  # the target lies before a tensor that agrees, which therefore clears nothing
                cleared = set()
            upstream = self._tensors.ancestors(target)
            for name in candidates:
                if errors[name].within and name in upstream:
                    cleared |= {name, *self._tensors.ancestors(name)}

    def _none_differs(
        self, target: str, outputs: Sequence[str], errors: Mapping[str, TensorError]
    ) -> FirstDifference:
        """Ends a search whose target agrees with the last engine's marks, and differed before."""
        differs = self._engines > 1 or any(not errors[x].within for x in outputs if x in errors)
        if not differs:
            errors = self._measure([])
            differs = any(not errors[x].within for x in outputs if x in errors)
        return self._result(SearchOutcome.FUSION if differs else SearchOutcome.OTHER_ENGINE, target)

    def _measure(self, marks: Sequence[str]) -> Mapping[str, TensorError]:
        errors = self._measure_marks(marks)
        self._engines += 1
        self._measured |= {name: error for name, error in errors.items() if name in self._place}
        self._missing |= set(marks) - set(errors)
        return errors

    def _result(self, outcome: SearchOutcome, name: str) -> FirstDifference:
        sources, passed = self._sources(name)
        measured = [x for x in self._ordered(self._measured) if self._place[x] <= self._place[name]]
        return FirstDifference(
            outcome,
            self._measured[name],
            tuple(node for x in (*self._ordered(passed), name) for node in self._tensors.nodes(x)),
            tuple(self._measured[x] for x in sources if x in self._measured),
            tuple((self._tensors.nodes(x)[-1], self._measured[x]) for x in measured),
            self._engines,
        )

    def _sources(self, name: str) -> tuple[list[str], list[str]]:
        """Returns the nearest sources of a tensor that engines give, and those that they do not give."""
        there: dict[str, None] = {}
        missing: dict[str, None] = {}
        pending = list(self._tensors.sources(name))
        while pending:
            source = pending.pop(0)
            if source in self._missing and source not in missing:
                missing[source] = None
                pending += self._tensors.sources(source)
            elif source not in self._missing and not self._tensors.is_input(source):
                there[source] = None
        return list(there), list(missing)

    def _ordered(self, names: Iterable[str]) -> list[str]:
        return sorted(names, key=self._place.__getitem__)


def _spread(names: Sequence[str], count: int) -> list[str]:
    """Returns some of the names at equal distances, the last one among them."""
    count = min(count, len(names))
    return [names[(i + 1) * len(names) // count - 1] for i in range(count)]
