"""Offsets and logits by one matrix product: what is merged, what stays, and that it computes the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from copy import deepcopy as copied
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from onnx_path.comparison.onnxruntime_reference import OnnxruntimeReference
from onnx_path.nodes import attention
from onnx_path.tensorrt import model_for_tensorrt, packed_projections
from onnx_path.tensorrt.graph_passes import run_passes
from onnx_path.tensorrt.packed_projections import pack_projections
from tests.onnx.text_models import text_model
from trt_plugin import library
from trt_plugin.library import LINEAR_OF_SUM

HEADS, LEVELS, CHANNELS, QUERIES = 3, ((4, 5), (2, 3)), 12, 7
SCOPE = "/encoder/layers.0/self_attn"


LAYERS = {"sampling_offsets": "offsets", "attention_weights": "logits"}
LINEAR = {
    "MatMul": "{0}_0 = MatMul(query, {0}_weight) {0} = Add({0}_bias, {0}_0)",
    "shared": "{0}_same = Identity({0}_bias) {0}_0 = MatMul(query, {0}_weight) {0} = Add({0}_same, {0}_0)",
    "transposed": "{0}_t = Transpose<perm = [1, 0]>({0}_weight) {0}_0 = MatMul(query, {0}_t) "
    "{0} = Add({0}_bias, {0}_0)",
    "Gemm": "{0} = Gemm<transB = 1>(rows, {0}_weight, {0}_bias)",
}
"""Forms of a linear layer. The biases of "shared" are constants behind Identity."""


def make_model(
    form: str = "MatMul",
    points: Sequence[int] | None = None,
    shapes: bool = True,
    seed: int = 0,
    change: tuple[str, str] = ("", ""),
    outputs: str = "",
) -> onnx.ModelProto:
    """Returns a fused attention behind the two linear layers, for queries [N, Q, C] with dynamic N and Q.

    Args:
        form: key of `LINEAR`.
        points: number of each level; None for two of each.
        shapes: whether the file has the shapes between the nodes.
        seed: seed of the weights.
        change: a text in the nodes and its replacement.
        outputs: further outputs.
    """
    generator = np.random.default_rng(seed)
    total = sum(points) if points else 2 * len(LEVELS)
    rest = {"offsets": [HEADS, *([total] if points else [len(LEVELS), 2]), 2], "logits": [HEADS, total]}
    constants = {"levels": np.array(LEVELS), "starts": np.array([0, 20])}
    body = ""
    if form == "Gemm":  # a product of matrices, whose rows are split into images afterwards
        body += "rows = Reshape(query, rank_two) sizes = Shape<start = 0, end = 2>(query) "
        constants["rank_two"] = np.array([-1, CHANNELS])
    for name, role in LAYERS.items():
        columns = HEADS * total * (2 if role == "offsets" else 1)
        weight = generator.standard_normal((CHANNELS, columns)).astype(np.float32)
        constants[f"{name}_weight"] = weight.T.copy() if form in ("Gemm", "transposed") else weight
        constants[f"{name}_bias"] = generator.standard_normal(columns).astype(np.float32)
        if form == "Gemm":
            body += f"{role}_shape = Concat<axis = 0>(sizes, {role}_rest) "
        constants[f"{role}_rest" if form == "Gemm" else f"{role}_shape"] = np.array(
            rest[role] if form == "Gemm" else [0, 0, *rest[role]]
        )
        body += f"{LINEAR[form].format(name)} {role} = Reshape({name}, {role}_shape) "
    ragged = f", points_per_level = {list(points)}" if points else ""
    body += (
        "output = msda.FusedMultiScaleDeformableAttention"
        f'<plugin_version = "1", plugin_namespace = "msda"{ragged}>'
        "(value, levels, starts, reference, offsets, logits)"
    )
    query = "N, Q" if shapes else "a, b"
    model = text_model(
        body.replace(*change),
        f"float[{query}, {CHANNELS}] query, float[N, 26, {HEADS}, 4] value, "
        f"float[N, Q, {len(LEVELS)}, 2] reference",
        f"float[N, Q, {HEADS * 4}] output{outputs}",
        attention.OPSET_VERSION,
        domains=attention.DOMAIN,
        **constants,
    )
    for node in model.graph.node:
        layer = node.output[0].removesuffix("_0")
        node.name = f"{SCOPE}/{layer}/{node.op_type}" if layer in LAYERS else f"{SCOPE}/{layer}"
    onnx.checker.check_model(model)
    return model


def run(model: onnx.ModelProto) -> list[np.ndarray]:
    """Returns all outputs of onnxruntime by the bodies of standard operators."""
    generator = np.random.default_rng(1)
    given = {
        "query": generator.standard_normal((2, QUERIES, CHANNELS)).astype(np.float32),
        "value": generator.standard_normal((2, 26, HEADS, 4)).astype(np.float32),
        "reference": generator.random((2, QUERIES, len(LEVELS), 2)).astype(np.float32),
    }
    return list(OnnxruntimeReference(copied(model), Path(), given)().values())


def packed(model: onnx.ModelProto, expected: int = 1) -> onnx.ModelProto:
    """A packed copy."""
    copy = copied(model)
    assert run_passes(copy, Path(), pack_projections) == expected
    onnx.checker.check_model(copy)
    return copy


@pytest.mark.parametrize("points", [None, (3, 0), (1, 4)], ids=["equal", "zero", "ragged"])
@pytest.mark.parametrize("form", ["MatMul", "shared", "transposed", "Gemm"])
@pytest.mark.parametrize("shapes", [True, False], ids=["shapes", "no_shapes"])
def test_packed_model_computes_the_same(form, points, shapes):
    model = make_model(form, points, shapes=shapes)
    result = packed(model)
    counts = Counter(node.op_type for node in result.graph.node)
    known = shapes and form != "Gemm"
    assert counts["MatMul"] == counts["Add"] == counts[attention.FUSED_ATTENTION] == 1
    assert counts["Reshape"] == (0 if known else 1) + (form == "Gemm")
    assert counts["Gemm"] == counts["Identity"] == counts["Transpose"] == 0
    node = result.graph.node[-1]
    assert (len(node.input), node.attribute[-1].name, node.attribute[-1].i) == (5, "packed", 1)
    for expected, found in zip(run(model), run(result), strict=True):
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
    assert packed(result, expected=0) == result


def test_names_say_the_module_and_follow_from_the_file():
    """A file of other weights refits the engine: its merged weights have the same names."""
    one, other = (packed(make_model(seed=seed)) for seed in (0, 1))
    names = [[x.name for x in model.graph.initializer] for model in (one, other)]
    assert names[0] == names[1]
    assert {f"{SCOPE}/projection/weight", f"{SCOPE}/projection/bias"} <= set(names[0])
    assert not any("sampling_offsets" in name or "attention_weights" in name for name in names[0])
    assert {f"{SCOPE}/projection/MatMul", f"{SCOPE}/projection/Add"} <= {x.name for x in one.graph.node}


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int, int]]:
    """Layers of sums that the plugin runs fast, in float32 too: onnxruntime has no 16-bit products here."""
    asked = []
    monkeypatch.setattr(packed_projections, "SIXTEEN_BITS", {ir.DataType.FLOAT})
    monkeypatch.setattr(library, "has_fast_linear_of_sum", lambda *sizes: asked.append(sizes) or True)
    return asked


def model_of_sum(outputs: str = "") -> onnx.ModelProto:
    """Queries that are a sum."""
    layers = "size = Abs(query) other = Neg(size) sum = Add(size, other) "
    model = make_model(change=("sampling_offsets_0 =", f"{layers} sampling_offsets_0 ="), outputs=outputs)
    for node in model.graph.node:
        if node.op_type == "MatMul":
            node.input[0] = "sum"
    model.graph.value_info.extend(
        onnx.helper.make_tensor_value_info(name, 1, ["N", "Q", CHANNELS]) for name in ("size", "other", "sum")
    )
    return model


def test_layer_of_a_sum(fast):
    """The sum disappears. Dynamic sizes count as many rows."""
    model = model_of_sum()
    result = packed(model)
    types = ["Abs", "Neg", LINEAR_OF_SUM, attention.FUSED_ATTENTION]
    assert [node.op_type for node in result.graph.node] == types
    assert fast == [(library.rows_of_layer(["N", "Q"]), CHANNELS, 3 * HEADS * 4)]
    node = result.graph.node[2]
    assert (node.name, list(node.input)[:2]) == (f"{SCOPE}/projection/{LINEAR_OF_SUM}", ["size", "other"])
    assert list(node.input)[2:] == [f"{SCOPE}/projection/weight", f"{SCOPE}/projection/bias"]
    np.testing.assert_allclose(run(result)[0], run(model)[0], rtol=0, atol=1e-5)


@pytest.mark.parametrize("reason", ["slow", "float32", "sum is an output", "sizes differ", "sizes unknown"])
def test_sums_that_stay(fast, monkeypatch, reason):
    model = model_of_sum(outputs=f", float[N, Q, {CHANNELS}] sum" if reason == "sum is an output" else "")
    if reason == "slow":
        monkeypatch.setattr(library, "has_fast_linear_of_sum", lambda *sizes: False)
    elif reason == "float32":
        monkeypatch.setattr(packed_projections, "SIXTEEN_BITS", {ir.DataType.FLOAT16})
    elif reason == "sizes differ":
        model.graph.value_info[1].type.tensor_type.shape.dim[0].dim_value = 1
    elif reason == "sizes unknown":
        del model.graph.value_info[:]
    result = packed(model)
    assert Counter(node.op_type for node in result.graph.node)["Add"] == 2


OTHER = "other = Neg(query) attention_weights_0 = MatMul(other,"
COMPUTED = """largest = ReduceMax<keepdims = 0>(query) computed = Mul(sampling_offsets_weight, largest)
    sampling_offsets_0 = MatMul(query, computed)"""
MOVED = "moved = Reshape(sampling_offsets, offsets_shape) offsets = Neg(moved)"


@pytest.mark.parametrize(
    ("change", "outputs"),
    [
        (("attention_weights_0 = MatMul(query,", OTHER), ""),
        (("", ""), ", float[N, Q, K] sampling_offsets"),
        (("output =", "negative = Neg(attention_weights) output ="), ", float[N, Q, K] negative"),
        (("sampling_offsets_0 = MatMul(query, sampling_offsets_weight)", COMPUTED), ""),
        (("offsets = Reshape(sampling_offsets, offsets_shape)", MOVED), ""),
    ],
    ids=["another query", "offsets are an output", "logits are read twice", "computed weights", "moved"],
)
def test_layers_that_stay_apart(change, outputs):
    model = make_model(change=change, outputs=outputs)
    assert packed(model, expected=0) == model


def test_shape_of_the_results_may_be_read():
    """The TorchScript exporter reads it for every reshape."""
    asked = """leading = Shape<start = 0, end = -1>(sampling_offsets)
        rest = Constant<value_ints = [3, 2, 2, 2]>() computed = Concat<axis = 0>(leading, rest)
        offsets = Reshape(sampling_offsets, computed)"""
    model = make_model(change=("offsets = Reshape(sampling_offsets, offsets_shape)", asked))
    result = packed(model)
    assert [node.op_type for node in result.graph.node] == ["MatMul", "Add", attention.FUSED_ATTENTION]
    np.testing.assert_allclose(run(result)[0], run(model)[0], rtol=0, atol=1e-5)


def test_weights_outside_of_the_file_come_in(tmp_path):
    model = make_model()
    onnx.save(
        model, tmp_path / "model.onnx", save_as_external_data=True, location="weights", size_threshold=0
    )
    loaded = onnx.load(tmp_path / "model.onnx", load_external_data=False)
    assert model_for_tensorrt.fit_to_tensorrt(loaded, tmp_path)
    onnx.save(loaded, tmp_path / "packed.onnx")
    result = onnx.load(tmp_path / "packed.onnx")
    np.testing.assert_allclose(run(result)[0], run(make_model())[0], rtol=0, atol=1e-5)
