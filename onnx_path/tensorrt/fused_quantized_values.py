"""Lets MSDA nodes read their values in int8.

The values of a quantised file are

    QuantizeLinear -> DequantizeLinear -> Reshape -> FusedMultiScaleDeformableAttention

The Reshape then reads what the DequantizeLinear did, and the node has the scale as an attribute.
"""

from __future__ import annotations

import onnx_ir as ir

from onnx_path.nodes.attention import DOMAIN, FUSED_ATTENTION, VALUE_SCALE
from onnx_path.quantization.qdq_nodes import SIXTEEN_BITS, scale_of, zero_type
from onnx_path.surgery.graph.element_types import Types
from onnx_path.surgery.graph.traversal import constant, is_op

_VALUE, _OFFSETS = 0, 4  # inputs of the node


def fuse_values(graph: ir.Graph, opset: int) -> int:
    """Replaces the values of a main graph's MSDA nodes, in place; returns their number."""
    types = Types(graph, opset)
    return sum(_fuse(node, types) for node in list(graph))


def _fuse(node: ir.Node, types: Types) -> bool:
    if (node.domain, node.op_type) != (DOMAIN, FUSED_ATTENTION):
        return False
    cut = node.inputs[_VALUE].producer()
    wide = cut.inputs[0].producer() if is_op(cut, "Reshape") else None
    if not is_op(wide, "DequantizeLinear") or zero_type(wide) != ir.DataType.INT8:
        return False
    scale = scale_of(wide)
    if scale is None or scale.ndim:
        return False
    dtype = ir.DataType.from_numpy(constant(wide.inputs[1]).dtype)
    if dtype not in SIXTEEN_BITS or types.of.get(node.inputs[_OFFSETS]) != dtype:
        return False
    value, narrow = cut.outputs[0], wide.inputs[0]
    name = f"{value.name}/int8"
    made = ir.node("Reshape", [narrow, *cut.inputs[1:]], cut.attributes, name=cut.name)
    result = made.outputs[0]
    result.name, result.type, result.shape = name, ir.TensorType(ir.DataType.INT8), value.shape
    node.graph.insert_before(node, made)
    node.replace_input_with(_VALUE, result)
    node.attributes.add(ir.AttrFloat32(VALUE_SCALE, float(scale)))
    return True
