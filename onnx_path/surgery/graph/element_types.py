"""Element types of a graph's tensors, and the tensors of a node that may be 16-bit, by ONNX's schemas."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

import onnx
import onnx_ir as ir

from onnx_path.nodes.attention import ATTENTION, DOMAIN, FUSED_ATTENTION, NVIDIA_DOMAIN
from onnx_path.nodes.feed_forward import FEED_FORWARD
from onnx_path.nodes.group_norm import GROUP_NORM
from onnx_path.nodes.linear import LINEAR
from onnx_path.nodes.linear_max import LINEAR_MAX
from onnx_path.nodes.linear_of_sum import LINEAR_OF_SUM
from onnx_path.nodes.top_k_indices import TOP_K_INDICES
from onnx_path.nodes.window_attention import WINDOW_ATTENTION
from onnx_path.surgery.graph.traversal import STANDARD_DOMAINS, attribute, has_subgraph, is_op

ATTENTIONS = {(DOMAIN, ATTENTION): (0,), (DOMAIN, FUSED_ATTENTION): (0, 4, 5)}
"""MSDA nodes, and their inputs that get the type of value; locations, weights and references stay float32."""

WINDOW_ATTENTIONS = {(DOMAIN, WINDOW_ATTENTION): (0, 1, 2)}
"""Nodes of window attention, and their inputs, which have one type."""

GROUP_NORMS = {(DOMAIN, GROUP_NORM): (0, 1, 2)}
"""Nodes of group normalisation, and their inputs, which have one type."""

LINEARS = {(DOMAIN, LINEAR): (0, 1, 2, 3, 4, 5, 6)}
"""Nodes of linear layers, and their inputs, which have one type."""

LINEARS_OF_SUMS = {(DOMAIN, LINEAR_OF_SUM): (0, 1, 2, 3)}
"""Nodes of linear layers of a sum, and their inputs, which have one type."""

FEED_FORWARDS = {(DOMAIN, FEED_FORWARD): (0, 1, 2, 3, 4, 5, 6)}
"""Nodes of feed-forward blocks, and their inputs, which have one type."""

LINEAR_MAXES = {(DOMAIN, LINEAR_MAX): (0,)}
"""Nodes of the largest output of linear layers, and their features; weights and results stay float32."""

OWN_NODES = (
    ATTENTIONS | WINDOW_ATTENTIONS | GROUP_NORMS | LINEARS | LINEARS_OF_SUMS | FEED_FORWARDS | LINEAR_MAXES
)
"""Nodes of the library's operators, and their inputs that get the type of the first."""

_FLOAT = ir.DataType.FLOAT
_RESULTS = {(DOMAIN, TOP_K_INDICES): ir.DataType.INT32, (DOMAIN, LINEAR_MAX): _FLOAT}
_DOMAINS = (DOMAIN, NVIDIA_DOMAIN)  # other results of their nodes have the type of the first input
# TensorRT takes Resize's scales in float32.
_NARROW_INPUTS = OWN_NODES | {("", "Resize"): (0,)}


