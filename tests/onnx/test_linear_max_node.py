"""The largest output of a linear layer as ONNX nodes: the body in onnxruntime, types, and the plugin."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch

import msda
import trt_plugin
from onnx_path.domain import DOMAIN, PLUGIN_ATTRIBUTES
from onnx_path.linear_max import LINEAR_MAX
from onnx_path.operator import OPSET_VERSION, translation_table
from onnx_path.optimization_profiles import ShapeRange
from onnx_path.surgery.graph.element_types import Types
from onnx_path.surgery.rewrite.function_bodies import LOWEST_OPSET
from onnx_path.tensorrt_engine import Settings, serialize_engine
from tests.engines.plugin_engines import plugin_or_skip, save
from tests.onnx.map_nodes import CODES, add_bodies_of_opset, open_session
from tests.onnx.text_models import text_model

NODE = 'msda.LinearMax<plugin_namespace: string = "msda", plugin_version: string = "1">'


def make_inputs(rows: tuple[int, int], inputs: int, outputs: int, dtype: torch.dtype) -> tuple:
    random = torch.Generator().manual_seed(sum(rows))
    weight, bias = (torch.randn(shape, generator=random) for shape in ((outputs, inputs), (outputs,)))
    return torch.randn(*rows, inputs, generator=random).to(dtype), weight / inputs**0.5, bias


def one_node(inputs: int, outputs: int, dtype: torch.dtype, opset: int = OPSET_VERSION) -> onnx.ModelProto:
    """A model of one node without a body. Weights are constants; sizes of x but the last are dynamic."""
    _, weight, bias = make_inputs((0, 0), inputs, outputs, dtype)
    edges = f"{CODES[dtype]}[n, s, {inputs}] x", "float[n, s] output"
    constants = {"weight": weight.numpy(), "bias": bias.numpy()}
    return text_model(f"output = {NODE}(x, weight, bias)", *edges, opset, domains=DOMAIN, **constants)


def assert_close(found: np.ndarray, x: torch.Tensor, outputs: int) -> None:
    """The errors are those of float32 for every type of x."""
    _, weight, bias = make_inputs((0, 0), x.shape[-1], outputs, x.dtype)
    expected = msda.linear_max_reference.linear_max(x.double(), weight.double(), bias.double())
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("opset", [LOWEST_OPSET, 18, OPSET_VERSION, 22])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_body_in_onnxruntime(dtype, opset):
    model = one_node(24, 5, dtype, opset)
    add_bodies_of_opset(model, opset)
    onnx.checker.check_model(model)
    session = open_session(model)
    for rows in ((2, 9), (1, 1), (0, 4)):
        x = make_inputs(rows, 24, 5, dtype)[0]
        (found,) = session.run(None, {"x": x.numpy()})
        assert_close(found, x, 5)


def test_translation():
    class Call(torch.nn.Module):
        def forward(self, x, weight, bias):
            return msda.linear_max(x, weight, bias)

    program = torch.onnx.export(
        Call().eval(),
        make_inputs((2, 9), 24, 5, torch.float16),
        dynamo=True,
        verbose=False,
        dynamic_shapes=({0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}, None, None),
        opset_version=OPSET_VERSION,
        custom_translation_table=translation_table(),
    )
    graph = program.model_proto.graph
    attributes = {x.name: onnx.helper.get_attribute_value(x).decode() for x in graph.node[0].attribute}
    assert [(x.domain, x.op_type) for x in graph.node] == [(DOMAIN, LINEAR_MAX)]
    assert attributes == PLUGIN_ATTRIBUTES
    assert graph.output[0].type.tensor_type.elem_type == onnx.TensorProto.FLOAT


def test_result_is_float32():
    graph = ir.from_proto(one_node(24, 5, torch.float16)).graph
    (node,) = graph
    node.outputs[0].type = None
    assert Types(graph, OPSET_VERSION).of[node.outputs[0]] == ir.DataType.FLOAT


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", CODES, ids=str)
@pytest.mark.parametrize(("inputs", "outputs"), [(256, 80), (192, 20), (96, 100)])
def test_engine_of_dynamic_shapes(tmp_path, inputs, outputs, dtype):
    """The plugin with tensor cores, or with the plain kernel, which builds of detectors never use."""
    plugin_or_skip()
    file = tmp_path / "model.onnx"
    onnx.save(one_node(inputs, outputs, dtype), file)
    profiles = {"x": ShapeRange((1, 1, inputs), (1, 864, inputs), (4, 1500, inputs))}
    path = save(tmp_path, serialize_engine(file, Settings(profiles=profiles), "linear-max"))
    with trt_plugin.EngineRunner(path) as runner:
        for rows in ((1, 1), (1, 864), (2, 77), (4, 1500)):
            x = make_inputs(rows, inputs, outputs, dtype)[0]
            assert_close(runner({"x": x.float().numpy()})["output"], x, outputs)
