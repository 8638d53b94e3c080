"""Merges the linear layers of sampling offsets and attention logits in a graph for TensorRT.

Both layers read the same queries. TensorRT merges them itself, but then copies each result out of the
product. The plugin with the field `packed` reads both in place. A build and a refit merge alike, so the
weights keep their names.

The queries of an encoder are the sum of its features and positions, which nothing else reads. Where a kernel
is fast, `msda.linear_of_sum` computes the merged layer, and no kernel writes the sum.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import unset_fake_temporarily

import msda
from dynamo_path.constant_reshapes import VIEWS, same_sizes
from trt_plugin import library

LINEAR = torch.ops.aten.linear.default
LINEAR_OF_SUM = torch.ops.msda.linear_of_sum.default
_SUM = torch.ops.aten.add.Tensor


def packed_attention(
    value: Tensor,
    spatial_shapes: Tensor,
    level_start_index: Tensor,
    reference_points: Tensor,
    projection: Tensor,
    points_per_level: Sequence[int] | None = None,
    value_scale: float | None = None,
) -> Tensor:
    """Runs `msda.fused_attention` on offsets and logits that are columns of one tensor.

    Args:
        value, spatial_shapes, level_start_index, reference_points, points_per_level: as `fused_attention`.
        value_scale: of an int8 value, as `msda.quantized_fused_attention`.
        projection: [N, Q, 3 * M * K] for K points of all levels: offsets [M, K, 2] of a query, then its
            logits [M, K].

    Returns:
        [N, Q, M * D].
    """
    heads, levels = value.shape[2], spatial_shapes.shape[0]
    samples = projection.shape[-1] // 3
    offsets, logits = projection.split([2 * samples, samples], -1)
    points = (levels, samples // heads // levels) if points_per_level is None else (samples // heads,)
    tensors = value, spatial_shapes, level_start_index, reference_points
    samples = offsets.unflatten(-1, (heads, *points, 2)), logits.unflatten(-1, (heads, -1))
    if value_scale is not None:
        return msda.quantized_fused_attention(*tensors, *samples, value_scale, points_per_level)
    return msda.fused_attention(*tensors, *samples, points_per_level)


def pack_projections(module: torch.fx.GraphModule) -> int:
    """Merges the layers of offsets and logits where both read the same tensor, in place.

    Layers stay separate if another node reads a result too, or if the weights are not constant.

    Returns:
        The number of calls of `msda.fused_attention` that became calls of `packed_attention`.
    """
    calls = [x for x in module.graph.nodes if x.target is torch.ops.msda.fused_attention.default]
    count = sum(_pack(module, node, f"projection_{index}") for index, node in enumerate(calls))
    module.graph.eliminate_dead_code()
    module.recompile()
    return count


def _pack(module: torch.fx.GraphModule, node: torch.fx.Node, name: str) -> bool:
    *others, offsets, logits = node.args[:6]
    layers = [_linear(x) for x in (offsets, logits)]
    if None in layers or layers[0].args[0] is not layers[1].args[0]:
        return False
    queries, rows = layers[0].args[0], others[-1].meta["val"].shape[:2]
    size = queries.meta["val"].shape
    if len(size) != 3 or not same_sizes(size[:2], rows):
        return False
    weights = [[operator.attrgetter(x.target)(module) for x in layer.args[1:]] for layer in layers]
    if len({tensor.dtype for pair in weights for tensor in pair}) > 1:
        return False
    parameters = []
    with module.graph.inserting_before(node):
        # The merged weights are real tensors, also under fake tensor mode.
        with torch.no_grad(), unset_fake_temporarily():
            for kind, pair in zip(("weight", "bias"), zip(*weights, strict=True), strict=True):
                module.register_buffer(f"{name}_{kind}", torch.cat(pair))
                parameters.append(module.graph.get_attr(f"{name}_{kind}"))
                parameters[-1].meta["val"] = getattr(module, f"{name}_{kind}")
        terms = _terms_of_sum(queries, len(parameters[1].meta["val"]))
        target, inputs = (LINEAR, (queries,)) if terms is None else (LINEAR_OF_SUM, terms)
        projection = module.graph.create_node(
            "call_function", target, (*inputs, *parameters), name="projection"
        )
    result = layers[0].meta["val"]
    projection.meta["val"] = result.new_empty((*size[:2], parameters[0].meta["val"].shape[0]))
    if "nn_module_stack" in node.meta:
        projection.meta["nn_module_stack"] = node.meta["nn_module_stack"]
    node.target, node.args = packed_attention, (*others, projection, *node.args[6:])
    return True


def _terms_of_sum(queries: torch.fx.Node, outputs: int) -> tuple[torch.fx.Node, torch.fx.Node] | None:
    """Returns the terms of the sum that both layers read, if the plugin is fast on the current GPU."""
    if queries.target is not _SUM or len(queries.users) > 2 or queries.kwargs:
        return None
    tensors = [term.meta["val"] for term in queries.args if isinstance(term, torch.fx.Node)]
    if len(tensors) < 2 or len({tensor.dtype for tensor in tensors}) > 1:
        return None
    one, other = tensors
    if one.dtype not in (torch.float16, torch.bfloat16) or not same_sizes(one.shape, other.shape):
        return None
    *sizes, inputs = one.shape
    fast = library.has_fast_linear_of_sum(library.rows_of_layer(sizes), inputs, outputs)
    return queries.args if fast else None


def _linear(node: torch.fx.Node) -> torch.fx.Node | None:
    """Returns the linear layer with constant weights that `node` views, if nothing else reads its result."""
    while node.target in VIEWS and len(node.users) == 1:
        node = node.args[0]
    whole = node.target is LINEAR and len(node.users) == 1 and len(node.args) == 3
    return node if whole and all(x.op == "get_attr" for x in node.args[1:]) else None
