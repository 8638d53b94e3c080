"""The graph surgery on attention with a mask and an odd number of keys: it gets more keys."""

from __future__ import annotations

import functools
from pathlib import Path

import onnx
import pytest
import torch
from torch import Tensor, nn

from onnx_path import surgeon
from onnx_path.surgery import pipeline
from onnx_path.surgery.find import recognise_masked_attention
from onnx_path.surgery.verify.proof import relative_error
from tests.onnx import model_zoo
from tests.onnx.surgery_checks import check_rewritten_engine, export, operators, run
from tests.onnx.zoo_exporters import simplify

operate = functools.partial(pipeline.operate, only=("masked-attention",))
KEYS = 905


class SelfAttention(nn.Module):
    """Tokens that attend to each other, with a mask that hides some of them."""

    def __init__(self, scaling: str = "divided", heads: int = 2) -> None:
        super().__init__()
        self.scaling, self.heads = scaling, heads

    def scores(self, tokens: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the logits [N, heads, T, T] with the mask, and the values [N, heads, T, C / heads]."""
        x = tokens.unflatten(-1, (self.heads, -1)).transpose(1, 2)
        scores = x @ x.transpose(2, 3)
        if self.scaling == "divided":
            return scores / 2.5 + mask, x
        return mask + (0.4 * scores if self.scaling == "multiplied" else scores), x

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """tokens: [N, T, C]; mask: [T, T] -> [N, T, C]."""
        scores, x = self.scores(tokens, mask)
        return (scores.softmax(-1) @ x).transpose(1, 2).flatten(2)


def tensors(keys: int = KEYS, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    torch.manual_seed(0)
    hidden = torch.rand(keys, keys) < 0.3
    return {
        "tokens": torch.randn(2, keys, 16).to(dtype),
        "mask": torch.zeros(keys, keys).masked_fill(hidden, -torch.inf).to(dtype),
    }


def check_one(model: onnx.ModelProto, inputs: dict[str, Tensor]) -> onnx.ModelProto:
    """Asserts that the only attention gets 912 keys, in a model with equal outputs."""
    result, report = operate(model, check=False)  # random masks hide nothing; the comparison is below
    (found,) = report.of("masked-attention")
    assert (found.queries, found.keys) == (KEYS, KEYS) and found.error <= 1e-5
    assert not report.near_misses
    nodes, before = operators(result), operators(model)
    assert nodes["Pad"] == before["Pad"] + 3
    assert all(nodes[kind] == before[kind] for kind in ("MatMul", "Softmax", "Mul", "Div", "Add"))
    onnx.checker.check_model(result, full_check=True)
    assert relative_error(run(model, inputs), run(result, inputs)) <= 1e-5
    return result


@pytest.mark.parametrize(
    ("exporter", "opset"), [("torchscript", 17), ("torchscript", 20), ("dynamo", 18), ("dynamo", 21)]
)
@pytest.mark.parametrize("scaling", ["divided", "multiplied", "none"])
def test_forms(scaling: str, exporter: str, opset: int, tmp_path: Path):
    inputs = tensors()
    model = export(SelfAttention(scaling), inputs, tmp_path, exporter=exporter, opset=opset)
    check_one(model, inputs)


@pytest.mark.parametrize("tool", ["onnxslim", "onnxsim"])
def test_simplified_files(tool: str, tmp_path: Path):
    export(SelfAttention(), inputs := tensors(), tmp_path)
    simplify(tmp_path / "model.onnx", tmp_path / "simple.onnx", tool)
    check_one(onnx.load(tmp_path / "simple.onnx"), inputs)


def test_dynamic_batch(tmp_path: Path):
    result = check_one(export(SelfAttention(), tensors(), tmp_path, dynamic={"tokens": {0: "n"}}), tensors())
    others = tensors() | {"tokens": tensors()["tokens"][:1]}
    assert relative_error(SelfAttention()(*others.values()).numpy(), run(result, others)) <= 1e-5


def test_16_bit_models_stay_in_16_bits(tmp_path: Path):
    inputs = tensors(dtype=torch.float16)
    model = export(SelfAttention().half(), inputs, tmp_path, exporter="dynamo", opset=20)
    result, report = operate(model, check=False)
    assert len(report.replacements) == 1
    exact = SelfAttention()(*(x.float() for x in inputs.values())).numpy()
    assert relative_error(exact, run(result, inputs)) <= 5e-3
    (output,) = result.graph.output
    assert output.type.tensor_type.elem_type == onnx.TensorProto.FLOAT16


def test_attention_over_many_keys_is_written_out_instead(tmp_path: Path):
    class Many(SelfAttention):
        def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
            x = tokens.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            return (x[:, :, :8] @ x.transpose(2, 3) + mask[:8]).softmax(-1) @ x

    inputs = tensors(2101)
    only = ("long-attention", "masked-attention")
    _, report = pipeline.operate(export(Many(), inputs, tmp_path), only=only, check=False)
    assert [one.kind for one in report.replacements] == ["long-attention"]


PLACES = {"omdet_turbo": 2, "mask2former": 0, "grounding_dino": 0}
"""Attentions of a model of the zoo with a mask and an odd number of keys. Its small models have few keys."""


@pytest.mark.parametrize("name", PLACES)
def test_zoo(name: str, zoo_folder: Path, monkeypatch: pytest.MonkeyPatch):
    model = onnx.load(model_zoo.export(name, zoo_folder))
    unchanged, _ = operate(model)
    assert unchanged is model
    monkeypatch.setattr(recognise_masked_attention, "FEWEST_KEYS", 1)
    _, report = operate(model)
    assert len(report.replacements) == PLACES[name] and not report.near_misses


# Near misses


class Shown(SelfAttention):
    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        scores, x = self.scores(tokens, mask)
        weights = scores.softmax(-1)
        return weights @ x + weights.amax(-1, keepdim=True)


class MaskedQueries(SelfAttention):
    """A mask of queries, which is the same for all keys."""

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        return super().forward(tokens, mask[:, :1])


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (Shown(), "other nodes than a matrix product read its probabilities"),
        (MaskedQueries(), "its scores are no product of two tensors with a mask for each key"),
    ],
)
def test_near_misses(module: nn.Module, reason: str, tmp_path: Path):
    model = export(module, tensors(), tmp_path)
    result, report = operate(model)
    (miss,) = report.near_misses
    assert result is model and miss.kind == "masked-attention" and reason in miss.reason


@pytest.mark.parametrize("keys", [906, 505])
def test_an_even_number_of_keys_and_few_keys_stay(keys: int, tmp_path: Path):
    model = export(SelfAttention(), tensors(keys), tmp_path)
    result, report = operate(model)
    assert result is model and not report.near_misses


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture):
    export(SelfAttention(), tensors(), tmp_path)
    status = surgeon.main([str(tmp_path / "model.onnx"), str(tmp_path / "rewritten.onnx")])
    error = capsys.readouterr().err
    assert status == 0 and "905 queries, 905 keys, padded to a multiple of 8" in error
    assert "1 masked attention replaced" in error


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_engine_of_the_rewritten_file_equals_onnxruntime_on_the_original(
    precision, tensorrt, quick_build, tmp_path, capsys
):
    options = ["--precision", precision, *quick_build]
    check_rewritten_engine(SelfAttention(), tensors(), "masked-attention", tmp_path, capsys, *options)
