"""Drafting spatial_shapes and level_start_index: constants, or computed from the graph's own sizes."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import numpy as np
import onnx_ir as ir

from onnx_path.surgery.find.candidates import Candidate
from onnx_path.surgery.find.recognise_msda import Roles
from onnx_path.surgery.graph.probe import Probe
from onnx_path.surgery.graph.traversal import SHAPE_OPS, is_op
from onnx_path.surgery.layouts.layout import LayoutError
from onnx_path.surgery.layouts.movement import is_movement
from onnx_path.surgery.rewrite.draft import DraftBuilder


def draft_level_shapes(
    draft: DraftBuilder, roles: Sequence[Roles], probes: Sequence[Probe]
) -> tuple[ir.Value, ir.Value]:
    """Drafts spatial_shapes [L, 2] and level_start_index [L], int64, from the roles at every probe.

    Raises:
        LayoutError: a size that changes with the model's input is in no tensor of the graph.
    """
    levels = [r.sizes.levels for r in roles]
    if all(other == levels[0] for other in levels):
        starts = np.cumsum([0, *(h * w for h, w in levels[0])])[:-1]
        name = "msda/" + "_".join(f"{h}x{w}" for h, w in levels[0])
        return (
            draft.initializer(f"{name}/spatial_shapes", np.array(levels[0], np.int64)),
            draft.initializer(f"{name}/level_start_index", starts.astype(np.int64)),
        )
    cells, rows = [], []
    for i, sampled in enumerate(roles[0].levels):
        row = [_size(draft, sampled, [level[i][j] for level in levels], probes) for j in range(2)]
        rows += row
        cells.append(draft.add("Mul", row))
    flat = draft.add("Concat", rows, axis=0)
    shapes = draft.add("Reshape", [flat, draft.constant(np.array([-1, 2], np.int64))])
    starts = [draft.constant(np.zeros(1, np.int64))]
    for size in cells[:-1]:
        starts.append(draft.add("Add", [starts[-1], size]) if len(starts) > 1 else size)
    return shapes, draft.add("Concat", starts, axis=0)


def _size(draft: DraftBuilder, sampled: Candidate, sizes: Sequence[int], probes: Sequence[Probe]) -> ir.Value:
    """Drafts a level's height or width, [1], from a tensor that the decomposed branch is not needed for."""
    if len(set(sizes)) == 1:
        return draft.constant(np.array(sizes[:1], np.int64))
    for value in _numbers(sampled.value, probes[0]):
        arrays = [probe.value(value) for probe in probes]
        if any(a is None or a.size != arrays[0].size for a in arrays):
            continue
        same = np.flatnonzero(np.all([a.reshape(-1) == n for a, n in zip(arrays, sizes)], axis=0))
        if len(same):
            flat = draft.add("Reshape", [draft.tensor(value), draft.constant(np.array([-1], np.int64))])
            return draft.cast(
                draft.add("Gather", [flat, draft.constant(same[:1])], axis=0), ir.DataType.INT64
            )
    raise LayoutError("the level sizes, which change with the input's, are in no tensor of the graph")


def _numbers(sampled: ir.Value, probe: Probe) -> Iterator[ir.Value]:
    """Yields static tensors of whole numbers that the sampled tensor's shape follows from, the nearest first.

    Tensors computed from sizes between value and samples are left out: these nodes shall go.
    """
    value, branch, pending, seen = sampled, set(), [], set()
    while is_movement(value.producer()):
        branch.add(value)
        pending += [x for x in value.producer().inputs[1:] if x is not None]
        value = value.producer().inputs[0]
    while pending:
        value = pending.pop(0)
        if value in seen or not probe.is_static(value):
            continue
        seen.add(value)
        node = value.producer()
        if value.dtype in (ir.DataType.INT64, ir.DataType.INT32) and not _needs(value, branch):
            yield value
        if node is not None and not is_op(node, *SHAPE_OPS):
            pending += [x for x in node.inputs if x is not None]


def _needs(value: ir.Value, branch: Collection[ir.Value]) -> bool:
    node = value.producer()
    if node is None:
        return False
    if is_op(node, *SHAPE_OPS):
        return node.inputs[0] in branch
    return any(_needs(x, branch) for x in node.inputs if x is not None)
