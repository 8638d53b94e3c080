"""The graph surgery: ways to write MSDA down, near misses, whole models of the zoo, files, the command."""

from __future__ import annotations

import json
import logging
import re
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

onnx = pytest.importorskip("onnx", reason="onnx is not installed")
pytest.importorskip("onnxscript", reason="onnxscript is not installed")
pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")

from onnx_path import operator  # noqa: E402
from onnx_path.surgeon import SurgeryReport as Report
from onnx_path.surgeon import UnknownOperator, main, operate  # noqa: E402
from onnx_path.surgery.graph import onnx_session
from onnx_path.surgery.graph.protobuf import copied  # noqa: E402
from onnx_path.surgery.layouts import layout as layouts
from onnx_path.surgery.layouts.layout import Layout, LayoutError  # noqa: E402
from onnx_path.surgery.rewrite import function_bodies
from onnx_path.surgery.verify import proof
from tests import onnx_zoo  # noqa: E402
from tests import surgeon_layers as layers  # noqa: E402
from tests.surgeon_layers import LEVELS, POINTS, RAGGED, Attention  # noqa: E402

ZOO = onnx_zoo.ZOO

NAMES = ("queries", "memory", "references")
WAYS = (*layers.GRID_SAMPLE, *layers.GATHER)
DYNAMIC = {"queries": {0: "n", 1: "q"}, "memory": {0: "n"}, "references": {0: "n", 1: "q"}}


def export(
    module: nn.Module,
    tensors: Sequence[Tensor],
    path: Path,
    *,
    exporter: str = "torchscript",
    opset: int = 17,
    dynamic: dict | None = None,
    names: Sequence[str] = NAMES,
) -> onnx.ModelProto:
    """Exports a module by one of Torch's exporters."""
    options: dict = {"dynamic_axes": dynamic}
    if exporter == "dynamo":
        options = {"external_data": False, "verbose": False}
        if dynamic:
            shapes = [
                {axis: torch.export.Dim(name) for axis, name in dynamic.get(n, {}).items()} for n in names
            ]
            options["dynamic_shapes"] = tuple(shapes)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        logging.getLogger("torch.onnx").setLevel(logging.ERROR)
        torch.onnx.export(
            module.eval(),
            tuple(tensors),
            path,
            input_names=list(names),
            output_names=["output"],
            opset_version=opset,
            dynamo=exporter == "dynamo",
            **options,
        )
    return onnx.load(path)


def run(model: onnx.ModelProto, tensors: Sequence[Tensor], names: Sequence[str] = NAMES) -> np.ndarray:
    """The model's only output, in onnxruntime with all its optimisations."""
    session = onnx_session.Session(model, optimise=True)
    return session.run({name: tensor.numpy() for name, tensor in zip(names, tensors)})[0]


def operators(model: onnx.ModelProto) -> Counter[str]:
    return Counter(node.op_type for node in model.graph.node)


def check_one(
    model: onnx.ModelProto, result: onnx.ModelProto, report: Report, op_type: str = operator.FUSED_ATTENTION
) -> None:
    """Asserts that one attention, all there was, has become one node of a valid model."""
    assert [x.op_type for x in report.replacements] == [op_type], report
    assert not report.near_misses
    assert report.max_error <= 1e-5
    assert operators(result)[op_type] == 1
    assert not {"GridSample", "GatherElements", "Floor"} & set(operators(result))
    assert report.nodes_after == len(result.graph.node) < len(model.graph.node) == report.nodes_before
    onnx.checker.check_model(result, full_check=True)


@pytest.fixture(scope="session")
def zoo_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return onnx_zoo.session_folder(tmp_path_factory)


@pytest.fixture(scope="module")
def stacked(tmp_path_factory: pytest.TempPathFactory) -> onnx.ModelProto:
    """Deformable DETR's way, references of two columns; tests copy what they change."""
    return export(
        Attention(layers.by_stack), layers.inputs(), tmp_path_factory.mktemp("stacked") / "model.onnx"
    )


