"""The dynamo path's feed-forward blocks in 16 bits, each merged into one call."""

from __future__ import annotations

from unittest.mock import Mock

import pytest
import torch
from torch import Tensor, nn

from codetr.export.weight_key import weight_key
from codetr.model.layers import FeedForward
from dynamo_path.fused_feed_forwards import fuse_feed_forwards
from dynamo_path.written_out_linears import OPERATOR, calls_in_8_bits
from trt_plugin import library

CHANNELS, HIDDEN = 16, 32
MERGED = torch.ops.msda.feed_forward.default


class Block(nn.Module):
    """The end of an encoder's layer."""

    def __init__(self, activation: str = "relu", norm: bool = True, sign: int = 1) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.ffn = FeedForward(CHANNELS, HIDDEN, CHANNELS, activation)
        self.norm = nn.LayerNorm(CHANNELS, eps=1e-3) if norm else None
        self.sign = sign
        for parameter in self.parameters():
            nn.init.normal_(parameter)
        for module in self.modules():
            module.written_out = True

    def forward(self, x: Tensor) -> Tensor:
        return self.ffn(x, x if self.sign > 0 else -x, self.norm) * 2


class TwoReaders(Block):
    """The hidden numbers have a reader beside the second layer."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.ffn.fc1(x, activation="relu")
        return self.ffn.fc2(hidden, x, norm=self.norm), hidden * 2


@pytest.fixture(autouse=True)
def has_fast(monkeypatch) -> Mock:
    """What a build asks the library for a block."""
    has_fast = Mock(return_value=True)
    monkeypatch.setattr(library, "has_fast_feed_forward", has_fast)
    return has_fast


def exported(
    block: Block, dtype: torch.dtype = torch.float16, dynamic: tuple[int, ...] = ()
) -> torch.export.ExportedProgram:
    x = torch.randn(3, 5, CHANNELS).to(dtype)
    shapes = ({axis: torch.export.Dim(f"size{axis}", min=2, max=64) for axis in dynamic},)
    return torch.export.export(block.to(dtype).eval(), (x,), dynamic_shapes=shapes, strict=True)


def calls(program: torch.export.ExportedProgram) -> list:
    return [node.target for node in program.graph.nodes if node.target in (OPERATOR, MERGED)]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_block(dtype, has_fast):
    program, x = exported(Block(), dtype), torch.randn(3, 5, CHANNELS).to(dtype)
    expected = program.module()(x)
    assert fuse_feed_forwards(program) == 1 and calls(program) == [MERGED]
    has_fast.assert_called_once_with(15, CHANNELS, HIDDEN)
    (node,) = (node for node in program.graph.nodes if node.target is MERGED)
    assert node.args[-1] == 1e-3 and node.meta["val"].shape == x.shape and node.meta["val"].dtype == dtype
    assert list(node.meta["nn_module_stack"].values())[-1][0] == "ffn.fc1"
    torch.testing.assert_close(program.module()(x), expected)


@pytest.mark.parametrize(
    "block",
    [Block("gelu"), Block(norm=False), Block(sign=-1), TwoReaders()],
    ids=["a GELU", "no norm", "another residual", "hidden numbers with a reader"],
)
def test_blocks_that_stay(block, has_fast):
    program = exported(block)
    assert fuse_feed_forwards(program) == 0 and calls(program) == [OPERATOR] * 2
    has_fast.assert_not_called()


def test_float32_stays(has_fast):
    assert fuse_feed_forwards(exported(Block(), torch.float32)) == 0
    has_fast.assert_not_called()


@pytest.mark.parametrize("layer", ["fc1", "fc2"])
def test_blocks_with_a_layer_in_8_bits_stay(layer):
    program = exported(Block())
    weight = program.state_dict[f"ffn.{layer}.weight"].detach().numpy()
    assert fuse_feed_forwards(program, calls_in_8_bits(program, [f"{weight_key(weight)}/0"])) == 0
    assert fuse_feed_forwards(program, calls_in_8_bits(program, ["other/0"])) == 1


def test_blocks_without_a_fast_kernel_stay(has_fast):
    has_fast.return_value = False
    program = exported(Block())
    assert fuse_feed_forwards(program) == 0 and calls(program) == [OPERATOR] * 2


@pytest.mark.parametrize(("dynamic", "count"), [((0,), 5), ((1,), 2**15), ((0, 1), 2**15)])
def test_dynamic_rows(dynamic, count, has_fast):
    """A batch counts as one image, a dynamic number of rows of an image as many."""
    assert fuse_feed_forwards(exported(Block(), dynamic=dynamic)) == 1
    has_fast.assert_called_once_with(count, CHANNELS, HIDDEN)
