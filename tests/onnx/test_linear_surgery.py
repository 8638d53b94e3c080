"""The graph surgery on linear layers: each becomes one node with its activation or residual, or stays."""

from __future__ import annotations

import functools
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from codetr.errors import ArgumentError
from onnx_path import surgeon
from onnx_path.nodes.linear import ACTIVATIONS, LINEAR
from onnx_path.nodes.window_attention import WINDOW_ATTENTION
from onnx_path.surgery import kinds, pipeline
from onnx_path.surgery.find import recognise_linears
from onnx_path.surgery.verify.proof import relative_error
from onnx_path.tensorrt import model_for_tensorrt
from tests.onnx import model_zoo
from tests.onnx.model_zoo import ZOO
from tests.onnx.surgery_checks import operators, run
from tests.onnx.swin_models import SMALL_BLOCKS, SWINS, export_swin
from tests.onnx.text_models import text_model

operate = functools.partial(pipeline.operate, only=("linear",))
with_windows = functools.partial(pipeline.operate, only=("msda", "window-attention", "linear"))

# Graphs of one layer: x [2, 15, 20, K] has 600 rows.

PRODUCTS = {
    "matmul": "p = MatMul(x, W) h = Add(p, b)",
    "matmul-bias-first": "p = MatMul(x, W) h = Add(b, p)",
    "matmul-no-bias": "h = MatMul(x, W)",
    "gemm": "f = Reshape(x, rows) g = Gemm(f, W, b) h = Reshape(g, maps)",
    "gemm-transposed": "f = Reshape(x, rows) g = Gemm<transB = 1>(f, V, b) h = Reshape(g, maps)",
    "gemm-and-add": "f = Reshape(x, rows) g = Gemm(f, W) q = Reshape(g, maps) h = Add(q, b)",
    "flat": "f = Reshape(x, rows) h = Gemm(f, W, b)",
}
ENDINGS = {
    "gelu": "y = Gelu(h)",
    "gelu-divided": "e = Div(h, root) f1 = Erf(e) s = Add(f1, one) m = Mul(h, s) y = Mul(m, half)",
    "gelu-scaled": "e = Mul(h, share) f1 = Erf(e) s = Add(one, f1) m = Mul(half, h) y = Mul(m, s)",
    "gelu-share-first": "e = Div(h, root) f1 = Erf(e) s = Add(f1, one) m = Mul(s, half) y = Mul(m, h)",
    "relu": "y = Relu(h)",
    "relu-clip": "y = Clip(h, zero)",
    "relu-max": "y = Max(zero, h)",
    "residual": "z = Reshape(r, like) y = Add(h, z)",
    "residual-first": "z = Reshape(r, like) y = Add(z, h)",
    "residual-of-rows": "t = Reshape(h, rows) y = Add(t, r)",
}


def layer(
    body: str, inputs: int = 16, outputs: int = 24, *, kind: str = "float", opset: int = 20, more: str = ""
) -> onnx.ModelProto:
    """A model with input x, residual r [600, outputs] and result y.

    Args:
        body: the nodes.
        inputs, outputs: K and N.
        kind: type of all numbers.
        more: further inputs or outputs, behind a comma.
    """
    random, dtype = np.random.default_rng(0), {"float": np.float32, "double": np.float64}[kind]
    weight = random.standard_normal((inputs, outputs)) / inputs**0.5
    numbers = {"root": 2**0.5, "share": 0.5**0.5, "zero": 0, "half": 0.5, "one": 1, "three": 3, "six": 6}
    numbers |= {"cube": 0.044715, "scale": (2 / np.pi) ** 0.5, "W": weight, "V": weight.T}
    numbers |= {"b": random.standard_normal(outputs), "pair": random.standard_normal(2 * outputs)}
    sizes = {"rows": [600, -1], "maps": [2, 15, 20, -1], "pairs": [300, -1]}
    sizes["like"] = sizes["rows" if "h = Gemm" in body else "maps"]
    constants = {name: np.asarray(x, dtype) for name, x in numbers.items()}
    constants |= {name: np.array(x, np.int64) for name, x in sizes.items()}
    edges = [f"{kind}[2, 15, 20, {inputs}] x, {kind}[600, {outputs}] r", f"{kind}[] y"]
    edges[more.endswith(" z")] += more
    return onnx.shape_inference.infer_shapes(text_model(body, *edges, opset, **constants))


