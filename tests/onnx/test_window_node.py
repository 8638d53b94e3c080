"""Window attention as an ONNX node: body, the pass that gives it a result in int8, and engines."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch

import msda
from benchmarks.operator_errors import TOLERANCE, relative_error
from msda import window_reference
from onnx_path.comparison.onnxruntime_reference import add_bodies
from onnx_path.nodes.attention import add_function_bodies
from onnx_path.nodes.domain import DOMAIN, PLUGIN_ATTRIBUTES
from onnx_path.nodes.window_attention import WINDOW_ATTENTION
from onnx_path.surgery.rewrite.function_bodies import LOWEST_OPSET
from onnx_path.tensorrt.fused_quantized_linears import fuse_layers
from onnx_path.tensorrt.optimization_profiles import ShapeRange
from tests.onnx import eight_bit_layers
from tests.onnx.eight_bit_layers import ARRAYS, PRECISIONS
from tests.onnx.map_nodes import (
    CODES,
    Shapes,
    add_bodies_of_opset,
    build_engine,
    check_conversion_of_map,
    exported_node,
    one_node,
    open_session,
    run_engine,
    run_session,
    sizes_of,
)
from tests.onnx.text_models import text_model
from trt_plugin.library import QUANTIZED_LINEAR

MAPS = [(2, 8, 8), (1, 9, 7), (3, 3, 5), (2, 1, 13), (1, 12, 16), (0, 4, 4)]
"""N, H, W."""

Inputs = dict[str, torch.Tensor]


def make_inputs(
    shape: tuple[int, int, int], size: int, heads: int, head_dim: int, padded: bool, dtype: torch.dtype
) -> Inputs:
    """Random qkv [N, H, W, 3 * C], bias [heads, L, L], and padding [3 * C] if the node has it."""
    random = torch.Generator().manual_seed(size + sum(shape))
    columns = 3 * heads * head_dim
    shapes = {"qkv": (*shape, columns), "bias": (heads, size**2, size**2)}
    shapes |= {"padding": (columns,)} if padded else {}
    return {name: torch.randn(x, generator=random).to(dtype) for name, x in shapes.items()}


def assert_close(found: np.ndarray, inputs: Inputs, size: int, shift: int) -> None:
    wide = {"padding": None} | {name: x.double() for name, x in inputs.items()}
    expected = window_reference.window_attention(**wide, window_size=size, shift=shift)
    error = relative_error(torch.from_numpy(found), expected)
    assert error <= TOLERANCE[inputs["qkv"].dtype], error


def window_node(dtype: torch.dtype, size: int, shift: int, shapes: Shapes, **options: int) -> onnx.ModelProto:
    return one_node(WINDOW_ATTENTION, {"window_size": size, "shift": shift}, dtype, shapes, **options)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("padded", [True, False], ids=["padding", "zeros"])
@pytest.mark.parametrize(("size", "shift"), [(4, 0), (4, 2), (5, 1), (7, 3), (1, 0)])
def test_body_in_onnxruntime(size, shift, padded, dtype):
    """One session for every map: no size is fixed."""
    shapes = {"qkv": ("n", "h", "w", "c3"), "bias": ("m", "l", "l"), "padding": ("c3",)}
    shapes = dict(list(shapes.items())[: 3 if padded else 2])
    model = window_node(dtype, size, shift, shapes)
    add_function_bodies(model)
    onnx.checker.check_model(model, full_check=True)
    session = open_session(model)
    for index, shape in enumerate(MAPS):
        inputs = make_inputs(shape, size, 1 + index % 3, 4 + index, padded, dtype)
        assert_close(run_session(session, inputs), inputs, size, shift)


@pytest.mark.parametrize("opset", [LOWEST_OPSET, 18, 22])
def test_body_in_another_opset(opset):
    inputs = make_inputs((2, 9, 7), 4, 2, 8, True, torch.float32)
    shapes = {name: tuple(x.shape) for name, x in inputs.items()}
    model = window_node(torch.float32, 4, 2, shapes, opset=opset)
    add_bodies_of_opset(model, opset)
    assert_close(run_session(open_session(model), inputs), inputs, 4, 2)


class Window(torch.nn.Module):
    def __init__(self, padded: bool) -> None:
        super().__init__()
        self.padded = padded

    def forward(self, qkv, bias, padding):
        return msda.window_attention(qkv, bias, padding if self.padded else None, 4, 2)


@pytest.mark.parametrize("padded", [True, False], ids=["padding", "zeros"])
def test_translation(padded):
    """Sizes of the map stay dynamic. Without padding the node has two inputs."""
    tensors = list(make_inputs((2, 9, 7), 4, 2, 8, True, torch.float32).values())
    node, attributes, output = exported_node(Window(padded), tensors, WINDOW_ATTENTION)
    assert attributes == {"window_size": 4, "shift": 2}
    assert [x for x in node.input if x] == ["qkv", "bias", "padding"][: 3 if padded else 2]
    assert sizes_of(output) == [0, 0, 0, 16]


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_conversion_to_16_bits(precision):
    """The linear layer's bias, which the node reads too, becomes 16-bit once."""
    body = """h = MatMul(x, W) qkv = Add(h, b)
        a = msda.WindowAttention<window_size = 4, shift = 2>(qkv, position, b) y = MatMul(a, V)"""
    sizes = {"W": (16, 48), "b": (48,), "position": (2, 16, 16), "V": (16, 16)}
    graph = check_conversion_of_map(body, sizes, WINDOW_ATTENTION, precision, converted=4)
    assert len(graph.initializer) == len(sizes)


