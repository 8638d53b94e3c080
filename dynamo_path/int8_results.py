"""Calls with two results: in 16 bits, and in int8 in place of the quantize calls that read the first."""

from __future__ import annotations

import operator

import torch

from dynamo_path.fused_quantized_linears import value_of
from dynamo_path.quantized_layers import quantize


def int8_readers(
    module: torch.fx.GraphModule, result: torch.fx.Node
) -> tuple[float | None, list[torch.fx.Node]]:
    """Returns the scale of the first quantize call that makes int8 of a result, and all calls with it."""
    scales = {
        reader: float(value_of(module, reader.args[1]))
        for reader in result.users
        if reader.target is quantize and reader.args[2] == torch.int8
    }
    first = next(iter(scales.values()), None)
    return first, [reader for reader, scale in scales.items() if scale == first]


def take_both_places(made: torch.fx.Node, result: torch.fx.Node, quantisers: list[torch.fx.Node]) -> None:
    """Lets a call give a result, and the same in int8 in place of the quantize calls behind it.

    Args:
        made: stands before the result in the graph. Gives both as a tuple if there are quantisers.
        quantisers: `int8_readers` of the result.
    """
    made.meta["val"] = result.meta["val"]
    if not quantisers:
        result.replace_all_uses_with(made)
        return
    made.meta["val"] = result.meta["val"], quantisers[0].meta["val"]
    for index, nodes in enumerate(([result], quantisers)):
        with made.graph.inserting_before(result):
            part = made.graph.call_function(operator.getitem, (made, index))
        part.meta = {**made.meta, "val": made.meta["val"][index]}
        for node in nodes:
            node.replace_all_uses_with(part)
