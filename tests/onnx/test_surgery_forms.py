"""The graph surgery on one attention in all the forms that models, exporters and simplifiers write."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path

import onnx
import pytest
import torch
from torch import Tensor, nn

from onnx_path.nodes import attention
from onnx_path.surgeon import operate
from onnx_path.surgery.verify.proof import relative_error
from tests.onnx import attention_layers as layers
from tests.onnx.attention_layers import POINTS, RAGGED, Attention
from tests.onnx.surgery_checks import check_one, export, run
from tests.onnx.zoo_layers import SpatialAttention, bevformer_spatial


@pytest.mark.parametrize(
    ("way", "columns", "points"),
    [
        (layers.by_stack, 2, POINTS),
        (layers.by_concat, 4, RAGGED),
        (layers.by_addition, 2, RAGGED),
        (layers.by_gathers, 2, RAGGED),
        (layers.by_padded_gathers, 4, POINTS),
    ],
    ids=lambda way: getattr(way, "__name__", None),
)
def test_every_way_to_write_attention(way: Callable, columns: int, points: tuple[int, ...], tmp_path: Path):
    module, inputs = Attention(way, points=points), layers.inputs(2, columns=columns)
    model = export(module, inputs, tmp_path)
    result, report = operate(model)
    check_one(model, result, report)
    (replacement,) = report.of("msda")
    assert (replacement.levels, replacement.points) == (3, points)
    assert (replacement.heads, replacement.head_dim) == (layers.HEADS, layers.HEAD_DIM)
    assert replacement.form == (
        "gather" if way in (layers.by_gathers, layers.by_padded_gathers) else "GridSample"
    )
    with torch.no_grad():
        expected = module(**inputs).numpy()
    assert relative_error(expected, run(result, inputs)) <= 1e-5


def check_opset(model: onnx.ModelProto, opset: int) -> None:
    for imports in (model.opset_import, *(function.opset_import for function in model.functions)):
        assert {x.domain: x.version for x in imports}[""] == opset


@pytest.mark.parametrize(("way", "opset"), [(layers.by_stack, 16), (layers.by_gathers, 13)])
def test_the_oldest_opset_and_one_without_grid_sample(way: Callable, opset: int, tmp_path: Path):
    model = export(Attention(way), layers.inputs(), tmp_path, opset=opset)
    result, report = operate(model)
    check_one(model, result, report)
    check_opset(result, 16)


def test_16_bit_models_stay_16_bit_by_the_newer_exporter(tmp_path: Path):
    inputs = {name: x.half() for name, x in layers.inputs().items()}
    model = export(Attention(layers.by_stack).half(), inputs, tmp_path, exporter="dynamo", opset=21)
    result, report = operate(model)
    check_one(model, result, report)
    check_opset(result, 21)
    assert onnx.TensorProto.FLOAT16 in {x.data_type for x in result.graph.initializer}
    assert result.graph.output[0].type.tensor_type.elem_type == onnx.TensorProto.FLOAT16


def test_dynamic_axes_stay(tmp_path: Path):
    dynamic = {"queries": {0: "n", 1: "q"}, "memory": {0: "n"}, "references": {0: "n", 1: "q"}}
    inputs = layers.inputs(2, queries=6, columns=4, reference_levels=1)
    model = export(Attention(layers.by_concat), inputs, tmp_path, dynamic=dynamic)
    result, report = operate(model)
    check_one(model, result, report)
    for images, queries in ((1, 1), (4, 11)):
        other = layers.inputs(images, queries=queries, columns=4, reference_levels=1)
        assert relative_error(run(model, other), run(result, other)) <= 1e-5


class Pyramid(nn.Module):
    """Attention from fixed queries to two maps of an image of any size."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.maps = nn.ModuleList([nn.Conv2d(3, 8, 4, 4), nn.Conv2d(3, 8, 8, 8)])
        self.locations = nn.Parameter(torch.rand(1, 5, 2, 4, 2) * 1.4 - 0.2)
        self.logits = nn.Parameter(torch.randn(1, 5, 2, 4))

    def forward(self, image: Tensor) -> Tensor:
        maps = [layer(image) for layer in self.maps]
        sizes = [tuple(level.shape[-2:]) for level in maps]
        value = torch.cat([level.flatten(2).transpose(1, 2) for level in maps], 1).unflatten(2, (2, 4))
        shift = value.mean((1, 3))[:, None, :, None]  # so that both depend on the image
        locations = self.locations + 0.1 * shift[..., None]
        return layers.by_stack(value, sizes, locations, (self.logits + shift).softmax(-1), (2, 2))


def test_level_sizes_that_change(tmp_path: Path):
    images = [{"image": torch.randn(1, 3, h, w)} for h, w in ((64, 96), (160, 64))]
    dynamic = {"image": {0: "n", 2: "h", 3: "w"}}
    model = export(Pyramid(), images[0], tmp_path, opset=18, dynamic=dynamic)
    result, report = operate(model)
    check_one(model, result, report, attention.ATTENTION)
    for image in images:
        assert relative_error(run(model, image), run(result, image)) <= 1e-5


def _camera_by_camera(results: Tensor, references: Tensor) -> Tensor:
    total = torch.zeros_like(results[:1])
    for i in range(len(results)):
        total = total + results[i : i + 1]
    return total


def _visible_queries(results: Tensor, references: Tensor) -> Tensor:
    total = torch.zeros_like(results[:1])
    for i in range(len(results)):
        total[0, torch.arange(9) + i] += results[i, :9]
    return total


@pytest.mark.parametrize("gather", [_camera_by_camera, _visible_queries])
def test_sums_over_cameras_follow_the_node(gather: Callable, tmp_path: Path):
    """The region ends before the sum, although no linear layer stands between."""
    _, inputs = bevformer_spatial(full=False)
    model = export(SpatialAttention(gather), inputs, tmp_path, opset=18)
    check_one(model, *operate(model), attention.ATTENTION)


def test_functions_are_inlined(stacked: onnx.ModelProto):
    model = deepcopy(stacked)
    constants = [
        onnx.helper.make_node("Constant", [], [tensor.name], value=tensor)
        for tensor in model.graph.initializer
    ]
    names = [x.name for x in model.graph.input]
    nodes = [*constants, *model.graph.node]
    function = onnx.helper.make_function("test", "Layer", names, ["output"], nodes, model.opset_import)
    del model.graph.node[:], model.graph.initializer[:]
    model.graph.node.append(onnx.helper.make_node("Layer", names, ["output"], domain="test"))
    model.functions.append(function)
    model.opset_import.append(onnx.helper.make_opsetid("test", 1))
    onnx.checker.check_model(model)
    result, report = operate(model)
    assert [x.op_type for x in report.of("msda")] == [attention.FUSED_ATTENTION]
    assert "test" not in {function.domain for function in result.functions}
