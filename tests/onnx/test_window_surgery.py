"""The graph surgery on window attention: every form becomes one node, and nodes that compute else stay."""

from __future__ import annotations

import functools
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from codetr.errors import ArgumentError
from onnx_path.nodes.window_attention import WINDOW_ATTENTION
from onnx_path.surgeon import SurgeryReport, main
from onnx_path.surgery import kinds, pipeline
from onnx_path.surgery.find import recognise_windows
from onnx_path.surgery.verify.proof import relative_error
from tests.onnx import model_zoo
from tests.onnx.model_zoo import ZOO
from tests.onnx.surgery_checks import export, operators, run
from tests.onnx.swin_models import SMALL_BLOCKS, SWINS, export_swin
from tests.onnx.window_layers import Way, WindowBlock, inputs

operate = functools.partial(pipeline.operate, only=("msda", "window-attention"))
REMAINING = {WINDOW_ATTENTION, "MatMul", "Add", "Reshape", "Constant"}
HEADER = Path(__file__).parents[2] / "kernels/include/msda/window_choice.h"


def check_all(
    model: onnx.ModelProto, count: int, module: nn.Module, tensors: dict[str, Tensor]
) -> tuple[onnx.ModelProto, SurgeryReport]:
    """Asserts that all window attentions are replaced and that the outputs are PyTorch's."""
    result, report = operate(model)
    assert len(report.of("window-attention")) == count, report
    assert not report.near_misses and not report.of("msda")
    counts = operators(result)
    assert counts[WINDOW_ATTENTION] == count and not counts["Softmax"]
    assert report.nodes_after == len(result.graph.node)
    removed = sum(x.nodes_removed for x in report.of("window-attention"))
    assert removed == report.nodes_before - report.nodes_after > 0
    onnx.checker.check_model(result, full_check=True)
    with torch.no_grad():
        expected = module(*tensors.values()).numpy()
    assert relative_error(expected, run(result, tensors)) <= 1e-5
    return result, report


# Models

slow = pytest.mark.slow


@pytest.mark.parametrize("exporter", ["torchscript", pytest.param("dynamo", marks=slow)])
@pytest.mark.parametrize("swin", SWINS)
def test_swin_transformers(swin: str, exporter: str, zoo_folder: Path):
    model = export_swin(swin, zoo_folder, exporter)
    module, images = SWINS[swin].build()
    if SWINS[swin].cosine:
        result, report = operate(model)
        assert result is model and len(report.near_misses) == SMALL_BLOCKS
        assert all("cosine attention of SwinV2" in x.reason for x in report.near_misses), report.near_misses
        return
    _, report = check_all(model, SMALL_BLOCKS, module, images)
    found = [(x.window_size, x.shift, x.heads, x.head_dim) for x in report.of("window-attention")]
    assert found == [(7, 0, 2, 16), (7, 3, 2, 16), (7, 0, 4, 16), (7, 3, 4, 16)]


@pytest.mark.parametrize("tool", ["onnxslim", "onnxsim"])
@pytest.mark.parametrize(
    ("swin", "exporter"),
    [
        ("swin_backbone", "torchscript"),
        pytest.param("swin_backbone", "dynamo", marks=slow),
        pytest.param("swin_torchvision", "torchscript", marks=slow),
        pytest.param("swin_timm", "torchscript", marks=slow),
        pytest.param("nougat_encoder", "torchscript", marks=slow),
    ],
)
def test_simplified_files(swin: str, exporter: str, tool: str, zoo_folder: Path):
    check_all(export_swin(swin, zoo_folder, exporter, simplified=tool), SMALL_BLOCKS, *SWINS[swin].build())


@pytest.mark.parametrize(
    ("swin", "exporter"),
    [
        ("swin_backbone", "torchscript"),
        ("swin_torchvision", "torchscript"),
        pytest.param("swin_backbone", "dynamo", marks=slow),
    ],
)
def test_dynamic_sizes(swin: str, exporter: str, zoo_folder: Path):
    model = export_swin(swin, zoo_folder, exporter, dynamic=True)
    result, _ = check_all(model, SMALL_BLOCKS, *SWINS[swin].build())
    for shape in ((1, 3, 84, 120), (3, 3, 112, 68)):
        other = {"x": torch.randn(shape)}
        assert relative_error(run(model, other), run(result, other)) <= 1e-5


def test_16_bit_models_stay_16_bit(zoo_folder: Path):
    result, report = operate(export_swin("swin_torchvision", zoo_folder, "dynamo", half=True))
    assert len(report.of("window-attention")) == operators(result)[WINDOW_ATTENTION] == 4
    assert {x.data_type for x in result.graph.initializer if "/msda/" in x.name} == {onnx.TensorProto.FLOAT16}


