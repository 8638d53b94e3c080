"""ONNX nodes that only move elements, as functions on layouts."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from onnx_path.surgery.graph.probe import Probe
from onnx_path.surgery.graph.traversal import FLOATS, attribute, is_op
from onnx_path.surgery.layouts.layout import Layout, LayoutError, concat

_RESHAPES = ("Reshape", "Flatten", "Squeeze", "Unsqueeze")
_COPIES = ("Identity", "Dropout")
_SELECTIONS = ("Slice", "Split", "Gather", "GatherND")
_OTHERS = ("Cast", "CastLike", "Transpose", "Expand", "Tile", "Concat")


def is_movement(node: ir.Node | None) -> bool:
    """Returns True for a node whose outputs hold only elements of its first input (Concat: of all inputs)."""
    if is_op(node, "Cast", "CastLike"):
        return node.outputs[0].dtype in FLOATS and node.inputs[0].dtype in FLOATS
    return is_op(node, *_RESHAPES, *_COPIES, *_SELECTIONS, *_OTHERS)


def keeps_order(node: ir.Node | None) -> bool:
    """Returns True for a node that gives its first input another shape at most; elements keep their order."""
    return is_op(node, *_RESHAPES, *_COPIES)


def source_of(value: ir.Value) -> ir.Value | None:
    """Returns the tensor that a value's elements were moved from, None at Concat and other operators."""
    node = value.producer()
    return node.inputs[0] if is_movement(node) and not is_op(node, "Concat") else None


def moved(node: ir.Node, result: ir.Value, inputs: Sequence[Layout], probe: Probe) -> Layout:
    """Returns the layout of one output of a node.

    Args:
        node: a node for which `is_movement` holds.
        result: the output.
        inputs: the layouts of the node's data: one, for Concat several.

    Raises:
        LayoutError: no layout expresses the movement, or it depends on the model's inputs.
    """
    layout = inputs[0]
    shape = _known(probe.shape(result), result)
    if is_op(node, *_RESHAPES):
        return layout.reshape(shape)
    if is_op(node, "Transpose"):
        return layout.transpose(attribute(node, "perm", range(len(layout.tables))[::-1]))
    if is_op(node, "Expand"):
        return layout.expand(shape)
    if is_op(node, "Concat"):
        return concat(inputs, attribute(node, "axis", 0))
    if is_op(node, "Split"):
        return _split(node, result, layout, probe)
    if is_op(node, "Slice"):
        return _slice(node, layout, probe)
    if is_op(node, "Gather", "GatherND"):
        return _gather(node, layout, shape, probe)
    if is_op(node, "Tile"):
        return _tile(node, layout, probe)
    return layout


def _split(node: ir.Node, result: ir.Value, layout: Layout, probe: Probe) -> Layout:
    axis = attribute(node, "axis", 0)
    shapes = [_known(probe.shape(output), output) for output in node.outputs]
    index = node.outputs.index(result)
    start = sum(shape[axis] for shape in shapes[:index])
    return layout.take(axis, np.arange(start, start + shapes[index][axis]))


def _slice(node: ir.Node, layout: Layout, probe: Probe) -> Layout:
    starts, ends, *more = (None if x is None else _known(probe.value(x), x) for x in node.inputs[1:])
    axes = more[0] if more and more[0] is not None else range(len(starts))
    steps = more[1] if len(more) > 1 and more[1] is not None else [1] * len(starts)
    for axis, start, end, step in zip(axes, starts, ends, steps):
        size = layout.shape[axis]
        end = None if step < 0 and end < -size else int(end)
        indices = np.arange(size)[slice(int(start), end, int(step))]
        if not len(indices):
            raise LayoutError("an empty slice")
        layout = layout.take(int(axis), indices)
    return layout


def _gather(node: ir.Node, layout: Layout, shape: tuple[int, ...], probe: Probe) -> Layout:
    indices = _known(probe.value(node.inputs[1]), node.inputs[1])
    axis = attribute(node, "axis", 0)
    if is_op(node, "GatherND") and (indices.shape[-1] != 1 or attribute(node, "batch_dims", 0)):
        raise LayoutError("a selection along several axes")
    if not indices.size:
        raise LayoutError("an empty selection")
    return layout.take(axis, indices.reshape(-1)).reshape(shape)


def _tile(node: ir.Node, layout: Layout, probe: Probe) -> Layout:
    repeats = _known(probe.value(node.inputs[1]), node.inputs[1])
    if math.prod(repeats) == 0:
        raise LayoutError("an empty tile")
    for axis, times in enumerate(repeats):
        layout = layout.take(axis, np.tile(np.arange(layout.shape[axis]), int(times)))
    return layout


def _known(found, value: ir.Value):
    if found is None:
        raise LayoutError(f"{value.name}: known only when the model runs")
    return found
