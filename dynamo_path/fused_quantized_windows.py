"""Gives window attention a result in int8, in place of the quantize calls behind it.

The pass runs behind `fuse_quantized_linears`. `onnx_path.tensorrt.fused_quantized_windows` does the same in
the ONNX path.
"""

from __future__ import annotations

import torch

import msda  # noqa: F401  (registers torch.ops.msda)
from dynamo_path.constant_reshapes import VIEWS
from dynamo_path.fused_quantized_layer_norms import quantisers_of


def fuse_quantized_windows(module: torch.fx.GraphModule) -> int:
    """Changes calls of `msda.window_attention` in place; returns their number.

    A call gets the scale as an argument if each of the result's readers quantises it to the same numbers in
    int8, for calls of `quantized_linear` alone. Views between the two stay, if each is the only reader.

    Args:
        module: a graph behind `fuse_quantized_linears`.
    """
    windows = [node for node in module.graph.nodes if node.target is torch.ops.msda.window_attention.default]
    count = sum(_fuse(module, node) for node in windows)
    module.graph.eliminate_dead_code()
    module.graph.lint()
    module.recompile()
    return count


def _fuse(module: torch.fx.GraphModule, node: torch.fx.Node) -> bool:
    results = [node]
    while len(results[-1].users) == 1 and next(iter(results[-1].users)).target in VIEWS:
        results.extend(results[-1].users)
    quantised = quantisers_of(module, results[-1])
    if quantised is None or quantised[2] != torch.int8:
        return False
    quantisers, scale, _ = quantised
    node.args = (*node.args[:5], scale)
    for result in results:
        result.meta = {**result.meta, "val": result.meta["val"].to(torch.int8)}
    for quantiser in quantisers:
        quantiser.replace_all_uses_with(results[-1])
    return True