# Forms


@pytest.mark.parametrize("points", [POINTS, RAGGED], ids=["equal", "ragged"])
@pytest.mark.parametrize("columns", [2, 4])
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_replaces_every_way(way: Callable, columns: int, points: tuple[int, ...], tmp_path: Path) -> None:
    if way is layers.by_stack and points is RAGGED:
        pytest.skip("only equal points can be stacked")
    module, tensors = Attention(way, points=points), layers.inputs(2, columns=columns)
    model = export(module, tensors, tmp_path / "model.onnx")
    result, report = operate(model)
    check_one(model, result, report)
    (replacement,) = report.replacements
    assert (replacement.levels, replacement.points) == (3, points)
    assert (replacement.heads, replacement.head_dim) == (layers.HEADS, layers.HEAD_DIM)
    assert replacement.form == ("gather" if way in layers.GATHER else "GridSample")
    with torch.no_grad():
        expected = module(*tensors).numpy()
    assert proof.relative_error(expected, run(result, tensors)) <= 1e-5


@pytest.mark.parametrize(
    ("exporter", "opset"),
    [*(("torchscript", n) for n in (16, 18, 19, 20)), *(("dynamo", n) for n in (18, 20, 21))],
)
def test_replaces_what_both_exporters_write(exporter: str, opset: int, tmp_path: Path) -> None:
    model = export(
        Attention(layers.by_stack), layers.inputs(), tmp_path / "model.onnx", exporter=exporter, opset=opset
    )
    result, report = operate(model)
    check_one(model, result, report)
    opsets = {x.domain: x.version for x in result.opset_import}
    assert opsets[""] == opset
    for function in result.functions:
        assert {x.domain: x.version for x in function.opset_import}[""] == opset


def test_raises_an_opset_without_grid_sample(tmp_path: Path) -> None:
    model = export(Attention(layers.by_gathers), layers.inputs(), tmp_path / "model.onnx", opset=13)
    result, report = operate(model)
    check_one(model, result, report)
    assert {x.domain: x.version for x in result.opset_import}[""] == 16


@pytest.mark.parametrize("exporter", ["torchscript", "dynamo"])
@pytest.mark.parametrize(
    "way", [layers.by_stack, layers.by_concat, layers.by_gathers], ids=lambda w: w.__name__
)
def test_keeps_dynamic_axes(way: Callable, exporter: str, tmp_path: Path) -> None:
    tensors = layers.inputs(2, queries=6, columns=4, reference_levels=1)
    model = export(
        Attention(way), tensors, tmp_path / "model.onnx", exporter=exporter, dynamic=DYNAMIC, opset=18
    )
    result, report = operate(model)
    check_one(model, result, report)
    for images, queries in ((1, 1), (4, 11)):
        other = layers.inputs(images, queries=queries, columns=4, reference_levels=1)
        assert proof.relative_error(run(model, other), run(result, other)) <= 1e-5


class Pyramid(nn.Module):
    """Attention from fixed queries to two maps of a picture whose size is open."""

    def __init__(self, way: Callable) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.way = way
        self.maps = nn.ModuleList([nn.Conv2d(3, 8, 4, 4), nn.Conv2d(3, 8, 8, 8)])
        self.locations = nn.Parameter(torch.rand(1, 5, 2, 4, 2) * 1.4 - 0.2)
        self.logits = nn.Parameter(torch.randn(1, 5, 2, 4))

    def forward(self, picture: Tensor) -> Tensor:
        maps = [layer(picture) for layer in self.maps]
        sizes = [tuple(level.shape[-2:]) for level in maps]
        value = torch.cat([level.flatten(2).transpose(1, 2) for level in maps], 1).unflatten(2, (2, 4))
        shift = value.mean((1, 3))[:, None, :, None]  # so that both depend on the picture
        locations = self.locations + 0.1 * shift[..., None]
        return self.way(value, sizes, locations, (self.logits + shift).softmax(-1), (2, 2))


