"""The largest output of a linear layer as ONNX nodes: the body in onnxruntime, types, and the plugin."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import Mock

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch

import msda
import trt_plugin
from onnx_path.nodes.attention import OPSET_VERSION
from onnx_path.nodes.domain import DOMAIN
from onnx_path.nodes.linear_max import LINEAR_MAX
from onnx_path.precision import convert_precision
from onnx_path.surgery.graph import onnx_session
from onnx_path.surgery.graph.element_types import Types
from onnx_path.surgery.rewrite.function_bodies import LOWEST_OPSET
from onnx_path.tensorrt import model_for_tensorrt
from onnx_path.tensorrt.optimization_profiles import ShapeRange
from onnx_path.tensorrt.written_out_linears import write_out_linears
from tests.engines.plugin_engines import plugin_or_skip
from tests.onnx.map_nodes import (
    CODES,
    ELEMENTS,
    add_bodies_of_opset,
    build_engine,
    exported_node,
    open_session,
    run_session,
)
from tests.onnx.text_models import text_model
from trt_plugin import library

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
        assert_close(run_session(session, {"x": x}), x, 5)


def test_translation():
    class Call(torch.nn.Module):
        def forward(self, x, weight, bias):
            return msda.linear_max(x, weight, bias)

    tensors = make_inputs((2, 9), 24, 5, torch.float16)
    _, attributes, output = exported_node(Call(), tensors, LINEAR_MAX, dynamic=2)
    assert (attributes, output.elem_type) == ({}, onnx.TensorProto.FLOAT)


def test_result_is_float32():
    graph = ir.from_proto(one_node(24, 5, torch.float16)).graph
    (node,) = graph
    node.outputs[0].type = None
    assert Types(graph, OPSET_VERSION).of[node.outputs[0]] == ir.DataType.FLOAT


@pytest.mark.parametrize("precision", ELEMENTS)
def test_conversion_to_16_bits(precision):
    """The features before a selection become 16-bit. Weights and scores stay float32."""
    _, weight, bias = make_inputs((0, 0), 24, 5, torch.float32)
    body = f"""f = LayerNormalization(x, s) h = {NODE}(f, weight, bias) w = Where(m, h, e)
        k, i = TopK(w, n)"""
    constants = {"s": np.ones(24), "weight": weight.numpy(), "bias": bias.numpy(), "e": np.array(-3.0)}
    constants = {name: array.astype(np.float32) for name, array in constants.items()}
    edges = "float[2, 9, 24] x, bool[2, 9] m", "float[2, 4] k, int64[2, 4] i, float[2, 9] h"
    wide = text_model(body, *edges, 20, domains=DOMAIN, n=np.array([4]), **constants)
    add_bodies_of_opset(wide, 20)
    model = onnx.ModelProto()
    model.CopyFrom(wide)
    report = convert_precision(model, precision)
    assert (report.converted, report.casts) == (2, 1)
    onnx.checker.check_model(model, full_check=True)
    graph = onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True).graph
    types = {x.name: x.data_type for x in graph.initializer}
    types |= {x.name: x.type.tensor_type.elem_type for x in (*graph.value_info, *graph.output)}
    (node,) = (x for x in graph.node if x.op_type == LINEAR_MAX)
    assert list(node.input) == ["f", "weight", "bias"]  # without casts
    assert [types[x] for x in (*node.input, "h")] == [ELEMENTS[precision]] + [onnx.TensorProto.FLOAT] * 3
    x = make_inputs((2, 9), 24, 5, torch.float32)[0].numpy()
    given = {"x": x, "m": x[..., 0] > -1}
    found, expected = (onnx_session.run(one, given) for one in (model, wide))
    np.testing.assert_allclose(found[2], expected[2], atol=1e-3 if precision == "fp16" else 1e-2)


@pytest.mark.parametrize("opset", [13, 17, 18, 22])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_written_out(dtype, opset):
    """In float32, by operators of the model's opset."""
    model = ir.from_proto(one_node(24, 5, dtype, opset))
    assert write_out_linears(model) == 1
    model = ir.to_proto(model)
    onnx.checker.check_model(model, full_check=True)
    cast = ["Cast"] if dtype == torch.float16 else []
    assert [x.op_type for x in model.graph.node] == [*cast, "MatMul", "Add", "ReduceMax"]
    assert sorted(tuple(x.dims) for x in model.graph.initializer) == [(1,)] * (opset > 17) + [(5,), (24, 5)]
    for rows in ((2, 9), (1, 1)):
        x = make_inputs(rows, 24, 5, dtype)[0]
        assert_close(run_session(open_session(model), {"x": x}), x, 5)


@pytest.mark.parametrize("dtype", CODES, ids=str)
@pytest.mark.parametrize("fast", [True, False])
def test_builds_keep_what_a_kernel_runs_fast(monkeypatch, dtype, fast):
    """The library decides by the sizes and the type of x."""
    has_fast = Mock(return_value=fast)
    monkeypatch.setattr(library, "has_fast_linear_max", has_fast)
    model = one_node(192, 20, dtype)
    assert model_for_tensorrt.fit_to_tensorrt(model, Path()) == (not fast)
    has_fast.assert_called_once_with(192, 20, str(dtype).removeprefix("torch."))
    assert (LINEAR_MAX in [x.op_type for x in model.graph.node]) == fast


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", CODES, ids=str)
def test_kernel_is_fast_in_16_bits(dtype):
    plugin_or_skip()
    fast = torch.cuda.get_device_capability()[0] >= 8 and dtype != torch.float32
    name = str(dtype).removeprefix("torch.")
    assert library.has_fast_linear_max(192, 20, name) == fast
    assert not library.has_fast_linear_max(192, 81, name)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", CODES, ids=str)
@pytest.mark.parametrize(("inputs", "outputs"), [(256, 80), (192, 20), (96, 100)])
def test_engine_of_dynamic_shapes(tmp_path, inputs, outputs, dtype):
    """The plugin with tensor cores, or with the plain kernel, which builds of detectors never use."""
    profile = ShapeRange((1, 1, inputs), (1, 864, inputs), (4, 1500, inputs))
    path = build_engine(tmp_path, one_node(inputs, outputs, dtype), x=profile)
    with trt_plugin.EngineRunner(path) as runner:
        for rows in ((1, 1), (1, 864), (2, 77), (4, 1500)):
            x = make_inputs(rows, inputs, outputs, dtype)[0]
            assert_close(runner({"x": x.float().numpy()})["output"], x, outputs)