@pytest.mark.parametrize("name", ["mask2former", pytest.param("grounding_dino", marks=slow)])
def test_window_attention_beside_msda(name: str, zoo_folder: Path, monkeypatch: pytest.MonkeyPatch):
    """The zoo's small models have windows and heads of other sizes than the fast kernel."""
    model = onnx.load(model_zoo.export(name, zoo_folder))
    _, kept = operate(model, check=False)
    assert len(kept.near_misses) == 4 and not kept.of("window-attention")
    monkeypatch.setattr(kinds, "FAST_WINDOW_SIZES", (4,))
    monkeypatch.setattr(kinds, "FAST_HEAD_DIMS", (8, 16))
    result, report = operate(model)
    assert (len(report.of("msda")), len(report.of("window-attention"))) == (ZOO[name].layers, 4)
    assert operators(result)[WINDOW_ATTENTION] == 4 and report.max_error <= 1e-5
    _, report = operate(model, only=("window-attention",), check=False)
    assert (len(report.of("msda")), len(report.of("window-attention"))) == (0, 4)


# Drawn graphs

WAYS = st.builds(
    lambda window, shifted, **options: Way(window_size=window, shift=window // 2 * shifted, **options),
    window=st.sampled_from([7, 8, 12]),
    shifted=st.booleans(),
    heads=st.integers(1, 3),
    head_dim=st.sampled_from([16, 32]),
    joint=st.booleans(),
    qkv_bias=st.booleans(),
    scale=st.sampled_from(["queries", "keys", "logits"]),
    factor=st.sampled_from([1.0, 0.75]),
    table=st.booleans(),
    masked=st.sampled_from([-100.0, -torch.inf]),
    image_by_image=st.booleans(),
    gathers=st.booleans(),
    flat=st.booleans(),
    projection=st.booleans(),
)


@given(WAYS, st.integers(9, 23), st.integers(9, 23), st.integers(1, 2))
@example(Way(), 14, 21, 2)
@example(Way(shift=0), 7, 7, 1)
@example(Way(window_size=12, shift=6, table=False), 12, 10, 2)
@example(Way(shift=0, flat=True, table=False), 15, 22, 2)
@settings(max_examples=25, deadline=None)
def test_drawn_ways(tmp_path_factory, way: Way, height: int, width: int, images: int):
    assume(way.table or max(height, width) > way.window_size)  # else it attends to the whole map
    module, tensors = WindowBlock(way, height, width), inputs(way, height, width, images)
    model = export(module, tensors, tmp_path_factory.mktemp("way"))
    result, report = check_all(model, 1, module, tensors)
    assert set(operators(result)) <= REMAINING
    (found,) = report.of("window-attention")
    assert (found.window_size, found.shift) == (way.window_size, way.shift)
    assert (found.heads, found.head_dim) == (way.heads, way.head_dim)


def test_the_map_of_one_attention_is_the_result_of_another(tmp_path: Path):
    ways = (Way(shift=0), Way(joint=False))
    module = nn.Sequential(*(WindowBlock(way, 15, 22) for way in ways))
    tensors = inputs(ways[0], 15, 22)
    result, _ = check_all(export(module, tensors, tmp_path), 2, module, tensors)
    assert set(operators(result)) <= REMAINING


# Near misses


def test_maps_that_are_padded_behind_the_shift_stay(tmp_path: Path):
    """Swin Transformer of timm on a map whose sides are no multiples of the window's."""
    SWINS["swin_timm"].require()
    module, images = SWINS["swin_timm"].build(size=(120, 120))
    _, report = operate(export(module, images, tmp_path))
    assert [x.shift for x in report.of("window-attention")] == [0, 0]
    assert len(report.near_misses) == 2


class Elsewhere(WindowBlock):
    """The weights are read elsewhere too."""

    def weights(self, logits: Tensor) -> Tensor:
        weights = logits.softmax(-1)
        return weights * weights.amax()


class OwnBiases(WindowBlock):
    """Windows have biases of their own."""

    def weights(self, logits: Tensor) -> Tensor:
        return super().weights(logits + torch.linspace(0, 1, len(logits))[:, None, None, None])


class Cosine(WindowBlock):
    """Attention of SwinV2: logits are cosines."""

    def attended(self, windows: Tensor, mask: Tensor | None) -> Tensor:
        heads = nn.functional.normalize(windows.unflatten(-1, (self.way.heads, -1)).transpose(1, 2), dim=-1)
        return self.weights(heads @ heads.transpose(-2, -1)).matmul(heads).transpose(1, 2).flatten(2)


class Scales(WindowBlock):
    """Every head has a scale of its own."""

    def weights(self, logits: Tensor) -> Tensor:
        return super().weights(logits * torch.tensor([1.0, 2.0])[:, None, None])


class OtherMask(WindowBlock):
    """Cells attend to one more region."""

    def mask(self, down: int, across: int) -> Tensor | None:
        mask = super().mask(down, across)
        mask[0, :, -1] = -100
        return mask


class OtherRolls(WindowBlock):
    """Only columns are rolled."""

    def rolled(self, x: Tensor, shift: int) -> Tensor:
        return torch.roll(x, shift, 2)


class Flipped(WindowBlock):
    """Windows are joined to a map whose rows are in another order."""

    def rolled(self, x: Tensor, shift: int) -> Tensor:
        return super().rolled(x.flip(1) if shift > 0 else x, shift)


class SharedKeys(WindowBlock):
    """All heads have the same keys."""

    def attended(self, windows: Tensor, mask: Tensor | None) -> Tensor:
        queries = self.layers[0](windows)[..., :32].unflatten(-1, (2, 16)).transpose(1, 2)
        keys = self.layers[0](windows)[:, None, :, 32:48]
        weights = (queries @ keys.transpose(-2, -1)).softmax(-1)
        return (weights @ queries).transpose(1, 2).flatten(2)


class Filtered(WindowBlock):
    """Weights pass a threshold."""

    def weights(self, logits: Tensor) -> Tensor:
        return super().weights(logits).relu()


@pytest.mark.parametrize(
    ("block", "way", "reason"),
    [
        (Elsewhere, Way(), "which is on the way, is read elsewhere too"),
        (OwnBiases, Way(shift=0), "its windows have biases of their own"),
        (Cosine, Way(), "the queries are quotients, as in the cosine attention of SwinV2"),
        (Scales, Way(), "its logits have scales of their own"),
        (OtherMask, Way(), "its mask is not that of windows of 7 cells, shifted by 3"),
        (OtherRolls, Way(), "its rows are shifted by 0 cells, its columns by 3"),
        (Flipped, Way(), "its windows are not joined to the map that they were cut from"),
        (Filtered, Way(), "its weights go to Relu .*, not to a product with values"),
        (WindowBlock, Way(masked=-5.0), "its windows have biases of their own"),
        (WindowBlock, Way(window_size=6), "no fast kernel for windows of 6 cells a side"),
        (WindowBlock, Way(head_dim=8), "with heads of 8 channels"),
        (SharedKeys, Way(), "its keys or values have other sizes than its queries"),
    ],
    ids=lambda x: x.__name__ if isinstance(x, type) else None,
)
def test_near_misses(block: type[WindowBlock], way: Way, reason: str, tmp_path: Path):
    model = export(block(way, 15, 22), inputs(way, 15, 22), tmp_path)
    result, report = operate(model)
    assert result is model
    (miss,) = report.near_misses
    assert "Softmax" in miss.node and re.search(reason, miss.reason), miss


def test_an_opset_without_the_node_s_operators(tmp_path: Path):
    way = Way()
    _, report = operate(export(WindowBlock(way, 15, 22), inputs(way, 15, 22), tmp_path, opset=14))
    assert "the file has opset 14, the node needs 16" in report.near_misses[0].reason


def test_attention_to_the_whole_map_stays(tmp_path: Path):
    way = Way(shift=0, table=False)
    model = export(WindowBlock(way, 7, 7), inputs(way, 7, 7), tmp_path)
    result, report = operate(model)
    assert result is model and not report.near_misses


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"shift": 2}, "the operator's numbers differ by"),
        ({"bias": np.zeros((2, 49, 49), np.float32)}, "the operator's numbers differ by"),
        ({"window_size": 8}, "."),
    ],
    ids=["shift", "bias", "window"],
)
def test_other_numbers_are_refused(change: dict, reason: str, tmp_path: Path, monkeypatch):
    found = recognise_windows.recognise_windows
    monkeypatch.setattr(kinds, "recognise_windows", lambda *given: replace(found(*given), **change))
    model = export(WindowBlock(Way(), 15, 22), inputs(Way(), 15, 22), tmp_path)
    result, report = operate(model)
    assert result is model
    assert re.search(reason, report.near_misses[0].reason)