@pytest.mark.parametrize("exporter", ["torchscript", "dynamo"])
def test_computes_level_sizes_that_change(exporter: str, tmp_path: Path) -> None:
    pictures = [torch.randn(1, 3, h, w) for h, w in ((64, 96), (160, 64))]
    model = export(
        Pyramid(layers.by_stack),
        pictures[:1],
        tmp_path / "model.onnx",
        exporter=exporter,
        opset=18,
        names=["picture"],
        dynamic={"picture": {0: "n", 2: "h", 3: "w"} if exporter == "torchscript" else {}},
    )
    result, report = operate(model)
    check_one(model, result, report, operator.ATTENTION)
    for picture in pictures if exporter == "torchscript" else pictures[:1]:
        before, after = (run(m, [picture], ["picture"]) for m in (model, result))
        assert proof.relative_error(before, after) <= 1e-5


@pytest.mark.parametrize("tool", ["onnxslim", "onnxsim"])
@pytest.mark.parametrize(
    "way", [layers.by_stack, layers.by_columns, layers.by_gathers], ids=lambda way: way.__name__
)
def test_replaces_what_simplifiers_leave(way: Callable, tool: str, tmp_path: Path) -> None:
    simplifier = pytest.importorskip(tool, reason=f"{tool} is not installed")
    model = export(Attention(way), layers.inputs(), tmp_path / "model.onnx")
    model = simplifier.slim(model) if tool == "onnxslim" else simplifier.simplify(model)[0]
    result, report = operate(model)
    check_one(model, result, report)


def test_looks_into_functions(stacked: onnx.ModelProto) -> None:
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


def test_proves_16_bit_models_in_float32(stacked: onnx.ModelProto) -> None:
    model = copied(stacked)
    _to_half(model)
    result, report = operate(model)
    check_one(model, result, report)
    halves = [x for x in result.graph.initializer if x.data_type == onnx.TensorProto.FLOAT16]
    assert halves
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


# What is asked for


def test_leaves_softmax_and_locations_outside(stacked: onnx.ModelProto, tmp_path: Path) -> None:
    result, report = operate(stacked, fuse=False)
    check_one(stacked, result, report, operator.ATTENTION)
    assert operators(result)["Softmax"] == 1

    model = export(Attention(layers.by_stack, softmax=False), layers.inputs(), tmp_path / "model.onnx")
    result, report = operate(model)
    check_one(model, result, report, operator.ATTENTION)
    assert any("no softmax" in note for note in report.notes)


def test_fuses_only_offsets_in_the_operator_s_units(tmp_path: Path) -> None:
    class Wide(Attention):
        def locations(self, references: Tensor, offsets: Tensor) -> Tensor:
            return super().locations(references, offsets * 1.5)

    model = export(Wide(layers.by_stack), layers.inputs(), tmp_path / "model.onnx")
    result, report = operate(model)
    check_one(model, result, report, operator.ATTENTION)
    assert any("units of their own" in note for note in report.notes)


class BoxesByLevel(Attention):
    """Each level has its own product of boxes and numbers; they are stacked, repeated and joined: ours."""

    factor = 0.5

    def locations(self, references: Tensor, offsets: Tensor) -> Tensor:
        extents = [references[:, :, i, 2:] * (self.factor / count) for i, count in enumerate(self.points)]
        extents = torch.stack(extents, 2).split(1, 2)
        extents = [x.expand(-1, -1, count, -1) for x, count in zip(extents, self.points)]
        centres = [references[:, :, i : i + 1, :2] for i in range(len(self.points))]
        centres = [x.expand(-1, -1, count, -1) for x, count in zip(centres, self.points)]
        return torch.cat(centres, 2)[:, :, None] + offsets * torch.cat(extents, 2)[:, :, None]


