"""Questions about nodes and values of an onnx_ir graph, and constants for it."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

STANDARD_DOMAINS = ("", "ai.onnx")
SHAPE_OPS = ("Shape", "Size")
RANDOM_OPS = (
    "RandomNormal",
    "RandomNormalLike",
    "RandomUniform",
    "RandomUniformLike",
    "Bernoulli",
    "Multinomial",
)
FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.DOUBLE)


def is_op(node: ir.Node | None, *types: str) -> bool:
    """Returns True for a node of the standard operators that has one of these types."""
    return node is not None and node.domain in STANDARD_DOMAINS and node.op_type in types


def constant(value: ir.Value | None) -> np.ndarray | None:
    """Returns the array of an initializer or Constant node, else None."""
    if value is None or (value.is_graph_input() and not value.is_initializer()):
        return None
    tensor = ir.convenience.get_const_tensor(value)
    return None if tensor is None else tensor.numpy()


def add_constant(graph: ir.Graph, name: str, array: np.ndarray) -> ir.Value:
    """Adds an initializer to a graph, and returns it."""
    value = ir.val(name, const_value=ir.tensor(array, name=name))
    graph.register_initializer(value)
    return value


def free_name(name: str, taken: set[str]) -> str:
    """Appends underscores to a name until it is not taken, and adds it to the taken ones."""
    while name in taken:
        name += "_"
    taken.add(name)
    return name


def attribute(node: ir.Node, name: str, default):
    """Returns an attribute's Python value."""
    found = node.attributes.get(name)
    return default if found is None else found.value


def has_subgraph(node: ir.Node) -> bool:
    """Returns True for If, Loop, Scan and other nodes that hold a graph."""
    return any(a.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS) for a in node.attributes.values())


def static_values(graph: ir.Graph) -> set[ir.Value]:
    """Returns the values that follow from constants and tensors' sizes alone."""
    static = {value for value in graph.initializers.values() if not value.is_graph_input()}
    for node in graph:
        fixed = node.op_type not in RANDOM_OPS and not has_subgraph(node)
        if fixed and (is_op(node, *SHAPE_OPS) or all(x is None or x in static for x in node.inputs)):
            static.update(node.outputs)
    return static
