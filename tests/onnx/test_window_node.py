"""Window attention as an ONNX node: its body in onnxruntime, and the plugin behind TensorRT's parser."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import torch

import msda
from benchmarks.operator_errors import TOLERANCE, relative_error
from msda import window_reference
from onnx_path.domain import DOMAIN, PLUGIN_ATTRIBUTES
from onnx_path.operator import OPSET_VERSION, add_function_bodies
from onnx_path.optimization_profiles import ShapeRange
from onnx_path.surgery.rewrite.function_bodies import LOWEST_OPSET
from onnx_path.tensorrt_engine import Settings, serialize_engine
from onnx_path.window_attention import WINDOW_ATTENTION
from tests.engines.plugin_engines import plugin_or_skip, save
from tests.onnx.map_nodes import (
    CODES,
    Shapes,
    add_bodies_of_opset,
    check_16_bits,
    check_conversion,
    exported_node,
    one_node,
    open_session,
    run_engine,
)
from tests.onnx.text_models import text_model

MAPS = [(2, 8, 8), (1, 9, 7), (3, 3, 5), (2, 1, 13), (1, 12, 16), (0, 4, 4)]
"""N, H, W."""

Inputs = tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]


def make_inputs(
    shape: tuple[int, int, int], size: int, heads: int, head_dim: int, padded: bool, dtype: torch.dtype
) -> Inputs:
    """Random qkv [N, H, W, 3 * C], bias [heads, L, L], and padding [3 * C] if the node has it."""
    random = torch.Generator().manual_seed(size + sum(shape))
    columns = 3 * heads * head_dim
    shapes = (*shape, columns), (heads, size**2, size**2), (columns,)
    tensors = [torch.randn(x, generator=random).to(dtype) for x in shapes]
    return tensors[0], tensors[1], tensors[2] if padded else None


def assert_close(found: np.ndarray, inputs: Inputs, size: int, shift: int) -> None:
    wide = [None if x is None else x.double() for x in inputs]
    expected = window_reference.window_attention(*wide, size, shift)
    error = relative_error(torch.from_numpy(found), expected)
    assert error <= TOLERANCE[inputs[0].dtype], error


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
        (found,) = session.run(None, {name: x.numpy() for name, x in zip(shapes, inputs)})
        assert_close(found, inputs, size, shift)


@pytest.mark.parametrize("opset", [LOWEST_OPSET, 18, 22])
def test_body_in_another_opset(opset):
    inputs = make_inputs((2, 9, 7), 4, 2, 8, True, torch.float32)
    shapes = {name: tuple(x.shape) for name, x in zip(("qkv", "bias", "padding"), inputs)}
    model = window_node(torch.float32, 4, 2, shapes, opset=opset)
    add_bodies_of_opset(model, opset)
    (found,) = open_session(model).run(None, {name: x.numpy() for name, x in zip(shapes, inputs)})
    assert_close(found, inputs, 4, 2)


class Window(torch.nn.Module):
    def __init__(self, padded: bool) -> None:
        super().__init__()
        self.padded = padded

    def forward(self, qkv, bias, padding):
        return msda.window_attention(qkv, bias, padding if self.padded else None, 4, 2)


@pytest.mark.parametrize("padded", [True, False], ids=["padding", "zeros"])
def test_translation(padded):
    """Sizes of the map stay dynamic. Without padding the node has two inputs."""
    inputs = make_inputs((2, 9, 7), 4, 2, 8, True, torch.float32)
    node, attributes, sizes = exported_node(Window(padded), inputs)
    plugin = {name: text.encode() for name, text in PLUGIN_ATTRIBUTES.items()}
    assert (node.domain, node.op_type) == ("msda", WINDOW_ATTENTION)
    assert attributes == plugin | {"window_size": 4, "shift": 2}
    assert [x for x in node.input if x] == ["qkv", "bias", "padding"][: 3 if padded else 2]
    assert sizes == [0, 0, 0, 16]


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_conversion_to_16_bits(precision):
    """All inputs of the node become 16-bit; the linear layer's bias, which it reads too, does so once."""
    random = np.random.default_rng(0)
    sizes = {"W": (16, 48), "b": (48,), "position": (2, 16, 16), "V": (16, 16)}
    weights = {name: random.standard_normal(size, dtype=np.float32) / 4 for name, size in sizes.items()}
    model = text_model(
        "h = MatMul(x, W) qkv = Add(h, b)"
        " a = msda.WindowAttention<window_size = 4, shift = 2>(qkv, position, b) y = MatMul(a, V)",
        "float[2, 9, 7, 16] x",
        "float[2, 9, 7, 16] y",
        OPSET_VERSION,
        domains=DOMAIN,
        **weights,
    )
    add_function_bodies(model)
    x = random.standard_normal((2, 9, 7, 16), dtype=np.float32)
    graph = check_conversion(model, precision, 4, x)
    check_16_bits(graph, WINDOW_ATTENTION, precision)
    assert len(graph.initializer) == len(weights)


# Engines. Head dimensions and window sizes of all kernels, one of them of the plain kernel only.
WINDOWS = [(7, 3, 32), (8, 4, 16), (12, 6, 32), (12, 0, 32), (16, 8, 64), (5, 2, 24)]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", CODES, ids=str)
@pytest.mark.parametrize(("size", "shift", "head_dim"), WINDOWS)
def test_engine_of_dynamic_shapes(tmp_path, size, shift, head_dim, dtype):
    plugin_or_skip()
    heads, maps = 3, [(1, size, size), (2, 2 * size, 3 * size + 1), (3, 1, 5), (4, 45, 30)]
    shapes = {"qkv": ("n", "h", "w", 3 * heads * head_dim), "bias": (heads, size**2, size**2)}
    shapes["padding"] = (3 * heads * head_dim,)
    file = tmp_path / "model.onnx"
    onnx.save(window_node(dtype, size, shift, shapes), file)
    profile = ShapeRange(*((*shape, 3 * heads * head_dim) for shape in ((1, 1, 1), (1, 30, 30), (4, 64, 64))))
    path = save(tmp_path, serialize_engine(file, Settings(profiles={"qkv": profile}), "window"))
    for shape in maps:
        inputs = make_inputs(shape, size, heads, head_dim, True, dtype)
        assert_close(run_engine(path, dict(zip(shapes, inputs))), inputs, size, shift)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", CODES, ids=str)
@pytest.mark.parametrize("padded", [True, False], ids=["padding", "zeros"])
def test_engine_of_fixed_shapes(tmp_path, padded, dtype):
    plugin_or_skip()
    inputs = make_inputs((2, 27, 20), 12, 2, 32, padded, dtype)
    names = ("qkv", "bias", "padding")
    shapes = {name: tuple(x.shape) for name, x in zip(names, inputs) if x is not None}
    file = tmp_path / "model.onnx"
    onnx.save(window_node(dtype, 12, 6, shapes), file)
    path = save(tmp_path, serialize_engine(file, Settings(), "window"))
    assert_close(run_engine(path, dict(zip(names, inputs))), inputs, 12, 6)
