"""Group normalisation as an ONNX node: its body in onnxruntime, and the plugin behind TensorRT's parser."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import torch

import msda
from benchmarks.operator_errors import TOLERANCE, relative_error
from onnx_path.nodes.attention import add_function_bodies
from onnx_path.nodes.group_norm import GROUP_NORM
from onnx_path.surgery.rewrite.function_bodies import LOWEST_OPSET
from onnx_path.tensorrt.optimization_profiles import ShapeRange
from tests.onnx.map_nodes import (
    CODES,
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

MAPS = [(2, 8, 8), (1, 9, 7), (3, 3, 5), (2, 1, 1), (0, 4, 4), (1, 0, 4)]
"""N, H, W."""
NUMBERS = {"num_groups": 4, "eps": 0.5}

Inputs = dict[str, torch.Tensor]


def make_inputs(shape: tuple[int, ...], channels: int, dtype: torch.dtype) -> Inputs:
    """Random x [N, H, W, C] of a mean far from zero, weight and bias [C]."""
    random = torch.Generator().manual_seed(channels + sum(shape))
    tensors = (torch.randn(x, generator=random) for x in ((*shape, channels), (channels,), (channels,)))
    x, weight, bias = (tensor.to(dtype) for tensor in tensors)
    return {"x": x + 10, "weight": weight, "bias": bias}


def assert_close(found: np.ndarray, inputs: Inputs) -> None:
    expected = msda.group_norm_reference.group_norm(*(x.double() for x in inputs.values()), **NUMBERS)
    # A sum of one number is all bias; the errors of x remain.
    floor = 0.05 * expected.numel() ** 0.5
    error = relative_error(torch.from_numpy(found), expected, floor)
    assert error <= TOLERANCE[inputs["x"].dtype], error


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
        assert_close(run_session(session, inputs), inputs)


def test_body_of_cells():
    """x may be [N, S, C]."""
    model = one_node(
        GROUP_NORM, NUMBERS, torch.float32, {"x": ("n", "s", "c"), "weight": ("c",), "bias": ("c",)}
    )
    add_function_bodies(model)
    session = open_session(model)
    for shape in ((2, 63), (1, 9), (0, 4), (1, 0)):
        inputs = make_inputs(shape, 8, torch.float32)
        assert_close(run_session(session, inputs), inputs)


@pytest.mark.parametrize("opset", [LOWEST_OPSET, 18, 22])
def test_body_in_another_opset(opset):
    inputs = make_inputs((2, 9, 7), 16, torch.float32)
    shapes = {name: tuple(x.shape) for name, x in inputs.items()}
    model = one_node(GROUP_NORM, NUMBERS, torch.float32, shapes, opset)
    add_bodies_of_opset(model, opset)
    assert_close(run_session(open_session(model), inputs), inputs)


class Norm(torch.nn.Module):
    def forward(self, x, weight, bias):
        return msda.group_norm(x, weight, bias, **NUMBERS)


def test_translation():
    """Sizes of the map stay dynamic."""
    tensors = list(make_inputs((2, 9, 7), 16, torch.float32).values())
    node, attributes, output = exported_node(Norm(), tensors, GROUP_NORM)
    assert attributes == NUMBERS
    assert list(node.input) == ["x", "weight", "bias"]
    assert sizes_of(output) == [0, 0, 0, 16]


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_conversion_to_16_bits(precision):
    body = """h = MatMul(x, W) a = msda.GroupNorm<num_groups = 4, eps = 0.00001>(h, weight, bias)
        y = MatMul(a, V)"""
    sizes = {"W": (16, 32), "weight": (32,), "bias": (32,), "V": (32, 16)}
    check_conversion_of_map(body, sizes, GROUP_NORM, precision, converted=3)


# Engines.


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", CODES, ids=str)
@pytest.mark.parametrize("channels", [256, 32, 20])
def test_engine_of_dynamic_shapes(tmp_path, channels, dtype):
    """Both kernels; the engine's work memory suffices for every map up to the largest."""
    shapes = {"x": ("n", "h", "w", channels), "weight": (channels,), "bias": (channels,)}
    profile = ShapeRange(*((*shape, channels) for shape in ((1, 1, 1), (1, 30, 30), (4, 96, 144))))
    path = build_engine(tmp_path, one_node(GROUP_NORM, NUMBERS, dtype, shapes), x=profile)
    for shape in ((1, 1, 1), (1, 96, 144), (2, 31, 17), (4, 45, 30), (4, 96, 144)):
        inputs = make_inputs(shape, channels, dtype)
        assert_close(run_engine(path, inputs), inputs)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", CODES, ids=str)
def test_engine_of_fixed_shapes(tmp_path, dtype):
    inputs = make_inputs((2, 27, 20), 64, dtype)
    shapes = {name: tuple(x.shape) for name, x in inputs.items()}
    path = build_engine(tmp_path, one_node(GROUP_NORM, NUMBERS, dtype, shapes))
    assert_close(run_engine(path, inputs), inputs)
