"""Window attention as an ONNX node: its body in onnxruntime, and the plugin behind TensorRT's parser."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import torch

import msda
from benchmarks.operator_errors import TOLERANCE, relative_error
from msda import window_reference
from onnx_path.nodes.attention import add_function_bodies
from onnx_path.nodes.window_attention import WINDOW_ATTENTION
from onnx_path.surgery.rewrite.function_bodies import LOWEST_OPSET
from onnx_path.tensorrt.optimization_profiles import ShapeRange
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