@pytest.mark.parametrize("opset", [LOWEST_OPSET, 20])
@pytest.mark.parametrize("padded", [True, False], ids=["padding", "zeros"])
def test_body_in_int8(padded, opset):
    inputs = make_inputs((2, 9, 7), 4, 2, 8, padded, torch.float32)
    edges = "".join(f"float{list(x.shape)} {name}, " for name, x in inputs.items()).removesuffix(", ")
    node = "msda.WindowAttention<window_size = 4, shift = 2, output_scale = 0.01>"
    model = text_model(
        f"output = {node}({', '.join(inputs)})", edges, "int8[2, 9, 7, 16] output", opset, domains=DOMAIN
    )
    add_bodies(model)
    found = torch.from_numpy(run_session(open_session(model), inputs))
    expected = msda.window_attention(inputs["qkv"], inputs["bias"], inputs.get("padding"), 4, 2, 0.01)
    assert found.dtype == torch.int8
    eight_bit_layers.check_numbers(found.float(), expected, torch.int8)


# The pass.

NODE = "msda.WindowAttention<window_size = 4, shift = 2>(x, position, padding)"
WINDOW = f"a = {NODE} h = Reshape(a, R)"
QUANTISE = " q{0} = QuantizeLinear(h, {1}, z)"
LAYER = (
    " d{0} = DequantizeLinear(q{0}, s, z) v{0} = DequantizeLinear<axis = 1>(W, w) {1} = MatMul(d{0}, v{0})"
)
ONE = WINDOW + QUANTISE.format(0, "s") + LAYER.format(0, "y")
OUTPUT = "float16[2, 63, 32] y"
TWO_OUTPUTS = OUTPUT + ", float16[2, 63, 32] k"
FUSED = {
    "one layer": (ONE, OUTPUT),
    "no reshape": (ONE.replace(" h = Reshape(a, R)", "").replace("a = ", "h = "), "float16[2, 9, 7, 32] y"),
    "two reshapes": (ONE.replace("h = Reshape(a, R)", "b = Reshape(a, B) h = Reshape(b, R)"), OUTPUT),
    "two layers": (ONE + LAYER.format(1, "k").replace("q1", "q0"), TWO_OUTPUTS),
    "two quantisers": (ONE + QUANTISE.format(1, "s") + LAYER.format(1, "k"), TWO_OUTPUTS),
}
STAY = {
    "a reader in 16 bits": (ONE + " k = Neg(h)", OUTPUT + ", float16[2, 63, 16] k"),
    "a reader before the reshape": (ONE + " k = Neg(a)", OUTPUT + ", float16[2, 9, 7, 16] k"),
    "an output in 16 bits": (ONE, OUTPUT + ", float16[2, 9, 7, 16] a"),
    "a quantised output": (ONE, OUTPUT + ", int8[2, 63, 16] q0"),
    "another scale": (
        ONE + QUANTISE.format(1, "t") + LAYER.format(1, "k").replace("(q1, s", "(q1, t"),
        TWO_OUTPUTS,
    ),
    "a reader that dequantises": (
        ONE + " e = DequantizeLinear(q0, s, z) k = Neg(e)",
        OUTPUT + ", float16[2, 63, 16] k",
    ),
}


def quantized_model(body: str, outputs: str, precision: str = "int8") -> onnx.ModelProto:
    """Window attention of [2, 9, 7, 48] with two heads, before layers with 16 inputs and 32 outputs."""
    dtype, random = ARRAYS[PRECISIONS[precision]], np.random.default_rng(0)
    constants = {
        "position": random.standard_normal((2, 16, 16)).astype(np.float16),
        "padding": random.standard_normal(48).astype(np.float16),
        "s": np.float16(0.03),
        "t": np.float16(0.05),
        "z": np.zeros((), dtype),
        "W": (random.standard_normal((16, 32)) * 30).astype(np.float32).astype(dtype),
        "w": np.full(32, 0.001, np.float16),
        "R": np.array([2, -1, 16]),
        "B": np.array([18, 7, 16]),
    }
    model = eight_bit_layers.quantized_model(body, "float16[2, 9, 7, 48] x", outputs, constants)
    model.opset_import.append(onnx.helper.make_opsetid(DOMAIN, 1))
    for node in model.graph.node:
        node.name = f"/block/{node.output[0]}/{node.op_type}"
        if node.op_type == WINDOW_ATTENTION:
            texts = PLUGIN_ATTRIBUTES.items()
            node.attribute.extend(onnx.helper.make_attribute(key, text) for key, text in texts)
    return model


