"""16-bit ONNX files: the nodes that stay float32, valid types, and numbers close to float32's."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from copy import deepcopy as copied
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from codetr.errors import ArgumentError
from onnx_path.fp16_exceptions import ASKED, CONSTANTS, SCORES, SUBGRAPH, UNKNOWN
from onnx_path.nodes import attention
from onnx_path.precision import convert_precision
from onnx_path.surgery.graph import onnx_session
from tests.onnx import model_zoo
from tests.onnx.model_zoo import ZOO
from tests.onnx.text_models import text_model

FLOAT, HALF, BFLOAT16 = onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16
QUICK = ("deformable_detr", "d_fine", "bevformer_spatial")  # the last one's attention is not fused
HEAVY = ("MatMul", "Gemm", "Conv", "ConvTranspose", "Einsum")
BOXES = {"mask2former": "masks_queries_logits", "omdet_turbo": "decoder_coord_logits"}
# Number of products that stay float32: means of distributions, arguments of sines, references of constant
# queries, and top-k scores. D-FINE selects from the distributions of its boxes too.
WIDE = {
    "deformable_detr": 1,
    "deformable_detr_two_stage": 1,
    "rt_detr": 3,
    "rt_detr_v2": 3,
    "d_fine": 5,
    "grounding_dino": 1,
    "omdet_turbo": 1,
    "rf_detr": 1,
    "co_dino_swin": 3,
    "co_dino_r50": 3,
    "mask_dino": 1,
}


class Typed:
    """A model with the element types of all its tensors.

    Onnx's own inference finds them, and checks that every operator has them in the model's opset.
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        onnx.checker.check_model(model, full_check=True)
        graph = onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True).graph
        self.model, self.nodes = model, graph.node
        self.types = {t.name: t.data_type for t in graph.initializer}
        for value in (*graph.input, *graph.output, *graph.value_info):
            self.types[value.name] = value.type.tensor_type.elem_type
        self.producers = {output: node for node in graph.node for output in node.output}

    def path(self, name: str) -> Iterator[onnx.NodeProto]:
        """Yields the nodes that compute a tensor, back to casts from 16 bits. It does not follow integers."""
        pending, seen = [name], {name}
        while pending:
            node = self.producers.get(pending.pop())
            if node is None:
                continue
            yield node
            floats = [
                x for x in node.input if x and self.types[x] in (FLOAT, HALF, BFLOAT16) and x not in seen
            ]
            if node.op_type not in ("Shape", "Size") and not any(self.types[x] != FLOAT for x in floats):
                seen.update(floats)
                pending += floats

    def check_path(self, name: str) -> set[str]:
        """Asserts that a path is float32 from matrix products and convolutions on; returns its operators."""
        found = set()
        products = [x for x in self.nodes if x.op_type in HEAVY and self.types[x.output[0]] == FLOAT]
        multiplied = {name for node in products for name in node.input}
        for node in self.path(name):
            found.add(node.op_type)
            assert all(self.types[x] in (FLOAT, onnx.TensorProto.INT64) for x in node.output), node.name
            if node.op_type == "Cast" and self.types[node.input[0]] in (HALF, BFLOAT16):
                source = self.producers.get(node.input[0])
                assert source.op_type in (*HEAVY, "LayerNormalization") or node.output[0] in multiplied, (
                    node.name
                )
        return found


def run(model: onnx.ModelProto, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, inputs)


def converted(model: onnx.ModelProto, precision: str = "fp16", keep: tuple[str, ...] = ()) -> tuple:
    """Converts a copy, checks it, and returns it with its types, and the report."""
    copy = copied(model)
    report = convert_precision(copy, precision, keep)
    typed = Typed(copy)
    for before, after in ((model.graph.input, copy.graph.input), (model.graph.output, copy.graph.output)):
        assert [(x.name, x.type) for x in before] == [(x.name, x.type) for x in after]
    again = copied(copy)
    second = convert_precision(again, precision, keep)
    assert (second.converted, second.casts) == (0, 0), str(second)
    assert again == copy
    assert "\n" not in str(report)
    return typed, report


