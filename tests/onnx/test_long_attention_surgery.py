"""The graph surgery on attention of few queries over many keys: it becomes other standard operators."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from torch import Tensor, nn

from onnx_path import surgeon
from onnx_path.surgery import pipeline
from onnx_path.surgery.find import recognise_long_attention
from onnx_path.surgery.verify.proof import relative_error
from tests.onnx import model_zoo
from tests.onnx.surgery_checks import check_rewritten_engine, export, operators, run
from tests.onnx.zoo_exporters import simplify

operate = functools.partial(pipeline.operate, only=("long-attention",))
KEYS = 2100  # 5 parts of 420


class CrossAttention(nn.Module):
    """Queries that attend to keys, with a mask that hides some of them."""

    def __init__(self, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads

    def forward(self, queries: Tensor, keys: Tensor, hidden: Tensor) -> Tensor:
        """queries: [N, Q, C]; keys: [N, K, C], which are the values too; hidden: [N, Q, K] -> [N, Q, C]."""
        q, k = (x.unflatten(-1, (self.heads, -1)).transpose(1, 2).flatten(0, 1) for x in (queries, keys))
        scores = q @ k.transpose(1, 2) + hidden.repeat_interleave(self.heads, 0) * -1e4
        out = scores.softmax(-1) @ k
        return out.unflatten(0, (-1, self.heads)).transpose(1, 2).flatten(2)


def tensors(queries: int, keys: int = KEYS, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    torch.manual_seed(0)
    hidden = torch.rand(2, queries, keys) < 0.3
    return {
        "queries": torch.randn(2, queries, 16).to(dtype),
        "keys": torch.randn(2, keys, 16).to(dtype),
        "hidden": hidden.to(dtype),
    }


def check_one(model: onnx.ModelProto, inputs: dict[str, Tensor], parts: int) -> onnx.ModelProto:
    """Asserts that the only attention is replaced, by a model with equal outputs."""
    result, report = operate(model)
    (found,) = report.of("long-attention")
    assert (found.queries, found.keys, found.parts) == (inputs["queries"].shape[1], KEYS, parts)
    assert not report.near_misses and report.max_error <= 1e-5
    assert found.nodes_removed == report.nodes_before - report.nodes_after < 0
    assert not operators(result)["Softmax"]
    onnx.checker.check_model(result, full_check=True)
    assert relative_error(run(model, inputs), run(result, inputs)) <= 1e-5
    return result


@pytest.mark.parametrize(
    ("exporter", "opset"), [("torchscript", 17), ("torchscript", 20), ("dynamo", 18), ("dynamo", 21)]
)
@pytest.mark.parametrize(("queries", "parts"), [(7, 5), (32, 5), (33, 1), (100, 1)])
def test_forms(queries: int, parts: int, exporter: str, opset: int, tmp_path: Path):
    inputs = tensors(queries)
    check_one(export(CrossAttention(), inputs, tmp_path, exporter=exporter, opset=opset), inputs, parts)


@pytest.mark.parametrize("tool", ["onnxslim", "onnxsim"])
def test_simplified_files(tool: str, tmp_path: Path):
    export(CrossAttention(), inputs := tensors(8), tmp_path)
    simplify(tmp_path / "model.onnx", tmp_path / "simple.onnx", tool)
    check_one(onnx.load(tmp_path / "simple.onnx"), inputs, 5)


def test_dynamic_batch(tmp_path: Path):
    dynamic = {name: {0: "n"} for name in tensors(8)}
    result = check_one(export(CrossAttention(), tensors(8), tmp_path, dynamic=dynamic), tensors(8), 5)
    others = {name: tensor[:1] for name, tensor in tensors(8).items()}
    exact = CrossAttention()(*others.values()).numpy()
    assert relative_error(exact, run(result, others)) <= 1e-5


def test_16_bit_models_sum_in_float32(tmp_path: Path):
    inputs = tensors(8, dtype=torch.float16)
    model = export(CrossAttention().half(), inputs, tmp_path, exporter="dynamo", opset=20)
    result, report = operate(model, check=False)
    assert len(report.replacements) == 1
    exact = CrossAttention()(*(x.float() for x in inputs.values())).numpy()
    assert relative_error(exact, run(result, inputs)) <= 2e-3
    (output,) = result.graph.output
    assert output.type.tensor_type.elem_type == onnx.TensorProto.FLOAT16


def test_scores_of_any_size(tmp_path: Path):
    """Scores whose exponential is infinite, and keys that no query sees."""
    inputs = tensors(8)
    inputs["queries"] *= 1e3
    inputs["hidden"][:, :, 100:] = 1
    model = export(CrossAttention(), inputs, tmp_path)
    result, _ = operate(model)
    assert np.isfinite(expected := run(model, inputs)).all()
    assert relative_error(expected, run(result, inputs)) <= 1e-5


PLACES = {
    "mask2former": ["decoder/layers.1/cross_attn"],
    "grounding_dino": ["encoder/layers.0/fusion_layer"],
    "omdet_turbo": [],
}
"""Where a model of the zoo has attention over more than 20 keys. Its small models have few cells."""
FORMS = {tool: {"simplified": tool} for tool in ("onnxslim", "onnxsim")} | {"dynamo": {"exporter": "dynamo"}}


@pytest.mark.parametrize(
    ("name", "form"),
    [
        *(pytest.param(name, {}, id=name) for name in PLACES),
        *(
            pytest.param("mask2former", form, marks=pytest.mark.slow, id=f"mask2former-{tool}")
            for tool, form in FORMS.items()
        ),
    ],
)
def test_zoo(name: str, form: dict, zoo_folder: Path, monkeypatch: pytest.MonkeyPatch):
    model = onnx.load(model_zoo.export(name, zoo_folder, **form))
    unchanged, _ = operate(model)
    assert unchanged is model
    monkeypatch.setattr(recognise_long_attention, "FEWEST_KEYS", 20)
    _, report = operate(model)
    found = [one.output for one in report.replacements]
    assert len(found) == len(PLACES[name]) and not report.near_misses
    if form != FORMS["dynamo"]:  # which names tensors otherwise
        assert all(place in output for place, output in zip(PLACES[name], found))


# Near misses


class Shown(CrossAttention):
    def forward(self, queries: Tensor, keys: Tensor, hidden: Tensor) -> Tensor:
        weights = (queries @ keys.transpose(1, 2) + hidden).softmax(-1)
        return weights @ keys + weights.amax(-1, keepdim=True)


def test_probabilities_that_others_read_stay(tmp_path: Path):
    model = export(Shown(), tensors(8), tmp_path)
    result, report = operate(model)
    (miss,) = report.near_misses
    assert result is model and miss.kind == "long-attention"
    assert "other nodes than a matrix product read its probabilities" in miss.reason


def test_a_number_of_keys_that_changes_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(recognise_long_attention, "FEWEST_KEYS", 1)
    model = export(CrossAttention(), tensors(8), tmp_path, dynamic={"keys": {1: "k"}, "hidden": {2: "k"}})
    result, report = operate(model)
    (miss,) = report.near_misses
    assert result is model and "the number of its keys depends on the model's inputs" in miss.reason


@pytest.mark.parametrize(("queries", "keys"), [(8, 2047), (64 * 8 + 1, KEYS)])
def test_attention_that_fills_a_gpu_stays(queries: int, keys: int, tmp_path: Path):
    """Four heads of nine blocks each are more than 32 blocks."""
    model = export(CrossAttention(), tensors(queries, keys), tmp_path)
    result, report = operate(model)
    assert result is model and not report.near_misses


def test_classifiers_are_no_attention(tmp_path: Path):
    class Classifier(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.softmax(-1)

    _, report = operate(export(Classifier(), {"x": torch.randn(2, 21841)}, tmp_path))
    assert not report.near_misses and not report.replacements


def test_keys_without_equal_parts():
    assert recognise_long_attention._parts(22223) == 71
    assert recognise_long_attention._parts(16800) == 35
    assert recognise_long_attention._parts(22229) == 1  # a prime number


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture):
    export(CrossAttention(), tensors(8), tmp_path)
    assert surgeon.main([str(tmp_path / "model.onnx"), str(tmp_path / "rewritten.onnx")]) == 0
    error = capsys.readouterr().err
    assert "8 queries, 2100 keys, softmax written out, product in 5 parts" in error
    assert "1 long attention replaced" in error


@pytest.mark.gpu
@pytest.mark.parametrize("queries", [8, 100])
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_engine_of_the_rewritten_file_equals_onnxruntime_on_the_original(
    precision, queries, tensorrt, quick_build, tmp_path, capsys
):
    options = ["--precision", precision, *quick_build]
    check_rewritten_engine(CrossAttention(), tensors(queries), "long-attention", tmp_path, capsys, *options)
