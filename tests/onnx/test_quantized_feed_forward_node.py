"""Feed-forward blocks in int8 as ONNX nodes: body, the pass that makes them, and engines."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import Mock

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch

import msda
import trt_plugin
from benchmarks.operator_errors import TOLERANCE, relative_error
from benchmarks.quantized_feed_forward import FeedForwardProblem
from onnx_path.nodes.attention import OPSET_VERSION
from onnx_path.nodes.domain import DOMAIN
from onnx_path.nodes.quantized_linear import pack_weights
from onnx_path.opset import opset_of
from onnx_path.surgery.graph import onnx_session
from onnx_path.surgery.rewrite.function_bodies import LOWEST_OPSET
from onnx_path.tensorrt import model_for_tensorrt
from onnx_path.tensorrt.fused_quantized_feed_forwards import fuse_quantized_feed_forwards
from onnx_path.tensorrt.fused_quantized_linears import fuse_layers
from tests.onnx import eight_bit_layers
from tests.onnx.map_nodes import CODES, add_bodies_of_opset, open_session
from tests.onnx.text_models import text_model
from trt_plugin import library
from trt_plugin.library import QUANTIZED_FEED_FORWARD, QUANTIZED_LINEAR

# The body.

NAMES = (
    "x",
    "weight1",
    "scale1",
    "bias1",
    "weight2",
    "scale2",
    "bias2",
    "norm_weight",
    "norm_bias",
)


@pytest.mark.parametrize("opset", [LOWEST_OPSET, 18, OPSET_VERSION, 22])
def test_body_in_onnxruntime(opset):
    """One session for every size: the reference's result, but where float32 rounds to the next number."""
    problem = FeedForwardProblem("", 0, 16, 24)
    numbers = problem.inputs(torch.float16, "cpu")[9:12]
    fields = dict(zip(("x_scale", "hidden_scale", "eps"), numbers, strict=True))
    fields |= {"next_scale": 0.021}
    node = (
        f"msda.QuantizedFeedForward<{', '.join(f'{name} = {x}' for name, x in fields.items())},"
        ' plugin_namespace = "msda", plugin_version = "1">'
    )
    half = CODES[torch.float16]
    model = text_model(
        f"y, q = {node}({', '.join(NAMES)})",
        f"{half}[n, s, c] x, int32[h, d] weight1, float[h] scale1, float[h] bias1, int32[c, e] weight2,"
        f" float[c] scale2, float[c] bias2, {half}[c] norm_weight, {half}[c] norm_bias",
        f"{half}[n, s, c] y, int8[n, s, c] q",
        opset,
        domains=DOMAIN,
    )
    add_bodies_of_opset(model, opset)
    session = open_session(model)
    for batch, rows, channels, hidden in ((2, 9, 24, 40), (1, 3, 4, 4), (3, 1, 200, 8), (0, 4, 8, 12)):
        problem = FeedForwardProblem("", batch * rows, channels, hidden)
        inputs = problem.inputs(torch.float16, "cpu", seed=rows)
        inputs = inputs._replace(x=inputs.x.reshape(batch, rows, channels))
        feed = dict(zip(NAMES, (x.numpy() for x in inputs[:9]), strict=True))
        feed |= {name: pack_weights(feed[name]) for name in ("weight1", "weight2")}
        y, q = (torch.from_numpy(array) for array in session.run(None, feed))
        # A hidden number at a tie may differ by a step.
        expected = msda.quantized_feed_forward(*inputs[:9], *numbers)
        torch.testing.assert_close(y, expected, rtol=2e-3, atol=2e-2)
        # onnxruntime divides by the scale, and the operator multiplies by its reciprocal.
        scaled = y.double() / fields["next_scale"]
        assert ((q - scaled.clamp(-128, 127)).abs() <= 0.5 + 1e-5).all()


# The pass.

FIRST = (
    "q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) V = DequantizeLinear<axis = 1>(W, w)"
    " m = MatMul(d, V) p = Add(m, b) r = Relu(p)"
)
SECOND = (
    " k = QuantizeLinear(r, t, z) e = DequantizeLinear(k, t, z) U = DequantizeLinear<axis = 1>(T, u)"
    " n = MatMul(e, U) o = Add(n, c) a = Add(x, o)"
)
NORM = " y = LayerNormalization<axis = -1, epsilon = 0.001>(a, f, g)"
BLOCK = FIRST + SECOND + NORM
ROWS, CHANNELS, HIDDEN = 63, 16, 32


