"""The dynamo path's group normalisations of a pyramid, merged into one call."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import msda
from codetr.model.neck import ConvNorm
from dynamo_path.fused_quantized_linears import quantized_linear
from dynamo_path.joined_group_norms import GROUP_NORM, join_group_norms
from dynamo_path.quantized_layers import quantize
from tests.export.graphs_in_8_bits import in_8_bits, lowered

CHANNELS = 16
SIZES = (1, 1), (3, 2)


class Neck(nn.Module):
    """A level of a linear layer, and one of a convolution."""

    def __init__(self, channels: int = CHANNELS) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.convs = nn.ModuleList(ConvNorm(8, channels, 4, size, stride) for size, stride in SIZES)
        self.convs[0].on_cells = True
        for conv in self.convs:
            conv.norm.written_out = True
            nn.init.normal_(conv.norm.weight)

    def levels(self, x: Tensor) -> list[Tensor]:
        return [conv(x).cells for conv in self.convs]

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat(self.levels(x), 1)


class OtherEps(Neck):
    """The convolution's normalisation cannot join the other."""

    def __init__(self) -> None:
        super().__init__()
        self.convs[1].norm.eps = 0.5


class AlsoRead(Neck):
    """Another reader of a level of cells."""

    def forward(self, x: Tensor) -> Tensor:
        levels = self.levels(x)
        return torch.cat(levels, 1) + levels[0].mean()


class Layers(Neck):
    """A layer in 8 bits, and another reader of all levels."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(CHANNELS, CHANNELS)

    def forward(self, x: Tensor) -> Tensor:
        cells = super().forward(x)
        return cells + self.layer(cells)


def graph_of(network: nn.Module) -> tuple[torch.fx.GraphModule, Tensor]:
    x = torch.randn(2, 8, 6, 7).half()
    return lowered(torch.export.export(network.half().eval(), (x,)), torch.ops.aten.convolution.default), x


def targets_of(module: torch.fx.GraphModule) -> list:
    return [node.target for node in module.graph.nodes if node.op == "call_function"]


def test_levels_that_join():
    module, x = graph_of(Neck())
    before = module(x)
    assert join_group_norms(module) == 2
    torch.testing.assert_close(module(x), before, rtol=2e-3, atol=2e-3)
    (node,) = (node for node in module.graph.nodes if node.target is msda.group_norm_levels)
    cells, feature = node.args[0]
    assert cells.meta["val"].shape == (2, 42, CHANNELS) and feature.meta["val"].shape == (2, CHANNELS, 3, 4)
    assert node.meta["val"].shape == (2, 54, CHANNELS)
    assert GROUP_NORM not in targets_of(module) and torch.ops.aten.cat.default not in targets_of(module)


@pytest.mark.parametrize("network", [OtherEps, AlsoRead])
def test_map_alone(network):
    """The normalisation of cells stays."""
    module, x = graph_of(network())
    before = module(x)
    assert join_group_norms(module) == 1
    torch.testing.assert_close(module(x), before, rtol=2e-3, atol=2e-3)
    assert targets_of(module).count(GROUP_NORM) == 1


def test_channels_that_are_no_vectors():
    """TensorRT would fill the cells of a map of 12 channels."""
    module, _ = graph_of(Neck(12))
    assert join_group_norms(module) == 2  # the map is moved as before
    (node,) = (node for node in module.graph.nodes if node.target is msda.group_norm_levels)
    assert [level.meta["val"].dim() for level in node.args[0]] == [3, 3]


def test_result_in_int8(monkeypatch):
    module = in_8_bits(Layers(), (torch.randn(2, 8, 6, 7).half(),), "int8")
    x = torch.randn(2, 8, 6, 7).half()
    before, count = module(x), targets_of(module).count(quantize)
    assert quantized_linear not in targets_of(module)
    assert join_group_norms(module) == 2
    assert targets_of(module).count(quantize) == count - 1
    (node,) = (node for node in module.graph.nodes if node.target is msda.group_norm_levels)
    assert node.args[5] is not None and [x.dtype for x in node.meta["val"]] == [torch.float16, torch.int8]
    torch.testing.assert_close(module(x), before, rtol=2e-2, atol=2e-2)
