"""Offsets and logits by one matrix product: what is merged, what stays, and that it computes the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="onnx is not installed")
pytest.importorskip("onnxscript", reason="onnxscript is not installed")
ort = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402

from onnx_path import model_for_tensorrt, operator  # noqa: E402
from onnx_path.comparison.onnxruntime_reference import add_bodies  # noqa: E402
from onnx_path.packed_projections import pack_projections  # noqa: E402
from onnx_path.surgery.graph.protobuf import copied  # noqa: E402

HEADS, LEVELS, CHANNELS, QUERIES = 3, ((4, 5), (2, 3)), 12, 7
SCOPE = "/encoder/layers.0/self_attn"


def make_model(
    form: str = "MatMul",
    points: Sequence[int] | None = None,
    dtype: type = np.float32,
    shapes: bool = True,
    seed: int = 0,
    change: Callable[[list, list], None] | None = None,
) -> onnx.ModelProto:
    """A fused attention with the layers before it: [N, Q, C] queries, N and Q dynamic.

    Args:
        form: of the layers: MatMul, shared (the biases are one constant behind Identity), transposed or Gemm.
        points: of each level; None, two of each.
        dtype: of queries, value and weights.
        shapes: whether the file tells those between the nodes.
        seed: of the weights.
        change: gets the nodes and the graph's outputs.
    """
    generator = np.random.default_rng(seed)
    total = sum(points) if points else 2 * len(LEVELS)
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    constants = {
        "levels": np.array(LEVELS),
        "starts": np.array([0, 20]),
        "offsets_shape": np.array([0, 0, HEADS, *([total] if points else [len(LEVELS), 2]), 2]),
        "logits_shape": np.array([0, 0, HEADS, total]),
        "batch": np.array([0]),
        "rank_two": np.array([-1, CHANNELS]),
    }
    nodes = []

    def layer(name: str, columns: int) -> None:
        weight = generator.standard_normal((CHANNELS, columns)).astype(dtype)
        constants[f"{name}.weight"] = weight.T.copy() if form in ("Gemm", "transposed") else weight
        constants[f"{name}.bias"] = generator.standard_normal(columns).astype(dtype)
        weight_name, bias_name, at = f"{name}.weight", f"{name}.bias", f"{SCOPE}/{name}"
        if form == "shared":
            nodes.append(helper.make_node("Identity", [bias_name], [f"{name}.same"]))
            bias_name = f"{name}.same"
        if form == "transposed":
            nodes.append(helper.make_node("Transpose", [weight_name], [f"{name}.t"], perm=[1, 0]))
            weight_name = f"{name}.t"
        if form == "Gemm":
            inputs = ["rows", weight_name, bias_name]
            nodes.append(helper.make_node("Gemm", inputs, [name], f"{at}/Gemm", transB=1))
        else:
            product = helper.make_node("MatMul", ["query", weight_name], [f"{name}.0"], f"{at}/MatMul")
            nodes.extend([product, helper.make_node("Add", [bias_name, f"{name}.0"], [name], f"{at}/Add")])

    if form == "Gemm":  # of matrices, whose rows are split into images afterwards
        nodes.append(helper.make_node("Reshape", ["query", "rank_two"], ["rows"]))
        nodes.append(helper.make_node("Shape", ["query"], ["sizes"], start=0, end=2))
        for name in ("offsets_shape", "logits_shape"):
            constants[f"{name}_rest"] = constants.pop(name)[2:]
            nodes.append(helper.make_node("Concat", ["sizes", f"{name}_rest"], [name], axis=0))
    layer("sampling_offsets", 2 * HEADS * total)
    layer("attention_weights", HEADS * total)
    nodes += [
        helper.make_node("Reshape", ["sampling_offsets", "offsets_shape"], ["offsets"]),
        helper.make_node("Reshape", ["attention_weights", "logits_shape"], ["logits"]),
        helper.make_node(
            operator.FUSED_ATTENTION,
            ["value", "levels", "starts", "reference", "offsets", "logits"],
            ["output"],
            f"{SCOPE}/{operator.FUSED_ATTENTION}",
            domain=operator.DOMAIN,
            **operator.PLUGIN_ATTRIBUTES,
            **({"points_per_level": list(points)} if points else {}),
        ),
    ]
    sizes = {
        "query": ("N", "Q", CHANNELS),
        "value": ("N", 26, HEADS, 4),
        "reference": ("N", "Q", len(LEVELS), 2),
    }
    if not shapes:
        sizes["query"] = ("a", "b", CHANNELS)
    types = {"reference": TensorProto.FLOAT}
    inputs = [
        helper.make_tensor_value_info(name, types.get(name, kind), size) for name, size in sizes.items()
    ]
    outputs = [helper.make_tensor_value_info("output", kind, ["N", "Q", HEADS * 4])]
    if change:
        change(nodes, outputs)
    graph = helper.make_graph(
        nodes, "graph", inputs, outputs, [numpy_helper.from_array(x, name) for name, x in constants.items()]
    )
    opsets = {"": operator.OPSET_VERSION, operator.DOMAIN: operator.DOMAIN_VERSION}
    opset_imports = [helper.make_opsetid(*pair) for pair in opsets.items()]
    model = helper.make_model(graph, opset_imports=opset_imports, ir_version=10)
    onnx.checker.check_model(model)
    return model


def run(model: onnx.ModelProto, dtype: type = np.float32, batch: int = 2) -> list[np.ndarray]:
    """All outputs of onnxruntime by the bodies of standard operators."""
    copy = copied(model)
    add_bodies(copy)
    onnx.checker.check_model(copy)
    generator = np.random.default_rng(1)
    given = {
        "query": generator.standard_normal((batch, QUERIES, CHANNELS)).astype(dtype),
        "value": generator.standard_normal((batch, 26, HEADS, 4)).astype(dtype),
        "reference": generator.random((batch, QUERIES, len(LEVELS), 2)).astype(np.float32),
    }
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(copy.SerializeToString(), options, ["CPUExecutionProvider"])
    return session.run(None, given)


def packed(model: onnx.ModelProto, expected: int = 1) -> onnx.ModelProto:
    """A packed copy."""
    copy = copied(model)
    assert pack_projections(copy, Path()) == expected
    onnx.checker.check_model(copy)
    return copy


def operators(model: onnx.ModelProto) -> Counter[str]:
    return Counter(node.op_type for node in model.graph.node)


@pytest.mark.parametrize("points", [None, (3, 0), (1, 4)], ids=["equal", "zero", "ragged"])
@pytest.mark.parametrize("form", ["MatMul", "shared", "transposed", "Gemm"])
@pytest.mark.parametrize("shapes", [True, False], ids=["shapes", "no_shapes"])
def test_packed_model_computes_the_same(form, points, shapes):
    model = make_model(form, points, shapes=shapes)
    result = packed(model)
    counts = operators(result)
    known = shapes and form != "Gemm"
    assert counts["MatMul"] == counts["Add"] == counts[operator.FUSED_ATTENTION] == 1
    assert counts["Reshape"] == (0 if known else 1) + (form == "Gemm")
    assert counts["Gemm"] == counts["Identity"] == counts["Transpose"] == 0
    node = result.graph.node[-1]
    assert (len(node.input), node.attribute[-1].name, node.attribute[-1].i) == (5, "packed", 1)
    for expected, found in zip(run(model), run(result), strict=True):
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


def test_type_of_the_weights_stays():
    model = make_model(dtype=np.float16)
    result = packed(model)
    weights = {x.name: x.data_type for x in result.graph.initializer if "projection" in x.name}
    assert set(weights.values()) == {TensorProto.FLOAT16}
    for expected, found in zip(run(model, np.float16), run(result, np.float16), strict=True):
        np.testing.assert_allclose(found, expected, rtol=0, atol=2e-2)


def test_names_say_the_module_and_follow_from_the_file():
    """A file of other weights refits the engine: its merged weights have the same names."""
    one, other = (packed(make_model(seed=seed)) for seed in (0, 1))
    names = [[x.name for x in model.graph.initializer] for model in (one, other)]
    assert names[0] == names[1]
    assert {f"{SCOPE}/projection/weight", f"{SCOPE}/projection/bias"} <= set(names[0])
    assert not any("sampling_offsets" in name or "attention_weights" in name for name in names[0])
    assert {f"{SCOPE}/projection/MatMul", f"{SCOPE}/projection/Add"} <= {x.name for x in one.graph.node}


def test_packed_nodes_stay_as_they_are():
    result = packed(make_model())
    assert packed(result, expected=0) == result


def reads_another_query(nodes: list, _outputs: list) -> None:
    nodes.insert(0, helper.make_node("Neg", ["query"], ["other"]))
    next(x for x in nodes if "attention_weights.weight" in x.input).input[0] = "other"


def gives_offsets_too(_nodes: list, outputs: list) -> None:
    outputs.append(helper.make_tensor_value_info("sampling_offsets", TensorProto.FLOAT, ["N", "Q", 24]))


def reads_logits_twice(nodes: list, outputs: list) -> None:
    nodes.append(helper.make_node("Neg", ["attention_weights"], ["negative"]))
    outputs.append(helper.make_tensor_value_info("negative", TensorProto.FLOAT, ["N", "Q", 12]))


def computes_weights(nodes: list, _outputs: list) -> None:
    nodes.insert(0, helper.make_node("ReduceMax", ["query"], ["largest"], keepdims=0))
    nodes.insert(1, helper.make_node("Mul", ["sampling_offsets.weight", "largest"], ["computed"]))
    next(x for x in nodes if x.name.endswith("sampling_offsets/MatMul")).input[1] = "computed"


def moves_offsets(nodes: list, _outputs: list) -> None:
    at = next(i for i, x in enumerate(nodes) if "offsets" in x.output)
    nodes[at].output[0] = "moved"
    nodes.insert(at + 1, helper.make_node("Neg", ["moved"], ["offsets"]))


@pytest.mark.parametrize(
    "change",
    [reads_another_query, gives_offsets_too, reads_logits_twice, computes_weights, moves_offsets],
)
def test_layers_that_stay_apart(change):
    model = make_model(change=change)
    assert packed(model, expected=0) == model


def test_shape_of_the_results_may_be_asked_for():
    """As the older exporter does for every reshape."""

    def ask(nodes: list, _outputs: list) -> None:
        at = next(i for i, x in enumerate(nodes) if "offsets" in x.output)
        nodes[at].input[1] = "computed_shape"
        rest = numpy_helper.from_array(np.array([HEADS, len(LEVELS), 2, 2]))
        nodes[at:at] = [
            helper.make_node("Shape", ["sampling_offsets"], ["leading"], start=0, end=-1),
            helper.make_node("Constant", [], ["rest"], value=rest),
            helper.make_node("Concat", ["leading", "rest"], ["computed_shape"], axis=0),
        ]

    model = make_model(change=ask)
    result = packed(model)
    assert operators(result)["MatMul"] == 1 and not operators(result)["Shape"]
    np.testing.assert_allclose(run(result)[0], run(model)[0], rtol=0, atol=1e-5)


def test_weights_outside_of_the_file_come_in(tmp_path):
    model = make_model()
    onnx.save(
        model, tmp_path / "model.onnx", save_as_external_data=True, location="weights", size_threshold=0
    )
    loaded = onnx.load(tmp_path / "model.onnx", load_external_data=False)
    assert model_for_tensorrt.fit_plugins(loaded, tmp_path)
    onnx.save(loaded, tmp_path / "packed.onnx")
    result = onnx.load(tmp_path / "packed.onnx")
    np.testing.assert_allclose(run(result)[0], run(make_model())[0], rtol=0, atol=1e-5)
