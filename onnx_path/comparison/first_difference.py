"""The first tensor that differs, found with few engines.

An engine gives tensors between its layers only if they were marked as outputs before the build, and each mark
stands in the way of a fusion. Marking all at once, as `polygraphy run --onnx-outputs mark all --trt-outputs
mark all` does, takes one build, but of another network: nothing is fused any more, so a fault of a fusion is
gone, and all tensors are in memory together. Marking one at a time keeps the network and takes many builds.
So a few are marked at a time, evenly spread over those in question, and the first that differs among 2000
takes four engines.

The search follows the graph, not only the order: what is in question is what the differing tensor depends on,
less what leads to a tensor that agrees. It ends at a tensor that differs though all that it is computed from
agrees, in one and the same engine.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from onnx_path.comparison.comparable_tensors import Node, Tensors
from onnx_path.comparison.tensor_errors import TensorError

MARKS = 16
"""Tensors that one engine gives beside the outputs."""

Measure = Callable[[Sequence[str]], Mapping[str, TensorError]]
"""Builds an engine that also gives some tensors; returns errors of those that it has and of its outputs."""


class Outcome(enum.Enum):
    """How a search ended."""

    NODE = "a node differs"
    FUSION = "the difference is gone where the tensors before it are outputs"
    OTHER_ENGINE = "an engine of this file does not differ"


@dataclass(frozen=True)
class Found:
    """What a search found.

    Attributes:
        outcome: see there; unless it is NODE, what follows is of the tensor that differed before.
        error: of the tensor that differs first, in the last engine that gave it.
        node: that gives it.
        nodes: all that compute it from its `inputs`, `node` among them: more than one where tensors between
            cannot be compared.
        inputs: errors of the tensors that it is computed from and that an engine can give.
        measured: errors of all tensors that were compared, down to it, in the graph's order.
        producers: the nodes that give these.
        engines: number of engines built.
    """

    outcome: Outcome
    error: TensorError
    node: Node
    nodes: tuple[Node, ...]
    inputs: tuple[TensorError, ...]
    measured: tuple[TensorError, ...]
    producers: tuple[Node, ...]
    engines: int


def first_difference(tensors: Tensors, outputs: Sequence[str], measure: Measure, marks: int = MARKS) -> Found:
    """Searches where a difference begins.

    Args:
        tensors: that can be compared.
        outputs: those of the graph's outputs that differ, at least one.
        measure: builds and compares.
        marks: tensors that one engine gives beside the outputs.

    Raises:
        whatever `measure` raises.
    """
    return _Search(tensors, measure, marks).run(outputs)


class _Search:
    def __init__(self, tensors: Tensors, measure: Measure, marks: int) -> None:
        self._tensors, self._measure_marks, self._marks = tensors, measure, marks
        self._place = {name: i for i, name in enumerate(tensors.names)}
        self._measured: dict[str, TensorError] = {}
        self._missing: set[str] = set()
        self._engines = 0

    def run(self, outputs: Sequence[str]) -> Found:
        target = self._ordered(outputs)[0]
        cleared: set[str] = set()
        while True:
            suspects = self._ordered(self._tensors.ancestors(target) - cleared - self._missing)
            sources = self._sources(target)
            asked = _spread(suspects, self._marks) if suspects else sources
            errors = self._measure([*asked, target])
            candidates = self._ordered(x for x in {*asked, target} if x in errors)
            differing = [name for name in candidates if not errors[name].within]
            if not differing:
                return self._none_differs(target, outputs, errors)
            target = differing[0]
            sources = self._sources(target)
            if all(name in errors for name in sources):
                return self._found(Outcome.NODE, target)
            if not suspects:  # it lies before a tensor that agrees, so that says nothing
                cleared = set()
            upstream = self._tensors.ancestors(target)
            for name in candidates:
                if errors[name].within and name in upstream:
                    cleared |= {name, *self._tensors.ancestors(name)}

    def _none_differs(self, target: str, outputs: Sequence[str], errors: Mapping[str, TensorError]) -> Found:
        """The tensor differed in an engine before, and in the last none of those in question did."""
        if self._engines > 1 or any(not errors[name].within for name in outputs if name in errors):
            return self._found(Outcome.FUSION, target)
        errors = self._measure([])
        differs = any(not errors[name].within for name in outputs if name in errors)
        return self._found(Outcome.FUSION if differs else Outcome.OTHER_ENGINE, target)

    def _measure(self, marks: Sequence[str]) -> Mapping[str, TensorError]:
        errors = self._measure_marks(marks)
        self._engines += 1
        self._measured |= {name: error for name, error in errors.items() if name in self._place}
        self._missing |= set(marks) - set(errors)
        return errors

    def _found(self, outcome: Outcome, name: str) -> Found:
        passed = self._ordered(self._behind(name)[1])
        nodes = [node for x in (*passed, name) for node in self._tensors.nodes(x)]
        last = self._place[name]
        measured = [x for x in self._ordered(self._measured) if self._place[x] <= last]
        return Found(
            outcome,
            self._measured[name],
            nodes[-1],
            tuple(nodes),
            tuple(self._measured[x] for x in self._sources(name) if x in self._measured),
            tuple(self._measured[x] for x in measured),
            tuple(self._tensors.nodes(x)[-1] for x in measured),
            self._engines,
        )

    def _sources(self, name: str) -> list[str]:
        """The tensors that one is computed from, as far as engines give them."""
        return self._behind(name)[0]

    def _behind(self, name: str) -> tuple[list[str], list[str]]:
        """The sources of a tensor that engines give, and those on the way there that they do not."""
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
    """Some of the names at equal distances, the last among them."""
    count = min(count, len(names))
    return [names[(i + 1) * len(names) // count - 1] for i in range(count)]
