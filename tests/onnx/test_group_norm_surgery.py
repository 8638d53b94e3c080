"""The graph surgery on group normalisation: it becomes one node where no transposition is left over."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
import torch
from torch import Tensor, nn

from onnx_path import build, surgeon
from onnx_path.nodes.group_norm import GROUP_NORM
from onnx_path.surgery import kinds, pipeline
from onnx_path.surgery.find import recognise_group_norms
from onnx_path.surgery.verify.proof import relative_error
from tests.onnx import model_zoo
from tests.onnx.surgery_checks import check_engine, export, operators, run
from tests.onnx.zoo_exporters import simplify

operate = functools.partial(pipeline.operate, only=("group-norm",))
IMAGES = {"x": torch.randn(2, 8, 9, 7)}
NORMS = {"InstanceNormalization", "GroupNormalization"}


def rows(x: Tensor) -> Tensor:
    return x.flatten(2).transpose(1, 2)


class Projection(nn.Module):
    """Convolution and group normalisation in front of a transformer, and what `result` makes of them."""

    def __init__(self, result: Callable[[Tensor], Tensor] = rows, groups: int = 4) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.convolution = nn.Conv2d(8, 32, 1)
        self.norm = nn.GroupNorm(groups, 32, eps=0.5)
        nn.init.normal_(self.norm.weight, 1)
        nn.init.normal_(self.norm.bias)
        self.result = result

    def forward(self, x: Tensor) -> Tensor:
        return self.result(self.norm(self.convolution(x)))


def check_one(model: onnx.ModelProto, tensors: dict[str, Tensor] = IMAGES) -> onnx.ModelProto:
    """Asserts that the only group normalisation is replaced, with as many transpositions as before."""
    result, report = operate(model)
    (found,) = report.of("group-norm")
    assert (found.num_groups, found.channels) == (4, 32)
    assert not report.near_misses and report.max_error <= 1e-5
    before, after = operators(model), operators(result)
    assert after[GROUP_NORM] == 1 and not NORMS & set(after)
    assert after["Transpose"] == before["Transpose"]
    assert found.nodes_removed == report.nodes_before - report.nodes_after
    onnx.checker.check_model(result, full_check=True)
    assert relative_error(run(model, tensors), run(result, tensors)) <= 1e-5
    return result


@pytest.mark.parametrize(
    ("exporter", "opset"), [("torchscript", 17), ("torchscript", 20), ("dynamo", 18), ("dynamo", 21)]
)
@pytest.mark.parametrize("result", [rows, lambda x: x.permute(0, 2, 3, 1)], ids=["rows", "map"])
def test_forms(result: Callable, exporter: str, opset: int, tmp_path: Path):
    """GroupNormalization has a weight for each channel from opset 21 on."""
    model = export(Projection(result), IMAGES, tmp_path, exporter=exporter, opset=opset)
    assert operators(model)["GroupNormalization"] == (opset == 21)
    check_one(model)


@pytest.mark.parametrize("tool", ["onnxslim", "onnxsim"])
def test_simplified_files(tool: str, tmp_path: Path):
    export(Projection(), IMAGES, tmp_path)
    simplify(tmp_path / "model.onnx", tmp_path / "simple.onnx", tool)
    check_one(onnx.load(tmp_path / "simple.onnx"))


def test_dynamic_sizes(tmp_path: Path):
    model = export(Projection(), IMAGES, tmp_path, dynamic={"x": {0: "n", 2: "h", 3: "w"}})
    result = check_one(model)
    for shape in ((1, 8, 5, 6), (3, 8, 4, 11)):
        other = {"x": torch.randn(shape)}
        assert relative_error(run(model, other), run(result, other)) <= 1e-6


def test_16_bit_models_stay_16_bit(tmp_path: Path):
    images = {"x": IMAGES["x"].half()}
    result, _ = operate(export(Projection().half(), images, tmp_path, exporter="dynamo", opset=20))
    kinds = {x.data_type for x in result.graph.initializer if "/msda/" in x.name}
    assert operators(result)[GROUP_NORM] == 1 and kinds == {onnx.TensorProto.FLOAT16}


def test_maps_of_usual_size(tmp_path: Path):
    """A group of Deformable DETR's finest level has 133,600 numbers, whose sums round."""
    check_one(export(Projection(), images := {"x": torch.randn(1, 8, 100, 167)}, tmp_path), images)


