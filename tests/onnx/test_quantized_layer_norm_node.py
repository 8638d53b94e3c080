"""Layer normalisation with a result in 8 bits as ONNX nodes: body, the pass that makes them, and engines."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch

import msda
import trt_plugin
from benchmarks.operator_errors import TOLERANCE, relative_error
from msda.checks import EIGHT_BIT_TYPES
from onnx_path.nodes.attention import OPSET_VERSION
from onnx_path.nodes.domain import DOMAIN
from onnx_path.surgery.graph import onnx_session
from onnx_path.surgery.rewrite.function_bodies import LOWEST_OPSET
from onnx_path.tensorrt.fused_quantized_linears import fuse_layers
from tests.onnx import eight_bit_layers, map_nodes
from tests.onnx.eight_bit_layers import ARRAYS, CODES, FP8, PRECISIONS
from tests.onnx.map_nodes import add_bodies_of_opset, open_session
from tests.onnx.text_models import text_model
from trt_plugin.library import QUANTIZED_LAYER_NORM, QUANTIZED_LINEAR

EPS, SCALE = 1e-3, 0.0625


def make_inputs(shape: tuple[int, ...], dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    random = torch.Generator().manual_seed(sum(shape))
    sizes = shape, shape[-1:], shape[-1:]
    x, weight, bias = (torch.randn(size, generator=random).to(dtype) for size in sizes)
    return x + 2, weight, bias


# The body.


@pytest.mark.parametrize("opset", [LOWEST_OPSET, 18, OPSET_VERSION, 22])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("eight_bits", EIGHT_BIT_TYPES, ids=str)
def test_body_in_onnxruntime(eight_bits, dtype, opset):
    """One session for every size: the reference's result, but where float32 rounds to the next number."""
    if eight_bits == FP8 and opset < 19:
        pytest.skip("the opset has no FP8")
    node = (
        f"msda.QuantizedLayerNorm<eps = {EPS}, output_type = {CODES[eight_bits]}, scale = {SCALE},"
        ' plugin_namespace = "msda", plugin_version = "1">'
    )
    code = map_nodes.CODES[dtype]
    model = text_model(
        f"q = {node}(x, weight, bias) y = Cast<to = 1>(q)",
        f"{code}[n, s, c] x, {code}[c] weight, {code}[c] bias",
        "float[n, s, c] y",
        opset,
        domains=DOMAIN,
    )
    add_bodies_of_opset(model, opset)
    session = open_session(model)
    for shape in ((2, 9, 24), (1, 3, 1), (3, 1, 200), (0, 4, 8)):
        inputs = make_inputs(shape, dtype)
        (found,) = session.run(None, dict(zip(("x", "weight", "bias"), (x.numpy() for x in inputs))))
        expected = msda.quantized_layer_norm(*inputs, EPS, SCALE, eight_bits)
        eight_bit_layers.check_numbers(torch.from_numpy(found), expected, eight_bits)


# The pass.

LAYER = (
    " d{0} = DequantizeLinear(q{0}, s, z) v{0} = DequantizeLinear<axis = 1>(W, w) {1} = MatMul(d{0}, v{0})"
)
QUANTISE = " q{0} = QuantizeLinear(h, {1}, z)"
NORM = "h = LayerNormalization<axis = -1, epsilon = 0.001>(x, a, b)"
MAP = NORM + " m = Reshape(h, M) r = Reshape(m, R)"
ONE = NORM + QUANTISE.format(0, "s") + LAYER.format(0, "y")


def constants(precision: str = "int8", **changes: np.ndarray) -> dict[str, np.ndarray]:
    dtype, random = ARRAYS[PRECISIONS[precision]], np.random.default_rng(0)
    return {
        "a": random.standard_normal(16).astype(np.float16),
        "b": random.standard_normal(16).astype(np.float16),
        "s": np.float16(0.03),
        "t": np.float16(0.05),
        "z": np.zeros((), dtype),
        "W": (random.standard_normal((16, 32)) * 30).astype(np.float32).astype(dtype),
        "w": np.full(32, 0.001, np.float16),
        "M": np.array([2, 7, 9, 16]),
        "R": np.array([2, -1, 16]),
    } | changes


def make_model(body: str, outputs: str, arrays: dict[str, np.ndarray]) -> onnx.ModelProto:
    model = eight_bit_layers.quantized_model(body, "float16[2, 63, 16] x", outputs, arrays)
    for node in model.graph.node:
        node.name = f"/block/{node.output[0]}/{node.op_type}"
    return onnx.shape_inference.infer_shapes(model)


def fused(model: onnx.ModelProto) -> onnx.ModelProto:
    return eight_bit_layers.fused(model, lambda layer: layer.output_scale is None)


def types_of(model: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node]


