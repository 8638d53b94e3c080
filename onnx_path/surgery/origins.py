"""Where a tensor's elements come from, upstream: the tensors that the operator's inputs can be made from."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from onnx_path.surgery.graph import attribute, is_op
from onnx_path.surgery.layouts import Layout, LayoutError, concat
from onnx_path.surgery.movement import is_movement, moved, source_of
from onnx_path.surgery.probe import Probe


@dataclass(frozen=True, eq=False)
class Candidate:
    """A tensor that an input of the operator can be made from.

    Attributes:
        value: the tensor.
        shape: its sizes.
        layout: the input's, over the tensor.
        scale, shift: the input is scale · tensor + shift.
    """

    value: ir.Value
    shape: tuple[int, ...]
    layout: Layout
    scale: float = 1.0
    shift: float = 0.0


def origins(
    value: ir.Value,
    probe: Probe,
    affine: bool = False,
    scale: float = 1.0,
    shift: float = 0.0,
    layout: Layout | None = None,
) -> list[Candidate]:
    """The tensors that a value was moved from, the most upstream first, with the value's layout over each.

    Args:
        value: the tensor to trace.
        probe: of the graph.
        affine: also through multiplications and additions of one number.
        scale, shift: scale · value + shift is what the candidates describe.
        layout: of what is described, over the value; default: all of it.
    """
    shape = probe.shape(value)
    found = [Candidate(value, shape, Layout.of(shape) if layout is None else layout, scale, shift)]
    while True:
        at = found[-1]
        if is_op(at.value.producer(), "Concat"):
            return [*_joint_origins(at, probe, affine), *found[::-1]]
        step = None
        if (source := source_of(at.value)) is not None:
            step = (source, at.scale, at.shift)
        elif affine:
            step = _affine_source(at, probe)
        if step is None or probe.shape(step[0]) is None:
            return found[::-1]
        source, scale, shift = step
        here = Layout.of(probe.shape(source))
        try:
            if is_movement(at.value.producer()):
                here = moved(at.value.producer(), at.value, [here], probe)
            layout = at.layout.after(here, at.shape)
        except LayoutError:
            return found[::-1]
        found.append(Candidate(source, probe.shape(source), layout, scale, shift))


def _joint_origins(at: Candidate, probe: Probe, affine: bool) -> list[Candidate]:
    """Tensors that all parts of a Concat were moved from, as x and y were from the same locations."""
    node = at.value.producer()
    parts = {i: origins(x, probe, affine, at.scale, at.shift) for i, x in enumerate(node.inputs)}
    shared = common(parts)
    found = []
    for candidates in zip(*shared.values()) if shared else ():
        with contextlib.suppress(LayoutError):
            layout = concat([c.layout for c in candidates], attribute(node, "axis", 0))
            found.append(replace(candidates[0], layout=at.layout.after(layout, at.shape)))
    return found


def _affine_source(at: Candidate, probe: Probe) -> tuple[ir.Value, float, float] | None:
    """The tensor that a value is a multiple of, or a sum with a number; and the new scale and shift."""
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


def _number(value: ir.Value, at: Candidate, probe: Probe) -> float | None:
    """The number that a known tensor holds wherever it meets the elements described."""
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
    """What a Clip, or a Where after one, was given, if it only moves locations that are outside anyhow.

    A location's samples are nothing but zeros from half a cell outside on, and levels have at least one cell.
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


def common(candidates: dict[int, list[Candidate]]) -> dict[int, list[Candidate]] | None:
    """Those of each level's candidates that all levels have, None if there are none."""
    lists = list(candidates.values())
    shared = [
        c.value
        for c in lists[0]
        if all(
            any(d.value is c.value and np.allclose((d.scale, d.shift), (c.scale, c.shift)) for d in other)
            for other in lists[1:]
        )
    ]
    if not shared:
        return None
    return {
        n: [next(c for c in own if c.value is value) for value in shared] for n, own in candidates.items()
    }
