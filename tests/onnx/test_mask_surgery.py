"""The graph surgery on padding masks in front of MSDA: each becomes part of a linear layer, or stays."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import get_args

import numpy as np
import onnx
import pytest
import torch
from torch import Tensor, nn

from codetr.errors import ArgumentError
from onnx_path import build, surgeon
from onnx_path.nodes.linear import LINEAR
from onnx_path.surgery import pipeline
from onnx_path.surgery.verify.proof import relative_error
from tests.onnx import attention_layers as layers
from tests.onnx.attention_layers import HEAD_DIM, HEADS, Attention
from tests.onnx.surgery_checks import check_engine, export, operators, run
from tests.onnx.zoo_exporters import simplify

operate = functools.partial(pipeline.operate, only=("msda", "padding-mask"))
OPSETS = {"torchscript": 17, "dynamo": 18}


class Masked(Attention):
    """The attention with a padding mask [N, S], as models of transformers write it."""

    def __init__(self) -> None:
        super().__init__(layers.by_stack)
        self.value = nn.Sequential(self.value, nn.Identity())

    def forward(self, queries: Tensor, memory: Tensor, references: Tensor, mask: Tensor) -> Tensor:
        hook = self.value[1].register_forward_hook(lambda _, __, value: self.masked(value, mask))
        try:
            return super().forward(queries, self.features(memory), references)
        finally:
            hook.remove()

    def features(self, memory: Tensor) -> Tensor:
        return memory

    def masked(self, value: Tensor, mask: Tensor) -> Tensor:
        """Masks values [N, S, C]."""
        return value.masked_fill(mask[..., None], 0.0)


class Kept(Masked):
    """The mask is True in the picture."""

    def masked(self, value: Tensor, mask: Tensor) -> Tensor:
        return value.masked_fill(~mask[..., None], 0.0)


class Selected(Masked):
    """Values come first."""

    def masked(self, value: Tensor, mask: Tensor) -> Tensor:
        return torch.where(mask[..., None], value, 0.0)


class Heads(Masked):
    """The values have heads already."""

    def masked(self, value: Tensor, mask: Tensor) -> Tensor:
        return value.unflatten(-1, (HEADS, HEAD_DIM)).masked_fill(mask[..., None, None], 0.0)


def inputs(images: int = 2) -> dict[str, Tensor]:
    tensors = layers.inputs(images)
    return tensors | {"mask": torch.rand(tensors["memory"].shape[:2]) < 0.4}


@pytest.mark.parametrize("exporter", OPSETS)
@pytest.mark.parametrize("module", [Masked, Kept, Selected, Heads])
def test_forms(module: type[Masked], exporter: str, tmp_path: Path):
    tensors = inputs()
    model = export(module(), tensors, tmp_path, exporter=exporter, opset=OPSETS[exporter])
    result, report = operate(model)
    (found,) = report.of("padding-mask")
    assert (found.inputs, found.outputs, found.error) == (8, 8, 0)
    assert not report.near_misses and len(report.of("msda")) == 1
    counts = operators(result)
    assert counts[LINEAR] == 1 and not counts["Where"]
    assert {x.name for x in result.functions} >= {LINEAR}
    onnx.checker.check_model(result, full_check=True)
    assert relative_error(run(model, tensors), run(result, tensors)) <= 1e-6
    removed = sum(x.nodes_removed for x in (*report.of("msda"), *report.of("padding-mask")))
    assert removed == report.nodes_before - report.nodes_after


@pytest.mark.parametrize("tool", ["onnxslim", "onnxsim"])
def test_simplified_files(tool: str, tmp_path: Path):
    export(Masked(), inputs(), tmp_path)
    simplify(tmp_path / "model.onnx", tmp_path / "simple.onnx", tool)
    model = onnx.load(tmp_path / "simple.onnx")
    result, report = operate(model)
    assert len(report.of("padding-mask")) == operators(result)[LINEAR] == 1
    assert operators(result)["Gemm"] == operators(model)["Gemm"] - 1


def test_dynamic_sizes(tmp_path: Path):
    axes = {name: {0: "n"} for name in inputs()}
    model = export(Masked(), inputs(), tmp_path, dynamic=axes)
    result, report = operate(model)
    assert len(report.of("padding-mask")) == 1
    for images in (1, 3):
        tensors = inputs(images)
        assert relative_error(run(model, tensors), run(result, tensors)) <= 1e-6


def test_files_that_have_msda_nodes_already(tmp_path: Path):
    model, _ = pipeline.operate(export(Masked(), inputs(), tmp_path))
    assert operators(model)["Where"] == 1
    result, report = pipeline.operate(model, only=("padding-mask",))
    assert (len(report.of("padding-mask")), report.already) == (1, {})
    _, report = pipeline.operate(result)
    assert report.already == {"FusedMultiScaleDeformableAttention": 1}
    _, report = pipeline.operate(result, only=("padding-mask", "linear"))
    assert report.already == {LINEAR: 1}
    assert operators(result)[LINEAR] == 1 and not operators(result)["Where"]


def test_16_bit_models_stay_16_bit(tmp_path: Path):
    tensors = {name: x if x.dtype == torch.bool else x.half() for name, x in inputs().items()}
    model = export(Masked().half(), tensors, tmp_path, exporter="dynamo", opset=20)
    result, report = operate(model)
    assert len(report.of("padding-mask")) == 1
    kinds = {x.data_type for x in result.graph.initializer if x.name.endswith(("msda/weight", "msda/bias"))}
    assert kinds == {onnx.TensorProto.FLOAT16}


def test_masked_rows_of_infinity(tmp_path: Path):
    """The difference that the documentation tells of."""
    model = export(Masked(), inputs(), tmp_path)
    result, _ = operate(model)
    tensors = inputs()
    tensors["memory"][tensors["mask"]] = torch.inf
    assert np.isfinite(run(model, tensors)).all()
    assert np.isnan(run(result, tensors)).any()


# Near misses


class Ones(Masked):
    """Masked values become ones."""

    def masked(self, value: Tensor, mask: Tensor) -> Tensor:
        return value.masked_fill(mask[..., None], 1.0)


class Channels(Masked):
    """Channels have masks of their own."""

    def masked(self, value: Tensor, mask: Tensor) -> Tensor:
        return value.masked_fill(mask[..., None] & (value > 0), 0.0)


class OneForAllImages(Masked):
    """All images have the mask of the first."""

    def masked(self, value: Tensor, mask: Tensor) -> Tensor:
        return value.masked_fill(mask[:1, :, None], 0.0)


class Activated(Masked):
    """An activation follows the linear layer."""

    def masked(self, value: Tensor, mask: Tensor) -> Tensor:
        return super().masked(value.relu(), mask)


class Elsewhere(Masked):
    """The values are read elsewhere too."""

    def masked(self, value: Tensor, mask: Tensor) -> Tensor:
        self.largest = value.amax()
        return super().masked(value, mask)

    def forward(self, *tensors: Tensor) -> Tensor:
        return super().forward(*tensors) * self.largest


class Infinite(Masked):
    """Features of masked cells are infinite."""

    def features(self, memory: Tensor) -> Tensor:
        return memory.masked_fill(memory > 2, torch.inf)


class Logarithms(Masked):
    """Features are logarithms."""

    def features(self, memory: Tensor) -> Tensor:
        return memory.abs().log()


class InfiniteWeights(Masked):
    """A weight is infinite."""

    def __init__(self) -> None:
        super().__init__()
        self.value[0].weight.data[0, 0] = torch.inf


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (Ones, "it selects between other numbers than values and zeros"),
        (Channels, "its mask has not one number for each row of values"),
        (OneForAllImages, "its mask has not one number for each row of values"),
        (Activated, "the values come from Relu"),
        (Elsewhere, "which is on the way, is read elsewhere too"),
        (Infinite, "its features come from Where"),
        (Logarithms, "its features come from Log"),
        (InfiniteWeights, "its weights are not finite"),
    ],
    ids=lambda x: x.__name__ if isinstance(x, type) else None,
)
def test_near_misses(module: type[Masked], reason: str, tmp_path: Path):
    model = export(module(), inputs(), tmp_path)
    result, report = operate(model, check=False)
    assert len(report.of("msda")) == 1 and not report.of("padding-mask")
    (miss,) = report.near_misses
    assert "Where" in miss.node and reason in miss.reason, miss
    assert not operators(result)[LINEAR]


def test_an_opset_without_the_node_s_operators(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    model = export(Masked(), inputs(), tmp_path)
    monkeypatch.setattr(pipeline.function_bodies, "LOWEST_OPSET", 18)
    _, report = operate(model)
    assert "the file has opset 17, the node needs 18" in report.near_misses[0].reason


def test_the_command_counts_every_kind(tmp_path: Path, capsys: pytest.CaptureFixture):
    export(Masked(), inputs(), tmp_path)
    out, report = tmp_path / "out.onnx", tmp_path / "report.json"
    words = [str(tmp_path / "model.onnx"), str(out), "--json", str(report), "--only", *get_args(surgeon.Kind)]
    assert surgeon.main(words) == 0
    printed = capsys.readouterr().err
    assert "Where_output_0: Linear, 8 -> 8 channels, with its mask" in printed
    assert f"wrote {out}: 1 MSDA, 1 padding mask replaced" in printed
    (mask,) = (one for one in json.loads(report.read_text())["replacements"] if one["kind"] == "padding-mask")
    assert mask["error"] == 0 and mask["nodes_removed"] > 0


def test_nvidia_has_no_such_node(tmp_path: Path):
    model = export(Masked(), inputs(), tmp_path)
    with pytest.raises(ArgumentError, match=r"only: expected msda for the target nvidia"):
        operate(model, target="nvidia")


def test_behind_an_operator_that_onnxruntime_does_not_know(tmp_path: Path):
    model, _ = pipeline.operate(export(Masked(), inputs(), tmp_path))
    for node in model.graph.node:
        node.input[:] = ["sorted" if name == "memory" else name for name in node.input]
    model.graph.node.insert(0, onnx.helper.make_node("Sort", ["memory"], ["sorted"], domain="acme"))
    model.opset_import.append(onnx.helper.make_opsetid("acme", 1))
    result, report = operate(model, check=False)
    assert result is model
    assert "an operator that onnxruntime does not know" in report.near_misses[0].reason


@pytest.mark.gpu
def test_engine_of_the_rewritten_file_equals_onnxruntime_on_the_original(
    tensorrt, quick_build, tmp_path, capsys
):
    """Linear layers in float32 are written out, those in fp16 are the plugin's where it has a fast kernel."""
    export(Masked(), inputs(), tmp_path / "original.onnx")
    rewritten, report = tmp_path / "rewritten.onnx", tmp_path / "report.json"
    words = [str(tmp_path / "original.onnx"), str(rewritten), "--only", "msda", "padding-mask"]
    assert surgeon.main(words) == 0, capsys.readouterr().err
    for precision in ("fp32", "fp16"):
        options = ["--out", str(tmp_path), "--json", str(report), "--precision", precision]
        assert build.main([str(rewritten), *options, *quick_build]) == 0, capsys.readouterr().err
        plugins = json.loads(report.read_text())["report"]["plugin_layers"]
        assert len(plugins) in ((1,) if precision == "fp32" else (1, 2))
        check_engine(tmp_path / "original.onnx", tmp_path / "rewritten.engine", capsys)
