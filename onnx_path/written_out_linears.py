"""Replaces nodes `Linear` by the standard operators that PyTorch's exporter writes for the same layers.

Builds do so where TensorRT's own products are faster than the plugin's kernels, and quantisations for the
layers that become 8 bits: Q/DQ nodes are before matrix products. Needs no GPU.
"""

from __future__ import annotations

import itertools
import posixpath
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir

from onnx_path.domain import DOMAIN
from onnx_path.linear import ACTIVATIONS, LINEAR
from onnx_path.surgery.graph.element_types import LINEARS
from onnx_path.surgery.graph.traversal import attribute, constant

_TYPES = {
    ir.DataType.FLOAT: "float32",
    ir.DataType.FLOAT16: "float16",
    ir.DataType.BFLOAT16: "bfloat16",
}


def write_out_slow_linears(model: onnx.ModelProto, folder: Path) -> int:
    """Replaces the nodes of a model that no kernel runs fast on the current GPU, in place.

    Args:
        model: in the types that TensorRT gets.
        folder: location of weights outside of the model.

    Returns:
        The number of nodes that were replaced.
    """
    if not any((node.domain, node.op_type) in LINEARS for node in model.graph.node):
        return 0
    changed = ir.from_proto(model)
    ir.external_data.set_base_dir(changed.graph, folder)
    count = write_out_linears(changed, keep=_is_fast)
    if count:
        model.CopyFrom(ir.to_proto(changed))
    return count


def write_out_linears(model: ir.Model, keep: Callable[[ir.Node], bool] = lambda node: False) -> int:
    """Replaces the nodes of a main graph but those to keep, in place; returns their number.

    Args:
        model: of opset 20 or later, which has Gelu. Loses the function body of nodes that it has no more.
        keep: tells which nodes stay.
    """
    nodes = [node for node in model.graph if (node.domain, node.op_type) in LINEARS]
    slow = [node for node in nodes if not keep(node)]
    for node in slow:
        _write_out(node)
    if len(slow) == len(nodes):
        model.functions.pop((DOMAIN, LINEAR, ""), None)
    return len(slow)


def product_name(node: ir.Node) -> str:
    """Returns the name of the matrix product's result, once a node with constant weights is written out."""
    return f"{node.outputs[0].name}_0"


def _is_fast(node: ir.Node) -> bool:
    """Returns whether the plugin's kernel for a node is as fast as TensorRT's on the current GPU."""
    from trt_plugin import library
    from trt_plugin.engine_error import EngineError

    weight = ir.convenience.get_const_tensor(node.inputs[1])
    if weight is None or weight.dtype not in _TYPES:
        return False
    outputs, inputs = weight.shape.numpy()
    switches = (bool(attribute(node, name, 0)) for name in ("add_residual", "multiply_mask"))
    fields = attribute(node, "activation", 0), *switches
    try:
        return library.has_fast_linear(inputs, outputs, *fields, _TYPES[weight.dtype])
    except EngineError:
        return False  # no TensorRT, so no build follows


def _write_out(node: ir.Node) -> None:
    graph, (module, own_name) = node.graph, posixpath.split(node.name or "")
    place = own_name.removeprefix(LINEAR)  # such as "_1", of the second node of a module
    x, weight, bias, residual, mask = node.inputs
    output = node.outputs[0]
    names = itertools.count()

    def add(op_type: str, *inputs: ir.Value, suffix: str = "", **attributes: object) -> ir.Value:
        made = ir.node(op_type, inputs, attributes, name=posixpath.join(module, op_type) + place + suffix)
        value = made.outputs[0]
        value.name, value.type = f"{output.name}_{next(names)}", output.type
        graph.insert_before(node, made)
        return value

    array = constant(weight)
    if array is None:
        transposed = add("Transpose", weight, perm=[1, 0])
    else:
        tensor = ir.tensor(np.ascontiguousarray(array.T), name=f"{output.name}_weight")
        kind = ir.TensorType(tensor.dtype)
        transposed = ir.Value(name=tensor.name, type=kind, shape=tensor.shape, const_value=tensor)
        graph.register_initializer(transposed)
    results = [add("MatMul", x, transposed)]
    results.append(add("Add", results[-1], bias))
    activation = ACTIVATIONS[attribute(node, "activation", 0)]
    if activation != "none":
        results.append(add(activation.capitalize(), results[-1]))
    if attribute(node, "add_residual", 0):
        results.append(add("Add", residual, results[-1], suffix="_1"))
    if attribute(node, "multiply_mask", 0):
        results.append(add("Mul", results[-1], mask))
    for result in results:
        result.shape = output.shape
    results[-1].name = output.name
    ir.convenience.replace_all_uses_with(output, results[-1], replace_graph_outputs=True)
    graph.remove(node, safe=True)
    if weight.is_initializer() and not weight.uses():
        del graph.initializers[weight.name]
