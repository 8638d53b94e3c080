"""spatial_shapes and level_start_index of regions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import onnx_ir as ir

from onnx_path.surgery import graph as walk
from onnx_path.surgery.draft import Draft
from onnx_path.surgery.layouts import LayoutError
from onnx_path.surgery.movement import is_movement
from onnx_path.surgery.probe import Probe
from onnx_path.surgery.regions import Region
from onnx_path.surgery.roles import Roles


class LevelShapes:
    """spatial_shapes and level_start_index of regions: constants, or computed from the graph's own sizes.

    Regions whose levels have their sizes from the same tensors share them.
    """

    def __init__(self, model: ir.Model, probes: Sequence[Probe]) -> None:
        self.model = model
        self.probes = probes
        self._made: dict[tuple, tuple[ir.Value, ir.Value]] = {}

    def of(self, region: Region, roles: Sequence[Roles]) -> tuple[ir.Value, ir.Value, Draft | None]:
        """Returns both tensors, and the draft that makes them where they are new and computed.

        Raises:
            LayoutError: a size that changes with the input is in no tensor of the graph.
        """
        levels = [r.sizes.levels for r in roles]
        if all(other == levels[0] for other in levels):
            return (*self._constants(levels[0]), None)
        draft = Draft(f"{region.ends[-1].name}/levels")
        cells, rows = [], []
        try:
            for i, number in enumerate(roles[0].anchors):
                row = []
                for j in range(2):
                    size = self._size(draft, region.anchors[number], [level[i][j] for level in levels])
                    row.append(size)
                rows += row
                cells.append(draft.add("Mul", row))
        except LayoutError:
            draft.discard()
            raise
        flat = draft.add("Concat", rows, axis=0)
        shapes = draft.add("Reshape", [flat, draft.constant(np.array([-1, 2], np.int64))])
        starts = [draft.constant(np.zeros(1, np.int64))]
        for size in cells[:-1]:
            starts.append(draft.add("Add", [starts[-1], size]) if len(starts) > 1 else size)
        return shapes, draft.add("Concat", starts, axis=0), draft

    def _constants(self, levels: Sequence[tuple[int, int]]) -> tuple[ir.Value, ir.Value]:
        key = tuple(levels)
        if key not in self._made:
            starts = np.cumsum([0, *(h * w for h, w in levels)])[:-1]
            name = "msda/" + "_".join(f"{h}x{w}" for h, w in levels)
            arrays = {
                "spatial_shapes": np.array(levels, np.int64),
                "level_start_index": starts.astype(np.int64),
            }
            self._made[key] = tuple(self._initializer(f"{name}/{role}", x) for role, x in arrays.items())
        return self._made[key]

    def _initializer(self, name: str, array: np.ndarray) -> ir.Value:
        value = ir.Value(name=name, const_value=ir.tensor(array, name=name))
        value.dtype, value.shape = ir.DataType.INT64, ir.Shape(array.shape)
        self.model.graph.register_initializer(value)
        return value

    def _size(self, draft: Draft, sampler: ir.Node, sizes: Sequence[int]) -> ir.Value:
        """A level's height or width, [1], from a tensor that the decomposed branch is not needed for."""
        if len(set(sizes)) == 1:
            return draft.constant(np.array(sizes[:1], np.int64))
        for value in self._numbers(sampler):
            arrays = [probe.value(value) for probe in self.probes]
            if any(a is None or a.size != arrays[0].size for a in arrays):
                continue
            same = np.flatnonzero(np.all([a.reshape(-1) == n for a, n in zip(arrays, sizes)], axis=0))
            if len(same):
                flat = draft.add("Reshape", [value, draft.constant(np.array([-1], np.int64))])
                number = draft.add("Gather", [flat, draft.constant(same[:1])], axis=0)
                number.dtype = value.dtype
                return draft.cast(number, ir.DataType.INT64)
        raise LayoutError("the level sizes, which change with the input's, are in no tensor of the graph")

    def _numbers(self, sampler: ir.Node) -> Iterable[ir.Value]:
        """Small whole-number tensors that the sampled tensor's shape follows from, the nearest first.

        Not those that are computed from sizes of tensors on the way from value to samples: these shall go.
        """
        value, branch, pending, seen = sampler.inputs[0], set(), [], set()
        while is_movement(value.producer()):
            branch.add(value)
            pending += [x for x in value.producer().inputs[1:] if x is not None]
            value = value.producer().inputs[0]
        while pending:
            value = pending.pop(0)
            if value in seen or not self.probes[0].is_static(value):
                continue
            seen.add(value)
            node = value.producer()
            if value.dtype in (ir.DataType.INT64, ir.DataType.INT32) and not self._needs(value, branch):
                yield value
            if node is not None and not walk.is_op(node, *walk.SHAPE_OPS):
                pending += [x for x in node.inputs if x is not None]

    def _needs(self, value: ir.Value, branch: set[ir.Value]) -> bool:
        node = value.producer()
        if node is None:
            return False
        if walk.is_op(node, *walk.SHAPE_OPS):
            return node.inputs[0] in branch
        return any(self._needs(x, branch) for x in node.inputs if x is not None)
