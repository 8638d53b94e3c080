"""Walking an onnx_ir graph, and cutting a part of it out as a model of its own."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

import numpy as np
import onnx
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


class NotClosed(ValueError):
    """A part to cut out needs a tensor from outside."""

    def __init__(self, value: ir.Value) -> None:
        super().__init__(f"it also depends on {value.name}")


def is_op(node: ir.Node | None, *types: str) -> bool:
    """True for a node of the standard operators that has one of these types."""
    return node is not None and node.domain in STANDARD_DOMAINS and node.op_type in types


def constant(value: ir.Value | None) -> np.ndarray | None:
    """The array of an initializer or Constant node, else None."""
    if value is None or (value.is_graph_input() and not value.is_initializer()):
        return None
    tensor = ir.convenience.get_const_tensor(value)
    return None if tensor is None else tensor.numpy()


def attribute(node: ir.Node, name: str, default):
    """An attribute's Python value."""
    found = node.attributes.get(name)
    return default if found is None else found.value


def main_nodes(uses: Iterable) -> Iterator[ir.Node]:
    """The nodes of uses, each once."""
    yield from dict.fromkeys(use.node for use in uses)


def static_values(graph: ir.Graph) -> set[ir.Value]:
    """Values that follow from constants and tensors' sizes alone, not from what the tensors hold."""
    static = {value for value in graph.initializers.values() if not value.is_graph_input()}
    for node in graph:
        fixed = node.op_type not in RANDOM_OPS and not has_subgraph(node)
        if fixed and (is_op(node, *SHAPE_OPS) or all(x is None or x in static for x in node.inputs)):
            static.update(node.outputs)
    return static


def has_subgraph(node: ir.Node) -> bool:
    """True for If, Loop, Scan and their like."""
    return any(a.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS) for a in node.attributes.values())


def ancestors(outputs: Iterable[ir.Value], stop: Collection[ir.Value] = ()) -> list[ir.Node]:
    """The nodes that values are computed by, down to the values `stop`, in an order in which they can run."""
    order: dict[ir.Node, None] = {}
    entered: set[ir.Node] = set()
    pending = [(value.producer(), False) for value in outputs if value not in stop]
    while pending:
        node, done = pending.pop()
        if node is None or node in order:
            continue
        if done:
            order[node] = None
        elif node not in entered:
            entered.add(node)
            pending.append((node, True))
            pending += [(x.producer(), False) for x in node.inputs if x is not None and x not in stop]
    return list(order)


def cut(
    model: ir.Model,
    outputs: Sequence[ir.Value],
    inputs: Sequence[ir.Value],
    known_shape: Callable[[ir.Value], tuple[int, ...] | None],
    functions: Iterable[onnx.FunctionProto] = (),
) -> onnx.ModelProto:
    """Cuts out what computes `outputs` from `inputs`, at known sizes.

    Args:
        model: whose opsets hold.
        outputs: become the outputs, in this order, under their names.
        inputs: become the inputs, under their names.
        known_shape: the sizes of a tensor whose Shape is taken, or None if it shall be computed.
        functions: bodies that the nodes call.

    Raises:
        NotClosed: an output depends on more than the inputs, constants and known sizes.
    """
    boundary = set(inputs)
    shapes: dict[ir.Node, np.ndarray] = {}
    walk: list[ir.Node] = []
    stop = set(boundary)
    for node in ancestors(outputs, boundary):  # first pass: sizes end the walk
        if is_op(node, *SHAPE_OPS) and (shape := known_shape(node.inputs[0])) is not None:
            shapes[node] = _size_of(node, shape)
            stop.add(node.outputs[0])
    walk = [node for node in ancestors(outputs, stop) if node not in shapes]
    initializers: dict[str, onnx.TensorProto] = {}
    for node, array in shapes.items():
        initializers[node.outputs[0].name] = onnx.numpy_helper.from_array(array, node.outputs[0].name)
    made = stop | {output for node in walk for output in node.outputs}
    for value in [x for node in walk for x in node.inputs if x is not None] + list(outputs):
        if value not in made and value.name not in initializers:
            array = constant(value)
            if array is None:
                raise NotClosed(value)
            initializers[value.name] = ir.serde.serialize_tensor(ir.tensor(array, name=value.name))
    graph = onnx.helper.make_graph(
        [ir.serde.serialize_node(node) for node in walk],
        "part",
        [_described(value) for value in inputs],
        [onnx.ValueInfoProto(name=value.name) for value in outputs],
        initializer=list(initializers.values()),
    )
    opsets = {domain: version for domain, version in model.opset_imports.items()}
    functions = list(functions)
    opsets.update({function.domain: 1 for function in functions})
    made_model = onnx.helper.make_model(
        graph, opset_imports=[onnx.helper.make_opsetid(*pair) for pair in opsets.items()], functions=functions
    )
    made_model.ir_version = max(model.ir_version, 8)
    return made_model


def _described(value: ir.Value) -> onnx.ValueInfoProto:
    if value.dtype is None:
        raise NotClosed(value)
    return onnx.helper.make_tensor_value_info(value.name, int(value.dtype), None)


def _size_of(node: ir.Node, shape: tuple[int, ...]) -> np.ndarray:
    if node.op_type == "Size":
        return np.array(np.prod(shape), np.int64)
    return np.array(shape[slice(attribute(node, "start", 0), attribute(node, "end", None))], np.int64)
