"""Drafts: nodes that shall replace a part of a graph, kept apart from it until they are inserted."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from onnx_path.surgery.find.candidates import Candidate
from onnx_path.surgery.layouts.layout import Layout, LayoutError, View, view

Alternatives = tuple[Candidate, ...]
"""One tensor at every probe."""


@dataclass(frozen=True, eq=False)
class Draft:
    """Finished nodes. They read stand-ins of the graph's tensors, so that the graph knows nothing of them.

    Attributes:
        nodes: in an order in which they can run.
        stand_ins: by the graph's tensors.
        constants: new initializers; drafts of one model share those of one name.
        kinds: the graph's tensors that the operator's inputs are made from, and the kind of their numbers,
            see `proof.random_tensor`. The other stand-ins hold sizes.
        result: the tensor that replaces `end`.
        end: the graph's tensor to be replaced.
    """

    nodes: tuple[ir.Node, ...]
    stand_ins: Mapping[ir.Value, ir.Value]
    constants: tuple[ir.Value, ...]
    kinds: Mapping[ir.Value, str]
    result: ir.Value
    end: ir.Value

    def graph(self) -> ir.Graph:
        """Returns the draft as a graph of its own, from the stand-ins to the result."""
        view = ir.GraphView(
            list(self.stand_ins.values()), [self.result], nodes=self.nodes, initializers=self.constants
        )
        return view.clone()


def insert(draft: Draft, model: ir.Model) -> int:
    """Puts a draft's nodes into a graph and removes the nodes before `end` that nothing reads any more.

    Returns:
        The number of nodes by which the graph became smaller.
    """
    graph, end, name = model.graph, draft.end, draft.end.name
    before = len(graph)
    real = {stand_in: value for value, stand_in in draft.stand_ins.items()}
    for constant in draft.constants:
        if constant.name in graph.initializers:
            real[constant] = graph.initializers[constant.name]
        else:
            graph.register_initializer(constant)
    for node in draft.nodes:
        for i, value in enumerate(node.inputs):
            if value in real:
                node.replace_input_with(i, real[value])
    graph.insert_before(end.producer(), draft.nodes)
    ir.convenience.replace_all_uses_with(end, draft.result, replace_graph_outputs=True)
    draft.result.shape, draft.result.type = end.shape, end.type
    end.name = f"{name}/decomposed"
    draft.result.name = name
    _remove_unread(graph, end.producer())
    return before - len(graph)


def _remove_unread(graph: ir.Graph, node: ir.Node) -> None:
    """Removes a node if nothing reads its outputs, and then those before it likewise.

    The time depends on the number of nodes removed. A pass over the graph for each draft would be quadratic.
    """
    pending = [node]
    while pending:
        node = pending.pop()
        if node.graph is graph and not any(x.uses() or x.is_graph_output() for x in node.outputs):
            pending += [x.producer() for x in node.inputs if x is not None and x.producer() is not None]
            graph.remove(node, safe=True)


@dataclass
class DraftBuilder:
    """Collects the nodes of a draft, for all probes alike.

    Attributes:
        prefix: of the names of new tensors.
    """

    prefix: str
    nodes: list[ir.Node] = field(default_factory=list)
    stand_ins: dict[ir.Value, ir.Value] = field(default_factory=dict)
    constants: dict[str, ir.Value] = field(default_factory=dict)
    kinds: dict[ir.Value, str] = field(default_factory=dict)

    # Nodes

    def add(
        self, op_type: str, inputs: Sequence[ir.Value | None], domain: str = "", **attributes
    ) -> ir.Value:
        """Adds a node and returns its only output, which gets the type of the first input."""
        name = f"{self.prefix}/{op_type}_{len(self.nodes)}"
        node = ir.node(op_type, inputs, attributes or None, domain=domain, name=name)
        (output,) = node.outputs
        output.name = name
        if inputs:
            output.dtype = inputs[0].dtype
        self.nodes.append(node)
        return output

    def tensor(self, value: ir.Value) -> ir.Value:
        """Returns the stand-in of a tensor of the graph."""
        if value not in self.stand_ins:
            self.stand_ins[value] = ir.Value(name=value.name, type=ir.TensorType(value.dtype))
        return self.stand_ins[value]

    def source(self, value: ir.Value, kind: str) -> ir.Value:
        """Returns the stand-in of a tensor that an input of the operator is made from.

        Args:
            kind: of its numbers, see `proof.random_tensor`.
        """
        self.kinds.setdefault(value, kind)
        return self.tensor(value)

    def constant(self, array: np.ndarray | Sequence[int]) -> ir.Value:
        """Adds a Constant node."""
        array = np.asarray(array)
        output = self.add("Constant", [], value=ir.tensor(array))
        output.dtype = ir.DataType.from_numpy(array.dtype)
        return output

    def initializer(self, name: str, array: np.ndarray) -> ir.Value:
        """Adds an initializer, which drafts share by its name."""
        if name not in self.constants:
            self.constants[name] = ir.val(name, const_value=ir.tensor(array, name=name))
        return self.constants[name]

    def cast(self, value: ir.Value, dtype: ir.DataType) -> ir.Value:
        """Adds a Cast if the type is another."""
        if value.dtype == dtype:
            return value
        value = self.add("Cast", [value], to=int(dtype))
        value.dtype = dtype
        return value

    def finish(self, result: ir.Value, end: ir.Value) -> Draft:
        """Returns the draft of the collected nodes, whose `result` replaces `end` in its type."""
        result = self.cast(result, end.dtype or result.dtype)
        constants = tuple(self.constants.values())
        return Draft(tuple(self.nodes), self.stand_ins, constants, self.kinds, result, end)

    # Inputs of the operator

    def role(self, candidates: Sequence[Sequence[Candidate]], kind: str) -> ir.Value:
        """Adds the nodes that make an input of the operator from a tensor of the graph.

        Args:
            candidates: of the input, at every probe.
            kind: of the input's numbers, see `proof.random_tensor`.

        Raises:
            LayoutError: the input cannot be made from any candidate.
        """
        alternatives = _best(candidates)
        first = alternatives[0]
        made = self.reshaped(self.source(first.value, kind), views_of(alternatives))
        dtype = first.value.dtype
        if first.scale != 1:
            made = self.add("Mul", [made, self.constant(np.array(first.scale, dtype.numpy()))])
        if first.shift != 0:
            made = self.add("Add", [made, self.constant(np.array(first.shift, dtype.numpy()))])
        if repeated := _repeated(alternatives):
            sizes = list(zip(*(c.layout.shape for c in alternatives)))
            target = [_single(found) if axis in repeated else 1 for axis, found in enumerate(sizes)]
            if None in target:
                raise LayoutError("a tensor is repeated as often as the input says")
            made = self.add("Expand", [made, self.constant(np.array(target, np.int64))])
        return made

    # Reshapes whose sizes may differ between the probes

    def reshaped(self, value: ir.Value, views: Sequence[View]) -> ir.Value:
        """Adds Reshape, Transpose and Reshape, as far as needed."""
        if all(v.order == tuple(range(len(v.order))) for v in views):
            return self.reshape(value, [v.source for v in views], [v.result for v in views])
        value = self.reshape(value, [v.source for v in views], [v.split for v in views])
        value = self.add("Transpose", [value], perm=list(views[0].order))
        moved = [tuple(v.split[i] for i in v.order) for v in views]
        return self.reshape(value, moved, [v.result for v in views])

    def reshape(self, value: ir.Value, old: Sequence[tuple], new: Sequence[tuple]) -> ir.Value:
        """Adds a Reshape if sizes change; sizes that differ between the probes follow the tensor's own.

        Args:
            old, new: its sizes before and after, at every probe.

        Raises:
            LayoutError: a size cannot be computed from the tensor's own.
        """
        if list(old) == list(new):
            return value
        shape: list[int | None] = []
        for i, sizes in enumerate(zip(*new, strict=True)):
            kept = all(i < len(have) and have[i] == size for have, size in zip(old, sizes))
            number = _single(sizes)
            shape.append(0 if number is None and kept else number)
        if shape.count(None) > 1:
            raise LayoutError("a size cannot be computed from the tensor's own")
        target = self.constant(np.array([-1 if n is None else n for n in shape], np.int64))
        return self.add("Reshape", [value, target])


def views_of(alternatives: Alternatives) -> list[View]:
    """Returns the view that makes a tensor from its source at every probe, before axes are repeated.

    Raises:
        LayoutError: the tensor is no view of its source, or another one at every probe.
    """
    repeated = _repeated(alternatives)
    views = []
    for c in alternatives:
        tables = tuple(table[:1] if i in repeated else table for i, table in enumerate(c.layout.tables))
        views.append(view(Layout(c.layout.base, tables), c.shape))
    if len({v.order for v in views}) > 1:
        raise LayoutError("the layout depends on the input sizes")
    return views


def _best(candidates: Sequence[Sequence[Candidate]]) -> Alternatives:
    """Returns the candidate of all probes that needs the fewest nodes, those above it in the graph included.

    Among equals it is the lowest, whose nodes several attentions may share.
    """
    best, fewest, reason = None, math.inf, LayoutError("its tensors have no source in common")
    by_value = [{c.value: c for c in own} for own in candidates]
    for above, first in enumerate(candidates[0]):
        if not all(first.value in own for own in by_value):
            continue
        alternatives = tuple(own[first.value] for own in by_value)
        try:
            views = views_of(alternatives)
        except LayoutError as error:
            reason = error
            continue
        cost = above + max(v.num_nodes for v in views) + bool(_repeated(alternatives))
        cost += (first.scale != 1) + (first.shift != 0)
        if cost <= fewest:
            best, fewest = alternatives, cost
    if best is None:
        raise reason
    return best


def _repeated(alternatives: Alternatives) -> list[int]:
    """Returns the axes along which a tensor repeats itself."""
    return [
        i
        for i in range(len(alternatives[0].layout.tables))
        if all(not c.layout.tables[i].any() for c in alternatives)
        and any(len(c.layout.tables[i]) > 1 for c in alternatives)
    ]


def _single(sizes: Sequence[int]) -> int | None:
    """Returns a size that is the same at every probe, else None."""
    return sizes[0] if len(set(sizes)) == 1 else None
