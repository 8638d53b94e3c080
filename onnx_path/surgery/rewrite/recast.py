"""Giving the nodes of a graph other float types: one Cast for each tensor and type, weights converted."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from onnx_path.surgery.graph.traversal import constant, free_name, is_op

_FLOAT = ir.DataType.FLOAT


@dataclass
class Recast:
    """Makes some float32 tensors of a graph 16-bit.

    Attributes:
        graph: changed in place.
        types: the element types of all its values.
        narrow: the 16-bit type.
        largest: its largest number.
        beyond: float32 values that may hold larger numbers; they are clipped before a Cast.
        casts: the number of Cast nodes inserted.
    """

    graph: ir.Graph
    types: dict[ir.Value, ir.DataType | None]
    narrow: ir.DataType
    largest: float
    beyond: Collection[ir.Value]
    casts: int = 0
    _copies: dict[ir.Value, ir.Value] = field(default_factory=dict)

    def run(
        self,
        is_narrow: Callable[[ir.Value], bool],
        wish: Callable[[ir.Node, int], ir.DataType | None],
    ) -> None:
        """Changes the graph.

        Args:
            is_narrow: returns whether the producer of a float32 value shall give it in 16 bits.
            wish: returns the type that a node shall read at an input, None if any will do.
        """
        values = {value: is_narrow(value) for value, kind in self.types.items() if kind == _FLOAT}
        wishes = [(value, use, wish(use.node, use.idx)) for value in values for use in value.uses()]
        self._names = {value.name for value in self.types}
        for value in (value for value, narrow in values.items() if narrow):
            value.type = ir.TensorType(self.narrow)
            if value.is_graph_output():
                self._keep_output(value)
        for value, use, kind in wishes:
            if kind is not None and (kind == self.narrow) != values[value]:
                use.node.replace_input_with(use.idx, self._copy(value, values[value]))
        for value in list(self._copies):
            self._drop(value)

    def _copy(self, value: ir.Value, is_narrow: bool) -> ir.Value:
        """Returns the value in the other type."""
        if value not in self._copies:
            self._copies[value] = self._cast(value, value, _FLOAT) if is_narrow else self._narrowed(value)
        return self._copies[value]

    def _narrowed(self, value: ir.Value) -> ir.Value:
        producer = value.producer()
        if is_weight(value):
            return self._weight(value, constant(value), self.narrow)
        if value in self.beyond:
            return self._cast(value, self._clipped(value), self.narrow)
        if is_op(producer, "Cast") and self.types[producer.inputs[0]] != _FLOAT:
            source = producer.inputs[0]  # one Cast instead of two
            return source if self.types[source] == self.narrow else self._cast(value, source, self.narrow)
        return self._cast(value, value, self.narrow)

    def _cast(self, value: ir.Value, source: ir.Value, kind: ir.DataType) -> ir.Value:
        self.casts += 1
        return self._insert(value, "Cast", [source], kind, kind.name.lower(), to=int(kind))

    def _clipped(self, value: ir.Value) -> ir.Value:
        half = np.float32(self.largest / 2)
        bounds = [self._weight(value, x, _FLOAT, name) for x, name in ((-half, "least"), (half, "most"))]
        return self._insert(value, "Clip", [value, *bounds], _FLOAT, "clipped")

    def _insert(
        self,
        value: ir.Value,
        op_type: str,
        inputs: list[ir.Value],
        kind: ir.DataType,
        suffix: str,
        **attributes: int,
    ) -> ir.Value:
        """Inserts a node right behind the producer of its input."""
        name = free_name(f"{value.name}/{suffix}", self._names)
        made = ir.Value(name=name, type=ir.TensorType(kind), shape=value.shape)
        node = ir.node(op_type, inputs, attributes=attributes, outputs=[made], name=name)
        clipped = is_op(inputs[0].producer(), "Clip") and inputs[0] not in self.types  # made here
        after = inputs[0].producer() if clipped else value.producer()
        if after is None:
            self.graph.insert_before(self.graph[0], node)
        else:
            self.graph.insert_after(after, node)
        return made

    def _weight(self, value: ir.Value, array: np.ndarray, kind: ir.DataType, suffix: str = "") -> ir.Value:
        """Adds an initializer; finite numbers too large for its type become half of the largest."""
        if kind == self.narrow:
            large = np.isfinite(array) & (np.abs(array) > self.largest)
            array = np.where(large, np.sign(array) * np.float32(self.largest / 2), array).astype(kind.numpy())
        name = free_name(f"{value.name}/{suffix or kind.name.lower()}", self._names)
        made = ir.val(name, const_value=ir.tensor(np.asarray(array), dtype=kind, name=name))
        self.graph.register_initializer(made)
        return made

    def _keep_output(self, value: ir.Value) -> None:
        """Keeps the name and type of a graph output."""
        name, value.name = value.name, free_name(f"{value.name}/{self.narrow.name.lower()}", self._names)
        wide = self._copy(value, True)
        wide.name = name
        for i, output in enumerate(self.graph.outputs):
            if output is value:
                self.graph.outputs[i] = wide

    def _drop(self, value: ir.Value) -> None:
        """Removes a constant or Cast whose last reader has taken a copy."""
        if value.uses() or value.is_graph_output() or value.is_graph_input():
            return
        if value.is_initializer():
            del self.graph.initializers[value.name]
        elif is_op(value.producer(), "Constant", "Cast"):
            self.graph.remove(value.producer(), safe=True)


def drop_idle_casts(graph: ir.Graph, types: dict[ir.Value, ir.DataType | None]) -> None:
    """Removes Casts from float32 to float32, which would become Casts from 16 bits or precede others."""
    for node in list(graph):
        if not is_op(node, "Cast") or node.outputs[0].is_graph_output():
            continue
        source, result = node.inputs[0], node.outputs[0]
        if types[source] == types[result] == _FLOAT:
            ir.convenience.replace_all_uses_with(result, source)
            graph.remove(node, safe=True)
            del types[result]


def is_constant(value: ir.Value) -> bool:
    """Returns True for initializers and results of Constant nodes."""
    weight = value.const_value is not None and not value.is_graph_input()
    return weight or is_op(value.producer(), "Constant")


def is_weight(value: ir.Value) -> bool:
    """Returns True for constants whose numbers lie in the model, not in another file."""
    return is_constant(value) and not isinstance(value.const_value, ir.ExternalTensor)
