"""The graph surgery on one attention in all the forms that models, exporters and simplifiers write."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from torch import Tensor, nn

from onnx_path import operator
from onnx_path.surgeon import operate
from onnx_path.surgery.graph.protobuf import copied
from onnx_path.surgery.verify.proof import relative_error
from tests.onnx import attention_layers as layers
from tests.onnx.attention_layers import POINTS, RAGGED, Attention
from tests.onnx.surgery_checks import NAMES, check_one, export, run
from tests.onnx.zoo_layers import SpatialAttention, bevformer_spatial

# One form of each way by default, the others are slow.
_CHOSEN = dict(zip((*layers.GRID_SAMPLE, *layers.GATHER), ("2e", "4r", "2r", "4e", "2r", "4r", "2r", "4e")))
_FORMS = {"2e": (2, POINTS), "2r": (2, RAGGED), "4e": (4, POINTS), "4r": (4, RAGGED)}


@pytest.mark.parametrize(
    ("way", "columns", "points"),
    [
        pytest.param(
            *(way, *form), id=f"{way.__name__}-{key}", marks=() if key == chosen else pytest.mark.slow
        )
        for way, chosen in _CHOSEN.items()
        for key, form in _FORMS.items()
        if way is not layers.by_stack or key[1] == "e"  # only equal points can be stacked
    ],
)
def test_every_way_to_write_attention(way: Callable, columns: int, points: tuple[int, ...], tmp_path: Path):
    module, tensors = Attention(way, points=points), layers.inputs(2, columns=columns)
    model = export(module, tensors, tmp_path)
    result, report = operate(model)
    check_one(model, result, report)
    (replacement,) = report.replacements
    assert (replacement.levels, replacement.points) == (3, points)
    assert (replacement.heads, replacement.head_dim) == (layers.HEADS, layers.HEAD_DIM)
    assert replacement.form == ("gather" if way in layers.GATHER else "GridSample")
    with torch.no_grad():
        expected = module(*tensors).numpy()
    assert relative_error(expected, run(result, tensors)) <= 1e-5


@pytest.mark.parametrize(
    ("exporter", "opset"),
    [("torchscript", 16), pytest.param("torchscript", 20, marks=pytest.mark.slow), ("dynamo", 21)],
)
def test_opsets(exporter: str, opset: int, tmp_path: Path):
    model = export(Attention(layers.by_stack), layers.inputs(), tmp_path, exporter=exporter, opset=opset)
    result, report = operate(model)
    check_one(model, result, report)
    for imports in (result.opset_import, *(function.opset_import for function in result.functions)):
        assert {x.domain: x.version for x in imports}[""] == opset


def test_an_opset_without_grid_sample_is_raised(tmp_path: Path):
    model = export(Attention(layers.by_gathers), layers.inputs(), tmp_path, opset=13)
    result, report = operate(model)
    check_one(model, result, report)
    assert {x.domain: x.version for x in result.opset_import}[""] == 16


@pytest.mark.parametrize(
    ("way", "exporter"),
    [
        (layers.by_concat, "torchscript"),
        pytest.param(layers.by_stack, "dynamo", marks=pytest.mark.slow),
        pytest.param(layers.by_gathers, "torchscript", marks=pytest.mark.slow),
        pytest.param(layers.by_gathers, "dynamo", marks=pytest.mark.slow),
    ],
)
def test_dynamic_axes_stay(way: Callable, exporter: str, tmp_path: Path):
    dynamic = {"queries": {0: "n", 1: "q"}, "memory": {0: "n"}, "references": {0: "n", 1: "q"}}
    tensors = layers.inputs(2, queries=6, columns=4, reference_levels=1)
    model = export(Attention(way), tensors, tmp_path, exporter=exporter, dynamic=dynamic, opset=18)
    result, report = operate(model)
    check_one(model, result, report)
    for images, queries in ((1, 1), (4, 11)):
        other = layers.inputs(images, queries=queries, columns=4, reference_levels=1)
        assert relative_error(run(model, other), run(result, other)) <= 1e-5


class Pyramid(nn.Module):
    """Attention from fixed queries to two maps of an image of any size."""

    def __init__(self, way: Callable) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.way = way
        self.maps = nn.ModuleList([nn.Conv2d(3, 8, 4, 4), nn.Conv2d(3, 8, 8, 8)])
        self.locations = nn.Parameter(torch.rand(1, 5, 2, 4, 2) * 1.4 - 0.2)
        self.logits = nn.Parameter(torch.randn(1, 5, 2, 4))

    def forward(self, image: Tensor) -> Tensor:
        maps = [layer(image) for layer in self.maps]
        sizes = [tuple(level.shape[-2:]) for level in maps]
        value = torch.cat([level.flatten(2).transpose(1, 2) for level in maps], 1).unflatten(2, (2, 4))
        shift = value.mean((1, 3))[:, None, :, None]  # so that both depend on the image
        locations = self.locations + 0.1 * shift[..., None]
        return self.way(value, sizes, locations, (self.logits + shift).softmax(-1), (2, 2))


def test_level_sizes_that_change(tmp_path: Path):
    images = [torch.randn(1, 3, h, w) for h, w in ((64, 96), (160, 64))]
    dynamic = {"image": {0: "n", 2: "h", 3: "w"}}
    module = Pyramid(layers.by_stack)
    model = export(module, images[:1], tmp_path, opset=18, names=["image"], dynamic=dynamic)
    result, report = operate(model)
    check_one(model, result, report, operator.ATTENTION)
    for image in images:
        before, after = (run(m, [image], ["image"]) for m in (model, result))
        assert relative_error(before, after) <= 1e-5


@pytest.mark.parametrize("tool", ["onnxslim", "onnxsim"])
@pytest.mark.parametrize(
    "way",
    [
        layers.by_stack,
        *(pytest.param(way, marks=pytest.mark.slow) for way in (layers.by_columns, layers.by_gathers)),
    ],
    ids=lambda way: way.__name__,
)
def test_simplified_files(way: Callable, tool: str, tmp_path: Path):
    simplifier = pytest.importorskip(tool, reason=f"{tool} is not installed")
    model = export(Attention(way), layers.inputs(), tmp_path)
    model = simplifier.slim(model) if tool == "onnxslim" else simplifier.simplify(model)[0]
    check_one(model, *operate(model))


def _kept_cameras(results: Tensor, references: Tensor) -> Tensor:
    return (results * (references[..., 0] > 0.5).any(-1)[..., None]).sum(0, keepdim=True)


def _camera_axis(results: Tensor, references: Tensor) -> Tensor:
    return results.view(1, *results.shape).sum(1)


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


@pytest.mark.parametrize("exporter", ["torchscript", pytest.param("dynamo", marks=pytest.mark.slow)])
@pytest.mark.parametrize("gather", [_kept_cameras, _camera_axis, _camera_by_camera, _visible_queries])
def test_sums_over_cameras_follow_the_node(gather: Callable, exporter: str, tmp_path: Path):
    """The region ends before the sum, although no linear layer stands between."""
    _, inputs = bevformer_spatial(full=False)
    names, tensors = zip(*inputs.items())
    model = export(SpatialAttention(gather), tensors, tmp_path, exporter=exporter, opset=18, names=names)
    check_one(model, *operate(model), operator.ATTENTION)


def test_functions_are_inlined(stacked: onnx.ModelProto):
    model = copied(stacked)
    constants = [
        onnx.helper.make_node("Constant", [], [tensor.name], value=tensor)
        for tensor in model.graph.initializer
    ]
    function = onnx.helper.make_function(
        "test", "Layer", list(NAMES), ["output"], [*constants, *model.graph.node], model.opset_import
    )
    del model.graph.node[:], model.graph.initializer[:]
    model.graph.node.append(onnx.helper.make_node("Layer", list(NAMES), ["output"], domain="test"))
    model.functions.append(function)
    model.opset_import.append(onnx.helper.make_opsetid("test", 1))
    onnx.checker.check_model(model)
    result, report = operate(model)
    assert [x.op_type for x in report.replacements] == [operator.FUSED_ATTENTION]
    assert "test" not in {function.domain for function in result.functions}


def test_16_bit_models_stay_16_bit(stacked: onnx.ModelProto):
    model = copied(stacked)
    _to_half(model)
    result, report = operate(model)
    check_one(model, result, report)
    assert onnx.TensorProto.FLOAT16 in {x.data_type for x in result.graph.initializer}
    assert result.graph.output[0].type.tensor_type.elem_type == onnx.TensorProto.FLOAT16


def _to_half(model: onnx.ModelProto) -> None:
    half, full = onnx.TensorProto.FLOAT16, onnx.TensorProto.FLOAT

    def narrow(tensor: onnx.TensorProto) -> None:
        if tensor.data_type == full:
            array = onnx.numpy_helper.to_array(tensor).astype(np.float16)
            tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))

    del model.graph.value_info[:]
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.elem_type = half
    for tensor in model.graph.initializer:
        narrow(tensor)
    for node in model.graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                narrow(attribute.t)
            elif attribute.name == "to" and attribute.i == full:
                attribute.i = half
