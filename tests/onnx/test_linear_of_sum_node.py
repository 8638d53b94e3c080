"""Linear layers of a sum as ONNX nodes: their body in onnxruntime, their export, and as plugins."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import torch

import msda
from benchmarks.linear_of_sum import Inputs, LinearOfSumProblem, truth
from onnx_path.nodes.attention import OPSET_VERSION, add_function_bodies
from onnx_path.nodes.domain import DOMAIN
from onnx_path.nodes.linear_of_sum import INPUTS, LINEAR_OF_SUM
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


def make_inputs(rows: tuple[int, ...], inputs: int, outputs: int, dtype: torch.dtype) -> Inputs:
    """Draws the inputs of a layer, with sizes of x before the last."""
    drawn = LinearOfSumProblem("", int(np.prod(rows)), inputs, outputs).inputs(dtype, "cpu", sum(rows))
    return drawn._replace(x=drawn.x.reshape(*rows, inputs), addend=drawn.addend.reshape(*rows, inputs))


def tensors_of(inputs: Inputs) -> dict[str, torch.Tensor]:
    return dict(zip(INPUTS, inputs, strict=True))


def model_of(
    dtype: torch.dtype, inputs: int | str = "k", outputs: int | str = "o", opset: int = OPSET_VERSION
) -> onnx.ModelProto:
    """A model of one node without a body; sizes with a name are dynamic."""
    shapes = {"x": ("n", "s", inputs), "addend": ("n", "s", inputs), "weight": (outputs, inputs)}
    shapes |= {"bias": (outputs,)}
    return one_node(LINEAR_OF_SUM, {}, dtype, shapes, opset, output=("n", "s", outputs))


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
    for rows, channels, outputs in (((2, 9), 24, 40), ((1, 3), 16, 5), ((3, 1), 200, 8), ((0, 4), 8, 12)):
        inputs = make_inputs(rows, channels, outputs, dtype)
        assert_close(run_session(session, tensors_of(inputs)), inputs)


class Layer(torch.nn.Module):
    def forward(self, x, addend, weight, bias):
        return msda.linear_of_sum(x, addend, weight, bias)


def test_translation():
    """Sizes of x but the last stay dynamic."""
    inputs = make_inputs((2, 9, 7), 16, 24, torch.float32)
    node, attributes, output = exported_node(Layer(), inputs, LINEAR_OF_SUM)
    assert attributes == {}
    assert len(set(node.input)) == len(INPUTS) and sizes_of(output) == [0, 0, 0, 24]


@pytest.mark.parametrize("precision", ELEMENTS)
def test_conversion_to_16_bits(precision):
    """All inputs of the node become 16-bit."""
    inputs = make_inputs((2, 9), 16, 24, torch.float32)
    edges = "float[2, 9, 16] x", "float[2, 9, 24] y"
    constants = {name: x.numpy() for name, x in tensors_of(inputs).items() if name != "x"}
    body = f"y = msda.LinearOfSum({', '.join(INPUTS)})"
    model = text_model(body, *edges, OPSET_VERSION, domains=DOMAIN, **constants)
    add_function_bodies(model)
    graph = check_conversion(model, precision, 1, inputs.x.numpy())
    assert {x.data_type for x in graph.initializer} == {ELEMENTS[precision]}


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", CODES, ids=str)
@pytest.mark.parametrize(("channels", "outputs"), [(256, 480), (36, 50)])
def test_engine_of_dynamic_shapes(tmp_path, channels, outputs, dtype):
    """The plugin with the kernel for compute capability 9.0, or with the plain one."""
    profile = ShapeRange(*((*rows, channels) for rows in ((1, 1), (1, 864), (4, 1500))))
    path = build_engine(tmp_path, model_of(dtype, channels, outputs), x=profile, addend=profile)
    for rows in ((1, 1), (1, 864), (2, 77), (4, 1500)):
        inputs = make_inputs(rows, channels, outputs, dtype)
        assert_close(run_engine(path, tensors_of(inputs)), inputs)
