"""Merges layer normalisations with the quantize calls behind them, for the plugin `QuantizedLayerNorm`.

The pass runs behind `fuse_quantized_linears`. `onnx_path.tensorrt.fused_quantized_layer_norms` does the same
in the ONNX path.
"""

from __future__ import annotations

import operator

import torch

import msda  # noqa: F401  (registers torch.ops.msda)
from dynamo_path.constant_reshapes import VIEWS, same_sizes
from dynamo_path.fused_quantized_linears import quantized_linear, value_of
from dynamo_path.quantized_layers import quantize
from msda.checks import SIXTEEN_BIT_TYPES


def fuse_quantized_layer_norms(module: torch.fx.GraphModule) -> int:
    """Replaces normalisations in place; returns their number.

    A normalisation of rows in 16 bits becomes a call of `msda.quantized_layer_norm` if each of its readers
    quantises it to the same numbers, for calls of `quantized_linear` alone. Views between the two may only
    give the rows their shape again, as between the backbone and the neck.

    Args:
        module: a graph behind `fuse_quantized_linears`.
    """
    count = 0
    for node in list(module.graph.nodes):
        if node.target is quantize:
            _pass_views(node)
    module.graph.eliminate_dead_code()
    for node in list(module.graph.nodes):
        result = result_of_norm(node)
        quantised = None if result is None else quantisers_of(module, result)
        if quantised is not None:
            _replace(module, node, *quantised)
            count += 1
    module.graph.eliminate_dead_code()
    module.graph.lint()
    module.recompile()
    return count


def _pass_views(quantiser: torch.fx.Node) -> None:
    """Lets a quantize call read what is before views that give it its shape again.

    Views of contiguous tensors and permutations move no numbers, so equal sizes and strides mean the same
    tensor.
    """
    node = result = quantiser.args[0]
    while node.target in (*VIEWS, torch.ops.aten.permute.default):
        source = node.args[0]
        if node.target in VIEWS and not source.meta["val"].is_contiguous():
            return
        node = source
        before, after = node.meta["val"], result.meta["val"]
        if same_sizes(before.shape, after.shape) and same_sizes(before.stride(), after.stride()):
            quantiser.replace_input_with(result, node)
            return


def result_of_norm(node: torch.fx.Node) -> torch.fx.Node | None:
    """Returns the result of a normalisation of rows in 16 bits with a constant weight and bias.

    None for other nodes, and where mean or variance have a reader.
    """
    if node.target is not torch.ops.aten.native_layer_norm.default or len(node.args[1]) != 1:
        return None
    x, _, *parameters, _ = node.args
    if any(tensor is None or tensor.op != "get_attr" for tensor in parameters):
        return None
    types = {tensor.meta["val"].dtype for tensor in (x, *parameters)}
    if len(types) != 1 or not types.issubset(SIXTEEN_BIT_TYPES):
        return None
    results = list(node.users)  # mean and variance would be others
    if len(results) != 1 or results[0].target is not operator.getitem or results[0].args[1] != 0:
        return None
    return results[0]


def quantisers_of(
    module: torch.fx.GraphModule, result: torch.fx.Node
) -> tuple[list[torch.fx.Node], float, torch.dtype] | None:
    """Returns the quantize calls that read a result, their scale and type, if a call can take their place.

    They are all of its readers, quantise it to the same numbers, and do so for calls of `quantized_linear`
    alone.
    """
    readers = list(result.users)
    if not all(map(_is_quantiser, readers)):
        return None
    numbers = {(float(value_of(module, x.args[1])), x.args[2]) for x in readers}
    return (readers, *numbers.pop()) if len(numbers) == 1 else None


def _is_quantiser(node: torch.fx.Node) -> bool:
    """Returns whether a call quantises for calls of `quantized_linear` alone."""
    return node.target is quantize and all(user.target is quantized_linear for user in node.users)


def _replace(
    module: torch.fx.GraphModule,
    node: torch.fx.Node,
    quantisers: list[torch.fx.Node],
    scale: float,
    dtype: torch.dtype,
) -> None:
    x, _, weight, bias, eps = node.args
    with module.graph.inserting_before(node):
        made = module.graph.call_function(
            torch.ops.msda.quantized_layer_norm.default, (x, weight, bias, eps, scale, dtype)
        )
    made.meta = {**node.meta, "val": quantisers[0].meta["val"]}
    for quantiser in quantisers:
        quantiser.replace_all_uses_with(made)