def error(found: np.ndarray, expected: np.ndarray) -> float:
    """Returns the relative error of the finite numbers. The others must be equal."""
    finite = np.isfinite(expected)
    np.testing.assert_array_equal(found[~finite], expected[~finite])
    return float(np.linalg.norm(found[finite] - expected[finite]) / np.linalg.norm(expected[finite]))


def picks_of(model: onnx.ModelProto, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns the indices of each TopK."""
    names = [node.output[1] for node in model.graph.node if node.op_type == "TopK"]
    probe = copied(model)
    del probe.graph.output[:]
    probe.graph.output.extend(
        onnx.helper.make_tensor_value_info(x, onnx.TensorProto.INT64, None) for x in names
    )
    return dict(zip(names, run(probe, inputs) if names else []))


def fix_picks(model: onnx.ModelProto, picks: dict[str, np.ndarray]) -> None:
    """Replaces the indices of TopK by those of another model, so that both select the same queries."""
    for name, indices in picks.items():
        (node,) = [x for x in model.graph.node if name in x.output]
        node.output[1] = f"{name}/free"
        model.graph.initializer.append(onnx.numpy_helper.from_array(indices, name))


# Whole models


@pytest.mark.parametrize("name", [pytest.param(x, marks=() if x in QUICK else pytest.mark.slow) for x in ZOO])
def test_zoo_in_16_bits(name: str, zoo_folder: Path) -> None:
    model = model_zoo.operated(name, zoo_folder)
    typed, report = converted(model)
    attentions = [node for node in typed.nodes if node.domain == attention.DOMAIN]
    assert len(attentions) == ZOO[name].layers
    check_attentions(typed, HALF)
    wide = [x for x in typed.nodes if x.op_type in HEAVY and typed.types[x.output[0]] == FLOAT]
    assert len(wide) == WIDE.get(name, 0), [node.name for node in wide]
    boxes = next((x.name for x in typed.model.graph.output if "boxes" in x.name), BOXES.get(name))
    if boxes is not None:
        operators = typed.check_path(boxes)
        assert operators & {"Sigmoid", "Exp", "MatMul"} or name == "mask2former"
    for node in typed.nodes:
        if node.op_type == "TopK":
            assert typed.check_path(node.input[0]) & {"MatMul", "Einsum"}
    sources = Counter(node.op_type for node in model.graph.node)
    assert report.casts <= sum(x.op_type == "Cast" for x in typed.nodes) <= sources["Cast"] + report.casts
    assert report.casts < max(report.converted / 4, 10)  # single layers have a dozen nodes

    bfloat16, _ = converted(model, "bf16")
    check_attentions(bfloat16, BFLOAT16)
    assert BFLOAT16 in types_of(bfloat16, "MatMul")
    assert types_of(bfloat16, "Conv") == {x if x == FLOAT else BFLOAT16 for x in types_of(typed, "Conv")}

    inputs = {key: tensor.numpy() for key, tensor in ZOO[name].build()[1].items()}
    # The CPU provider has no bfloat16: rounded weights and casts remain.
    outputs = run(model, inputs)
    picks = picks_of(model, inputs)
    for narrow, runs, tolerance in ((typed.model, run, 2e-2), (bfloat16.model, onnx_session.run, 0.1)):
        narrow = copied(narrow)
        fix_picks(narrow, picks)
        for output, expected, found in zip(model.graph.output, outputs, runs(narrow, inputs)):
            if expected.dtype == np.float32:
                assert found.dtype == np.float32
                assert error(found, expected) <= tolerance, output.name
            else:
                np.testing.assert_array_equal(found, expected)


def check_attentions(typed: Typed, narrow: int) -> None:
    for node in typed.nodes:
        if node.domain != attention.DOMAIN:
            continue
        kinds = [typed.types[x] for x in node.input]
        fused = node.op_type == attention.FUSED_ATTENTION
        assert kinds[0] == typed.types[node.output[0]] == narrow, node.name
        assert kinds[3:] == ([FLOAT, narrow, narrow] if fused else [FLOAT, FLOAT])
        for name in node.input[3 : 4 if fused else 5]:
            typed.check_path(name)


def test_nvidia_s_nodes_stay(zoo_folder: Path) -> None:
    typed, _ = converted(model_zoo.operated("deformable_detr", zoo_folder, target="nvidia"))
    nodes = [node for node in typed.nodes if node.domain == attention.NVIDIA_DOMAIN]
    assert len(nodes) == ZOO["deformable_detr"].layers
    assert all(typed.types[x] != HALF for node in nodes for x in (*node.input, *node.output))
    assert any(typed.types[x.output[0]] == HALF for x in typed.nodes if x.op_type == "MatMul")


# Single rules


def parse(body: str, inputs: str, outputs: str, opset: int = 18, **constants: np.ndarray) -> onnx.ModelProto:
    """Returns a text model, with those of W, V [4, 4], b [4] and the constants that it reads."""
    random = np.random.default_rng(0)
    for name, shape in (("W", (4, 4)), ("V", (4, 4)), ("b", (4,))):
        if re.search(rf"\b{name}\b", body):
            constants[name] = random.standard_normal(shape, dtype=np.float32)
    used = {name: array for name, array in constants.items() if re.search(rf"\b{name}\b", body)}
    model = text_model(body, inputs, outputs, opset, **used)
    for i, node in enumerate(model.graph.node):
        node.name = f"{node.op_type}_{i}"
    return model


def types_of(typed: Typed, op_type: str) -> set[int]:
    return {typed.types[x] for node in typed.nodes if node.op_type == op_type for x in node.output}


X = np.random.default_rng(1).standard_normal((3, 4), dtype=np.float32)


NORMALISATION = """h = MatMul(x, W) m = ReduceMean<keepdims = 1>(h, axes) d = Sub(h, m) q = Mul(d, d)
    v = ReduceMean<keepdims = 1>(q, axes) e = Add(v, eps) r = Sqrt(e) n = Div(d, r) w = Mul(n, b)
    t = Transpose<perm = [1, 0]>(w) k = MatMul(V, t) z = Identity(k) y = Relu(z)"""
BRANCHES = """h = MatMul(x, W)
    r = If (c) <then_branch = t () => (float[3, 4] p) { p = Mul(h, h) },
                else_branch = e () => (float[3, 4] q) { q = Relu(h) }>
    k = MatMul(r, V) y = Relu(k)"""
SINES = """n = Shape(x) e = Gather(n, zero) p = Range(zero, e, one) f = Cast<to = 1>(p)
    q = Unsqueeze(f, last) a = MatMul(q, freq) c = Cos(a) h = MatMul(x, W) s = Mul(h, c) k = MatMul(s, V)
    y = Relu(k)"""


RESIDUAL = """h = MatMul(x, W) a = Relu(h) k = MatMul(a, V) r = Add(a, k) o = MatMul(r, W)
    s = Add(o, b) y = Sigmoid(s) z = Relu(r)"""
SELECTED = "h = MatMul(x, W) t, i = TopK<axis = 1>(h, k) z = MatMul(h, V) y = Relu(t)"
POSITIONS = {
    "zero": np.array(0),
    "one": np.array(1),
    "last": np.array([1]),
    "freq": np.float32([[900, 300, 100, 30]]),
}


@pytest.mark.parametrize(
    ("body", "outputs", "constants", "wide", "narrow", "kept"),
    [
        # Squares of inputs of 3000 leave float16's range.
        (
            NORMALISATION,
            "float[4, 3] y",
            {"axes": np.array([1]), "eps": np.float32([1e-5])},
            "mdqvernw",
            "htk",
            {},
        ),
        # A product that is multiplied further gives features, though TopK selects from it.
        (SELECTED, "float[3, 4] z, float[3, 2] y", {"k": np.array([2])}, "t", "h", {SCORES: 1}),
        # Scores of the output are float32. The residual stream before them is not.
        (RESIDUAL, "float[3, 4] y, float[3, 4] z", {}, "s", "hakr", {}),
        (BRANCHES, "float[3, 4] y", {}, "r", "h", {SUBGRAPH: 1}),
        # Position encodings multiply positions by frequencies in a matrix product.
        (SINES, "float[3, 4] y", POSITIONS, "ac", "hk", {}),
    ],
    ids=["normalisation", "features by size", "residual", "subgraphs", "sines"],
)
def test_types_of_tensors(body, outputs, constants, wide, narrow, kept):
    """Letters name tensors that are float32 and tensors that are float16."""
    inputs = {"x": X * (3000 if body == NORMALISATION else 1), "c": np.array(True)}
    condition = ", bool c" if body == BRANCHES else ""
    model = parse(body, f"float[3, 4] x{condition}", outputs, **constants)
    typed, report = converted(model)
    assert {name: typed.types[name] for name in wide + narrow} == {
        **dict.fromkeys(wide, FLOAT),
        **dict.fromkeys(narrow, HALF),
    }
    assert {reason: report.kept.get(reason, 0) for reason in kept} == kept
    given = {name: inputs[name] for name in ("x", *("c" * bool(condition)))}
    for expected, found in zip(run(model, given), run(typed.model, given)):
        assert error(found, expected) < 1e-2


@pytest.mark.parametrize(("number", "kept"), [(1e5, True), (1e4, False), (1e-6, True), (0.0, False)])
def test_constants_out_of_range_keep_their_node(number: float, kept: bool) -> None:
    body = "h = MatMul(x, W) s = Mul(h, c) k = MatMul(s, V) y = Sigmoid(k)"
    typed, report = converted(parse(body, "float[3, 4] x", "float[3, 4] y", c=np.array(number, np.float32)))
    assert types_of(typed, "Mul") == {FLOAT if kept else HALF}
    # A float32 product with 1e5 may be beyond float16, so its reader stays float32 too.
    assert report.kept.get(CONSTANTS, 0) == (2 if number == 1e5 else kept)


@pytest.mark.parametrize("number", [-1e30, -np.finfo(np.float32).max, -np.inf])
@pytest.mark.parametrize("precision", ["fp16", "bf16"])
@pytest.mark.parametrize(
    "mask",
    [
        "a = Where(m, zero, low) s = Add(h, a)",
        "n = Not(m) f = Cast<to = 1>(n) z = Mul(f, low) a = Where(m, zero, z) s = Add(h, a)",
        "s = Where(m, h, low)",
        "c = Identity(low) a = Where(m, zero, c) r = Unsqueeze(a, axes) q = Squeeze(r, axes) s = Add(h, q)",
    ],
)
def test_masks_stay_finite(mask: str, precision: str, number: float) -> None:
    """A row whose scores are all masked must not become NaN, which -inf would make it."""
    model = parse(
        f"h = MatMul(x, W) {mask} y = Softmax(s)",
        "float[3, 4] x, bool[3, 4] m",
        "float[3, 4] y",
        zero=np.zeros(1, np.float32),
        low=np.array([number], np.float32),
        axes=np.array([0]),
    )
    typed, _ = converted(model, precision)
    narrow = HALF if precision == "fp16" else BFLOAT16
    assert types_of(typed, "MatMul") == {narrow}
    for tensor in typed.model.graph.initializer:
        if tensor.data_type == narrow and np.isfinite(number):
            assert np.isfinite(onnx.numpy_helper.to_array(tensor).astype(np.float32)).all()
    if precision == "fp16":
        allowed = np.array([[True, False, True, True], [False] * 4, [True] * 4])
        if not np.isfinite(number):
            allowed[1, 0] = True
        inputs = {"x": X, "m": allowed}
        (expected,), (found,) = run(model, inputs), run(typed.model, inputs)
        np.testing.assert_allclose(found, expected, atol=2e-3)


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_products_that_give_topk_scores_are_float32(precision: str) -> None:
    """Scores in 16 bits tie, and among ties the order decides which are selected."""
    body = """h = MatMul(x, W) a = Relu(h) l = MatMul(a, V) s = Add(l, b) m = ReduceMax<keepdims = 0>(s, axes)
    y, i = TopK(m, k) n = MatMul(a, W) z = Sigmoid(n)"""
    size = 20_000
    outputs = f"float[{size}] y, float[{size}, 4] z"
    model = parse(body, f"float[{size}, 4] x", outputs, axes=np.array([1]), k=np.array([size]))
    typed, report = converted(model, precision)
    kinds = {node.output[0]: typed.types[node.output[0]] for node in typed.nodes if node.op_type == "MatMul"}
    narrow = HALF if precision == "fp16" else BFLOAT16
    assert kinds == {"h": narrow, "l": FLOAT, "n": narrow}
    assert report.kept[SCORES] == 4
    if precision == "fp16":  # onnxruntime's CPU provider has no products in bfloat16
        x = np.random.default_rng(1).standard_normal((size, 4), dtype=np.float32)
        scores = run(typed.model, {"x": x})[0]
        distinct = len(np.unique(scores))
        assert distinct > 0.8 * size > 2 * len(np.unique(scores.astype(np.float16)))


def test_shared_weights_are_converted_once() -> None:
    """W is read by two nodes in 16 bits and by one that is kept."""
    body = "h = MatMul(x, W) k = MatMul(h, W) p = MatMul(k, W) y = Sigmoid(p)"
    model = parse(body, "float[3, 4] x", "float[3, 4] y")
    typed, _ = converted(model)
    assert [(t.name, t.data_type) for t in typed.model.graph.initializer] == [("W/float16", HALF)]
    typed, report = converted(model, keep=("^MatMul_1$",))
    assert sorted(t.data_type for t in typed.model.graph.initializer) == [FLOAT, HALF]
    assert report.kept[ASKED] == 1
    assert error(run(typed.model, {"x": X})[0], run(model, {"x": X})[0]) < 1e-2


def test_casts_are_merged() -> None:
    """An integer is cast to 16 bits at once, and a cast from 16 bits disappears."""
    body = (
        "f = Cast<to = 1>(n) g = Cast<to = 1>(i) p = MatMul(f, W) q = MatMul(g, V) s = Add(p, q) y = Relu(s)"
    )
    typed, report = converted(parse(body, "float16[3, 4] n, int64[3, 4] i", "float[3, 4] y"))
    casts = {node.input[0]: node.attribute[0].i for node in typed.nodes if node.op_type == "Cast"}
    assert casts == {"i": HALF, "p": FLOAT, "q": FLOAT}
    assert report.casts == 3


def test_unknown_operators_stay() -> None:
    model = parse(
        "h = MatMul(x, W) k = acme.Sort(h) p = MatMul(k, V) y = Relu(p)", "float[3, 4] x", "float[3, 4] y"
    )
    model.opset_import.append(onnx.helper.make_opsetid("acme", 1))
    report = convert_precision(model, "fp16")
    assert report.kept[UNKNOWN] == 1
    assert report.converted == 2  # what Sort gives has the type of what it is multiplied by
    nodes = {node.output[0]: node for node in model.graph.node}
    (sort,) = [node for node in model.graph.node if node.domain == "acme"]
    assert nodes[sort.input[0]].op_type == "Cast"
    onnx.checker.check_model(model)


@pytest.mark.parametrize(
    ("node", "opset", "kind", "reason"),
    [
        ("Relu(h)", 17, BFLOAT16, None),
        (
            "InstanceNormalization(h, scale, bias)",
            22,
            FLOAT,
            "InstanceNormalization: TensorRT has no bfloat16",
        ),
        ('Resize<mode = "nearest">(h, , scales)', 22, FLOAT, "Resize: TensorRT has no bfloat16"),
    ],
)
def test_operators_without_bfloat16(node, opset, kind, reason):
    model = parse(
        f"h = Conv(x, w) k = {node} p = Conv(k, w) y = Relu(p)",
        "float[1, 2, 4, 4] x",
        "float[1, 2, height, width] y",
        opset,
        w=np.ones((2, 2, 1, 1), np.float32),
        scale=np.ones(2, np.float32),
        bias=np.zeros(2, np.float32),
        scales=np.array([1, 1, 2, 2], np.float32),
    )
    typed, report = converted(model, "bf16")
    assert typed.types["k"] == kind
    assert reason is None or any(x.startswith(reason) for x in report.kept)
    typed, _ = converted(model)
    assert typed.types["k"] == HALF


@pytest.mark.parametrize(("precision", "opset"), [("fp16", 10), ("bf16", 12)])
def test_opsets_without_16_bits(precision: str, opset: int) -> None:
    model = parse("h = MatMul(x, W) y = Relu(h)", "float[3, 4] x", "float[3, 4] y", opset)
    before = copied(model)
    message = f"precision: expected opset {opset + 1} or later for {precision}, got {opset}"
    with pytest.raises(ArgumentError, match=message):
        convert_precision(model, precision)
    assert model == before
