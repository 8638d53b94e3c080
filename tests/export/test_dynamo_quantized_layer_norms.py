"""The dynamo path's layer normalisations before layers in 8 bits, merged with their quantize calls."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from codetr.model.backbones.swin import PatchMerging, SwinBlock
from codetr.model.layers import FeedForward
from dynamo_path.fused_quantized_layer_norms import fuse_quantized_layer_norms
from dynamo_path.fused_quantized_linears import fuse_quantized_linears
from dynamo_path.quantized_layers import TYPES, quantize
from tests.export.graphs_in_8_bits import in_8_bits
from tests.golden_models import load_golden
from trt_plugin import library

NORM, FUSED = torch.ops.aten.native_layer_norm.default, torch.ops.msda.quantized_layer_norm.default


class Block(nn.Module):
    """A block of a transformer with the norm before it, as in Swin, or behind it, as in the encoder."""

    def __init__(self, before: bool, axes: tuple[int, ...] = (16,), affine: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.before = before
        self.norm, self.mlp = nn.LayerNorm(axes, elementwise_affine=affine), FeedForward(16, 32, 16, "gelu")
        for parameter in self.norm.parameters():
            nn.init.normal_(parameter)
        for module in self.modules():
            module.written_out = True

    def forward(self, x: Tensor) -> Tensor:
        normalised = self.norm(x)
        return self.mlp(normalised, x if self.before else normalised)


def quantized(module: nn.Module, precision: str, *sizes: int) -> torch.fx.GraphModule:
    """A module in float16 with all layers in 8 bits, as a build quantises it, for an input of these sizes."""
    return in_8_bits(module, (torch.randn(sizes or (3, 5, 16)).half(),), precision)


def calls(module: torch.fx.GraphModule) -> list:
    return [node.target for node in module.graph.nodes]


def result_of(target: Callable, module: torch.fx.GraphModule, x: Tensor) -> Tensor:
    """The result of the only call of a function, in float32."""
    results = []

    class Keeping(torch.fx.Interpreter):
        def run_node(self, node: torch.fx.Node) -> object:
            result = super().run_node(node)
            if node.target is target:
                results.append(result)
            return result

    Keeping(module).run(x)
    (only,) = results
    return only.float()


@pytest.mark.parametrize("precision", TYPES)
def test_norm_before_a_block(precision, monkeypatch):
    """No quantize call stays: the norm hands the numbers of the calls to the first layer, in 8 bits."""
    monkeypatch.setattr(library, "has_fast_quantized_linear", lambda *layer: True)
    module = quantized(Block(before=True), precision)
    x = torch.randn(3, 5, 16).half()
    fuse_quantized_linears(module, precision)
    expected = result_of(quantize, module, x)
    assert fuse_quantized_layer_norms(module) == 1
    assert NORM not in calls(module) and quantize not in calls(module)
    (node,) = (node for node in module.graph.nodes if node.target is FUSED)
    largest = {"int8": 127, "fp8": 448}[precision]
    assert node.args[3:] == (1e-5, pytest.approx(3 / largest, rel=1e-3), TYPES[precision])
    value = node.meta["val"]
    assert value.dtype == TYPES[precision] and value.shape == (3, 5, 16)
    # The calls round to float16 before they quantise, which moves few numbers, by a step of 8 bits.
    found = result_of(FUSED, module, x)
    differences = (found - expected).abs()
    step = torch.ones_like(found) if precision == "int8" else expected.abs().clamp(min=2**-6) / 8
    print((differences > 0).sum().item(), "of", differences.numel(), "numbers differ")
    assert (differences <= step).all() and (differences > 0).float().mean() < 0.04


def test_norms_of_swin(monkeypatch):
    """Those of the blocks and between the stages. The first norm and those of the maps stay."""
    monkeypatch.setattr(library, "has_fast_quantized_linear", lambda *layer: sum(layer[2:5]) <= 1)
    model, _ = load_golden("codino_swin_tiny")
    model.fold_position_biases()
    model.write_out_linears()
    backbone = model.backbone.requires_grad_(False)
    module = quantized(backbone, "int8", 1, 3, 128, 96)
    fuse_quantized_linears(module, "int8")
    parts = [x for x in backbone.modules() if isinstance(x, SwinBlock | PatchMerging)]
    norms = sum(2 if isinstance(x, SwinBlock) else 1 for x in parts)
    assert fuse_quantized_layer_norms(module) == calls(module).count(FUSED) == norms
    assert calls(module).count(NORM) == 1 + len(backbone.norms)


class Mapped(Block):
    """A block whose norm gives a map, channels first, as a backbone does."""

    def __init__(self, height: int) -> None:
        super().__init__(before=True)
        self.height = height

    def forward(self, x: Tensor) -> Tensor:
        cells = self.norm(x).view(x.shape[0], self.height, -1, 16).permute(0, 3, 1, 2).permute(0, 2, 3, 1)
        return self.mlp(cells.reshape(x.shape[0], -1, 16), x)


class Turned(Mapped):
    """The cells of the map in another order."""

    def forward(self, x: Tensor) -> Tensor:
        cells = self.norm(x).view(x.shape[0], self.height, -1, 16).permute(0, 2, 1, 3)
        return self.mlp(cells.reshape(x.shape[0], -1, 16), x)


@pytest.mark.parametrize(("block", "expected"), [(Mapped(2), 1), (Turned(2), 0)], ids=["same", "turned"])
def test_views_of_a_map(block, expected, monkeypatch):
    """The norm passes views that give the rows their order again, and no others."""
    monkeypatch.setattr(library, "has_fast_quantized_linear", lambda *layer: True)
    x = torch.randn(3, 6, 16).half()
    module = quantized(block, "int8", 3, 6, 16)
    fuse_quantized_linears(module, "int8")
    before = module(x)
    assert fuse_quantized_layer_norms(module) == expected
    after = module(x)
    torch.testing.assert_close(after, before, atol=0.02, rtol=0.02)


@pytest.mark.parametrize(
    ("block", "fast"),
    [
        (Block(before=False), True),
        (Block(before=True), False),
        (Block(before=True, axes=(5, 16)), True),
        (Block(before=True, affine=False), True),
    ],
    ids=["residual in 16 bits", "no fast layers", "two axes", "no weights"],
)
def test_norms_that_stay(block, fast, monkeypatch):
    monkeypatch.setattr(library, "has_fast_quantized_linear", lambda *layer: fast)
    module = quantized(block, "int8")
    fuse_quantized_linears(module, "int8")
    before = calls(module)
    assert fuse_quantized_layer_norms(module) == 0
    assert calls(module) == before and NORM in before


@pytest.mark.parametrize(("factor", "expected"), [(1.0, 1), (0.5, 0)])
def test_two_quantisers(factor, expected, monkeypatch):
    """Layers that read numbers of different scales keep the norm in 16 bits."""
    monkeypatch.setattr(library, "has_fast_quantized_linear", lambda *layer: True)
    module = quantized(Block(before=True), "int8")
    fuse_quantized_linears(module, "int8")
    (one,) = (node for node in module.graph.nodes if node.target is quantize)
    (layer,) = one.users
    module.register_buffer("scale", module.get_buffer(one.args[1].target) * factor)
    with module.graph.inserting_before(one):
        scale = module.graph.get_attr("scale")
    with module.graph.inserting_before(layer):
        other = module.graph.call_function(quantize, (one.args[0], scale, torch.int8))
        other.meta = dict(one.meta)
        copied = module.graph.node_copy(layer, lambda x: other if x is one else x)
    (output,) = (node for node in module.graph.nodes if node.op == "output")
    output.args = ((*output.args[0], copied),)
    assert fuse_quantized_layer_norms(module) == expected
    assert calls(module).count(FUSED) == expected
    assert calls(module).count(quantize) == (0 if expected else 2)
