"""Feed-forward blocks as ONNX nodes: their body in onnxruntime, their export, and as plugins of TensorRT."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import torch

import msda
from benchmarks.feed_forward import FeedForwardProblem, Inputs, truth
from onnx_path.nodes.attention import OPSET_VERSION, add_function_bodies
from onnx_path.nodes.domain import DOMAIN
from onnx_path.nodes.feed_forward import FEED_FORWARD, INPUTS
from onnx_path.surgery.rewrite.function_bodies import LOWEST_OPSET
from onnx_path.tensorrt.optimization_profiles import ShapeRange
from tests.onnx.map_nodes import (
    CODES,
    ELEMENTS,
    add_bodies_of_opset,
    assert_near,
    build_engine,
    check_conversion,
    exported_node,
    one_node,
    open_session,
    run_engine,
    run_session,
    sizes_of,
)
from tests.onnx.text_models import text_model

EPS = 1e-3


def make_inputs(rows: tuple[int, ...], channels: int, hidden: int, dtype: torch.dtype) -> Inputs:
    """Draws the inputs of a block, with sizes of x before the last."""
    inputs = FeedForwardProblem("", int(np.prod(rows)), channels, hidden).inputs(dtype, "cpu", sum(rows))
    return inputs._replace(x=inputs.x.reshape(*rows, channels), eps=EPS)


def tensors_of(inputs: Inputs) -> dict[str, torch.Tensor]:
    return dict(zip(INPUTS, inputs[:-1], strict=True))


def model_of(
    dtype: torch.dtype,
    channels: int | str = "c",
    hidden: int | str = "d",
    opset: int = OPSET_VERSION,
) -> onnx.ModelProto:
    """A model of one node without a body; sizes with a name are dynamic."""
    of_channels = {name: (channels,) for name in ("bias2", "norm_weight", "norm_bias")}
    shapes = {"x": ("n", "s", channels), "weight1": (hidden, channels), "bias1": (hidden,)}
    shapes |= {"weight2": (channels, hidden), **of_channels}
    return one_node(FEED_FORWARD, {"eps": EPS}, dtype, shapes, opset, output=("n", "s", channels))


def assert_close(found: np.ndarray, inputs: Inputs) -> None:
    assert_near(found, truth(inputs), inputs.x.dtype)


@pytest.mark.parametrize("opset", [LOWEST_OPSET, 18, OPSET_VERSION, 22])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_body_in_onnxruntime(dtype, opset):
    """One session for every size: no size is fixed."""
    model = model_of(dtype, opset=opset)
    add_bodies_of_opset(model, opset)
    onnx.checker.check_model(model)
    session = open_session(model)
    for rows, channels, hidden in (((2, 9), 24, 40), ((1, 3), 16, 5), ((3, 1), 200, 8), ((0, 4), 8, 12)):
        inputs = make_inputs(rows, channels, hidden, dtype)
        assert_close(run_session(session, tensors_of(inputs)), inputs)


class Block(torch.nn.Module):
    def forward(self, x, weight1, bias1, weight2, bias2, norm_weight, norm_bias):
        return msda.feed_forward(x, weight1, bias1, weight2, bias2, norm_weight, norm_bias, EPS)


def test_translation():
    """Sizes of x but the last stay dynamic."""
    inputs = make_inputs((2, 9, 7), 16, 24, torch.float32)
    node, attributes, output = exported_node(Block(), inputs[:-1], FEED_FORWARD)
    assert attributes == {"eps": pytest.approx(EPS)}
    assert len(set(node.input)) == len(INPUTS) and sizes_of(output) == [0, 0, 0, 16]


@pytest.mark.parametrize("precision", ELEMENTS)
def test_conversion_to_16_bits(precision):
    """All inputs of the node become 16-bit."""
    inputs = make_inputs((2, 9), 16, 24, torch.float32)
    names = ", ".join(INPUTS)
    edges = "float[2, 9, 16] x", "float[2, 9, 16] y"
    weights = {name: x.numpy() for name, x in tensors_of(inputs).items() if name != "x"}
    body = f"y = msda.FeedForward<eps = {EPS}>({names})"
    model = text_model(body, *edges, OPSET_VERSION, domains=DOMAIN, **weights)
    add_function_bodies(model)
    graph = check_conversion(model, precision, 1, inputs.x.numpy())
    assert {x.data_type for x in graph.initializer} == {ELEMENTS[precision]}


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", CODES, ids=str)
@pytest.mark.parametrize(("channels", "hidden"), [(256, 1024), (64, 96)])
def test_engine_of_dynamic_shapes(tmp_path, channels, hidden, dtype):
    """The plugin with the kernel for compute capability 9.0, or with the plain one."""
    profile = ShapeRange(*((*rows, channels) for rows in ((1, 1), (1, 864), (4, 1500))))
    path = build_engine(tmp_path, model_of(dtype, channels, hidden), x=profile)
    for rows in ((1, 1), (1, 864), (2, 77), (4, 1500)):
        inputs = make_inputs(rows, channels, hidden, dtype)
        assert_close(run_engine(path, tensors_of(inputs)), inputs)