def tensors_of(model: onnx.ModelProto) -> dict[str, torch.Tensor]:
    kinds = {onnx.TensorProto.FLOAT: torch.float32, onnx.TensorProto.DOUBLE: torch.float64}
    return {
        x.name: torch.randn(
            [d.dim_value for d in x.type.tensor_type.shape.dim], dtype=kinds[x.type.tensor_type.elem_type]
        )
        for x in model.graph.input
    }


def check_one(model: onnx.ModelProto, activation: str, residual: bool) -> onnx.ModelProto:
    """Asserts that the only layer becomes one node, beside which nothing but shapes change."""
    result, report = operate(model)
    (found,) = report.of("linear")
    assert (found.activation, found.residual) == (activation, residual)
    assert not report.near_misses and report.max_error <= 1e-5
    assert found.nodes_removed == report.nodes_before - report.nodes_after
    assert operators(result)[LINEAR] == 1 and set(operators(result)) <= {LINEAR, "Reshape", "Constant"}
    node = next(node for node in result.graph.node if node.op_type == LINEAR)
    numbers = {x.name: onnx.helper.get_attribute_value(x) for x in node.attribute}
    assert numbers["activation"] == ACTIVATIONS.index(activation)
    assert numbers["add_residual"] == residual and not numbers["multiply_mask"] and not numbers["normalise"]
    onnx.checker.check_model(result, full_check=True)
    tensors = tensors_of(model)
    assert relative_error(run(model, tensors), run(result, tensors)) <= 1e-5
    return result


@given(st.sampled_from([*PRODUCTS]), st.sampled_from([*ENDINGS]), *[st.sampled_from([8, 16, 24])] * 2)
@settings(max_examples=40, deadline=None)
def test_drawn_layers(product: str, ending: str, inputs: int, outputs: int):
    model = layer(f"{PRODUCTS[product]} {ENDINGS[ending]}", inputs, outputs)
    activation = "none" if "residual" in ending else ending.split("-")[0]
    check_one(model, activation, "residual" in ending)


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("product", ["matmul", "gemm"])
def test_forms(product: str, ending: str):
    result = check_one(
        layer(f"{PRODUCTS[product]} {ENDINGS[ending]}"),
        "none" if "residual" in ending else ending.split("-")[0],
        "residual" in ending,
    )
    moved = {"residual": 1, "residual-first": 1, "residual-of-rows": 1}.get(ending, 0)
    assert operators(result)["Reshape"] == moved


def test_a_residual_that_is_another_layer():
    """The first layer's node adds the second one's result."""
    model = layer("p = MatMul(x, W) h = Add(p, b) q = MatMul(x, W) g = Add(q, b) y = Add(h, g)")
    result, report = operate(model)
    assert len(report.of("linear")) == operators(result)[LINEAR] == operators(result)["MatMul"] == 1
    assert report.near_misses[0].reason == "its residual is a linear layer, whose node computes the sum"


def test_layers_in_a_row():
    """One layer's result is the features and the residual of the next ones."""
    steps = "p = MatMul(x, W) h = Add(p, b) s = Add(h, x) q = MatMul(s, W) g = Add(q, b) t = Relu(g)"
    model = layer(f"{steps} u = MatMul(t, W) v = Add(b, u) y = Add(s, v)", 16, 16)
    result, report = operate(model)
    assert [(x.activation, x.residual) for x in report.of("linear")] == [
        ("none", True),
        ("relu", False),
        ("none", True),
    ]
    assert operators(result) == {LINEAR: 3} and not report.near_misses and report.max_error <= 1e-5


# Models

slow = pytest.mark.slow


@pytest.fixture
def few_rows(monkeypatch: pytest.MonkeyPatch):
    """Small models have fewer rows than a fast layer."""
    monkeypatch.setattr(recognise_linears, "FEWEST_ROWS", 1)


@pytest.mark.parametrize("exporter", ["torchscript", pytest.param("dynamo", marks=slow)])
@pytest.mark.parametrize("swin", SWINS)
def test_swin_transformers(swin: str, exporter: str, zoo_folder: Path, few_rows):
    """Projection, fc1 and fc2 of a block become nodes; in SwinV2 norms are between them and the residuals."""
    model = export_swin(swin, zoo_folder, exporter)
    _, images = SWINS[swin].build()
    result, report = with_windows(model)
    forms = ("none", "gelu", "none") if not SWINS[swin].cosine else ("gelu",)
    assert [x.activation for x in report.of("linear")] == [*forms] * SMALL_BLOCKS
    assert operators(result)[LINEAR] == len(report.of("linear"))
    assert not {"Erf", "Gelu"} & set(operators(result))
    assert all(x.residual == (x.activation == "none") for x in report.of("linear"))
    reasons = [x.reason for x in report.near_misses]
    if not SWINS[swin].cosine:
        assert operators(result)[WINDOW_ATTENTION] == SMALL_BLOCKS
        assert len(reasons) == 1 and "read elsewhere" in reasons[0]  # the shortcut behind the first stage
    removed = sum(x.nodes_removed for x in (*report.of("window-attention"), *report.of("linear")))
    assert removed == report.nodes_before - report.nodes_after
    onnx.checker.check_model(result, full_check=True)
    assert relative_error(run(model, images), run(result, images)) <= 1e-5


