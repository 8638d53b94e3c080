"""Group normalisation as an ONNX node: its body in onnxruntime, and the plugin behind TensorRT's parser."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import torch

import msda
from benchmarks.operator_errors import TOLERANCE, relative_error
from onnx_path.domain import DOMAIN, PLUGIN_ATTRIBUTES
from onnx_path.group_norm import GROUP_NORM
from onnx_path.operator import OPSET_VERSION, add_function_bodies
from onnx_path.optimization_profiles import ShapeRange
from onnx_path.surgery.rewrite.function_bodies import LOWEST_OPSET
from onnx_path.tensorrt_engine import Settings, serialize_engine
from tests.engines.plugin_engines import plugin_or_skip, save
from tests.onnx.map_nodes import (
    CODES,
    add_bodies_of_opset,
    check_16_bits,
    check_conversion,
    exported_node,
    one_node,
    open_session,
    run_engine,
)
from tests.onnx.text_models import text_model

MAPS = [(2, 8, 8), (1, 9, 7), (3, 3, 5), (2, 1, 1), (0, 4, 4), (1, 0, 4)]
"""N, H, W."""
NUMBERS = {"num_groups": 4, "eps": 0.5}

Inputs = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def make_inputs(shape: tuple[int, ...], channels: int, dtype: torch.dtype) -> Inputs:
    """Random x [N, H, W, C] of a mean far from zero, weight and bias [C]."""
    random = torch.Generator().manual_seed(channels + sum(shape))
    tensors = (torch.randn(x, generator=random) for x in ((*shape, channels), (channels,), (channels,)))
    x, weight, bias = (tensor.to(dtype) for tensor in tensors)
    return x + 10, weight, bias


def assert_close(found: np.ndarray, inputs: Inputs) -> None:
    expected = msda.group_norm_reference.group_norm(*(x.double() for x in inputs), **NUMBERS)
    # A sum of one number is all bias; the errors of x remain.
    floor = 0.05 * expected.numel() ** 0.5
    error = relative_error(torch.from_numpy(found), expected, floor)
    assert error <= TOLERANCE[inputs[0].dtype], error


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_body_in_onnxruntime(dtype):
    """One session for every map: no size is fixed."""
    shapes = {"x": ("n", "h", "w", "c"), "weight": ("c",), "bias": ("c",)}
    model = one_node(GROUP_NORM, NUMBERS, dtype, shapes)
    add_function_bodies(model)
    onnx.checker.check_model(model, full_check=True)
    session = open_session(model)
    for index, shape in enumerate(MAPS):
        inputs = make_inputs(shape, 4 * (1 + index), dtype)
        (found,) = session.run(None, {name: x.numpy() for name, x in zip(shapes, inputs)})
        assert_close(found, inputs)


@pytest.mark.parametrize("opset", [LOWEST_OPSET, 18, 22])
def test_body_in_another_opset(opset):
    inputs = make_inputs((2, 9, 7), 16, torch.float32)
    shapes = {name: tuple(x.shape) for name, x in zip(("x", "weight", "bias"), inputs)}
    model = one_node(GROUP_NORM, NUMBERS, torch.float32, shapes, opset)
    add_bodies_of_opset(model, opset)
    (found,) = open_session(model).run(None, {name: x.numpy() for name, x in zip(shapes, inputs)})
    assert_close(found, inputs)


class Norm(torch.nn.Module):
    def forward(self, x, weight, bias):
        return msda.group_norm(x, weight, bias, **NUMBERS)


def test_translation():
    """Sizes of the map stay dynamic."""
    node, attributes, sizes = exported_node(Norm(), make_inputs((2, 9, 7), 16, torch.float32))
    plugin = {name: text.encode() for name, text in PLUGIN_ATTRIBUTES.items()}
    assert (node.domain, node.op_type) == ("msda", GROUP_NORM)
    assert attributes == plugin | NUMBERS
    assert list(node.input) == ["x", "weight", "bias"]
    assert sizes == [0, 0, 0, 16]


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_conversion_to_16_bits(precision):
    """All inputs of the node become 16-bit."""
    random = np.random.default_rng(0)
    sizes = {"W": (16, 32), "weight": (32,), "bias": (32,), "V": (32, 16)}
    weights = {name: random.standard_normal(size, dtype=np.float32) / 4 for name, size in sizes.items()}
    model = text_model(
        "h = MatMul(x, W) a = msda.GroupNorm<num_groups = 4, eps = 0.00001>(h, weight, bias)"
        " y = MatMul(a, V)",
        "float[2, 9, 7, 16] x",
        "float[2, 9, 7, 16] y",
        OPSET_VERSION,
        domains=DOMAIN,
        **weights,
    )
    add_function_bodies(model)
    x = random.standard_normal((2, 9, 7, 16), dtype=np.float32)
    graph = check_conversion(model, precision, 3, x)
    check_16_bits(graph, GROUP_NORM, precision)


# Engines.


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", CODES, ids=str)
@pytest.mark.parametrize("channels", [256, 32, 20])
def test_engine_of_dynamic_shapes(tmp_path, channels, dtype):
    """Both kernels; the engine's work memory suffices for every map up to the largest."""
    plugin_or_skip()
    shapes = {"x": ("n", "h", "w", channels), "weight": (channels,), "bias": (channels,)}
    file = tmp_path / "model.onnx"
    onnx.save(one_node(GROUP_NORM, NUMBERS, dtype, shapes), file)
    profile = ShapeRange(*((*shape, channels) for shape in ((1, 1, 1), (1, 30, 30), (4, 96, 144))))
    path = save(tmp_path, serialize_engine(file, Settings(profiles={"x": profile}), "norm"))
    for shape in ((1, 1, 1), (1, 96, 144), (2, 31, 17), (4, 45, 30), (4, 96, 144)):
        inputs = make_inputs(shape, channels, dtype)
        assert_close(run_engine(path, dict(zip(shapes, inputs))), inputs)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", CODES, ids=str)
def test_engine_of_fixed_shapes(tmp_path, dtype):
    plugin_or_skip()
    inputs = make_inputs((2, 27, 20), 64, dtype)
    shapes = {name: tuple(x.shape) for name, x in zip(("x", "weight", "bias"), inputs)}
    file = tmp_path / "model.onnx"
    onnx.save(one_node(GROUP_NORM, NUMBERS, dtype, shapes), file)
    path = save(tmp_path, serialize_engine(file, Settings(), "norm"))
    assert_close(run_engine(path, dict(zip(shapes, inputs))), inputs)
