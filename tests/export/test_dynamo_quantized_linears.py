"""The dynamo path's linear layers in 8 bits, merged with what follows them for the plugin."""

from __future__ import annotations

from unittest.mock import Mock

import pytest
import torch
from torch import Tensor, nn

import msda
from benchmarks.operator_errors import TOLERANCE
from codetr.model.layers import FeedForward, Linear
from dynamo_path.fused_quantized_linears import fuse_quantized_linears, quantized_linear
from dynamo_path.quantized_layers import LAYERS, dequantize, quantize
from tests.export.graphs_in_8_bits import in_8_bits
from trt_plugin import library


class Block(nn.Module):
    """A feed-forward block as of Swin, a layer with a mask and without a bias, and one with two readers."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.mlp, self.last = FeedForward(16, 32, 16, "gelu"), Linear(16, 24, bias=False)
        self.read_twice = Linear(16, 16)
        for module in self.modules():
            module.written_out = True

    def forward(self, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        twice = self.read_twice(x)
        return (
            self.mlp(x, x),
            msda.linear(x, self.last.weight, self.last.bias, mask=mask),
            twice.relu() + twice,
        )


@pytest.fixture(params=["int8", "fp8"])
def quantized(request) -> tuple[torch.fx.GraphModule, str]:
    """The block in float16 with all layers in 8 bits, as a build quantises it."""
    inputs = torch.randn(3, 5, 16).half(), torch.ones(3, 5, 1).half()
    rows = torch.export.Dim("rows", min=2, max=64)
    shapes = {0: rows}, {0: rows}
    return in_8_bits(Block(), inputs, request.param, dynamic_shapes=shapes), request.param


def test_layers_with_what_follows_them(quantized, monkeypatch):
    """The block hands 8 bits from its first layer to its second. Results are those of the Q/DQ calls."""
    module, precision = quantized
    inputs = torch.randn(7, 5, 16).half(), (torch.rand(7, 5, 1) < 0.5).half()
    expected = module(*inputs)
    has_fast = Mock(side_effect=lambda k, n, *switches: sum(switches[:3]) <= 1)
    monkeypatch.setattr(library, "has_fast_quantized_linear", has_fast)
    assert fuse_quantized_linears(module, precision) == 4
    assert {asked.args[5] for asked in has_fast.call_args_list} == {precision}
    nodes = [node for node in module.graph.nodes if node.target is quantized_linear]
    forms = [(node.args[6], node.args[4] is not None, node.args[5] is not None) for node in nodes]
    assert sorted(forms) == sorted(
        [("none", False, False), ("gelu", False, False), ("none", True, False), ("none", False, True)]
    )
    eight_bits = [node.args[7] is not None for node in nodes]
    assert sum(eight_bits) == 1
    targets = {node.target for node in module.graph.nodes}
    assert dequantize not in targets and LAYERS[0] not in targets and quantize in targets
    for node in nodes:
        value = node.meta["val"]
        assert value.shape[-1] in (16, 24, 32) and value.shape[:-1] == node.args[0].meta["val"].shape[:-1]
    for found, other in zip(module(*inputs), expected, strict=True):
        # Q/DQ calls round to float16 between the steps, which moves some numbers by a step of 8 bits.
        assert (found - other).float().norm() < 4 * TOLERANCE[torch.float16] * other.float().norm()


def test_layers_that_no_kernel_runs_fast(quantized, monkeypatch):
    module, precision = quantized
    before = [node.target for node in module.graph.nodes]
    monkeypatch.setattr(library, "has_fast_quantized_linear", lambda *layer: False)
    assert fuse_quantized_linears(module, precision) == 0
    assert [node.target for node in module.graph.nodes] == before