def test_fast_sizes_are_those_of_the_kernel():
    text = HEADER.read_text()
    channels, windows = (
        tuple(int(n) for n in re.findall(rf"{name} == (\d+)", part))
        for name, part in (
            ("channels", text),
            ("window", text[text.index("return vectors && size_of(problem.type) == 2") :]),
        )
    )
    assert channels == recognise_windows.FAST_HEAD_DIMS
    assert windows[:4] == recognise_windows.FAST_WINDOW_SIZES


# Options


def test_only_and_the_command(tmp_path: Path, capsys: pytest.CaptureFixture):
    file, out, json = (tmp_path / name for name in ("model.onnx", "out.onnx", "report.json"))
    model = export(WindowBlock(Way(), 15, 22), inputs(Way(), 15, 22), tmp_path)
    assert main([str(file), str(out), "--json", str(json), "--expect", "0"]) == 0
    printed = capsys.readouterr().err
    assert "WindowAttention, 7x7 cells, shift 3, 2 heads x 16 channels" in printed
    assert f"wrote {out}: 1 window attention replaced" in printed
    assert '"window_size": 7' in json.read_text()
    assert main([str(file), str(out), "--only", "window-attention", "--no-function-body"]) == 0
    assert not onnx.load(out).functions
    capsys.readouterr()
    for options in (["--only", "msda"], ["--target", "nvidia"]):
        assert main([str(file), str(out), *options]) == 0
        assert onnx.load(out) == model
        assert "found nothing to replace" in capsys.readouterr().err
    assert main([str(file), str(out), "--target", "nvidia", "--only", "window-attention"]) == 2
    assert "--only" in capsys.readouterr().err
    with pytest.raises(
        ArgumentError, match=r"only: expected some of msda, .*window-attention, .*, got 'swin'"
    ):
        operate(model, only=("swin",))
