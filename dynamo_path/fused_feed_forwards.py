"""Merges calls of `msda.linear` to `msda.feed_forward`, where a kernel computes both layers in 16 bits.

`onnx_path.tensorrt.fused_feed_forwards` does the same in the ONNX path.
"""

from __future__ import annotations

from collections.abc import Collection

import torch

from dynamo_path.written_out_linears import OPERATOR
from trt_plugin import library

_TYPES = (torch.float16, torch.bfloat16)


def fuse_feed_forwards(program: torch.export.ExportedProgram, narrow: Collection[torch.fx.Node] = ()) -> int:
    """Replaces the blocks that a kernel runs fast on the current GPU, in place; returns their number.

    Args:
        program: not yet changed by `write_out_for_tensorrt`, which writes out the first layer of a block.
        narrow: result of `calls_in_8_bits`. The blocks of these calls stay.
    """
    count = 0
    for second in list(program.graph.nodes):
        first = _first_layer(second)
        if first is None or first in narrow or second in narrow:
            continue
        if _is_fast(first, second):
            _replace(program.graph, first, second)
            count += 1
    program.graph_module.recompile()
    return count


def _first_layer(second: torch.fx.Node) -> torch.fx.Node | None:
    """Returns the first layer of the block that ends with a node: x -> layer with a ReLU -> layer that adds
    x and normalises."""
    if second.target is not OPERATOR:
        return None
    first, _, bias, residual, mask, norm_weight, _, activation, _ = second.args
    if bias is None or residual is None or norm_weight is None or mask is not None or activation != "none":
        return None
    if first.target is not OPERATOR or len(first.users) > 1:
        return None
    x, _, bias, *unused, activation, _ = first.args
    fits = x is residual and bias is not None and activation == "relu"
    return first if fits and all(tensor is None for tensor in unused) else None


def _is_fast(first: torch.fx.Node, second: torch.fx.Node) -> bool:
    """Returns whether the plugin has a fast kernel for a block on the current GPU."""
    *sizes, channels = second.meta["val"].shape
    if second.meta["val"].dtype not in _TYPES:
        return False
    rows = library.rows_of_layer(sizes)
    return library.has_fast_feed_forward(rows, channels, first.meta["val"].shape[-1])


def _replace(graph: torch.fx.Graph, first: torch.fx.Node, second: torch.fx.Node) -> None:
    tensors = *first.args[:3], *second.args[1:3], *second.args[5:7]
    with graph.inserting_before(second):
        made = graph.call_function(torch.ops.msda.feed_forward.default, (*tensors, second.args[8]))
    made.meta = first.meta | {"val": second.meta["val"]}
    second.replace_all_uses_with(made)
    graph.erase_node(second)
    graph.erase_node(first)