class Types:
    """The element types of all values of a main graph, inferred where the file does not give them.

    Attributes:
        of: the type of each value, None where unknown.
    """

    def __init__(self, graph: ir.Graph, opset: int) -> None:
        self._opset = opset
        self.of: dict[ir.Value, ir.DataType | None] = {}
        for value in (*graph.inputs, *graph.initializers.values()):
            self.of[value] = value.const_value.dtype if value.const_value is not None else value.dtype
        for node in graph:
            self._infer_inputs(node)
            for i, value in enumerate(node.outputs):
                self.of[value] = self._infer(node, i)

    def floats(self, values: Iterable[ir.Value | None]) -> list[ir.Value]:
        """Returns the values that are float32."""
        return [value for _, value in self._places(values)]

    def narrow_places(self, node: ir.Node, narrow: ir.DataType) -> tuple[Collection[int], Collection[int]]:
        """Returns the places of float32 inputs and outputs that can be of type `narrow`.

        Both are empty unless the first input can. Other inputs stay float32, `scales` of Resize for instance.
        """
        domain = "" if node.domain in STANDARD_DOMAINS else node.domain
        only = _NARROW_INPUTS.get((domain, node.op_type))
        places = [i for i, _ in self._places(node.inputs) if only is None or i in only]
        if not places:
            return (), ()
        if domain == DOMAIN:
            return places, () if (domain, node.op_type) in _RESULTS else (0,)
        schema = self._schema(node)
        if schema is None:
            return (), ()
        wanted = f"tensor({narrow.name.lower()})"
        formals = {i: _formal(schema.inputs, i) for i in places}
        if wanted not in formals[places[0]].types:
            return (), ()
        places = [i for i in places if wanted in formals[i].types]
        bound = {formals[i].type_str for i in places}
        outputs = [i for i, _ in self._places(node.outputs) if _formal(schema.outputs, i).type_str in bound]
        return places, outputs

    def _places(self, values: Iterable[ir.Value | None]) -> Iterator[tuple[int, ir.Value]]:
        return ((i, x) for i, x in enumerate(values) if x is not None and self.of.get(x) == _FLOAT)

    def _schema(self, node: ir.Node) -> onnx.defs.OpSchema | None:
        try:
            return onnx.defs.get_schema(node.op_type, self._opset, "") if is_op(node, node.op_type) else None
        except onnx.defs.SchemaError:
            return None

    def _infer_inputs(self, node: ir.Node) -> None:
        """Gives results of unknown operators a type: inputs of one type parameter have one type."""
        if (schema := self._schema(node)) is None:
            return
        kinds = [
            (value, _formal(schema.inputs, i)) for i, value in enumerate(node.inputs) if value is not None
        ]
        for value, formal in kinds:
            if self.of.get(value) is None and formal.is_homogeneous:
                alike = (self.of.get(other) for other, its in kinds if its.type_str == formal.type_str)
                self.of[value] = next((kind for kind in alike if kind is not None), None)

    def _infer(self, node: ir.Node, place: int) -> ir.DataType | None:
        value = node.outputs[place]
        if is_op(node, "Cast"):
            return ir.DataType(attribute(node, "to", 0))
        if is_op(node, "Constant"):
            tensor = ir.convenience.get_const_tensor(value)
            return value.dtype if tensor is None else tensor.dtype
        if is_op(node, "ConstantOfShape"):
            tensor = attribute(node, "value", None)
            return _FLOAT if tensor is None else tensor.dtype
        if (node.domain, node.op_type) in _RESULTS:
            return _RESULTS[node.domain, node.op_type]
        if node.domain in _DOMAINS:
            return self.of.get(node.inputs[0])
        if value.dtype is None and has_subgraph(node):
            bodies = [x.as_graph() for x in node.attributes.values() if x.type == ir.AttributeType.GRAPH]
            condition = is_op(node, "Loop")  # the first output of the body
            return bodies[0].outputs[place + condition].dtype
        schema = self._schema(node)
        if value.dtype is not None or schema is None:
            return value.dtype
        formal = _formal(schema.outputs, place)
        for i, source in enumerate(node.inputs):
            if source is not None and _formal(schema.inputs, i).type_str == formal.type_str:
                return self.of.get(source)
        kind, *others = formal.types  # such as "tensor(int64)"
        name = kind.removeprefix("tensor(").removesuffix(")").upper()
        return None if others else ir.DataType.__members__.get(name)


def is_top_k(node: ir.Node) -> bool:
    """Returns whether a node is TopK or `TopKIndices`. Both have the indices as their last output."""
    return is_op(node, "TopK") or (node.domain, node.op_type) == (DOMAIN, TOP_K_INDICES)


def _formal(formals: Sequence, place: int):
    return formals[min(place, len(formals) - 1)]  # the last may be variadic