def constants(**changes: np.ndarray) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)

    def weight(*shape: int) -> np.ndarray:
        return (random.standard_normal(shape) * 30).astype(np.int8)

    def half(*shape: int) -> np.ndarray:
        return random.standard_normal(shape).astype(np.float16)

    return {
        "s": np.float16(0.03),
        "t": np.float16(0.05),
        "z": np.int8(0),
        "W": weight(CHANNELS, HIDDEN),
        "w": np.full(HIDDEN, 0.006, np.float16),
        "b": half(HIDDEN),
        "T": weight(HIDDEN, CHANNELS),
        "u": np.full(CHANNELS, 0.004, np.float16),
        "c": half(CHANNELS),
        "f": half(CHANNELS),
        "g": half(CHANNELS),
    } | changes


def make_model(body: str = BLOCK, outputs: str = "", **changes: np.ndarray) -> onnx.ModelProto:
    x, y = (f"float16[2, {ROWS}, {CHANNELS}] {name}" for name in "xy")
    model = eight_bit_layers.quantized_model(body, x, y + outputs, constants(**changes))
    for node in model.graph.node:
        node.name = f"/block/fc/{node.output[0]}/{node.op_type}"
    return onnx.shape_inference.infer_shapes(model)


def fused(model: onnx.ModelProto, fast: bool = True, rows: int = 2 * ROWS) -> onnx.ModelProto:
    """Fuses the layers and blocks of a model, and adds the bodies of the new nodes."""
    changed = ir.from_proto(model)
    assert fuse_layers(changed, lambda layer: layer.residual is None or layer.output_scale is None) == 2
    asked = []
    count = fuse_quantized_feed_forwards(changed.graph, lambda *sizes: asked.append(sizes) or fast)
    assert asked in ([], [(rows, CHANNELS, HIDDEN)]) and count == (len(asked) if fast else 0)
    proto = ir.to_proto(changed)
    add_bodies_of_opset(proto, opset_of(proto))
    onnx.checker.check_model(with_all_outputs(proto), full_check=True)
    return proto


def with_all_outputs(model: onnx.ModelProto) -> onnx.ModelProto:
    """Returns a copy whose nodes have unused outputs too: other than TensorRT, ONNX's functions want them."""
    copy = onnx.ModelProto.FromString(model.SerializeToString())
    for node in copy.graph.node:
        if node.op_type == QUANTIZED_FEED_FORWARD:
            node.output.extend([""] * (2 - len(node.output)))
    return copy


def results(model: onnx.ModelProto) -> list[np.ndarray]:
    return open_session(with_all_outputs(model)).run(None, {"x": X})


def types_of(model: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node]


def check_result(found: np.ndarray, expected: np.ndarray) -> None:
    """Compares a result with that of Q/DQ nodes, which round to float16 after every step."""
    error = relative_error(torch.from_numpy(found).float(), torch.from_numpy(expected).double())
    assert error < 8 * TOLERANCE[torch.float16]


X = np.random.default_rng(1).standard_normal((2, ROWS, CHANNELS)).astype(np.float16)


@pytest.mark.parametrize("body", [BLOCK, BLOCK.replace("Add(x, o)", "Add(o, x)")])
def test_block_that_becomes_a_node(body):
    model = make_model(body)
    found = fused(model)
    (node,) = found.graph.node
    assert node.op_type == QUANTIZED_FEED_FORWARD and node.name == "/block/fc/QuantizedFeedForward"
    numbers = {x.name: onnx.helper.get_attribute_value(x) for x in node.attribute}
    fields = [numbers[name] for name in ("x_scale", "hidden_scale", "eps", "next_scale")]
    assert fields == pytest.approx([0.03, 0.05, 1e-3, 0], rel=1e-3)
    check_result(*(results(m)[0] for m in (found, model)))


def test_quantiser_with_another_reader_stays():
    body = BLOCK + " h = DequantizeLinear(q, s, z) v = Neg(h)"
    found = fused(make_model(body, f", float16[2, {ROWS}, {CHANNELS}] v"))
    expected = ["QuantizeLinear", QUANTIZED_FEED_FORWARD, "DequantizeLinear", "Neg"]
    assert sorted(types_of(found)) == sorted(expected)


# An encoder's next layer reads the result in int8.
NEXT = " l = QuantizeLinear(y, s, z) h = DequantizeLinear(l, s, z) v = Neg(h)"
OTHER_SCALE = " k2 = QuantizeLinear(y, t, z) w2 = DequantizeLinear(k2, t, z) i = Neg(w2)"