def test_few_rows_of_a_model(zoo_folder: Path):
    """The first stage has 660 rows, the second one 176."""
    _, report = with_windows(export_swin("swin_backbone", zoo_folder))
    assert len(report.of("linear")) == 6
    few = "it has 176 rows, fewer than 512"
    assert [x.reason for x in report.near_misses] == [few] * 7  # that behind the first stage too


@pytest.mark.parametrize("tool", ["onnxslim", "onnxsim"])
def test_simplified_files(tool: str, zoo_folder: Path, few_rows):
    result, report = with_windows(export_swin("swin_backbone", zoo_folder, simplified=tool))
    assert len(report.of("linear")) == operators(result)[LINEAR] == 3 * SMALL_BLOCKS


@pytest.mark.parametrize("swin", ["swin_backbone", "swin_torchvision"])
def test_dynamic_sizes(swin: str, zoo_folder: Path):
    model = export_swin(swin, zoo_folder, dynamic=True)
    result, report = with_windows(model)
    assert len(report.of("linear")) == 3 * SMALL_BLOCKS
    for shape in ((1, 3, 84, 120), (3, 3, 112, 68)):
        other = {"x": torch.randn(shape)}
        assert relative_error(run(model, other), run(result, other)) <= 1e-5


def test_16_bit_models_stay_16_bit(zoo_folder: Path, few_rows):
    result, report = with_windows(export_swin("swin_torchvision", zoo_folder, "dynamo", half=True))
    assert len(report.of("linear")) == operators(result)[LINEAR] == 3 * SMALL_BLOCKS
    assert {x.data_type for x in result.graph.initializer if "/msda/" in x.name} == {onnx.TensorProto.FLOAT16}


