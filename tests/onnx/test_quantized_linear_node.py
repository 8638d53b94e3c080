"""Linear layers with 8-bit inputs as ONNX nodes: their body, the pass that makes them, and engines."""

from __future__ import annotations

import itertools
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
from msda.checks import ACTIVATIONS, EIGHT_BIT_TYPES
from msda.quantized_linear_reference import quantize
from onnx_path.nodes.attention import OPSET_VERSION, add_function_bodies
from onnx_path.nodes.domain import DOMAIN, PLUGIN_ATTRIBUTES
from onnx_path.nodes.quantized_linear import pack_weights
from onnx_path.precision import convert_precision
from onnx_path.quantization.placement import FORMATS, insert_nodes
from onnx_path.quantization.products import find_products
from onnx_path.surgery.graph import onnx_session
from onnx_path.tensorrt import fused_quantized_linears, model_for_tensorrt
from onnx_path.tensorrt.fused_quantized_linears import QuantizedLayer, fuse_layers
from onnx_path.tensorrt.graph_passes import run_passes
from onnx_path.tensorrt.tensorrt_engine import Settings, serialize_engine
from onnx_path.tensorrt.written_out_linears import write_out_linears
from tests.engines.plugin_engines import plugin_or_skip, save
from tests.onnx import eight_bit_layers
from tests.onnx.eight_bit_layers import ARRAYS, CODES, PRECISIONS
from tests.onnx.map_nodes import ELEMENTS, open_session
from tests.onnx.text_models import text_model
from trt_plugin import library
from trt_plugin.library import QUANTIZED_LINEAR

ON_TENSOR_CORES = {"int8": 1, "fp8": 4}
"""Factors of the allowed errors on tensor cores, which add the products of E4M3 in fewer bits than float32
has, so more results of 8 bits are a step off, and a step is 6% to 12%."""


# The body.