@pytest.mark.parametrize(
    "others", ["", OTHER_SCALE, " l2 = QuantizeLinear(y, s, z) i = DequantizeLinear(l2, s, z)"]
)
def test_result_in_int8(others):
    """The node gives y in int8 for all quantisers of the first one's scale."""
    listed = "".join(f", float16[2, {ROWS}, {CHANNELS}] {name}" for name in ("vi" if others else "v"))
    model = make_model(BLOCK + NEXT + others, listed)
    found = fused(model)
    (node,) = (node for node in found.graph.node if node.op_type == QUANTIZED_FEED_FORWARD)
    numbers = {x.name: onnx.helper.get_attribute_value(x) for x in node.attribute}
    assert len(node.output) == 2 and numbers["next_scale"] == pytest.approx(0.03, rel=1e-3)
    assert types_of(found).count("QuantizeLinear") == (others == OTHER_SCALE)
    for pair in zip(*map(results, (found, model)), strict=True):
        check_result(*pair)


OTHER = f", float16[2, {ROWS}, {CHANNELS}] "
STAY = {
    "another residual": (BLOCK.replace("Add(x, o)", "Add(v, o)") + " v = Neg(x)", ""),
    "a GELU": (BLOCK.replace("Relu", "Gelu"), ""),
    "a sum with a reader": (BLOCK + " v = Neg(a)", OTHER + "v"),
    "a sum that is an output": (BLOCK, OTHER + "a"),
    "hidden numbers that are an output": (BLOCK, f", int8[2, {ROWS}, {HIDDEN}] k"),
    "another axis": (BLOCK.replace("axis = -1", "axis = 1"), ""),
    "no bias": (BLOCK.replace("(a, f, g)", "(a, f)"), ""),
    "a mean": (BLOCK.replace("y = LayerN", "y, v = LayerN"), f", float[2, {ROWS}, 1] v"),
}


@pytest.mark.parametrize("name", STAY)
def test_blocks_that_stay(name):
    body, outputs = STAY[name]
    if "v = Neg(x)" in body:
        body = "v = Neg(x) " + body.removesuffix(" v = Neg(x)")
    norm = {"f": np.ones((ROWS, CHANNELS), np.float16), "g": np.ones((ROWS, CHANNELS), np.float16)}
    model = make_model(body, outputs, **(norm if name == "another axis" else {}))
    found = types_of(fused(model))
    assert found.count(QUANTIZED_LINEAR) == 2 and "LayerNormalization" in found


def test_blocks_without_a_fast_kernel_stay():
    assert types_of(fused(make_model(), fast=False)).count(QUANTIZED_LINEAR) == 2


@pytest.mark.parametrize("fast", [True, False])
def test_rule_of_the_library_decides(fast, monkeypatch):
    """A build asks for the block with its sizes."""
    has_fast = Mock(return_value=fast)
    monkeypatch.setattr(library, "has_fast_quantized_linear", lambda *layer: sum(layer[2:5]) <= 1)
    monkeypatch.setattr(library, "has_fast_quantized_feed_forward", has_fast)
    model = make_model()
    assert model_for_tensorrt.fit_to_tensorrt(model, Path())
    has_fast.assert_called_once_with(2 * ROWS, CHANNELS, HIDDEN)
    assert types_of(model).count(QUANTIZED_FEED_FORWARD) == fast
    assert types_of(model).count(QUANTIZED_LINEAR) == (0 if fast else 2)


def test_dynamic_rows():
    """A dynamic number of rows of an image counts as many."""
    model = make_model()
    for value in (*model.graph.input, *model.graph.output, *model.graph.value_info):
        if len(value.type.tensor_type.shape.dim) == 3:
            value.type.tensor_type.shape.dim[1].dim_param = "rows"
    assert types_of(fused(model, rows=2**15)) == [QUANTIZED_FEED_FORWARD]


# Engines.


@pytest.mark.gpu
@pytest.mark.parametrize("following", ["", NEXT], ids=["1 output", "2 outputs"])
def test_engine(tmp_path, following):
    """One plugin layer runs the block, and nothing quantises before it."""
    model = make_model(BLOCK + following, f", float16[2, {ROWS}, {CHANNELS}] v" if following else "")
    expected = onnx_session.run(model, {"x": X.astype(np.float32)})
    path = eight_bit_layers.build_fused_engine(tmp_path, fused(model), plugins=1)
    with trt_plugin.EngineRunner(path) as runner:
        found = runner({"x": X.astype(np.float32)})
    for name, numbers in zip("yv", expected):
        check_result(found[name], numbers)
