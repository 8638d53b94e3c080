"""Merges the group normalisations of a pyramid into one call, for the plugin `GroupNormLevels`.

`onnx_path.tensorrt.joined_group_norms` does the same in the ONNX path, and says why.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

import msda
from dynamo_path.constant_reshapes import VIEWS, same_sizes
from dynamo_path.int8_results import int8_readers, take_both_places
from msda.checks import MAX_NORM_LEVELS

GROUP_NORM = torch.ops.msda.group_norm.default
CONVOLUTION = torch.ops.aten.convolution.default

_VECTOR = 8  # channels; TensorRT fills the cells of other maps


def join_group_norms(module: torch.fx.GraphModule) -> int:
    """Replaces the calls whose results one `cat` joins, and others that read a map, in place.

    Args:
        module: a graph behind the passes for layers in 8 bits.

    Returns:
        The number of calls of `msda.group_norm` that became part of a call of `msda.group_norm_levels`.
    """
    joined = [node for node in module.graph.nodes if _joins_alike(node)]
    together = {norm for node in joined for norm in node.args[0]}
    count = 0
    for node in list(module.graph.nodes):
        if node in joined:
            count += _replace(module, node, node.args[0])
        elif node.target is GROUP_NORM and node not in together and _map_of(node) is not None:
            count += _replace(module, node, [node])
    module.graph.eliminate_dead_code()
    module.graph.lint()
    module.recompile()
    return count


def _joins_alike(node: torch.fx.Node) -> bool:
    """Returns whether a node joins the cells of normalisations that one call can compute."""
    if node.target is not torch.ops.aten.cat.default or len(node.args) != 2 or node.args[1] not in (1, -2):
        return False
    norms = node.args[0]
    if len(norms) > MAX_NORM_LEVELS or any(x.target is not GROUP_NORM or len(x.users) > 1 for x in norms):
        return False
    kinds = {(*x.args[3:], x.meta["val"].shape[-1], x.meta["val"].dtype) for x in norms}
    return len(kinds) == 1 and all(x.meta["val"].dim() == 3 for x in norms)


def _map_of(node: torch.fx.Node) -> torch.fx.Node | None:
    """Returns the map [N, C, H, W] of a convolution, of which a normalisation reads the cells [N, S, C]."""
    cells = node.args[0]
    view = cells
    while view.target in (*VIEWS, torch.ops.aten.clone.default) and len(view.users) == 1:
        view = view.args[0]
    if view.target is not torch.ops.aten.permute.default or len(view.users) > 1:
        return None
    source, axes = view.args
    before, after = source.meta["val"].shape, cells.meta["val"].shape
    if list(axes) != [0, 2, 3, 1] or source.target is not CONVOLUTION or len(after) != 3:
        return None
    # With N and C in their places, the view joins rows and columns.
    return source if same_sizes(after[::2], before[:2]) and before[1] % _VECTOR == 0 else None


def _replace(module: torch.fx.GraphModule, result: torch.fx.Node, norms: Sequence[torch.fx.Node]) -> int:
    """Puts a call in the place of normalisations and of the result that joins them; returns their number."""
    levels = [_map_of(node) or node.args[0] for node in norms]
    weights, biases = ([node.args[index] for node in norms] for index in (1, 2))
    num_groups, eps = norms[0].args[3:5]
    next_scale, quantisers = int8_readers(module, result)
    with module.graph.inserting_before(result):
        arguments = levels, weights, biases, num_groups, eps, next_scale
        made = module.graph.call_function(msda.group_norm_levels, arguments)
    made.meta = {**norms[0].meta}
    take_both_places(made, result, quantisers)
    return len(norms)