@pytest.mark.parametrize("exporter", ["torchscript", "dynamo"])
@pytest.mark.parametrize("points", [POINTS, RAGGED], ids=["equal", "ragged"])
def test_fuses_boxes_that_every_level_scales(points: tuple[int, ...], exporter: str, tmp_path: Path) -> None:
    module, tensors = BoxesByLevel(layers.by_concat, points=points), layers.inputs(2, columns=4)
    model = export(module, tensors, tmp_path / "model.onnx", exporter=exporter, opset=18)
    result, report = operate(model)
    check_one(model, result, report)
    with torch.no_grad():
        expected = module(*tensors).numpy()
    assert proof.relative_error(expected, run(result, tensors)) <= 1e-5


@pytest.mark.parametrize("swapped", [False, True], ids=["bad-second", "bad-first"])
@pytest.mark.parametrize("elsewhere", [-2.0, 0.5])
def test_fuses_clipped_locations_if_only_those_outside_move(
    elsewhere: float, swapped: bool, tmp_path: Path
) -> None:
    """Ours keeps NaN and large numbers from GridSample; simplifiers swap the branches of the selection."""

    def way(value, levels, locations, weights, points):
        near, far = locations.clamp(-2, 3), locations.abs() > 100
        kept = torch.where(far, elsewhere, near) if swapped else torch.where(~far, near, elsewhere)
        return layers.by_stack(value, levels, kept, weights, points)

    model = export(Attention(way), layers.inputs(), tmp_path / "model.onnx")
    result, report = operate(model)
    check_one(model, result, report, operator.FUSED_ATTENTION if elsewhere == -2 else operator.ATTENTION)


def test_fuses_only_boxes_that_every_level_scales_rightly(tmp_path: Path) -> None:
    module = BoxesByLevel(layers.by_concat, points=RAGGED)
    module.factor = 0.7
    model = export(module, layers.inputs(columns=4), tmp_path / "model.onnx")
    result, report = operate(model)
    check_one(model, result, report, operator.ATTENTION)
    assert any("units of their own" in note for note in report.notes)


def test_weights_that_are_read_elsewhere_stay(tmp_path: Path) -> None:
    class Showing(Attention):
        def forward(self, *tensors: Tensor) -> Tensor:
            weights = self.weights(tensors[0]).reshape(1, 5, 2, 6).softmax(-1)
            self.seen = weights
            return super().forward(*tensors) + weights.sum()

    model = export(Showing(layers.by_stack), layers.inputs(), tmp_path / "model.onnx")
    result, report = operate(model)
    check_one(model, result, report)
    assert operators(result)["Softmax"] == 1


def test_target_is_checked(stacked: onnx.ModelProto) -> None:
    with pytest.raises(ValueError, match="target: expected one of msda, nvidia, got 'TensorRT'"):
        operate(stacked, target="TensorRT")


def test_leaves_function_bodies_out(stacked: onnx.ModelProto) -> None:
    result, report = operate(stacked, function_body=False)
    assert report.max_error <= 1e-5
    assert not result.functions
    with pytest.raises(onnx_session.CannotRun):
        run(result, layers.inputs())


def test_changes_nothing_else(stacked: onnx.ModelProto) -> None:
    model = copied(stacked)
    model.metadata_props.add(key="author", value="somebody")
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.zeros(3, np.float32), "unused"))
    before = model.SerializeToString()
    result, _ = operate(model)
    assert model.SerializeToString() == before
    assert {x.key: x.value for x in result.metadata_props} == {"author": "somebody"}
    assert result.ir_version == max(model.ir_version, 8)
    assert list(result.graph.input) == list(model.graph.input)
    assert [x.name for x in result.graph.output] == [x.name for x in model.graph.output]
    assert not {"unused"} & {x.name for x in result.graph.initializer}
    read = {name for node in result.graph.node for name in node.input}
    assert {x.name for x in result.graph.initializer} <= read
    again, report = operate(result)
    assert again is result and not report.replacements


# Near misses


class Sampling(nn.Module):
    """Something with GridSample in it."""

    def __init__(self, function: Callable) -> None:
        super().__init__()
        self.function = function

    def forward(self, *tensors: Tensor) -> Tensor:
        return self.function(*tensors)


