"""Replaces LayerNormalization and the QuantizeLinear behind it by nodes `QuantizedLayerNorm`.

TensorRT fuses the two only if its own kernels read the result. The pass runs behind
`onnx_path.tensorrt.fused_quantized_linears`, where nodes `QuantizedLinear` read it. It knows the nodes by
what they compute, not by names.
"""

from __future__ import annotations

import posixpath

import onnx_ir as ir

from onnx_path.nodes.domain import DOMAIN, PLUGIN_ATTRIBUTES
from onnx_path.quantization.qdq_nodes import EIGHT_BITS, SIXTEEN_BITS, scale_of, zero_type
from onnx_path.surgery.graph.traversal import attribute, constant, is_op
from trt_plugin.library import QUANTIZED_LAYER_NORM, QUANTIZED_LINEAR


def fuse_layer_norms(graph: ir.Graph) -> None:
    """Replaces the normalisations of a main graph, in place.

    A normalisation of rows in 16 bits, with a constant weight and bias, becomes a node if each of its readers
    quantises it to the same numbers, for nodes `QuantizedLinear` alone. Reshapes between the two may only
    give the rows their shape again, as between the backbone and the neck.
    """
    for node in list(graph):
        if is_op(node, "QuantizeLinear"):
            _pass_reshapes(node)
    for node in list(graph):
        quantisers = quantisers_of(node.outputs[0]) if type_of_norm(node) is not None else []
        if quantisers:
            _replace(node, quantisers)


def _pass_reshapes(quantiser: ir.Node) -> None:
    """Lets a QuantizeLinear read what is before Reshapes that give it its shape again."""
    value, passed = quantiser.inputs[0], []
    while is_op(value.producer(), "Reshape"):
        passed.append(value.producer())
        value = value.producer().inputs[0]
        shape = value.shape
        if shape is not None and shape.is_static() and shape == quantiser.inputs[0].shape:
            quantiser.replace_input_with(0, value)
            for node in passed:
                if not node.outputs[0].uses() and not node.outputs[0].is_graph_output():
                    node.graph.remove(node, safe=True)
            return


def type_of_norm(node: ir.Node) -> ir.DataType | None:
    """Returns the 16-bit type of a normalisation of rows with a constant weight and bias.

    None for other nodes, and where mean or variance have a reader.
    """
    if not is_op(node, "LayerNormalization") or attribute(node, "axis", -1) != -1:
        return None
    if any(value.uses() or value.is_graph_output() for value in node.outputs[1:]):
        return None
    parameters = [constant(value) for value in node.inputs[1:]]
    if len(parameters) != 2 or any(array is None or array.ndim != 1 for array in parameters):
        return None
    dtype = ir.DataType.from_numpy(parameters[0].dtype)
    return dtype if dtype in SIXTEEN_BITS else None


def quantisers_of(result: ir.Value) -> list[ir.Node]:
    """Returns the QuantizeLinear nodes that read a result, if a node can give their numbers in its place.

    They are all of its readers, quantise it to the same numbers, and do so for nodes `QuantizedLinear` alone.
    """
    readers = [use.node for use in result.uses()]
    if not all(map(_is_quantiser, readers)) or result.is_graph_output():
        return []
    numbers = {(float(scale_of(reader)), zero_type(reader)) for reader in readers}
    return readers if len(numbers) == 1 else []


def _is_quantiser(node: ir.Node) -> bool:
    """Returns whether a node quantises for nodes `QuantizedLinear` alone, with one scale."""
    if not is_op(node, "QuantizeLinear") or zero_type(node) not in EIGHT_BITS:
        return False
    scale, result = scale_of(node), node.outputs[0]
    if scale is None or scale.ndim or result.is_graph_output():
        return False
    return all((use.node.domain, use.node.op_type) == (DOMAIN, QUANTIZED_LINEAR) for use in result.uses())


def _replace(node: ir.Node, quantisers: list[ir.Node]) -> None:
    first = quantisers[0].outputs[0]
    module, own_name = posixpath.split(node.name or "")
    place = own_name.removeprefix(node.op_type)  # such as "_1", of the second node of a module
    kind = zero_type(quantisers[0])
    attributes = {
        "eps": attribute(node, "epsilon", 1e-5),
        "output_type": int(kind),
        "scale": float(scale_of(quantisers[0])),
    }
    made = ir.node(
        QUANTIZED_LAYER_NORM,
        node.inputs,
        attributes | PLUGIN_ATTRIBUTES,
        domain=DOMAIN,
        name=posixpath.join(module, QUANTIZED_LAYER_NORM) + place,
    )
    result = made.outputs[0]
    result.name, result.type, result.shape = first.name, ir.TensorType(kind), node.outputs[0].shape
    graph = node.graph
    graph.insert_before(node, made)
    for quantiser in quantisers:
        ir.convenience.replace_all_uses_with(quantiser.outputs[0], result)
    graph.remove([*quantisers, node], safe=True)
