"""The tensors of an engine's ONNX file that can be compared with another file, and their dependencies."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

import onnx
import onnx_ir as ir

from onnx_path.opset import opset_of
from onnx_path.surgery.graph.element_types import Types
from onnx_path.surgery.graph.traversal import (
    FLOATS,
    SHAPE_OPS,
    STANDARD_DOMAINS,
    is_op,
    static_values,
)

# Types of outputs that `trt_plugin.EngineRunner` reads.
_TYPES = (
    ir.DataType.FLOAT,
    ir.DataType.FLOAT16,
    ir.DataType.BFLOAT16,
    ir.DataType.INT64,
    ir.DataType.INT32,
    ir.DataType.BOOL,
)
# TensorRT's parser may merge their input and output into one tensor, which has one name.
_ALIASES = ("Identity", "Dropout")
# The sizes of their results depend on values, and the runner has no memory for them.
_DATA_SIZED = ("NonZero", "NonMaxSuppression", "Unique", "Compress")
# TensorRT's parser evaluates some of them for constants. They change no number.
_MOVES = (
    *("Cast", "Concat", "Expand", "Flatten", "Gather", "Pad", "Reshape", "Slice", "Split", "Squeeze", "Tile"),
    *("Transpose", "Unsqueeze"),
)


@dataclass(frozen=True)
class NodeName:
    """The name of a node in a report.

    Attributes:
        name: name of its first output if the node has none.
        op_type: with the domain, unless that is ONNX's.
    """

    name: str
    op_type: str

    def __str__(self) -> str:
        return f"{self.name} ({self.op_type})"


class ComparableTensors:
    """Tensors of a main graph that another file's graph has too.

    These are left out: types that an engine cannot give; tensors that TensorRT may merge with another;
    shapes, which an engine keeps in host memory; and constants that are only moved or cast. Outputs of the
    graph are always among the tensors.

    Args:
        parsed: model that TensorRT parses.
        others: names of the tensors of the other file.

    Attributes:
        names: names of the tensors in topological order.
        types: ONNX's number of each one's element type.
    """

    def __init__(self, parsed: onnx.ModelProto, others: Collection[str]) -> None:
        graph = ir.from_proto(parsed).graph
        types, static = Types(graph, opset_of(parsed)).of, static_values(graph)
        self._values: dict[str, ir.Value] = {}
        self._nearest: dict[ir.Value, tuple[str, ...]] = {}
        self._inputs = {x.name for x in graph.inputs if not x.is_initializer()}
        fixed = {value for value in graph.initializers.values() if not value.is_graph_input()}
        for value in graph.inputs:
            self._nearest[value] = (value.name,) if value.name in self._inputs else ()
        self._order: dict[ir.Node, int] = {}
        for node in graph:
            self._order[node] = len(self._order)
            # A size does not depend on values.
            sources = () if is_op(node, *SHAPE_OPS) else self._merged(_reads(node))
            if not is_op(node, *SHAPE_OPS) and all(x is None or x in fixed for x in node.inputs):
                fixed.update(x for x in node.outputs if x in static)
            for value in node.outputs:
                known = value not in static or _is_computed(value, types, value in fixed)
                if value.name in others and (
                    value.is_graph_output() or (known and _can_be_output(value, types))
                ):
                    self._values[value.name] = value
                    self._nearest[value] = (value.name,)
                else:
                    self._nearest[value] = sources
        self.names = list(self._values)
        self.types = {name: int(types.get(value) or 0) for name, value in self._values.items()}
        self._ancestors: dict[str, frozenset[str]] = {}
        for name in self.names:
            near = [x for x in self.sources(name) if x not in self._inputs]
            self._ancestors[name] = frozenset(near).union(*(self._ancestors[x] for x in near))

    def is_input(self, name: str) -> bool:
        """Returns whether a name is an input of the graph."""
        return name in self._inputs

    def sources(self, name: str) -> tuple[str, ...]:
        """Returns the nearest tensors and graph inputs that a tensor is computed from."""
        return self._merged(_reads(self._values[name].producer()))

    def ancestors(self, name: str) -> frozenset[str]:
        """Returns all tensors that a tensor depends on, without the graph's inputs."""
        return self._ancestors[name]

    def nodes(self, name: str) -> list[NodeName]:
        """Returns the nodes that compute a tensor from its `sources`, the one that gives it last."""
        stops = set(self._values.values())
        found: set[ir.Node] = set()
        pending = [self._values[name]]
        while pending:
            node = pending.pop().producer()
            if node is not None and node not in found:
                found.add(node)
                pending += [x for x in _reads(node) if x not in stops and self._nearest.get(x)]
        return [
            NodeName(x.name or x.outputs[0].name, f"{_domain(x)}{x.op_type}")
            for x in sorted(found, key=self._order.__getitem__)
        ]

    def _merged(self, values: Iterable[ir.Value]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for value in values for name in self._nearest.get(value, ())))


def names_of(model: onnx.ModelProto) -> set[str]:
    """Returns the names of all tensors that the nodes of a main graph compute."""
    return {name for node in model.graph.node for name in node.output if name}


def _can_be_output(value: ir.Value, types: dict[ir.Value, ir.DataType | None]) -> bool:
    merged = is_op(value.producer(), *_ALIASES) or any(is_op(use.node, *_ALIASES) for use in value.uses())
    return not merged and not is_op(value.producer(), *_DATA_SIZED) and types.get(value) in _TYPES


def _is_computed(value: ir.Value, types: dict[ir.Value, ir.DataType | None], fixed: bool) -> bool:
    """Returns whether a value that depends on constants and sizes alone (`fixed`: on constants) is computed.

    Shapes, which have rank 0 or 1, are not.
    """
    if types.get(value) not in FLOATS or is_op(value.producer(), "Constant", "ConstantOfShape", *_MOVES):
        return False
    return fixed or (value.shape is not None and len(value.shape) >= 2)


def _reads(node: ir.Node) -> Iterator[ir.Value]:
    """Yields the inputs of a node, and the values that its subgraphs read."""
    yield from (x for x in node.inputs if x is not None)
    for attribute in node.attributes.values():
        if attribute.type == ir.AttributeType.GRAPH:
            graph = attribute.as_graph()
            yield from graph.outputs
            for inner in graph:
                yield from _reads(inner)


def _domain(node: ir.Node) -> str:
    return "" if node.domain in STANDARD_DOMAINS else f"{node.domain}."