COUNTS = {"deformable_detr": 13, "grounding_dino": 39, "mask2former": 27, "omdet_turbo": 29}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[slow] * (name != "mask2former")) for name in COUNTS]
)
def test_zoo(name: str, zoo_folder: Path, few_rows, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(kinds, "FAST_WINDOW_SIZES", (4,))
    monkeypatch.setattr(kinds, "FAST_HEAD_DIMS", (8, 16))
    result, report = with_windows(onnx.load(model_zoo.export(name, zoo_folder)))
    assert len(report.of("linear")) == operators(result)[LINEAR] == COUNTS[name]
    assert len(report.of("msda")) == ZOO[name].layers and report.max_error <= 1e-5


def test_builds_write_out_layers_of_any_opset(monkeypatch: pytest.MonkeyPatch):
    """Gelu is a node from opset 20 on; a build for a GPU without fast kernels has no `Linear`."""
    monkeypatch.setattr("trt_plugin.library.has_fast_linear", lambda *layer: False)
    for opset in (17, 20):
        model = layer(f"{PRODUCTS['matmul']} {ENDINGS['gelu-divided']}", opset=opset)
        result = check_one(model, "gelu", False)
        assert model_for_tensorrt.fit_to_tensorrt(result, Path())
        assert operators(result)["Gelu"] == (opset == 20) and not operators(result)[LINEAR]
        onnx.checker.check_model(result, full_check=True)
        tensors = tensors_of(model)
        assert relative_error(run(model, tensors), run(result, tensors)) <= 1e-5


# Near misses

BIASED = PRODUCTS["matmul"]
TANH = """c = Pow(h, three) d = Mul(c, cube) e = Add(h, d) f = Mul(e, scale) g = Tanh(f) s = Add(g, one)
    m = Mul(h, half) y = Mul(m, s)"""


OTHER = "neither GELU by erf nor ReLU"
ELSEWHERE = "which is on the way, is read elsewhere too"
TWO = {"more": ", float[] z"}


@pytest.mark.parametrize(
    ("body", "options", "reason"),
    [
        (f"{BIASED} y = Relu(h)", {"inputs": 12}, "no fast kernel for 12 -> 24 channels"),
        (f"{BIASED} y = Relu(h)", {"outputs": 20}, "no fast kernel for 16 -> 20 channels"),
        (f"{BIASED} y = Relu(h)", {"kind": "double"}, "its numbers are float64"),
        (f"{BIASED} y = Relu(h)", {"opset": 14}, "the file has opset 14, the node needs 16"),
        ("p = MatMul(x, U) y = Relu(p)", {"more": ", float[16, 24] U"}, "its weight or bias is no constant"),
        (f'{BIASED} y = Gelu<approximate = "tanh">(h)', {}, OTHER),
        (f"{BIASED} {TANH}", {}, OTHER),
        (f"{BIASED} s = Sigmoid(h) y = Mul(h, s)", {}, OTHER),
        (f"{BIASED} y = Clip(h, zero, six)", {}, OTHER),
        (f"{BIASED} y = Relu(h) z = Sin(h)", TWO, f"h, {ELSEWHERE}"),
        (f"{BIASED} y = Gelu(h) z = Sin(p)", TWO, f"p, {ELSEWHERE}"),
        (f"{BIASED} {ENDINGS['gelu-divided']} z = Sin(s)", TWO, f"s, {ELSEWHERE}"),
        ("p = MatMul(x, W) z = Add(p, b) y = Relu(z)", TWO, f"z, {ELSEWHERE}"),
        (f"{BIASED} t = Reshape(h, rows) y = Add(t, r) z = Sin(t)", TWO, f"t, {ELSEWHERE}"),
        (
            "p = MatMul(x, W) q = Reshape(p, pairs) h = Add(q, pair) y = Relu(h)",
            {},
            "its rows have biases of their own",
        ),
    ],
)
def test_near_misses(body: str, options: dict, reason: str):
    model = layer(body, **options)
    result, report = operate(model)
    assert result is model
    (miss,) = report.near_misses
    assert reason in miss.reason, miss


def test_few_rows(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(recognise_linears, "FEWEST_ROWS", 601)
    _, report = operate(layer(f"{BIASED} y = Relu(h)"))
    assert report.near_misses[0].reason == "it has 600 rows, fewer than 601"


@pytest.mark.parametrize(
    "body",
    [
        "y = Identity(h)",
        "y = Mul(h, half)",
        "y = Softmax(h)",
        "t = Transpose<perm = [0, 2, 1, 3]>(h) y = Relu(t)",
        "m = ReduceMean(x) y = Add(h, m)",
        "y = Sigmoid(h)",
    ],
)
def test_other_layers_stay_without_a_word(body: str):
    original = layer(f"{BIASED} {body}")
    result, report = operate(original)
    assert result is original and not report.near_misses


def test_other_numbers_are_refused(monkeypatch: pytest.MonkeyPatch):
    found = kinds.recognise_linear
    monkeypatch.setattr(kinds, "recognise_linear", lambda *given: replace(found(*given), activation="relu"))
    model = layer(f"{BIASED} {ENDINGS['gelu']}")
    result, report = operate(model)
    assert result is model and "the operator's numbers differ by" in report.near_misses[0].reason


# Options


def test_the_default_has_linear_layers_beside_window_attention(zoo_folder: Path, few_rows):
    _, report = pipeline.operate(export_swin("swin_torchvision", zoo_folder))
    kinds = Counter(x.kind for x in report.replacements)
    assert kinds == {"window-attention": SMALL_BLOCKS, "linear": 3 * SMALL_BLOCKS}


def test_the_default_has_no_linear_layers_without_window_attention(zoo_folder: Path, few_rows):
    """`test_zoo` replaces 13 linear layers of this model."""
    _, report = pipeline.operate(onnx.load(model_zoo.export("deformable_detr", zoo_folder)))
    assert [x.kind for x in report.replacements] == ["msda"] * ZOO["deformable_detr"].layers
    assert not report.near_misses


def test_only_and_the_command(tmp_path: Path, capsys: pytest.CaptureFixture):
    file, out, json = (tmp_path / name for name in ("model.onnx", "out.onnx", "report.json"))
    onnx.save(model := layer(f"{BIASED} {ENDINGS['gelu-divided']}"), file)
    assert surgeon.main([str(file), str(out), "--json", str(json), "--only", "msda", "linear"]) == 0
    printed = capsys.readouterr().err
    assert "replaced y: Linear, 16 -> 24 channels, with gelu" in printed
    assert f"wrote {out}: 1 linear layer replaced" in printed
    assert '"kind": "linear"' in json.read_text() and '"activation": "gelu"' in json.read_text()
    assert surgeon.main([str(file), str(out)]) == 0
    assert onnx.load(out) == model
    with pytest.raises(ArgumentError, match="only: expected msda for the target nvidia, got 'linear'"):
        operate(model, target="nvidia")