def near_miss(function: Callable, tensors: Sequence[Tensor], path: Path) -> str:
    """Asserts that nothing is replaced, and returns the first reason."""
    model = export(Sampling(function), tensors, path, names=[f"x{i}" for i in range(len(tensors))])
    result, report = operate(model)
    assert result is model and not report.replacements
    return report.near_misses[0].reason


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"padding_mode": "border"}, "padding is border, not zeros"),
        ({"align_corners": True}, "aligns corners"),
        ({"mode": "nearest"}, "mode nearest, not bilinear"),
        ({"mode": "bicubic"}, "mode .*cubic, not bilinear"),
    ],
)
def test_other_sampling_stays(
    options: dict, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sample = F.grid_sample
    monkeypatch.setattr(
        F, "grid_sample", lambda *args, **kw: sample(*args, **{"align_corners": False} | kw | options)
    )
    model = export(Attention(layers.by_stack), layers.inputs(), tmp_path / "model.onnx")
    result, report = operate(model)
    assert result is model
    assert len(report.near_misses) == len(LEVELS)
    for miss in report.near_misses:
        assert re.search(reason, miss.reason)


def test_point_sampling_stays(tmp_path: Path) -> None:
    def points(features: Tensor, places: Tensor) -> Tensor:
        return F.grid_sample(features, 2 * places.unsqueeze(2) - 1, align_corners=False).squeeze(3).sigmoid()

    reason = near_miss(points, (torch.randn(2, 4, 6, 8), torch.rand(2, 5, 2)), tmp_path / "model.onnx")
    assert "not multiplied by weights and summed: they go to Sigmoid" in reason


def test_sampling_by_gathers_that_is_no_attention_stays(tmp_path: Path) -> None:
    def points(features: Tensor, places: Tensor) -> Tensor:
        return layers._masked_corners(features, 2 * places - 1).sigmoid()

    reason = near_miss(points, (torch.randn(2, 4, 6, 8), torch.rand(2, 5, 3, 2)), tmp_path / "model.onnx")
    assert "not multiplied by weights and summed" in reason


def test_samples_that_are_read_elsewhere_stay(tmp_path: Path) -> None:
    def attend(features: Tensor, places: Tensor, weights: Tensor) -> Tensor:
        samples = F.grid_sample(features, 2 * places - 1, align_corners=False)
        return (samples * weights).sum(-1) + samples.amax(-1)

    tensors = (torch.randn(2, 4, 6, 8), torch.rand(2, 5, 3, 2), torch.rand(2, 1, 5, 3))
    reason = near_miss(attend, tensors, tmp_path / "model.onnx")
    assert "which is on the way, is also read by ReduceMax" in reason


def test_weights_of_single_channels_stay(tmp_path: Path) -> None:
    def attend(features: Tensor, places: Tensor, weights: Tensor) -> Tensor:
        return (F.grid_sample(features, 2 * places - 1, align_corners=False) * weights).sum(-1)

    tensors = (torch.randn(2, 4, 6, 8), torch.rand(2, 5, 3, 2), torch.rand(2, 4, 5, 3))
    assert "channels have weights of their own" in near_miss(attend, tensors, tmp_path / "model.onnx")


def test_sums_over_channels_stay(tmp_path: Path) -> None:
    def attend(features: Tensor, places: Tensor, weights: Tensor) -> Tensor:
        return (F.grid_sample(features, 2 * places - 1, align_corners=False) * weights).sum((1, 3))

    tensors = (torch.randn(2, 4, 6, 8), torch.rand(2, 5, 3, 2), torch.rand(2, 1, 5, 3))
    assert "channels are summed" in near_miss(attend, tensors, tmp_path / "model.onnx")


# Proof and check


WIDE = ((3, 4000), (2, 300), (2, 2))
"""Float32 has not 1e-5 of a cell left where a level has thousands."""


def wide_model(path: Path) -> onnx.ModelProto:
    return export(Attention(layers.by_concat, levels=WIDE), layers.inputs(queries=200, levels=WIDE), path)


def test_fuses_where_coordinates_have_few_digits(tmp_path: Path) -> None:
    _, report = operate(wide_model(tmp_path / "model.onnx"))
    (replacement,) = report.replacements
    assert replacement.op_type == operator.FUSED_ATTENTION
    assert proof.TOLERANCE < replacement.error < proof.LARGEST_ROUNDING


# Layouts


@pytest.mark.parametrize("seed", range(20))
def test_layouts_move_like_arrays(seed: int) -> None:
    random = np.random.default_rng(seed)
    array = np.arange(2 * 6 * 4 * 3).reshape(2, 6, 4, 3)
    layout = Layout.of(array.shape)
    for _ in range(6):
        axis = int(random.integers(array.ndim))
        match random.integers(5):
            case 0:
                order = random.permutation(array.ndim)
                array, layout = array.transpose(order), layout.transpose(order)
            case 1:
                picked = random.permutation(array.shape[axis])[: max(1, array.shape[axis] - 1)]
                array, layout = array.take(picked, axis), layout.take(axis, picked)
            case 2:
                shape = (*array.shape[:axis], array.shape[axis], 1, *array.shape[axis + 1 :])
                array, layout = array.reshape(shape), layout.reshape(shape)
            case 3 if axis:
                shape = (*array.shape[: axis - 1], -1, *array.shape[axis + 1 :])
                array = array.reshape(shape)
                layout = layout.reshape(array.shape)
            case 4:
                halves = [np.arange(array.shape[axis])] * 2
                array = np.concatenate([array.take(half, axis) for half in halves], axis)
                layout = layouts.concat([layout.take(axis, half) for half in halves], axis)
    places = np.indices(array.shape)
    origins = layout.base[0] + sum(table[i, 0] for table, i in zip(layout.tables, places))
    np.testing.assert_array_equal(origins, array)


def test_layouts_refuse_what_they_cannot_express() -> None:
    uneven = Layout.of((2, 6)).take(1, np.array([0, 1, 3, 4])).reshape((2, 2, 2))
    assert uneven.shape == (2, 2, 2)
    with pytest.raises(LayoutError, match="no seam"):
        Layout.of((2, 6)).take(1, np.array([0, 1, 3, 5])).reshape((2, 2, 2))
    with pytest.raises(LayoutError, match="not a view of all"):
        layouts.view(Layout.of((2, 6)).take(1, np.arange(5)), (2, 6))
    with pytest.raises(LayoutError, match="is empty"):
        Layout.of((2, 0))


# The command


@pytest.fixture
def file(stacked: onnx.ModelProto, tmp_path: Path) -> Path:
    onnx.save(stacked, tmp_path / "in.onnx")
    return tmp_path / "in.onnx"


def test_command(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    out, report = tmp_path / "new" / "out.onnx", tmp_path / "report.json"
    assert main([str(file), str(out), "--json", str(report)]) == 0
    error = capsys.readouterr().err
    assert "replaced /Transpose_" in error
    assert (
        "FusedMultiScaleDeformableAttention, 3 levels, 2 points, 2 heads x 4 channels (GridSample)" in error
    )
    assert f"wrote {out}: 1 replaced" in error
    assert operators(onnx.load(out))[operator.FUSED_ATTENTION] == 1
    written = json.loads(report.read_text())
    assert written["replacements"][0]["points"] == [2, 2, 2]
    assert written["nodes_before"] > written["nodes_after"]
    assert {x.name for x in out.parent.iterdir()} == {"out.onnx"}


def test_command_s_options(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    out = tmp_path / "out.onnx"
    options = ["--target", "nvidia", "--no-function-body", "--no-check", "--no-fuse", "--seed", "7"]
    assert main([str(file), str(out), *options]) == 0
    assert "outputs: not compared" in capsys.readouterr().err
    model = onnx.load(out)
    assert operators(model)[function_bodies.NVIDIA] == 1 and not model.functions


def test_a_model_without_attention_is_copied(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    export(nn.Linear(3, 4), [torch.randn(2, 3)], tmp_path / "in.onnx", names=["x"])
    out = tmp_path / "out.onnx"
    assert main([str(tmp_path / "in.onnx"), str(out)]) == 0
    assert out.read_bytes() == (tmp_path / "in.onnx").read_bytes()
    assert "no decomposed multi-scale deformable attention found" in capsys.readouterr().err


@pytest.mark.parametrize("target", ["msda", "nvidia"])
def test_nodes_that_are_there_already_are_counted(
    target: str, file: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    out, again = tmp_path / "out.onnx", tmp_path / "again.onnx"
    assert main([str(file), str(out), "--target", target]) == 0
    assert "already" not in capsys.readouterr().err
    assert main([str(out), str(again), "--json", str(tmp_path / "report.json")]) == 0
    assert capsys.readouterr().err == (
        "no decomposed multi-scale deformable attention found (the file read has 1 MSDA node already): "
        f"{again} is a copy of the file read\n"
    )
    assert json.loads((tmp_path / "report.json").read_text())["already"] == 1


def test_expected_number_is_written(file: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.onnx"
    assert main([str(file), str(out), "--expect", "1"]) == 0
    assert main([str(out), str(tmp_path / "again.onnx"), "--expect", "0"]) == 0


def test_an_unexpected_number_says_what_stayed(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    def points(features: Tensor, places: Tensor) -> Tensor:
        return F.grid_sample(features, places, align_corners=False).sigmoid()

    tensors = (torch.randn(2, 4, 6, 8), torch.rand(2, 5, 1, 2))
    export(Sampling(points), tensors, tmp_path / "in.onnx", names=["features", "places"])
    assert main([str(tmp_path / "in.onnx"), str(tmp_path / "out.onnx"), "--expect", "1"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "0 replaced, expected 1; kept /GridSample" in line


def _external(model: onnx.ModelProto, path: Path) -> None:
    copy = copied(model)
    onnx.save(copy, path, save_as_external_data=True, location="weights.bin", size_threshold=0)


@pytest.mark.parametrize("folder", [".", "elsewhere"])
def test_weights_outside_of_the_file(folder: str, stacked: onnx.ModelProto, tmp_path: Path) -> None:
    source, out = tmp_path / "in.onnx", tmp_path / folder / "out.onnx"
    _external(stacked, source)
    weights = (tmp_path / "weights.bin").read_bytes()
    assert main([str(source), str(out)]) == 0
    assert (tmp_path / "weights.bin").read_bytes() == weights
    names = {x.name for x in out.parent.iterdir()}
    assert names == (
        {"in.onnx", "out.onnx", "weights.bin"} if folder == "." else {"out.onnx", "out.onnx.data"}
    )
    tensors = layers.inputs()
    assert proof.relative_error(run(stacked, tensors), run(onnx.load(out), tensors)) <= 1e-5


def test_weights_of_a_copied_file_come_along(tmp_path: Path) -> None:
    model = export(nn.Linear(3, 4), [torch.randn(2, 3)], tmp_path / "plain.onnx", names=["x"])
    _external(model, tmp_path / "in.onnx")
    out = tmp_path / "elsewhere" / "out.onnx"
    assert main([str(tmp_path / "in.onnx"), str(out)]) == 0
    assert {x.name for x in out.parent.iterdir()} == {"out.onnx", "weights.bin"}
    onnx.checker.check_model(str(out))


def _with_unknown_operator(model: onnx.ModelProto) -> onnx.ModelProto:
    copy = copied(model)
    copy.graph.node.append(onnx.helper.make_node("Sort", ["output"], ["sorted"], domain="acme"))
    copy.opset_import.append(onnx.helper.make_opsetid("acme", 1))
    copy.graph.output[0].name = "sorted"
    return copy


def test_unknown_operators_hinder_only_the_check(
    stacked: onnx.ModelProto, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    model = _with_unknown_operator(stacked)
    with pytest.raises(UnknownOperator, match=r"acme\.Sort.*--no-check"):
        operate(model)
    onnx.save(model, tmp_path / "in.onnx")
    command = [str(tmp_path / "in.onnx"), str(tmp_path / "out.onnx")]
    assert main(command) == 2
    assert "acme.Sort" in capsys.readouterr().err
    assert not (tmp_path / "out.onnx").exists()
    assert main([*command, "--no-check"]) == 0
    assert operators(onnx.load(tmp_path / "out.onnx")) >= Counter({operator.FUSED_ATTENTION: 1, "Sort": 1})


def _absent(file: Path) -> None:
    file.unlink()


def _garbage(file: Path) -> None:
    file.write_bytes(b"this is no model" * 9)


def _empty(file: Path) -> None:
    file.write_bytes(b"")


def _truncated(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1000])


def _weights_missing(file: Path) -> None:
    _external(onnx.load(file), file)
    (file.parent / "weights.bin").unlink()


def _weights_truncated(file: Path) -> None:
    _external(onnx.load(file), file)
    weights = file.parent / "weights.bin"
    weights.write_bytes(weights.read_bytes()[:100])


def _not_valid(file: Path) -> None:
    model = onnx.load(file)
    model.graph.node[-1].input[0] = "nothing"
    onnx.save(model, file)


# Whole models


PLAIN = {
    # Constants of what follows from learned queries alone.
    ("deformable_detr", "onnxslim"): 1,
    ("deformable_detr", "onnxsim"): 1,
}
"""How many attentions softmax and locations stay outside of, by model and simplifier; else none."""


def check_zoo(name: str, folder: Path, **options) -> None:
    """Asserts that every attention of a model is replaced, and that the outputs stay the same."""
    entry = ZOO[name]
    entry.require()
    model = onnx.load(onnx_zoo.export(name, folder, **options))
    result, report = operate(model)
    assert len(report.replacements) == entry.layers, report
    for replacement in report.replacements:
        found = (replacement.heads, replacement.head_dim, replacement.points)
        assert found == (entry.heads, entry.head_dim, tuple(entry.points))
        assert replacement.form == options.get("sampling", "GridSample")
    counts = operators(result)
    plain = PLAIN.get((name, options.get("simplified")), 0)
    assert counts[operator.ATTENTION] == plain, report.notes
    assert counts[operator.FUSED_ATTENTION] == entry.layers - plain
    assert report.max_error <= 1e-5
    onnx.checker.check_model(result, full_check=True)


@pytest.mark.parametrize("name", ZOO)
def test_zoo(name: str, zoo_folder: Path) -> None:
    check_zoo(name, zoo_folder)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in ("deformable_detr", "d_fine") else onnx_zoo.every)
        for name in ZOO
    ],
)
@pytest.mark.parametrize(
    "options",
    [
        {"exporter": "dynamo"},
        {"dynamic": True},
        {"simplified": "onnxslim"},
        {"simplified": "onnxsim"},
        {"sampling": "gather"},
    ],
    ids=lambda options: "-".join(map(str, next(iter(options.items())))),
)
def test_zoo_in_every_form(name: str, options: dict, zoo_folder: Path) -> None:
    entry = ZOO[name]
    if options.get("exporter", entry.exporter) not in entry.exporters:
        pytest.skip(f"{name} is not exported by {options['exporter']}")
    if options.get("dynamic") and entry.dynamic is None:
        pytest.skip(f"{name} has no dynamic dimensions")
    if tool := options.get("simplified"):
        pytest.importorskip(tool, reason=f"{tool} is not installed")
    check_zoo(name, zoo_folder, **options)


def test_grids_in_float64(zoo_folder: Path) -> None:
    ZOO["deformable_detr"].require()
    path = onnx_zoo.export("deformable_detr", zoo_folder, exporter="torchscript", double_grids=True)
    _, report = operate(onnx.load(path))
    assert len(report.replacements) == ZOO["deformable_detr"].layers
    assert onnx_session.STAND_IN in report.notes
