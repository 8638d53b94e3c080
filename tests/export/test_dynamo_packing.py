"""The dynamo path's offsets and logits by one linear layer: layers that are merged, and layers that stay."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import msda
from dynamo_path.constant_reshapes import VIEWS, simplify_reshapes
from dynamo_path.layer_names import node_names
from dynamo_path.packed_projections import LINEAR, pack_projections, packed_attention

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


def lowered(model: nn.Module, dynamic: bool = False) -> torch.fx.GraphModule:
    """Lowers a model as Torch-TensorRT gets it: linear layers whole, reshapes as views."""
    batch, queries = torch.export.Dim("batch", max=8), torch.export.Dim("queries", max=99)
    sizes = {0: batch, 1: queries}
    told = {"query": sizes, "value": {0: batch}, "reference": sizes, "shapes": {}, "starts": {}}
    program = torch.export.export(model.eval(), inputs(), dynamic_shapes=told if dynamic else None)
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


@pytest.mark.parametrize("variant", ["another query", "moved", "read twice", "two types"])
def test_layers_that_stay_apart(variant):
    module = lowered(Attention(variant=variant))
    if variant == "two types":
        module.attention_weights.half()
    assert pack_projections(module) == 0
    assert count(module, LINEAR) == 2
    assert count(module, torch.ops.msda.fused_attention.default) == 1
