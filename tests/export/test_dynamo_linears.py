"""The dynamo path's linear layers: calls of `msda.linear` that builds write out as PyTorch's operators."""

from __future__ import annotations

import itertools
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor, nn

import msda
from codetr.export.weight_key import weight_key
from codetr.model.layers import FeedForward, Linear
from dynamo_path.quantized_layers import quantize_layers
from dynamo_path.written_out_linears import LARGEST, OPERATOR, calls_in_8_bits, write_out_for_tensorrt
from trt_plugin import library

aten = torch.ops.aten


class Block(nn.Module):
    """A feed-forward block as of Swin, between a layer without a bias, and layers with a norm and a mask."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = Linear(8, 16, bias=False)
        self.mlp = FeedForward(16, 32, 16, "gelu")
        self.normed = Linear(16, 16)
        self.norm = nn.LayerNorm(16, eps=1e-3)
        self.last = Linear(16, 24)
        for module in self.modules():
            module.written_out = True

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x, activation="relu")
        x = self.mlp(x, x)
        norm = {"norm_weight": self.norm.weight, "norm_bias": self.norm.bias, "eps": self.norm.eps}
        x = msda.linear(x, self.normed.weight, self.normed.bias, x, **norm)
        return msda.linear(x, self.last.weight, self.last.bias, mask=x[..., :1]) * 2


@pytest.fixture
def program() -> torch.export.ExportedProgram:
    shapes = ({0: torch.export.Dim("rows", min=2, max=64)},)
    return torch.export.export(Block().eval(), (torch.randn(3, 5, 8),), dynamic_shapes=shapes, strict=True)


def targets(program: torch.export.ExportedProgram) -> list:
    return [node.target for node in program.graph.nodes if node.op == "call_function"]


WRITTEN = (
    (aten.linear.default, aten.relu.default),
    (aten.linear.default, aten.gelu.default),
    (aten.linear.default, aten.add.Tensor),
    (aten.linear.default, aten.add.Tensor, aten.layer_norm.default),
    (aten.linear.default, aten.mul.Tensor),
)
"""What replaces each call."""


def names_of_weights(program: torch.export.ExportedProgram) -> list[str]:
    return [f"{weight_key(weight.detach().numpy())}/0" for weight in program.parameters() if weight.ndim == 2]


def test_calls_that_stay_16_bits(program, monkeypatch):
    """A quantisation replaces the calls whose weights it knows, also where a kernel runs them fast."""
    monkeypatch.setattr(library, "has_fast_linear", lambda *arguments: True)
    names = [
        f"{weight_key(program.state_dict[f'mlp.{layer}.weight'].detach().numpy())}/0"
        for layer in ("fc1", "fc2")
    ]
    assert write_out_for_tensorrt(program, calls_in_8_bits(program, names)) == 2
    kept = [OPERATOR, *WRITTEN[1], *WRITTEN[2], OPERATOR, aten.slice.Tensor, OPERATOR, aten.mul.Tensor]
    assert targets(program) == kept


def test_every_call_before_a_quantisation(program):
    """The graph computes the same. Its layers have their weights and modules, so that they become 8 bits."""
    x = torch.randn(7, 5, 8)
    expected = program.module()(x)
    assert targets(program) == [*[OPERATOR] * 4, aten.slice.Tensor, OPERATOR, aten.mul.Tensor]
    narrow = calls_in_8_bits(program, names_of_weights(program))
    assert write_out_for_tensorrt(program, narrow) == 5
    written = [*itertools.chain(*WRITTEN[:4]), aten.slice.Tensor, *WRITTEN[4], aten.mul.Tensor]
    assert targets(program) == written
    torch.testing.assert_close(program.module()(x), expected)
    layers = [node for node in program.graph.nodes if node.target is aten.linear.default]
    found = [list(node.meta["nn_module_stack"].values())[-1][0] for node in layers]
    assert found[:3] == ["first", "mlp.fc1", "mlp.fc2"]
    assert quantize_layers(program.module(), {}, "int8") == 0  # which reads the weights of all layers


class Largest(nn.Module):
    """The largest output of a layer with float32 weights, as of a query selection."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.branch = nn.Linear(64, 20)

    def forward(self, x: Tensor) -> Tensor:
        return msda.linear_max(x, self.branch.weight, self.branch.bias) * 2


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_largest_outputs(dtype, fast, monkeypatch):
    """Where no kernel is fast, the layer and its largest output run in float32."""
    has_fast = Mock(return_value=fast)
    monkeypatch.setattr(library, "has_fast_linear_max", has_fast)
    shapes = ({0: torch.export.Dim("rows", min=2, max=64)},)
    example = torch.randn(3, 5, 64, dtype=dtype)
    program = torch.export.export(Largest().eval(), (example,), dynamic_shapes=shapes, strict=True)
    x = torch.randn(7, 5, 64).to(dtype)
    expected = program.module()(x)
    assert write_out_for_tensorrt(program) == (not fast)
    has_fast.assert_called_once_with(64, 20, str(dtype).removeprefix("torch."))
    cast = [aten.to.dtype] if dtype == torch.bfloat16 else []
    written = [*cast, aten.linear.default, aten.amax.default]
    assert targets(program) == [*([LARGEST] if fast else written), aten.mul.Tensor]
    torch.testing.assert_close(program.module()(x), expected)
    for node in program.graph.nodes:
        if node.op == "call_function":
            assert node.meta["val"].dtype == torch.float32
    (output,) = program.run_decompositions().module()(x)[None]
    torch.testing.assert_close(output, expected)


def test_calls_that_no_kernel_runs_fast(program, monkeypatch):
    has_fast = Mock(side_effect=lambda inputs, outputs, *others: outputs == 32)
    monkeypatch.setattr(library, "has_fast_linear", has_fast)
    assert write_out_for_tensorrt(program) == 4
    assert [asked.args for asked in has_fast.call_args_list] == [
        (8, 16, 2, False, False, False, "float32"),
        (16, 32, 1, False, False, False, "float32"),
        (32, 16, 0, True, False, False, "float32"),
        (16, 16, 0, True, False, True, "float32"),
        (16, 24, 0, False, True, False, "float32"),
    ]
    kept = [*WRITTEN[0], OPERATOR, *WRITTEN[2], *WRITTEN[3], aten.slice.Tensor, *WRITTEN[4], aten.mul.Tensor]
    assert targets(program) == kept
