"""Graphs of the dynamo path with layers in 8 bits, as builds make them, for tests."""

from __future__ import annotations

import torch
from torch import nn

from codetr.export.weight_key import weight_key
from dynamo_path.packed_projections import LINEAR
from dynamo_path.quantized_layers import quantize_layers
from dynamo_path.written_out_linears import calls_in_8_bits, write_out_for_tensorrt


def in_8_bits(network: nn.Module, inputs: tuple, precision: str, **options) -> torch.fx.GraphModule:
    """Exports a network in float16, and quantises all linear layers, whose weights differ."""
    network = network.half().eval()
    program = torch.export.export(network, inputs, **options)
    linears = (x for x in network.modules() if isinstance(x, nn.Linear))
    names = [f"{weight_key(x.weight.detach().numpy())}/0" for x in linears]
    write_out_for_tensorrt(program, calls_in_8_bits(program, names))
    module = lowered(program, torch.ops.aten.gelu.default)
    quantize_layers(module, dict.fromkeys(names, 3.0), precision)
    return module


def lowered(program: torch.export.ExportedProgram, *kept: torch._ops.OpOverload) -> torch.fx.GraphModule:
    """Decomposes a program, but for linear layers and the operators to keep, and returns its graph."""
    table = torch.export.default_decompositions()
    for target in (LINEAR, *kept):
        table.pop(target, None)
    return program.run_decompositions(table).module()