COUNTS = {"deformable_detr": (4, 0), "grounding_dino": (4, 0), "mask2former": (3, 2)}
"""Group normalisations that are replaced, and those that stay [N, C, H, W], by model."""
FORMS = ({"exporter": "dynamo"}, {"simplified": "onnxslim"}, {"simplified": "onnxsim"}, {"dynamic": True})
"""Of Mask2Former alone, which has norms of both kinds."""


@pytest.mark.parametrize(
    ("name", "form"),
    [
        *(pytest.param(name, {}, id=name) for name in COUNTS),
        *(
            pytest.param("mask2former", x, marks=pytest.mark.slow, id=f"mask2former-{y}")
            for x, y in zip(FORMS, ("dynamo", "onnxslim", "onnxsim", "dynamic"))
        ),
    ],
)
def test_zoo(name: str, form: dict, zoo_folder: Path, monkeypatch: pytest.MonkeyPatch):
    """The zoo's small models have groups of one channel."""
    model = onnx.load(model_zoo.export(name, zoo_folder, **form))
    _, kept = operate(model, check=False)
    assert len(kept.near_misses) == sum(COUNTS[name]) and not kept.of("group-norm")
    assert "no fast kernel for 32 channels in 32 groups" in kept.near_misses[0].reason
    monkeypatch.setattr(recognise_group_norms, "FAST_GROUP_CHANNELS", 1)
    result, report = operate(model)
    assert (len(report.of("group-norm")), len(report.near_misses)) == COUNTS[name]
    assert all("two transpositions would be left over" in miss.reason for miss in report.near_misses)
    assert operators(result)[GROUP_NORM] == COUNTS[name][0] and report.max_error <= 1e-5
    onnx.checker.check_model(result, full_check=True)


# Near misses

PLACES = torch.randn(9 * 7, 1)


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (Projection(torch.relu), "its result stays [N, C, H, W]"),
        (Projection(lambda x: rows(x) + x.mean()), "its result stays [N, C, H, W]"),
        (Projection(lambda x: rows(x.relu())), "its result stays [N, C, H, W]"),
        (Projection(groups=8), "no fast kernel for 32 channels in 8 groups"),
        (Projection(lambda x: (x.flatten(2) * PLACES[:, 0]).transpose(1, 2)), "its cells have weights"),
    ],
    ids=["map", "read-elsewhere", "activation", "small-groups", "weights-of-cells"],
)
def test_near_misses(module: Projection, reason: str, tmp_path: Path):
    model = export(module, IMAGES, tmp_path)
    result, report = operate(model)
    assert result is model
    (miss,) = report.near_misses
    assert "InstanceNormalization" in miss.node and reason in miss.reason, miss


def test_instance_normalisation_stays(tmp_path: Path):
    module = nn.Sequential(nn.Conv2d(8, 32, 1), nn.InstanceNorm2d(32, affine=True))
    result, report = operate(model := export(module, IMAGES, tmp_path))
    assert result is model and not report.near_misses


def test_other_numbers_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    model = export(Projection(), IMAGES, tmp_path)
    found = kinds.recognise_group_norm

    def other(*given):
        norm = found(*given)
        return type(norm)(norm.map, norm.end, norm.num_groups, norm.eps * 1.01, norm.weight, norm.bias)

    monkeypatch.setattr(kinds, "recognise_group_norm", other)
    result, report = operate(model)
    assert result is model and "the operator's numbers differ by" in report.near_misses[0].reason


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_engine_of_the_rewritten_file_equals_onnxruntime_on_the_original(
    precision, tensorrt, quick_build, tmp_path, capsys
):
    original, rewritten = tmp_path / "original.onnx", tmp_path / "rewritten.onnx"
    export(Projection(), IMAGES, original)
    assert surgeon.main([str(original), str(rewritten), "--only", "group-norm"]) == 0, capsys.readouterr().err
    report = tmp_path / "report.json"
    options = ["--out", str(tmp_path), "--json", str(report), "--precision", precision]
    assert build.main([str(rewritten), *options, *quick_build]) == 0, capsys.readouterr().err
    assert len(json.loads(report.read_text())["report"]["plugin_layers"]) == 1
    check_engine(original, tmp_path / "rewritten.engine", capsys)
