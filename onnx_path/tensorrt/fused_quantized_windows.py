"""Gives WindowAttention nodes a result in int8, in place of the QuantizeLinear behind them.

The pass runs behind `onnx_path.tensorrt.fused_quantized_linears`, where nodes `QuantizedLinear` read the
result.
"""

from __future__ import annotations

import onnx_ir as ir

from onnx_path.nodes.domain import DOMAIN
from onnx_path.nodes.window_attention import OUTPUT_SCALE, WINDOW_ATTENTION
from onnx_path.quantization.qdq_nodes import scale_of, zero_type
from onnx_path.surgery.graph.traversal import is_op
from onnx_path.tensorrt.fused_quantized_layer_norms import quantisers_of


def fuse_windows(graph: ir.Graph) -> None:
    """Changes the WindowAttention nodes of a main graph, in place.

    A node gets the scale as an attribute if each of the result's readers quantises it to the same numbers in
    int8, for nodes `QuantizedLinear` alone. Reshapes between the two stay, if each is the only reader.
    """
    for node in list(graph):
        if (node.domain, node.op_type) == (DOMAIN, WINDOW_ATTENTION):
            _fuse(node)


def _fuse(node: ir.Node) -> None:
    results = [node.outputs[0]]
    while (shaped := _reshaped(results[-1])) is not None:
        results.append(shaped)
    quantisers = quantisers_of(results[-1])
    if not quantisers or zero_type(quantisers[0]) != ir.DataType.INT8:
        return
    node.attributes.add(ir.AttrFloat32(OUTPUT_SCALE, float(scale_of(quantisers[0]))))
    for value in results:
        value.type = ir.TensorType(ir.DataType.INT8)
    for quantiser in quantisers:
        ir.convenience.replace_all_uses_with(quantiser.outputs[0], results[-1])
    node.graph.remove(quantisers, safe=True)


def _reshaped(value: ir.Value) -> ir.Value | None:
    """Returns the result of the Reshape that alone reads a value."""
    uses = list(value.uses())
    if len(uses) != 1 or value.is_graph_output() or not is_op(uses[0].node, "Reshape") or uses[0].idx:
        return None
    return uses[0].node.outputs[0]
