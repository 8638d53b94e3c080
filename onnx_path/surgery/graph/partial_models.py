"""Cutting a part out of a graph, as a model that onnxruntime can run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import onnx
import onnx_ir as ir


class NotClosed(ValueError):
    """A part depends on tensors other than its inputs."""


def partial_model(
    model: ir.Model, inputs: Sequence[ir.Value], outputs: Sequence[ir.Value]
) -> onnx.ModelProto:
    """Cuts out the nodes that compute `outputs` from `inputs`, under the tensors' own names.

    Raises:
        NotClosed: the outputs depend on another input of the graph.
    """
    try:
        return runnable(model, ir.convenience.extract(model.graph, inputs, outputs))
    except ValueError as error:
        raise NotClosed(str(error)) from error


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
