"""Cutting a part out of a graph, as a model that onnxruntime can run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import onnx
import onnx_ir as ir


class NotClosed(ValueError):
    """A part depends on tensors other than its inputs."""


def partial_model(
    model: ir.Model, inputs: Sequence[ir.Value], outputs: Sequence[ir.Value]
) -> onnx.ModelProto:
    """Cuts out the nodes that compute `outputs` from `inputs`, under the tensors' own names.

    The model has those of `inputs` that its nodes read. The time depends on the part's size, where that of
    `ir.convenience.extract` depends on the whole graph's: the surgery cuts out hundreds of small parts.

    Raises:
        NotClosed: the outputs depend on another input of the graph.
    """
    given = set(inputs)
    nodes: dict[ir.Node, None] = {}  # in an order in which they can run
    pending = _producers(outputs, given)
    while pending:
        missing = [x for x in _producers(read_by(pending[-1]), given) if x not in nodes]
        if missing:
            pending += missing
        else:
            nodes[pending.pop()] = None
    used = dict.fromkeys((*outputs, *(value for node in nodes for value in read_by(node))))  # an ordered set
    sources = [x for x in used if x not in given and x.producer() is None]
    constants = [x for x in sources if x.is_initializer()]
    others = [x.name for x in sources if not x.is_initializer()]
    if others:
        raise NotClosed(f"the part reads {', '.join(map(str, others))} too")
    view = ir.GraphView(
        [x for x in inputs if x in used],
        outputs,
        nodes=list(nodes),
        initializers=constants,
        opset_imports=model.graph.opset_imports,
        name=model.graph.name,
    )
    return runnable(model, view.clone())


def _producers(values: Iterable[ir.Value], given: set[ir.Value]) -> list[ir.Node]:
    return [node for x in values if x not in given and (node := x.producer()) is not None]


def read_by(node: ir.Node) -> Iterator[ir.Value]:
    """Yields the tensors of the node's graph that it and its subgraphs read."""
    yield from (x for x in node.inputs if x is not None)
    for attribute in node.attributes.values():
        if attribute.type == ir.AttributeType.GRAPH:
            for inner in ir.traversal.RecursiveGraphIterator(attribute.as_graph()):
                yield from (x for x in inner.inputs if x is not None and x.graph is node.graph)


def runnable(
    model: ir.Model, graph: ir.Graph, functions: Iterable[onnx.FunctionProto] = ()
) -> onnx.ModelProto:
    """Makes a graph a model with the opsets of `model`, for inputs of any size.

    Args:
        model: gives opsets and IR version.
        graph: the part to run.
        functions: bodies that the graph's nodes call.
    """
    proto = ir.to_proto(
        ir.Model(graph, ir_version=max(model.ir_version, 8))
    )  # functions exist since version 8
    del proto.graph.value_info[:], proto.opset_import[:]
    inputs = {value.name for value in proto.graph.input}
    constants = [x for x in proto.graph.initializer if x.name not in inputs]  # an input replaces a constant
    del proto.graph.initializer[:]
    proto.graph.initializer.extend(constants)
    for value in proto.graph.input:
        value.type.tensor_type.ClearField("shape")
    for value in proto.graph.output:
        value.ClearField("type")
    functions = list(functions)
    opsets = dict(model.opset_imports) | {function.domain: 1 for function in functions}
    proto.opset_import.extend(onnx.helper.make_opsetid(*pair) for pair in opsets.items())
    proto.functions.extend(functions)
    return proto
