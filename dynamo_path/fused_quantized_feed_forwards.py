"""Merges the feed-forward blocks of post-norm transformers in int8, for the plugin `QuantizedFeedForward`.

The pass runs behind `fuse_quantized_linears`. `onnx_path.tensorrt.fused_quantized_feed_forwards` does the
same in the ONNX path.
"""

from __future__ import annotations

import torch
from torch import Tensor

import msda
from dynamo_path.fused_quantized_layer_norms import result_of_norm
from dynamo_path.fused_quantized_linears import quantized_linear, value_of
from dynamo_path.int8_results import int8_readers, take_both_places
from dynamo_path.quantized_layers import quantize
from trt_plugin import library


def quantized_feed_forward(
    x: Tensor,
    packed_weight1: Tensor,
    scale1: Tensor,
    bias1: Tensor,
    packed_weight2: Tensor,
    scale2: Tensor,
    bias2: Tensor,
    norm_weight: Tensor,
    norm_bias: Tensor,
    x_scale: float,
    hidden_scale: float,
    eps: float,
    next_scale: float | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Runs `msda.quantized_feed_forward` with weights as the plugin reads them.

    Args:
        packed_weight1, packed_weight2: [H, C / 4] and [C, H / 4] int32, four numbers of a row in each.
        Others: as for `msda.quantized_feed_forward`.
    """
    first = packed_weight1.view(torch.int8), scale1, bias1
    second = packed_weight2.view(torch.int8), scale2, bias2
    others = norm_weight, norm_bias, x_scale, hidden_scale, eps, next_scale
    return msda.quantized_feed_forward(x, *first, *second, *others)


def fuse_quantized_feed_forwards(module: torch.fx.GraphModule) -> int:
    """Replaces the blocks that a kernel runs fast on the current GPU, in place; returns their number.

    A quantize call that reads a block's result becomes part of the block.

    Args:
        module: a graph behind `fuse_quantized_linears`.
    """
    count = 0
    for node in list(module.graph.nodes):
        layers = _layers(node)
        if layers is not None and _is_fast(*layers):
            _replace(module, node, *layers)
            count += 1
    module.graph.eliminate_dead_code()
    module.graph.lint()
    module.recompile()
    return count


def _layers(norm: torch.fx.Node) -> tuple[torch.fx.Node, torch.fx.Node] | None:
    """Returns the two layers of the block that ends with a normalisation."""
    if result_of_norm(norm) is None:
        return None
    second = _layer(norm.args[0], "none")
    first = second and _layer(second.args[0], "relu")
    quantiser = first and first.args[0]
    if quantiser is None or quantiser.target is not quantize or quantiser.args[2] != torch.int8:
        return None
    added, of_first = second.args[4], first.args[4]
    return (first, second) if of_first is None and added is quantiser.args[0] else None


def _layer(node: torch.fx.Node, activation: str) -> torch.fx.Node | None:
    """Returns a node that calls `quantized_linear` without a mask, for a single reader."""
    fits = node.target is quantized_linear and len(node.users) == 1
    return node if fits and node.args[5:7] == (None, activation) else None


def _is_fast(first: torch.fx.Node, second: torch.fx.Node) -> bool:
    """Returns whether the plugin has a fast kernel for a block on the current GPU."""
    *sizes, channels = second.meta["val"].shape
    rows = library.rows_of_layer(sizes)
    return library.has_fast_quantized_feed_forward(rows, channels, first.meta["val"].shape[-1])


def _replace(
    module: torch.fx.GraphModule, norm: torch.fx.Node, first: torch.fx.Node, second: torch.fx.Node
) -> None:
    quantiser, (result,) = first.args[0], norm.users
    tensors = quantiser.args[0], *first.args[1:4], *second.args[1:4], *norm.args[2:4]
    numbers = float(value_of(module, quantiser.args[1])), first.args[7], norm.args[4]
    next_scale, readers = int8_readers(module, result)
    with module.graph.inserting_before(norm):
        made = module.graph.call_function(quantized_feed_forward, (*tensors, *numbers, next_scale))
    made.meta = {**first.meta}
    take_both_places(made, result, readers)
