"""Replaces nodes `Linear` and `LinearMax` by the standard operators that PyTorch's exporter writes for them.

Builds do so where TensorRT's own products are faster than the plugin's kernels, and quantisations for the
layers that become 8 bits: Q/DQ nodes are before matrix products. Needs no GPU.
"""

from __future__ import annotations

import itertools
import math
import posixpath
from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from onnx_path.nodes.domain import DOMAIN
from onnx_path.nodes.linear import ACTIVATIONS, EPS, LINEAR
from onnx_path.opset import opset_of
from onnx_path.surgery.graph.element_types import LINEAR_MAXES, LINEARS, Types
from onnx_path.surgery.graph.traversal import add_constant, attribute, constant

_LAYERS = LINEARS | LINEAR_MAXES
_OPSET_OF_GELU = 20
"""Opset from which GELU is one node; files before it get the pieces of PyTorch's exporter."""
_OPSET_OF_AXES_INPUT = 18
"""Opset from which ReduceMax has its axes as an input."""
_TYPES = {
    ir.DataType.FLOAT: "float32",
    ir.DataType.FLOAT16: "float16",
    ir.DataType.BFLOAT16: "bfloat16",
}


def write_out_slow_linears(model: ir.Model) -> int:
    """Replaces the nodes that no kernel runs fast on the current GPU, in place; returns their number.

    Args:
        model: in the types that TensorRT gets.
    """
    if not any((node.domain, node.op_type) in _LAYERS for node in model.graph):
        return 0
    types = Types(model.graph, opset_of(model))
    return write_out_linears(model, keep=lambda node: _is_fast(node, types))


def write_out_linears(model: ir.Model, keep: Callable[[ir.Node], bool] = lambda node: False) -> int:
    """Replaces the nodes of a main graph but those to keep, in place; returns their number.

    Args:
        model: loses the function bodies of nodes that it has no more.
        keep: tells which nodes stay.
    """
    nodes = [node for node in model.graph if (node.domain, node.op_type) in _LAYERS]
    slow = [node for node in nodes if not keep(node)]
    for node in slow:
        _write_out(node, model.opset_imports[""])
    for op_type in {node.op_type for node in slow} - {node.op_type for node in model.graph}:
        model.functions.pop((DOMAIN, op_type, ""), None)
    return len(slow)


def product_name(node: ir.Node) -> str:
    """Returns the name of the matrix product's result, once a node with constant weights is written out."""
    return f"{node.outputs[0].name}/0"  # exporters write "linear_0"


def _is_fast(node: ir.Node, types: Types) -> bool:
    """Returns whether the plugin's kernel for a node is as fast as TensorRT's on the current GPU."""
    from trt_plugin import library
    from trt_plugin.engine_error import EngineError

    weight = ir.convenience.get_const_tensor(node.inputs[1])
    kind = _TYPES.get(types.of[node.inputs[0]])
    if weight is None or kind is None:
        return False
    outputs, inputs = weight.shape.numpy()
    names = "add_residual", "multiply_mask", "normalise"
    switches = (bool(attribute(node, name, 0)) for name in names)
    fields = attribute(node, "activation", 0), *switches
    try:
        if _is_largest(node):
            return library.has_fast_linear_max(inputs, outputs, kind)
        return library.has_fast_linear(inputs, outputs, *fields, kind)
    except EngineError:
        return False  # no TensorRT, so no build follows


def _is_largest(node: ir.Node) -> bool:
    return (node.domain, node.op_type) in LINEAR_MAXES


def _write_out(node: ir.Node, opset: int) -> None:
    graph, (module, own_name) = node.graph, posixpath.split(node.name or "")
    place = own_name.removeprefix(LINEAR)  # such as "_1", of the second node of a module
    if _is_largest(node):  # the module may have such operators itself
        module, place = node.name or "", ""
    x, weight, bias, *optional = node.inputs
    output = node.outputs[0]
    names = itertools.count()

    def add(
        op_type: str, *inputs: ir.Value, suffix: str = "", name: str = "", **attributes: object
    ) -> ir.Value:
        made = ir.node(op_type, inputs, attributes, name=posixpath.join(module, op_type) + place + suffix)
        value = made.outputs[0]
        value.name, value.type = name or f"{output.name}/{next(names)}", output.type
        graph.insert_before(node, made)
        return value

    def own(array: np.ndarray, name: str) -> ir.Value:
        return add_constant(graph, f"{output.name}/{name}", array)

    array = constant(weight)
    if array is None:
        transposed = add("Transpose", weight, perm=[1, 0])
    else:
        transposed = own(np.ascontiguousarray(array.T), "weight")
    if _is_largest(node) and x.dtype != ir.DataType.FLOAT:
        x = add("Cast", x, name=f"{output.name}/x", to=ir.DataType.FLOAT)
    results = [add("MatMul", x, transposed)]
    results.append(add("Add", results[-1], bias))
    activation = ACTIVATIONS[attribute(node, "activation", 0)]
    if activation == "gelu" and opset < _OPSET_OF_GELU:
        numbers = np.array([math.sqrt(2), 1, 0.5], constant(bias).dtype)
        root, one, half = map(own, numbers, ("root", "one", "half"))
        share = add("Add", add("Erf", add("Div", results[-1], root)), one, suffix="_gelu")
        results.append(add("Mul", add("Mul", results[-1], share), half, suffix="_1"))
    elif activation != "none":
        results.append(add(activation.capitalize(), results[-1]))
    if attribute(node, "add_residual", 0):
        results.append(add("Add", optional[0], results[-1], suffix="_1"))
    if attribute(node, "multiply_mask", 0):
        results.append(add("Mul", results[-1], optional[1]))
    if attribute(node, "normalise", 0):
        eps = attribute(node, "eps", EPS)
        results.append(add("LayerNormalization", results[-1], *optional[2:], axis=-1, epsilon=eps))
    if _is_largest(node):
        if opset < _OPSET_OF_AXES_INPUT:
            results = [add("ReduceMax", results[-1], axes=[-1], keepdims=0)]
        else:
            results = [add("ReduceMax", results[-1], own(np.array([-1]), "axes"), keepdims=0)]
    for result in results:
        result.shape = output.shape
    results[-1].name = output.name
    ir.convenience.replace_all_uses_with(output, results[-1], replace_graph_outputs=True)
    graph.remove(node, safe=True)
    if weight.is_initializer() and not weight.uses():
        del graph.initializers[weight.name]