OUTPUT = "float16[2, 63, 32] y"
TWO_OUTPUTS = OUTPUT + ", float16[2, 63, 32] k"
FUSED = {
    "one layer": (ONE, OUTPUT),
    "a default axis": (ONE.replace("axis = -1, ", ""), OUTPUT),
    "two layers": (ONE + LAYER.format(1, "k").replace("q1", "q0"), TWO_OUTPUTS),
    "two quantisers": (ONE + QUANTISE.format(1, "s") + LAYER.format(1, "k"), TWO_OUTPUTS),
}


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", FUSED)
def test_normalisations_that_become_a_node(name, precision):
    model = make_model(*FUSED[name], constants(precision))
    found = fused(model)
    layers = [QUANTIZED_LINEAR] * FUSED[name][0].count("MatMul")
    assert types_of(found) == [QUANTIZED_LAYER_NORM, *layers]
    node = found.graph.node[0]
    assert node.name == "/block/h/QuantizedLayerNorm" and list(node.input) == ["x", "a", "b"]
    numbers = {x.name: onnx.helper.get_attribute_value(x) for x in node.attribute}
    assert numbers["output_type"] == CODES[PRECISIONS[precision]]
    assert (numbers["eps"], numbers["scale"]) == pytest.approx((1e-3, 0.03), rel=1e-3)
    compare(found, model)


def test_a_map_between_the_two():
    """Reshapes that give the rows their shape again go."""
    body = MAP + QUANTISE.format(0, "s").replace("(h,", "(r,") + LAYER.format(0, "y")
    model = make_model(body, OUTPUT, constants())
    found = fused(model)
    assert types_of(found) == [QUANTIZED_LAYER_NORM, QUANTIZED_LINEAR]
    compare(found, model)


def compare(found: onnx.ModelProto, model: onnx.ModelProto) -> None:
    """Compares results with those of Q/DQ nodes, which round to float16 before they quantise."""
    x = np.random.default_rng(1).standard_normal((2, 63, 16)).astype(np.float16)
    pairs = zip(*(open_session(m).run(None, {"x": x}) for m in (found, model)), strict=True)
    for one, other in pairs:
        error = relative_error(torch.from_numpy(one), torch.from_numpy(other).double())
        assert error < 4 * TOLERANCE[torch.float16]


STAY = {
    "another shape": (
        MAP + QUANTISE.format(0, "s").replace("(h,", "(m,") + LAYER.format(0, "y"),
        "float16[2, 7, 9, 32] y",
        {},
    ),
    "a reader in 16 bits": (ONE + " k = Neg(h)", OUTPUT + ", float16[2, 63, 16] k", {}),
    "an output in 16 bits": (ONE, OUTPUT + ", float16[2, 63, 16] h", {}),
    "a quantised output": (ONE, OUTPUT + ", int8[2, 63, 16] q0", {}),
    "another scale": (
        ONE + QUANTISE.format(1, "t") + LAYER.format(1, "k").replace("(q1, s", "(q1, t"),
        TWO_OUTPUTS,
        {},
    ),
    "a reader that dequantises": (
        ONE + " e = DequantizeLinear(q0, s, z) k = Neg(e)",
        OUTPUT + ", float16[2, 63, 16] k",
        {},
    ),
    "another axis": (
        ONE.replace("axis = -1", "axis = 1"),
        OUTPUT,
        {"a": np.ones((63, 16), np.float16), "b": np.ones((63, 16), np.float16)},
    ),
    "no bias": (ONE.replace("(x, a, b)", "(x, a)"), OUTPUT, {}),
    "a computed weight": (
        "n = Slice(x, r, u) f = Reshape(n, g) " + ONE.replace("(x, a, b)", "(x, f, b)"),
        OUTPUT,
        {"r": np.array([0, 0]), "u": np.array([1, 1]), "g": np.array([16])},
    ),
    "a mean": (
        ONE.replace("h = LayerN", "h, k = LayerN"),
        OUTPUT + ", float[2, 63, 1] k",
        {},
    ),
}


@pytest.mark.parametrize("name", STAY)
def test_normalisations_that_stay(name):
    body, outputs, changes = STAY[name]
    found = fused(make_model(body, outputs, constants(**changes)))
    assert QUANTIZED_LAYER_NORM not in types_of(found)
    assert QUANTIZED_LINEAR in types_of(found) and "LayerNormalization" in types_of(found)


@pytest.mark.parametrize("zero", [np.int8(3), np.uint8(0)])
def test_quantisers_with_a_zero_point_stay(zero):
    found = fused(make_model(ONE, OUTPUT, constants(z=zero)))
    assert "LayerNormalization" in types_of(found) and QUANTIZED_LAYER_NORM not in types_of(found)


def test_without_layers_in_8_bits_nothing_changes():
    model = make_model(ONE, OUTPUT, constants())
    changed = ir.from_proto(model)
    assert fuse_layers(changed, lambda layer: False) == 0
    assert types_of(ir.to_proto(changed)) == types_of(model)


# Engines.


@pytest.mark.gpu
@pytest.mark.parametrize("name", FUSED)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_engine(tmp_path, precision, name):
    """TensorRT hands the plugin's 8 bits to the layers behind it, and no other kernel quantises."""
    model = make_model(*FUSED[name], constants(precision))
    x = np.random.default_rng(1).standard_normal((2, 63, 16)).astype(np.float16).astype(np.float32)
    expected = onnx_session.run(model, {"x": x})
    node_model = fused(model)
    path = eight_bit_layers.build_fused_engine(tmp_path, node_model, plugins=len(node_model.graph.node))
    with trt_plugin.EngineRunner(path) as runner:
        found = runner({"x": x})
    for output, other in zip(model.graph.output, expected, strict=True):
        error = relative_error(torch.from_numpy(found[output.name]), torch.from_numpy(other).double())
        assert error < (4 if precision == "int8" else 16) * TOLERANCE[torch.float16]
