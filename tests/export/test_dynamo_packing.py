"""The dynamo path's offsets and logits by one linear layer: layers that are merged, and layers that stay."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn

import msda
from dynamo_path.constant_reshapes import VIEWS, simplify_reshapes
from dynamo_path.layer_names import node_names
from dynamo_path.packed_projections import LINEAR, LINEAR_OF_SUM, pack_projections, packed_attention
from trt_plugin import library

HEADS, LEVELS, CHANNELS = 3, ((4, 5), (2, 3)), 12


class Attention(nn.Module):
    """Offsets and logits of queries; `variant` names the reason that keeps the two layers apart."""

    def __init__(self, points: list[int] | None = None, variant: str = "") -> None:
        super().__init__()
        torch.manual_seed(0)
        self.points, self.variant = points, variant
        self.total = sum(points) if points else 2 * len(LEVELS)
        self.sampling_offsets = nn.Linear(CHANNELS, 2 * HEADS * self.total)
        self.attention_weights = nn.Linear(CHANNELS, HEADS * self.total)

    def forward(self, query: Tensor, value: Tensor, reference: Tensor, shapes: Tensor, starts: Tensor):
        other = query * 2 if self.variant == "another query" else query
        offsets, logits = self.sampling_offsets(query), self.attention_weights(other)
        points = (self.total,) if self.points else (len(LEVELS), 2)
        split = offsets.unflatten(-1, (HEADS, *points, 2))
        if self.variant == "moved":
            split = split.flip(-1)
        result = msda.fused_attention(
            value, shapes, starts, reference, split, logits.unflatten(-1, (HEADS, -1)), self.points
        )
        return (result, offsets) if self.variant == "read twice" else result


def inputs(batch: int = 2, queries: int = 7) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(1)
    return (
        torch.randn(batch, queries, CHANNELS, generator=generator),
        torch.randn(batch, 26, HEADS, 4, generator=generator),
        torch.rand(batch, queries, len(LEVELS), 2, generator=generator),
        torch.tensor(LEVELS),
        torch.tensor([0, 20]),
    )


def lowered(
    model: nn.Module, dynamic: bool = False, given: Sequence[Tensor] | None = None
) -> torch.fx.GraphModule:
    """Lowers a model as Torch-TensorRT gets it: linear layers whole, reshapes as views."""
    batch, queries = torch.export.Dim("batch", max=8), torch.export.Dim("queries", max=99)
    sizes = {0: batch, 1: queries}
    told = {"query": sizes, "value": {0: batch}, "reference": sizes, "shapes": {}, "starts": {}}
    given = tuple(given or inputs())
    program = torch.export.export(model.eval(), given, dynamic_shapes=told if dynamic else None)
    table = torch.export.default_decompositions()
    table.pop(LINEAR, None)
    return program.run_decompositions(table).module()


def count(module: torch.fx.GraphModule, *targets: object) -> int:
    return sum(node.target in targets for node in module.graph.nodes)


@pytest.mark.parametrize("points", [None, [3, 0], [1, 4]], ids=["equal", "zero", "ragged"])
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_packed_graph_computes_the_same(points, dynamic):
    model = Attention(points)
    module = lowered(model, dynamic)
    assert pack_projections(module) == 1
    assert count(module, LINEAR) == count(module, packed_attention) == 1
    assert count(module, *VIEWS, torch.ops.msda.fused_attention.default) == 0
    simplify_reshapes(module)
    for given in (inputs(), inputs(3, 11)) if dynamic else (inputs(),):
        torch.testing.assert_close(module(*given), model(*given))


def test_reshapes_that_torch_tensorrt_lowers():
    """Torch-TensorRT makes `_reshape_copy` of every reshape."""
    model = Attention()
    module = lowered(model)
    for node in module.graph.nodes:
        if node.target in VIEWS:
            node.target = torch.ops.aten._reshape_copy.default
    module.recompile()
    assert pack_projections(module) == 1
    torch.testing.assert_close(module(*inputs()), model(*inputs()))


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.self_attn = Attention()

    def forward(self, query: Tensor, value: Tensor, reference: Tensor, shapes: Tensor, starts: Tensor):
        return self.self_attn(query, value, reference, shapes, starts)


def test_layer_names_are_reproducible():
    """A refit converts the model again, and finds the weights by the layers' names."""
    names = []
    for _ in range(2):
        module = lowered(Layer())
        assert pack_projections(module) == 1
        names.append([node.name for node in module.graph.nodes])
        projection = next(node for node in module.graph.nodes if node.target is LINEAR)
        assert node_names(module.graph)[projection] == "/self_attn/projection"
        assert projection.meta["val"].shape == (2, 7, 3 * HEADS * 4)
    assert names[0] == names[1]


class Sum(Attention):
    """Queries that are a sum."""

    def forward(self, query: Tensor, *others: Tensor):
        positions = query.sin()
        queries = query + (positions[:1] if self.variant == "sizes differ" else positions)
        result = super().forward(queries, *others)
        return (result, queries) if self.variant == "sum is an output" else result


def lowered_sum(monkeypatch: pytest.MonkeyPatch, variant: str = "", fast: bool = True):
    """Lowers a model in float16, whose layers of sums the plugin runs fast."""
    asked = []
    monkeypatch.setattr(library, "has_fast_linear_of_sum", lambda *sizes: asked.append(sizes) or fast)
    dtype = torch.float32 if variant == "float32" else torch.float16
    model = Sum(variant=variant).to(dtype)
    given = [x.to(dtype) if i < 2 else x for i, x in enumerate(inputs())]
    return model, lowered(model, given=given), given, asked


def test_layer_of_a_sum(monkeypatch):
    model, module, given, asked = lowered_sum(monkeypatch)
    assert pack_projections(module) == 1 and asked == [(14, CHANNELS, 3 * HEADS * 4)]
    assert count(module, LINEAR_OF_SUM) == 1 and count(module, LINEAR, torch.ops.aten.add.Tensor) == 0
    projection = next(node for node in module.graph.nodes if node.target is LINEAR_OF_SUM)
    assert projection.meta["val"].shape == (2, 7, 3 * HEADS * 4)
    torch.testing.assert_close(module(*given), model(*given), rtol=0, atol=1e-2)


@pytest.mark.parametrize("variant", ["slow", "float32", "sum is an output", "sizes differ"])
def test_sums_that_stay(monkeypatch, variant):
    _, module, _, _ = lowered_sum(monkeypatch, variant, fast=variant != "slow")
    assert pack_projections(module) == 1
    assert count(module, LINEAR) == count(module, torch.ops.aten.add.Tensor) == 1


@pytest.mark.parametrize("variant", ["another query", "moved", "read twice", "two types"])
def test_layers_that_stay_apart(variant):
    module = lowered(Attention(variant=variant))
    if variant == "two types":
        module.attention_weights.half()
    assert pack_projections(module) == 0
    assert count(module, LINEAR) == 2
    assert count(module, torch.ops.msda.fused_attention.default) == 1
