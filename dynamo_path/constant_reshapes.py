"""Gives reshapes constant shapes in a graph for TensorRT.

A view in PyTorch names every size, and each symbolic size becomes a chain of layers. A reshape in TensorRT
copies a size that keeps its position (0) and infers one other size (-1).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from codetr.export.constant_reshape import constant_reshape

VIEWS = (
    torch.ops.aten.view.default,
    torch.ops.aten.reshape.default,
    torch.ops.aten._unsafe_view.default,
    torch.ops.aten._reshape_copy.default,  # Torch-TensorRT lowers the others to it
)


def simplify_reshapes(module: torch.fx.GraphModule) -> int:
    """Gives views constant shapes where that is possible, in place. A 0 copies the size, as in TensorRT.

    Returns:
        The number of views that still compute a size.
    """
    left = 0
    for node in module.graph.nodes:
        if node.op != "call_function" or node.target not in VIEWS:
            continue
        source, shape = node.args
        if all(isinstance(size, int) for size in shape):
            continue
        before, after = source.meta["val"].shape, node.meta["val"].shape
        stays = [
            axis < len(before) and _expression(before[axis]) == _expression(size)
            for axis, size in enumerate(after)
        ]
        target = constant_reshape([size if isinstance(size, int) else None for size in after], stays)
        if target is None:
            left += 1
        else:
            node.args = source, list(target)
    module.graph.eliminate_dead_code()
    module.recompile()
    return left


def same_sizes(one: Sequence[int | torch.SymInt], other: Sequence[int | torch.SymInt]) -> bool:
    """Returns whether the sizes are known to be equal."""
    return [_expression(size) for size in one] == [_expression(size) for size in other]


def _expression(size: int | torch.SymInt) -> object:
    return size.node.expr if isinstance(size, torch.SymInt) else size
