"""Lets MSDA read its values in int8, in a graph for TensorRT.

`quantize_layers` has put calls of quantize and dequantize before the views that cut the values in heads. A
view then reads what dequantize did. `onnx_path.tensorrt.fused_quantized_values` does the same in the ONNX
path.
"""

from __future__ import annotations

import torch

import msda  # noqa: F401  (registers torch.ops.msda)
from dynamo_path.constant_reshapes import VIEWS
from dynamo_path.fused_quantized_linears import value_of
from dynamo_path.packed_projections import packed_attention
from dynamo_path.quantized_layers import dequantize
from msda.checks import SIXTEEN_BIT_TYPES

FUSED, QUANTIZED = torch.ops.msda.fused_attention.default, torch.ops.msda.quantized_fused_attention.default


def fuse_quantized_values(module: torch.fx.GraphModule) -> int:
    """Replaces the values of MSDA calls, in place; returns their number."""
    calls = [node for node in module.graph.nodes if node.target in (FUSED, packed_attention)]
    count = sum(_fuse(module, node) for node in calls)
    module.graph.eliminate_dead_code()
    module.graph.lint()
    module.recompile()
    return count


def _fuse(module: torch.fx.GraphModule, node: torch.fx.Node) -> bool:
    cut = node.args[0]
    wide = cut.args[0] if cut.target in VIEWS else None
    if wide is None or wide.target is not dequantize:
        return False
    narrow, scale, dtype = wide.args
    if dtype not in SIXTEEN_BIT_TYPES or narrow.meta["val"].dtype != torch.int8:
        return False
    if node.args[4].meta["val"].dtype != dtype:
        return False
    with module.graph.inserting_before(node):
        value = module.graph.call_function(cut.target, (narrow, *cut.args[1:]), cut.kwargs)
    value.meta = cut.meta | {"val": cut.meta["val"].to(torch.int8)}
    number = float(value_of(module, scale))
    if node.target is packed_attention:
        points = node.args[5] if len(node.args) > 5 else None
        node.args = (value, *node.args[1:5], points, number)
    else:
        node.target = QUANTIZED
        node.args = (value, *node.args[1:6], number, *node.args[6:])
    return True
