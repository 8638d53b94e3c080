"""Nodes not yet in the graph, and tensors made from others by them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from onnx_path.surgery.layouts import Layout, LayoutError, View, view
from onnx_path.surgery.origins import Candidate
from onnx_path.surgery.probe import Probe

Alternatives = tuple[Candidate, ...]
"""One tensor at every probe."""


@dataclass
class Draft:
    """Nodes not yet in the graph.

    Attributes:
        prefix: of the names of what they make.
        nodes: in an order in which they can run.
        result: their last value.
        inputs: tensors of the graph that they read for the operator's inputs, and what kind of numbers these
            hold.
        operator: the node that stands for the region.
    """

    prefix: str
    nodes: list[ir.Node] = field(default_factory=list)
    inputs: dict[ir.Value, str] = field(default_factory=dict)
    result: ir.Value | None = None
    operator: ir.Node | None = None

    def add(
        self, op_type: str, inputs: Sequence[ir.Value | None], domain: str = "", **attributes
    ) -> ir.Value:
        """Adds a node and returns its only output."""
        name = f"{self.prefix}/{op_type}_{len(self.nodes)}"
        node = ir.node(op_type, inputs, attributes or None, domain=domain, name=name)
        (output,) = node.outputs
        output.name = name
        if inputs:
            output.dtype = inputs[0].dtype
        self.nodes.append(node)
        return output

    def constant(self, array: np.ndarray | Sequence[int]) -> ir.Value:
        """Adds a Constant node."""
        array = np.asarray(array)
        output = self.add("Constant", [], value=ir.tensor(array))
        output.dtype = ir.DataType.from_numpy(array.dtype)
        return output

    def cast(self, value: ir.Value, dtype: ir.DataType) -> ir.Value:
        """Adds a Cast where the type is another."""
        if value.dtype == dtype:
            return value
        value = self.add("Cast", [value], to=int(dtype))
        value.dtype = dtype
        return value

    def discard(self) -> None:
        """Lets go of the tensors of the graph."""
        for node in self.nodes:
            for i in range(len(node.inputs)):
                node.replace_input_with(i, None)

    def insert(self, before: ir.Node) -> None:
        """Puts the nodes into the graph."""
        before.graph.insert_before(before, self.nodes)


class Sources:
    """Chooses tensors that a region's roles can be made from, at all probes alike, and makes them."""

    def __init__(self, draft: Draft, probes: Sequence[Probe]) -> None:
        self.draft = draft
        self.probes = probes

    def role(
        self, parts: Sequence[Sequence[Alternatives]], axis: int, kind: str, like: ir.Value | None = None
    ) -> ir.Value:
        """Adds the nodes that make an input of the operator.

        Args:
            parts: one for the whole input or several; of each its candidates at every probe.
            axis: along which parts are joined.
            kind: what the input holds, see `proof.random_tensor`.
            like: a tensor with the sizes that a repeated axis has.

        Raises:
            LayoutError: no candidate will do.
        """
        made = []
        for candidates in parts:
            best = self.best(candidates)
            self.draft.inputs.setdefault(best[0].value, kind)
            made.append(self.made(best, like))
        return made[0] if len(made) == 1 else self.draft.add("Concat", made, axis=axis)

    def best(self, candidates: Sequence[Alternatives]) -> Alternatives:
        """The candidate that needs the fewest nodes, of those the most upstream one."""
        best, fewest, reason = None, 99, None
        for alternatives in candidates:
            try:
                views = views_of(alternatives)
            except LayoutError as error:
                reason = error
                continue
            cost = max(v.num_nodes for v in views) + bool(_repeated(alternatives))
            cost += (alternatives[0].scale != 1) + (alternatives[0].shift != 0)
            if cost < fewest:
                best, fewest = alternatives, cost
        if best is None:
            raise reason or LayoutError("its tensors have no source in common")
        return best

    def made(self, alternatives: Alternatives, like: ir.Value | None) -> ir.Value:
        """Adds the nodes that make a tensor from its source."""
        first = alternatives[0]
        made = self.reshaped(first.value, views_of(alternatives))
        dtype = first.value.dtype
        if first.scale != 1:
            made = self.draft.add("Mul", [made, self.draft.constant(np.array(first.scale, dtype.numpy()))])
        if first.shift != 0:
            made = self.draft.add("Add", [made, self.draft.constant(np.array(first.shift, dtype.numpy()))])
        if repeated := _repeated(alternatives):
            made = self.draft.add("Expand", [made, self._repeats(alternatives, repeated, like)])
        return made

    def _repeats(
        self, alternatives: Alternatives, repeated: Sequence[int], like: ir.Value | None
    ) -> ir.Value:
        shapes = [c.layout.shape for c in alternatives]
        sizes: list[int | None] = [1] * len(shapes[0])
        for axis in repeated:
            found = {shape[axis] for shape in shapes}
            sizes[axis] = found.pop() if len(found) == 1 else None
        if None not in sizes:
            return self.draft.constant(np.array(sizes, np.int64))
        if like is None:
            raise LayoutError("a tensor is repeated as often as the input says")
        return self.draft.add(
            "Concat",
            [
                self.size(like, i) if n is None else self.draft.constant(np.array([n], np.int64))
                for i, n in enumerate(sizes)
            ],
            axis=0,
        )

    def reshaped(self, value: ir.Value, views: Sequence[View]) -> ir.Value:
        """Adds Reshape, Transpose and Reshape, as far as needed."""
        straight = all(v.order == tuple(range(len(v.order))) for v in views)
        if straight:
            return self.reshape(value, [v.source for v in views], [v.result for v in views])
        value = self.reshape(value, [v.source for v in views], [v.split for v in views])
        value = self.draft.add("Transpose", [value], perm=list(views[0].order))
        moved = [tuple(v.split[i] for i in v.order) for v in views]
        return self.reshape(value, moved, [v.result for v in views])

    def reshape(self, value: ir.Value, old: Sequence[tuple], new: Sequence[tuple]) -> ir.Value:
        """Adds a Reshape whose sizes follow the tensor's own where they differ between the probes."""
        if list(old) == list(new):
            return value
        shape: list[int | None] = []
        for i, sizes in enumerate(zip(*new, strict=True)):
            if len(set(sizes)) == 1:
                shape.append(sizes[0])
            elif all(i < len(have) and have[i] == size for have, size in zip(old, sizes)):
                shape.append(0)
            else:
                shape.append(None)
        if shape.count(None) <= 1:
            target = self.draft.constant(np.array([-1 if n is None else n for n in shape], np.int64))
        else:
            target = self._computed_shape(value, old, new)
        return self.draft.add("Reshape", [value, target])

    def _computed_shape(self, value: ir.Value, old, new) -> ir.Value:
        parts, free = [], True
        for sizes in zip(*new, strict=True):
            same = [i for i in range(len(old[0])) if all(have[i] == n for have, n in zip(old, sizes))]
            if len(set(sizes)) == 1:
                parts.append(self.draft.constant(np.array(sizes[:1], np.int64)))
            elif same:
                parts.append(self.size(value, same[0]))
            elif free:
                parts.append(self.draft.constant(np.array([-1], np.int64)))
                free = False
            else:
                raise LayoutError("a size cannot be computed from the tensor's own")
        return self.draft.add("Concat", parts, axis=0)

    def size(self, value: ir.Value, axis: int) -> ir.Value:
        """Adds the size of one axis, [1], int64."""
        shape = self.draft.add("Shape", [value])
        shape.dtype = ir.DataType.INT64
        return self.draft.add("Gather", [shape, self.draft.constant(np.array([axis], np.int64))], axis=0)


def views_of(alternatives: Alternatives) -> list[View]:
    """How to get a tensor from its source at every probe, before axes are repeated."""
    repeated = _repeated(alternatives)
    views = []
    for c in alternatives:
        tables = tuple(table[:1] if i in repeated else table for i, table in enumerate(c.layout.tables))
        views.append(view(Layout(c.layout.base, tables), c.shape))
    if len({v.order for v in views}) > 1:
        raise LayoutError("the layout depends on the input sizes")
    return views


def _repeated(alternatives: Alternatives) -> list[int]:
    """Axes along which a tensor repeats itself."""
    axes = range(len(alternatives[0].layout.tables))
    return [
        i
        for i in axes
        if all(not c.layout.tables[i].any() for c in alternatives)
        and any(len(c.layout.tables[i]) > 1 for c in alternatives)
    ]
