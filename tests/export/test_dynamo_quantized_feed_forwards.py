"""The dynamo path's feed-forward blocks in int8, each merged into one call."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from codetr.model.layers import FeedForward
from dynamo_path.fused_quantized_feed_forwards import fuse_quantized_feed_forwards, quantized_feed_forward
from dynamo_path.fused_quantized_linears import fuse_quantized_linears, quantized_linear
from dynamo_path.quantized_layers import quantize
from tests.export.graphs_in_8_bits import in_8_bits
from trt_plugin import library

CHANNELS, HIDDEN = 16, 32


class Block(nn.Module):
    """The end of an encoder's layer: a block with its normalisation behind it, or before it."""

    def __init__(self, activation: str = "relu", norm_first: bool = False, axes: tuple = (CHANNELS,)) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.norm, self.ffn = nn.LayerNorm(axes), FeedForward(CHANNELS, HIDDEN, CHANNELS, activation)
        self.norm_first = norm_first
        for parameter in self.norm.parameters():
            nn.init.normal_(parameter)
        for module in self.modules():
            module.written_out = True

    def forward(self, x: Tensor) -> Tensor:
        return self.ffn(self.norm(x), x) if self.norm_first else self.norm(self.ffn(x, x))


class OtherResidual(Block):
    """The second layer adds another tensor than x."""

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.ffn(x, -x))


class TwoReaders(Block):
    """The sum has a reader beside the normalisation."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.ffn(x, x)
        return self.norm(y) + y


class Masked(Block):
    """The second layer has a mask."""

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.ffn(x, x) * x[..., :1])


class Layers(nn.Module):
    """A block, then two readers of its result: a layer in 8 bits, and a sum."""

    def __init__(self) -> None:
        super().__init__()
        self.block, self.value = Block(), FeedForward(CHANNELS, HIDDEN, CHANNELS, "relu")
        for module in self.modules():
            module.written_out = True

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.block(x)
        return self.value(y), y + x


@pytest.fixture
def asked(monkeypatch) -> list:
    """The sizes of the blocks for which a build would look for a kernel. There is one for each."""
    sizes = []
    monkeypatch.setattr(library, "has_fast_quantized_linear", lambda *layer: True)
    monkeypatch.setattr(
        library, "has_fast_quantized_feed_forward", lambda *block: sizes.append(block) or True
    )
    return sizes


def quantized(module: nn.Module, precision: str = "int8", **options) -> torch.fx.GraphModule:
    x = torch.randn(3, 5, CHANNELS).half()
    made = in_8_bits(module, (x,), precision, **options)
    fuse_quantized_linears(made, precision)
    return made


def calls(module: torch.fx.GraphModule) -> list:
    return [node.target for node in module.graph.nodes]


def test_block(asked):
    """Neither a layer nor a quantize call stays."""
    module, x = quantized(Block()), torch.randn(3, 5, CHANNELS).half()
    expected = module(x)
    assert fuse_quantized_feed_forwards(module) == 1 and asked == [(15, CHANNELS, HIDDEN)]
    assert not {quantize, quantized_linear, torch.ops.aten.native_layer_norm.default} & set(calls(module))
    (node,) = (node for node in module.graph.nodes if node.target is quantized_feed_forward)
    step = pytest.approx(3 / 127, rel=1e-3)
    assert node.args[9:] == (step, step, 1e-5, None)
    assert node.meta["val"].dtype == torch.float16 and node.meta["val"].shape == x.shape
    # The calls round the sum to float16 before the normalisation.
    torch.testing.assert_close(module(x), expected, rtol=4e-3, atol=4e-3)


def test_result_in_int8(asked):
    """The call gives y in int8 too, in place of a quantize call."""
    module, x = quantized(Layers()), torch.randn(3, 5, CHANNELS).half()
    expected = module(x)
    assert fuse_quantized_feed_forwards(module) == 1 and calls(module).count(quantize) == 0
    (node,) = (node for node in module.graph.nodes if node.target is quantized_feed_forward)
    assert node.args[12] == pytest.approx(3 / 127, rel=1e-3)
    assert [(value.dtype, value.shape) for value in node.meta["val"]] == [
        (dtype, x.shape) for dtype in (torch.float16, torch.int8)
    ]
    torch.testing.assert_close(module(x), expected, rtol=4e-3, atol=2e-2)


@pytest.mark.parametrize(
    ("block", "precision"),
    [
        (Block("gelu"), "int8"),
        (Block(norm_first=True), "int8"),
        (Block(axes=(5, CHANNELS)), "int8"),
        (Block(), "fp8"),
        (OtherResidual(), "int8"),
        (TwoReaders(), "int8"),
        (Masked(), "int8"),
    ],
    ids=[
        "a GELU",
        "a norm before the block",
        "two axes",
        "FP8",
        "another residual",
        "a sum with a reader",
        "a mask",
    ],
)
def test_blocks_that_stay(block, precision, asked):
    module = quantized(block, precision)
    before = calls(module)
    assert fuse_quantized_feed_forwards(module) == 0 and not asked and calls(module) == before
    assert before.count(quantized_linear) == 2


def test_blocks_without_a_fast_kernel_stay(asked, monkeypatch):
    monkeypatch.setattr(library, "has_fast_quantized_feed_forward", lambda *block: False)
    module = quantized(Block())
    assert fuse_quantized_feed_forwards(module) == 0 and calls(module).count(quantized_linear) == 2


def test_dynamic_rows(asked):
    """A dynamic number of rows of an image counts as many."""
    module = quantized(Block(), dynamic_shapes=({1: torch.export.Dim("rows", max=100)},))
    assert fuse_quantized_feed_forwards(module) == 1 and asked == [(2**15, CHANNELS, HIDDEN)]