def one_node(inputs: dict, attributes: dict, output_type: int) -> onnx.ModelProto:
    """A model of one node between casts: x and the result are float32, residual and mask float16."""
    make = onnx.helper.make_node
    weights = {name: inputs[name] for name in ("weight", "scale", "bias")}
    nodes = [make("Cast", ["x"], ["narrow"], to=inputs["type"])]
    given = ["narrow", "weight", "scale", "bias"]
    for name in ("residual", "mask"):
        given.append(name if attributes[f"{'add' if name == 'residual' else 'multiply'}_{name}"] else "bias")
    text = PLUGIN_ATTRIBUTES
    nodes.append(make(QUANTIZED_LINEAR, given, ["result"], "node", domain=DOMAIN, **attributes, **text))
    nodes.append(make("Cast", ["result"], ["output"], to=onnx.TensorProto.FLOAT))
    tensor, float32 = onnx.helper.make_tensor_value_info, onnx.TensorProto.FLOAT
    graph = onnx.helper.make_graph(
        nodes,
        "one_node",
        [
            tensor("x", float32, ("n", "s", "k")),
            tensor("residual", onnx.TensorProto.FLOAT16, ("n", "s", "o")),
            tensor("mask", onnx.TensorProto.FLOAT16, ("n", "s", 1)),
        ],
        [tensor("output", float32, ("n", "s", "o"))],
        [onnx.numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    imports = [onnx.helper.make_opsetid("", OPSET_VERSION), onnx.helper.make_opsetid(DOMAIN, 1)]
    model = onnx.helper.make_model(graph, opset_imports=imports, ir_version=10)
    add_function_bodies(model)
    return model


@pytest.mark.parametrize("to_eight_bits", [False, True])
@pytest.mark.parametrize("form", list(itertools.product(range(3), (0, 1), (0, 1))), ids=str)
@pytest.mark.parametrize("eight_bits", EIGHT_BIT_TYPES, ids=str)
def test_body_in_onnxruntime(eight_bits, form, to_eight_bits):
    """The reference's result, from packed weights that have every number of the type but NaN."""
    random = torch.Generator().manual_seed(0)
    every = torch.arange(256, dtype=torch.uint8).view(eight_bits)
    every = every[~every.float().isnan()].repeat(3)[: 40 * 16].reshape(40, 16)
    x = quantize(torch.randn(2, 9, 16, generator=random) * 40, eight_bits)
    scale = torch.rand(40, generator=random) / 20000
    bias = torch.randn(40, generator=random)
    residual = torch.randn(2, 9, 40, generator=random).half()
    mask = torch.randn(2, 9, 1, generator=random).relu().half()
    output_scale = 0.02 if to_eight_bits else None
    code = CODES[eight_bits if to_eight_bits else torch.float16]
    attributes = dict(zip(("activation", "add_residual", "multiply_mask"), form, strict=True))
    attributes |= {"output_type": code, "output_scale": output_scale or 1.0}
    packed = pack_weights(every.view(torch.uint8).numpy())
    weights = {"weight": packed, "scale": scale.numpy(), "bias": bias.numpy(), "type": CODES[eight_bits]}
    session = open_session(one_node(weights, attributes, code))
    given = {"x": x.float().numpy(), "residual": residual.numpy(), "mask": mask.numpy()}
    (found,) = session.run(None, given)
    expected = msda.quantized_linear_reference.quantized_linear(
        x,
        every,
        scale,
        bias,
        residual if form[1] else None,
        ACTIVATIONS[form[0]],
        mask if form[2] else None,
        output_scale,
    )
    found = torch.from_numpy(found)
    if to_eight_bits:  # the body divides by the scale and adds in another order
        eight_bit_layers.check_numbers(found, expected, eight_bits)
    else:
        assert relative_error(found, expected.double()) <= TOLERANCE[torch.float16]


def test_packed_weights():
    """The first of four numbers is in the lowest byte."""
    assert pack_weights(np.array([[1, 2, 3, -1]], np.int8)).tolist() == [[0x01 + 0x200 + 0x30000 - 2**24]]


# The pass.

WEIGHTS = {"W": (256, 64), "b": (256,), "V": (64, 256), "c": (64,), "U": (128, 64), "d": (128,)}
BLOCK = (
    "h = msda.Linear<activation = {activation}, add_residual = 0, multiply_mask = 0>(x, W, b, b, b)"
    " s = msda.Linear<activation = 0, add_residual = 1, multiply_mask = 0>(h, V, c, x, c)"
    " y = msda.Linear<activation = 0, add_residual = 0, multiply_mask = 1>(z, U, d, d, m)"
)
"""The feed-forward block of a transformer, and beside it a layer with a mask."""


def quantized_block(
    precision: str, wide: str = "fp16", activation: str = "gelu"
) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """A model of three layers in 8 bits, as `onnx_path.quantize` writes it, and its inputs."""
    random = np.random.default_rng(0)
    weights = {
        name: random.standard_normal(size, dtype=np.float32) / size[-1] ** 0.5
        for name, size in WEIGHTS.items()
    }
    body = BLOCK.format(activation=ACTIVATIONS.index(activation))
    edges = (
        "float[2, 63, 64] x, float[2, 63, 64] z, float[2, 63, 1] m",
        "float[2, 63, 64] s, float[2, 63, 128] y",
    )
    model = text_model(body, *edges, OPSET_VERSION, domains=DOMAIN, **weights)
    for node, name in zip(model.graph.node, ("fc1", "fc2", "last"), strict=True):
        node.name = f"/mlp/{name}/Linear"
    add_function_bodies(model)
    if wide != "fp32":
        convert_precision(model, wide)
    changed = ir.from_proto(model)
    write_out_linears(changed)
    products = list(find_products(changed.graph))
    ranges = {value.name: 3.0 for product in products for value in [product.source]}
    insert_nodes(changed.graph, products, ranges, FORMATS[precision])
    inputs = {
        "x": random.standard_normal((2, 63, 64)).astype(np.float16).astype(np.float32),
        "z": random.standard_normal((2, 63, 64)).astype(np.float16).astype(np.float32),
        "m": (random.random((2, 63, 1)) < 0.7).astype(np.float32),
    }
    return ir.to_proto(changed), inputs


def as_in_the_library(layer: QuantizedLayer) -> bool:
    """The rule of quantized_linear_choice.h."""
    endings = layer.residual is not None, layer.mask is not None, layer.output_scale is not None
    return sum(endings) <= 1


def fused(model: onnx.ModelProto) -> onnx.ModelProto:
    return eight_bit_layers.fused(model, as_in_the_library)


def check_outputs(fused_model: onnx.ModelProto, model: onnx.ModelProto, inputs: dict) -> None:
    """Compares the outputs of nodes in 16 bits with those of Q/DQ nodes in float32."""
    found = dict(zip(("s", "y"), open_session(fused_model).run(None, inputs), strict=True))
    compare_outputs(found, model, inputs, torch.float16)


def compare_outputs(
    found: dict, model: onnx.ModelProto, inputs: dict, dtype: torch.dtype, factor: float = 1
) -> None:
    """Compares outputs with those of Q/DQ nodes in float32.

    Args:
        factor: of the allowed error.
    """
    for name, expected in zip(("s", "y"), onnx_session.run(model, inputs), strict=True):
        error = relative_error(torch.from_numpy(found[name]), torch.from_numpy(expected).double())
        # A step of 8 bits more or less, where sums and GELU before it are rounded differently.
        assert error < 4 * factor * TOLERANCE[dtype], name


def nodes_of(model: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node if node.op_type != "Cast"]


def numbers_of(model: onnx.ModelProto) -> list[dict[str, float]]:
    """The attributes of the nodes of 8-bit layers."""
    nodes = [node for node in model.graph.node if node.op_type == QUANTIZED_LINEAR]
    return [
        {
            x.name: onnx.helper.get_attribute_value(x)
            for x in node.attribute
            if x.name not in PLUGIN_ATTRIBUTES
        }
        for node in nodes
    ]


@pytest.mark.parametrize("activation", ["gelu", "relu", "none"])
@pytest.mark.parametrize("wide", ["fp16", "bf16"])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_block_becomes_three_nodes(precision, wide, activation):
    """The first layer hands 8 bits to the second, whose residual keeps its result in 16."""
    model, inputs = quantized_block(precision, wide, activation)
    found = fused(model)
    expected = ["QuantizeLinear", "QuantizeLinear", *[QUANTIZED_LINEAR] * 3]
    assert sorted(nodes_of(found)) == sorted(expected)
    names = [node.name for node in found.graph.node if node.op_type == QUANTIZED_LINEAR]
    assert names == [f"/mlp/{name}/{QUANTIZED_LINEAR}" for name in ("fc1", "fc2", "last")]
    eight, sixteen = CODES[PRECISIONS[precision]], ELEMENTS[wide]
    forms = [
        (ACTIVATIONS.index(activation), 0, 0, eight),
        (0, 1, 0, sixteen),
        (0, 0, 1, sixteen),
    ]
    names = ("activation", "add_residual", "multiply_mask", "output_type")
    assert [tuple(numbers[name] for name in names) for numbers in numbers_of(found)] == forms
    if wide == "fp16":  # onnxruntime has no bfloat16 products
        check_outputs(found, model, inputs)


def test_rule_of_the_library_decides(monkeypatch):
    """A build asks for each layer with as many steps as it finds, and takes the longest that is fast."""
    has_fast = Mock(side_effect=lambda *layer: layer[1] == 256 and not layer[4])
    monkeypatch.setattr(library, "has_fast_quantized_linear", has_fast)
    model, _ = quantized_block("int8")
    assert model_for_tensorrt.fit_to_tensorrt(model, Path())
    asked = [call.args for call in has_fast.call_args_list]
    assert {layer[:2] for layer in asked} == {(64, 256), (256, 64), (64, 128)}
    assert {layer[5] for layer in asked} == {"int8"}
    assert nodes_of(model).count(QUANTIZED_LINEAR) == 1
    (numbers,) = numbers_of(model)
    assert (numbers["activation"], numbers["output_type"]) == (1, onnx.TensorProto.FLOAT16)
    assert nodes_of(model).count("MatMul") == 2 and not model.functions


def test_without_a_plugin_nothing_changes(monkeypatch):
    def missing(*arguments):
        raise fused_quantized_linears_error()

    monkeypatch.setattr(library, "has_fast_quantized_linear", missing)
    model, _ = quantized_block("int8")
    before = model.SerializeToString()
    assert run_passes(model, Path(), fused_quantized_linears.fuse_quantized_linears) == 0
    assert model.SerializeToString() == before


def fused_quantized_linears_error() -> Exception:
    from trt_plugin.engine_error import EngineError

    return EngineError("no TensorRT")


SCALES = {
    "s": np.float16(0.02),
    "z": np.int8(0),
    "W": np.ones((16, 32), np.int8),
    "w": np.full(32, 0.01, np.float16),
    "b": np.ones(32, np.float16),
    "t": np.float16(0.03),
}
QUANTISE = "q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) "
LAYER = QUANTISE + "v = DequantizeLinear<axis = 1>(W, w) h = MatMul(d, v) p = Add(b, h) "
BEHIND = " k = QuantizeLinear({0}, t, z) y = DequantizeLinear(k, t, z)"
NEAR_MISSES = {
    "two readers": (LAYER + "r = Relu(p) a = Neg(r)" + BEHIND.format("r"), "a", {}, (2, 10)),
    "two scales": (
        LAYER + "r = Relu(p) j = QuantizeLinear(r, s, z) a = DequantizeLinear(j, s, z)" + BEHIND.format("r"),
        "a",
        {},
        (2, 10),
    ),
    "tanh": (LAYER + 'r = Gelu<approximate = "tanh">(p)' + BEHIND.format("r"), "", {}, (0, 10)),
    "broadcast sum": (LAYER + "y = Add(p, e)", "", {"e": np.ones((1, 1, 32), np.float16)}, None),
    "bias of rows": (
        QUANTISE + "v = DequantizeLinear<axis = 1>(W, w) h = MatMul(d, v) y = Add(h, e)",
        "",
        {"e": np.ones((3, 1), np.float16)},
        (0, 10),
    ),
}


@pytest.mark.parametrize("name", NEAR_MISSES)
def test_steps_that_stay_behind_a_node(name):
    """The layer becomes a node, but not with a step that the operator does not compute."""
    body, other, constants, expected = NEAR_MISSES[name]
    outputs = "float16[2, 3, 32] y" + (f", float16[2, 3, 32] {other}" if other else "")
    model = text_model(body, "float16[2, 3, 16] x", outputs, OPSET_VERSION, **SCALES, **constants)
    found = fused(onnx.shape_inference.infer_shapes(model))
    (numbers,) = numbers_of(found)
    if expected:
        assert (numbers["activation"], numbers["output_type"]) == expected
    x = np.random.default_rng(0).standard_normal((2, 3, 16)).astype(np.float16)
    for one, before in zip(*(open_session(m).run(None, {"x": x}) for m in (found, model)), strict=True):
        np.testing.assert_allclose(one, before, atol=0.031, rtol=2e-3)  # a step of the second scale


STAY = {
    "zero point": (LAYER, {"z": np.int8(3)}),
    "unsigned": (LAYER, {"z": np.uint8(0)}),
    "scales of columns of x": (LAYER, {"s": np.full(16, 0.02, np.float16)}),
    "scales of the weights' inputs": (
        LAYER.replace("axis = 1>(W", "axis = 0>(W"),
        {"w": np.full(16, 0.01, np.float16)},
    ),
    "no quantisation of x": (
        "d = Identity(x) v = DequantizeLinear<axis = 1>(W, w) h = MatMul(d, v) p = Add(b, h)",
        {},
    ),
    "alpha": (
        QUANTISE
        + "v = DequantizeLinear<axis = 1>(W, w) f = Flatten<axis = 2>(d) p = Gemm<alpha = 0.5>(f, v, b)",
        {},
    ),
    "K of 18": (LAYER, {"W": np.ones((18, 32), np.int8)}),
}


@pytest.mark.parametrize("name", STAY)
def test_layers_that_stay(name):
    body, changes = STAY[name]
    columns = 18 if name == "K of 18" else 16
    if name == "scales of columns of x":
        body = body.replace("QuantizeLinear(x", "QuantizeLinear<axis = 2>(x").replace(
            "DequantizeLinear(q", "DequantizeLinear<axis = 2>(q"
        )
    text = f"float16[2, 3, {columns}] x"
    model = text_model(body, text, "float16[a, b, 32] p", OPSET_VERSION, **(SCALES | changes))
    changed = ir.from_proto(model)
    assert fuse_layers(changed, lambda layer: True) == 0
    assert nodes_of(ir.to_proto(changed)) == nodes_of(model)


def test_float32_layers_stay():
    model, _ = quantized_block("int8", "fp32")
    assert fuse_layers(ir.from_proto(model), lambda layer: True) == 0


@pytest.mark.parametrize("form", ["transposed weights", "Gemm", "Gemm of rows"])
def test_other_forms_of_a_product(form):
    """Files of other tools transpose the weights behind their DequantizeLinear, or have a Gemm."""
    rows = {"W": np.random.default_rng(0).integers(-127, 128, (32, 16)).astype(np.int8)}
    v = "v = DequantizeLinear<axis = 0>(W, w) "
    body = (
        QUANTISE
        + {
            "transposed weights": v + "u = Transpose<perm = [1, 0]>(v) h = MatMul(d, u) p = Add(b, h)",
            "Gemm": v + "u = Transpose<perm = [1, 0]>(v) p = Gemm(d, u, b)",
            "Gemm of rows": v + "p = Gemm<transB = 1>(d, v, b)",
        }[form]
    )
    model = text_model(body, "float16[6, 16] x", "float16[6, 32] p", OPSET_VERSION, **(SCALES | rows))
    found = fused(model)
    assert nodes_of(found) == ["QuantizeLinear", QUANTIZED_LINEAR]
    x = np.random.default_rng(1).standard_normal((6, 16)).astype(np.float16)
    (one,), (other,) = (open_session(m).run(None, {"x": x}) for m in (found, model))
    assert (
        relative_error(torch.from_numpy(one), torch.from_numpy(other).double()) < 4 * TOLERANCE[torch.float16]
    )


# Engines.


def one_layer(precision: str, to_eight_bits: bool) -> onnx.ModelProto:
    """A layer of a Q/DQ file in float16, with Q/DQ nodes behind it too if its result shall have 8 bits."""
    random = np.random.default_rng(0)
    dtype = ARRAYS[PRECISIONS[precision]]
    weight = random.integers(-100, 100, (64, 128)).astype(np.float32).astype(dtype)
    step = np.float16(0.03 if precision == "int8" else 0.01)
    constants = SCALES | {"s": step, "t": step, "z": np.zeros((), dtype), "W": weight}
    constants |= {"w": np.full(128, 1 / 1024, np.float16), "b": np.ones(128, np.float16)}
    if precision == "fp8":
        constants["w"] = np.float16(1 / 1024)
    body = (LAYER + BEHIND.format("p")) if to_eight_bits else LAYER.replace("p = Add", "y = Add")
    return eight_bit_layers.quantized_model(body, "float16[2, 63, 64] x", "float16[2, 63, 128] y", constants)


@pytest.mark.parametrize("to_eight_bits", [False, True])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_one_layer(precision, to_eight_bits):
    found = nodes_of(fused(one_layer(precision, to_eight_bits)))
    assert found == ["QuantizeLinear", QUANTIZED_LINEAR, *["DequantizeLinear"] * to_eight_bits]


@pytest.mark.gpu
@pytest.mark.parametrize("to_eight_bits", [False, True])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_engine_of_one_layer(tmp_path, precision, to_eight_bits):
    """TensorRT hands the plugin what a QuantizeLinear makes, and its result to a DequantizeLinear."""
    model = one_layer(precision, to_eight_bits)
    x = np.random.default_rng(1).standard_normal((2, 63, 64)).astype(np.float16).astype(np.float32)
    (expected,) = onnx_session.run(model, {"x": x})
    path = eight_bit_layers.build_fused_engine(tmp_path, fused(model), plugins=1)
    with trt_plugin.EngineRunner(path) as runner:
        found = torch.from_numpy(runner({"x": x})["y"])
    error = relative_error(found, torch.from_numpy(expected).double())
    assert error < 4 * ON_TENSOR_CORES[precision] * TOLERANCE[torch.float16]


@pytest.mark.gpu
@pytest.mark.parametrize("activation", ["gelu", "relu"])
@pytest.mark.parametrize("wide", ["fp16", "bf16"])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_engine_of_a_block(tmp_path, precision, wide, activation):
    """Two layers behind each other with 8 bits between, a residual and a mask."""
    model, inputs = quantized_block(precision, wide, activation)
    path = eight_bit_layers.build_fused_engine(tmp_path, fused(model), plugins=3)
    with trt_plugin.EngineRunner(path) as runner:
        dtype = torch.float16 if wide == "fp16" else torch.bfloat16
        compare_outputs(runner(inputs), model, inputs, dtype, ON_TENSOR_CORES[precision])


@pytest.mark.gpu
@pytest.mark.parametrize("precision", PRECISIONS)
def test_build_fuses_what_the_library_runs_fast(tmp_path, precision):
    """The way of `onnx_path.build`: all three layers on compute capability 9.0, none elsewhere."""
    plugin_or_skip()
    model, inputs = quantized_block(precision)
    onnx.save(model, tmp_path / "model.onnx")
    with model_for_tensorrt.parsed_file(tmp_path / "model.onnx") as parsed:
        count = nodes_of(onnx.load(parsed)).count(QUANTIZED_LINEAR)
        path = save(tmp_path, serialize_engine(parsed, Settings(), "block"))
    fast = library.has_fast_quantized_linear(64, 256, False, False, True, precision)
    assert count == (3 if fast else 0)
    with trt_plugin.EngineRunner(path) as runner:
        compare_outputs(runner(inputs), model, inputs, torch.float16, ON_TENSOR_CORES[precision])
