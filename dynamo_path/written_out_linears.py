"""Replaces calls of `msda.linear` and `msda.linear_max` in a graph by PyTorch's operators.

Builds do so where TensorRT's own products are faster than the plugin's kernels, and for the layers that
become 8 bits: `quantize_layers` knows linear layers. `onnx_path.tensorrt.written_out_linears` serves the ONNX
path.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any

import torch

from codetr.export.weight_key import weight_key
from dynamo_path.packed_projections import LINEAR
from msda.checks import ACTIVATIONS
from trt_plugin import library

OPERATOR = torch.ops.msda.linear.default
LARGEST = torch.ops.msda.linear_max.default
_ACTIVATIONS = {"gelu": torch.ops.aten.gelu.default, "relu": torch.ops.aten.relu.default}


def write_out_for_tensorrt(
    program: torch.export.ExportedProgram, narrow: Collection[torch.fx.Node] = ()
) -> int:
    """Replaces the calls that no kernel runs fast on the current GPU, in place; returns their number.

    Args:
        program: no call is an output of it.
        narrow: result of `calls_in_8_bits`. Replaces these calls too.
    """
    calls = [node for node in program.graph.nodes if node.target in (OPERATOR, LARGEST)]
    slow = [node for node in calls if node in narrow or not _is_fast(node)]
    for node in slow:
        _write_out(program.graph, node)
    program.graph_module.recompile()
    return len(slow)


def calls_in_8_bits(program: torch.export.ExportedProgram, names: Iterable[str]) -> set[torch.fx.Node]:
    """Returns the calls whose weights become 8 bits.

    Args:
        names: names of layers, see `Quantizer.ranges_by_weights`.
    """
    keys = {name.partition("/")[0] for name in names}
    calls = (node for node in program.graph.nodes if node.target in (OPERATOR, LARGEST)) if keys else ()
    return {node for node in calls if _key(program, node) in keys}


def _key(program: torch.export.ExportedProgram, node: torch.fx.Node) -> str | None:
    """Returns the key of a call's weights, None unless they are parameters."""
    weight = program.graph_signature.inputs_to_parameters.get(node.args[1].name)
    return None if weight is None else weight_key(program.state_dict[weight].detach().cpu().numpy())


def _is_fast(node: torch.fx.Node) -> bool:
    """Returns whether the plugin's kernel for a call is as fast as TensorRT's on the current GPU."""
    x, weight, _, *options = node.args
    dtype = str(x.meta["val"].dtype).removeprefix("torch.")
    outputs, inputs = weight.meta["val"].shape
    if dtype not in library.LINEAR_TYPES:
        return False
    if node.target is LARGEST:
        return library.has_fast_linear_max(inputs, outputs, dtype)
    residual, mask, norm_weight, _, activation, _ = options
    switches = (tensor is not None for tensor in (residual, mask, norm_weight))
    fields = ACTIVATIONS.index(activation), *switches
    return library.has_fast_linear(inputs, outputs, *fields, dtype)


def _write_out(graph: torch.fx.Graph, node: torch.fx.Node) -> None:
    x, weight, bias, *options = node.args
    residual, mask, norm_weight, norm_bias, activation, eps = options or (*[None] * 4, "none", 0.0)
    value = node.meta["val"]  # of all results but those before the maximum of LARGEST

    def add(target: Callable, *arguments: Any) -> torch.fx.Node:
        made = graph.call_function(target, arguments)
        made.meta = node.meta | {"val": value}
        return made

    with torch.no_grad(), graph.inserting_before(node):
        if node.target is LARGEST:
            rows, wide = x.meta["val"], weight.meta["val"]
            if rows.dtype != wide.dtype:
                value = rows.to(wide.dtype)
                x = add(torch.ops.aten.to.dtype, x, torch.float32)
            value = wide.new_empty(*rows.shape[:-1], wide.shape[0])
        result = add(LINEAR, x, weight, bias)
        if activation != "none":
            result = add(_ACTIVATIONS[activation], result)
        if residual is not None:
            result = add(torch.ops.aten.add.Tensor, residual, result)
        if mask is not None:
            result = add(torch.ops.aten.mul.Tensor, result, mask)
        if norm_weight is not None:
            sizes = list(norm_weight.meta["val"].shape)
            result = add(torch.ops.aten.layer_norm.default, result, sizes, norm_weight, norm_bias, eps)
        if node.target is LARGEST:
            value = node.meta["val"]
            result = add(torch.ops.aten.amax.default, result, [-1])
    node.replace_all_uses_with(result)
    graph.erase_node(node)
