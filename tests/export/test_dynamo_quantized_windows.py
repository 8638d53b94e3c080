"""The dynamo path's window attention before layers in 8 bits, with results in int8."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import msda
from codetr.model.backbones.swin import WindowAttention
from dynamo_path.fused_quantized_linears import fuse_quantized_linears, quantized_linear
from dynamo_path.fused_quantized_windows import fuse_quantized_windows
from dynamo_path.quantized_layers import quantize
from tests.export.graphs_in_8_bits import in_8_bits
from trt_plugin import library

WINDOW = torch.ops.msda.window_attention.default


class Attention(nn.Module):
    """Window attention between its layers, of a map of 6 x 5 cells and 16 channels."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.attention = WindowAttention(16, 2, 4, 2, qkv_bias=True)
        nn.init.normal_(self.attention.relative_position_bias_table)
        self.attention.fold_bias()
        for module in self.modules():
            module.written_out = True

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x, (6, 5), x)


class AlsoRead(Attention):
    """Another reader of the result of window attention."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        qkv = self.attention.qkv(x).unflatten(1, (6, 5))
        attended = msda.window_attention(qkv, self.attention.folded_bias, None, 4, 2)
        return self.attention.proj(attended.flatten(1, 2), x), attended


def fused(network: nn.Module, precision: str = "int8") -> torch.fx.GraphModule:
    """A network in float16 with its layers fused, as a build does."""
    module = in_8_bits(network, (torch.randn(2, 30, 16).half(),), precision)
    fuse_quantized_linears(module, precision)
    return module


def test_result_in_int8(monkeypatch):
    """The call gives the numbers of the quantize call, which goes. The view behind it stays."""
    monkeypatch.setattr(library, "has_fast_quantized_linear", lambda *layer: True)
    module, x = fused(Attention()), torch.randn(2, 30, 16).half()
    before = module(x)
    assert fuse_quantized_windows(module) == 1
    targets = [node.target for node in module.graph.nodes]
    assert targets.count(quantize) == 1  # of x
    (node,) = (node for node in module.graph.nodes if node.target is WINDOW)
    assert node.args[5] == pytest.approx(3 / 127, rel=1e-3)
    (view,) = node.users
    (layer,) = view.users
    assert layer.target is quantized_linear
    assert node.meta["val"].dtype == view.meta["val"].dtype == torch.int8
    assert view.meta["val"].shape == (2, 30, 16)
    # The call rounded to float16 before it quantised, which moves few numbers by a step.
    torch.testing.assert_close(module(x), before, atol=0.05, rtol=0)


@pytest.mark.parametrize(
    ("network", "precision", "fast"),
    [(Attention, "fp8", True), (Attention, "int8", False), (AlsoRead, "int8", True)],
    ids=["fp8", "no fast layers", "another reader"],
)
def test_results_that_stay(network, precision, fast, monkeypatch):
    monkeypatch.setattr(library, "has_fast_quantized_linear", lambda *layer: fast)
    module = fused(network(), precision)
    before = [(node.target, node.args) for node in module.graph.nodes]
    assert fuse_quantized_windows(module) == 0
    assert [(node.target, node.args) for node in module.graph.nodes] == before