def fused(model: onnx.ModelProto) -> onnx.ModelProto:
    changed = ir.from_proto(model)
    fuse_layers(changed, lambda layer: layer.output_scale is None)
    return ir.to_proto(changed)


@pytest.mark.parametrize("name", FUSED)
def test_windows_that_give_int8(name):
    model = quantized_model(*FUSED[name])
    found = fused(model)
    reshapes, layers = (FUSED[name][0].count(x) for x in (" Reshape", "MatMul"))
    kinds = [node.op_type for node in found.graph.node]
    assert kinds == [WINDOW_ATTENTION, *["Reshape"] * reshapes, *[QUANTIZED_LINEAR] * layers]
    numbers = {x.name: onnx.helper.get_attribute_value(x) for x in found.graph.node[0].attribute}
    assert numbers["output_scale"] == pytest.approx(0.03, rel=1e-3)
    types = {x.name: x.type.tensor_type.elem_type for x in found.graph.value_info}
    assert {types[x.output[0]] for x in found.graph.node[: 1 + reshapes]} == {onnx.TensorProto.INT8}
    x = np.random.default_rng(1).standard_normal((2, 9, 7, 48)).astype(np.float16)
    for one in (found, model):
        add_bodies(one)
        onnx.checker.check_model(one, full_check=True)
    for one, other in zip(*(open_session(m).run(None, {"x": x}) for m in (found, model)), strict=True):
        assert relative_error(torch.from_numpy(one), torch.from_numpy(other).double()) < 1e-2


@pytest.mark.parametrize(
    ("body", "outputs", "precision"),
    [*((*case, "int8") for case in STAY.values()), (ONE, OUTPUT, "fp8")],
    ids=[*STAY, "fp8"],
)
def test_windows_that_stay(body, outputs, precision):
    found = fused(quantized_model(body, outputs, precision))
    node = found.graph.node[0]
    assert node.op_type == WINDOW_ATTENTION and "output_scale" not in {x.name for x in node.attribute}
    kinds = {node.op_type for node in found.graph.node}
    assert {QUANTIZED_LINEAR, "QuantizeLinear"} <= kinds


# Engines. Head dimensions and window sizes of all kernels, one of them of the plain kernel only.
WINDOWS = [(7, 3, 32), (8, 4, 16), (12, 6, 32), (12, 0, 32), (16, 8, 64), (5, 2, 24)]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", CODES, ids=str)
@pytest.mark.parametrize(("size", "shift", "head_dim"), WINDOWS)
def test_engine_of_dynamic_shapes(tmp_path, size, shift, head_dim, dtype):
    heads, maps = 3, [(1, size, size), (2, 2 * size, 3 * size + 1), (3, 1, 5), (4, 45, 30)]
    shapes = {"qkv": ("n", "h", "w", 3 * heads * head_dim), "bias": (heads, size**2, size**2)}
    shapes["padding"] = (3 * heads * head_dim,)
    profile = ShapeRange(*((*shape, 3 * heads * head_dim) for shape in ((1, 1, 1), (1, 30, 30), (4, 64, 64))))
    path = build_engine(tmp_path, window_node(dtype, size, shift, shapes), qkv=profile)
    for shape in maps:
        inputs = make_inputs(shape, size, heads, head_dim, True, dtype)
        assert_close(run_engine(path, inputs), inputs, size, shift)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", CODES, ids=str)
@pytest.mark.parametrize("padded", [True, False], ids=["padding", "zeros"])
def test_engine_of_fixed_shapes(tmp_path, padded, dtype):
    inputs = make_inputs((2, 27, 20), 12, 2, 32, padded, dtype)
    shapes = {name: tuple(x.shape) for name, x in inputs.items()}
    path = build_engine(tmp_path, window_node(dtype, 12, 6, shapes))
    assert_close(run_engine(path, inputs), inputs, 12, 6)


@pytest.mark.gpu
@pytest.mark.parametrize("name", FUSED)
def test_engine_of_int8(tmp_path, name):
    """The result is that of the Q/DQ nodes in onnxruntime, but for the rounding of 16 bits."""
    model = quantized_model(*FUSED[name])
    layers = FUSED[name][0].count("MatMul")
    path = eight_bit_layers.build_fused_engine(tmp_path, fused(model), plugins=1 + layers)
    add_bodies(model)
    x = np.random.default_rng(1).standard_normal((2, 9, 7, 48)).astype(np.float16)
    expected = open_session(model).run(None, {"x": x})
    for output, numbers in zip(model.graph.output, expected, strict=True):
        found = run_engine(path, {"x": torch.from_numpy(x)}, output.name)
        assert relative_error(torch.from_numpy(found), torch.from_numpy(numbers).double()) < 1e-2
