"""Graphs of the dynamo path with layers in 8 bits, as builds make them, for tests."""

from __future__ import annotations

import torch
from torch import nn

from codetr.export.weight_key import weight_key
from dynamo_path.quantized_layers import LAYERS, quantize_layers
from dynamo_path.written_out_linears import write_out_for_tensorrt


def in_8_bits(network: nn.Module, inputs: tuple, precision: str, **options) -> torch.fx.GraphModule:
    """Exports a network in float16, and quantises all linear layers, whose weights differ."""
    network = network.half().eval()
    program = torch.export.export(network, inputs, **options)
    linears = (x for x in network.modules() if isinstance(x, nn.Linear))
    names = [f"{weight_key(x.weight.detach().numpy())}/0" for x in linears]
    write_out_for_tensorrt(program, names)
    table = torch.export.default_decompositions()
    for target in (LAYERS[0], torch.ops.aten.gelu.default):
        table.pop(target, None)
    module = program.run_decompositions(table).module()
    quantize_layers(module, dict.fromkeys(names, 3.0), precision)
    return module
