"""Tracing a tensor upstream: the tensors that an input of the operator can be made from."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from onnx_path.surgery.graph.probe import Probe
from onnx_path.surgery.graph.traversal import attribute, is_op
from onnx_path.surgery.layouts.layout import Layout, LayoutError, concat
from onnx_path.surgery.layouts.movement import is_movement, moved, source_of


@dataclass(frozen=True, eq=False)
class Candidate:
    """A tensor that an input of the operator can be made from: the input is scale · tensor + shift.

    Attributes:
        value: the tensor.
        shape: its sizes.
        layout: of the input, over the tensor.
        scale, shift: as above.
    """

    value: ir.Value
    shape: tuple[int, ...]
    layout: Layout
    scale: float = 1.0
    shift: float = 0.0

    @staticmethod
    def of(value: ir.Value, probe: Probe, scale: float = 1.0, shift: float = 0.0) -> Candidate:
        """Returns the candidate whose input is the tensor itself, scaled and shifted."""
        shape = probe.shape(value)
        return Candidate(value, shape, Layout.of(shape), scale, shift)

    def operand(self, value: ir.Value, probe: Probe) -> Candidate:
        """Returns an input of the elementwise node that makes this tensor, under the same layout."""
        shape = probe.shape(value)
        layout = self.layout.after(Layout.of(shape).expand(self.shape), self.shape)
        return Candidate(value, shape, layout)


Step = Callable[[Candidate, Probe], tuple[ir.Value, float, float] | None]


def origins(start: Candidate, probe: Probe, through: Step | None = None) -> list[Candidate]:
    """Returns the tensors that a candidate's tensor was moved from, the most upstream first, itself last.

    `through` returns source, scale and shift of further nodes to trace through.
    """
    found = [start]
    while True:
        at = found[-1]
        node = at.value.producer()
        if is_op(node, "Concat"):
            return [*_joint_origins(at, probe, through), *found[::-1]]
        step = None
        if (source := source_of(at.value)) is not None:
            step = (source, at.scale, at.shift)
        elif through is not None:
            step = through(at, probe)
        if step is None or probe.shape(step[0]) is None:
            return found[::-1]
        source, scale, shift = step
        try:
            here = Layout.of(probe.shape(source))
            here = moved(node, at.value, [here], probe) if is_movement(node) else here.expand(at.shape)
            layout = at.layout.after(here, at.shape)
        except LayoutError:
            return found[::-1]
        found.append(Candidate(source, probe.shape(source), layout, scale, shift))


def common(candidates: Mapping[int, Sequence[Candidate]]) -> dict[int, list[Candidate]] | None:
    """Returns the candidates that all lists share, in the order of the first list; None if there are none."""

    def same(one: Candidate, other: Candidate) -> bool:
        numbers = (one.scale, one.shift), (other.scale, other.shift)
        return one.value is other.value and np.allclose(*numbers)

    first, *others = candidates.values()
    shared = [c for c in first if all(any(same(c, d) for d in other) for other in others)]
    if not shared:
        return None
    return {n: [next(d for d in own if same(c, d)) for c in shared] for n, own in candidates.items()}


def _joint_origins(at: Candidate, probe: Probe, through: Step | None) -> list[Candidate]:
    """Returns tensors that all parts of a Concat come from, such as the locations that x and y come from."""
    node = at.value.producer()
    if any(probe.shape(x) is None for x in node.inputs):
        return []
    starts = [Candidate.of(x, probe, at.scale, at.shift) for x in node.inputs]
    shared = common({i: origins(start, probe, through) for i, start in enumerate(starts)})
    found = []
    for candidates in zip(*shared.values()) if shared else ():
        with contextlib.suppress(LayoutError):
            layout = concat([c.layout for c in candidates], attribute(node, "axis", 0))
            found.append(replace(candidates[0], layout=at.layout.after(layout, at.shape)))
    return found


def affine_source(at: Candidate, probe: Probe) -> tuple[ir.Value, float, float] | None:
    """A `Step` through multiplication with, and addition of, one number, and through clipping far outside."""
    node = at.value.producer()
    if (kept := _unclipped(at, probe)) is not None:
        return kept, at.scale, at.shift
    if not is_op(node, "Mul", "Div", "Add", "Sub") or node.inputs[0] is node.inputs[1]:
        return None
    first, second = node.inputs
    number, source = _number(second, at, probe), first
    if number is None:
        number, source = _number(first, at, probe), second
    if number is None or probe.shape(source) != at.shape:
        return None
    if is_op(node, "Add"):
        return source, at.scale, at.shift + at.scale * number
    if is_op(node, "Sub"):
        if source is first:
            return source, at.scale, at.shift - at.scale * number
        return source, -at.scale, at.shift + at.scale * number
    if is_op(node, "Mul"):
        return (source, at.scale * number, at.shift) if number else None
    return (source, at.scale / number, at.shift) if source is first and number else None


def static_factor(at: Candidate, probe: Probe) -> tuple[ir.Value, float, float] | None:
    """A `Step` through multiplication with, and division by, static tensors, which it leaves out."""
    node = at.value.producer()
    if is_op(node, "Mul", "Div"):
        first, second = node.inputs
        if probe.is_static(second):
            return first, at.scale, at.shift
        if probe.is_static(first) and is_op(node, "Mul"):
            return second, at.scale, at.shift
    return None


def _number(value: ir.Value, at: Candidate, probe: Probe) -> float | None:
    """Returns the one number that a static tensor holds wherever it meets the described elements."""
    array = probe.value(value)
    if array is None or not array.size:
        return None
    try:
        met = at.layout.after(Layout.of(array.shape).expand(at.shape), at.shape)
    except LayoutError:
        return None
    if any(table.any() for table in met.tables) and (array != array.flat[0]).any():
        return None
    return float(array.flat[met.base[0]])


def _unclipped(at: Candidate, probe: Probe) -> ir.Value | None:
    """Returns the input of a Clip, or of a Where after one, that moves only locations outside every level.

    Samples are zero from half a cell outside the level on, and a level has at least one cell.
    """
    node = at.value.producer()

    def outside(value: ir.Value | None, low: bool) -> bool:
        number = None if value is None else _number(value, at, probe)
        if number is None:
            return value is None
        location = at.scale * number + at.shift
        return location <= -0.5 if low else location >= 1.5

    if is_op(node, "Clip") and len(node.inputs) > 1 and at.scale > 0:
        low, high = (*node.inputs[1:], None)[:2]
        if outside(low, True) and outside(high, False):
            return node.inputs[0]
    if is_op(node, "Where") and at.scale > 0:
        _, first, second = node.inputs  # simplifiers swap them instead of negating the condition
        for clipped, other in ((first, second), (second, first)):
            if is_op(clipped.producer(), "Clip") and outside(other, True):
                return clipped if probe.shape(clipped) == at.shape else None
    return None
