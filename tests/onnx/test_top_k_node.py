"""The indices of the largest numbers as ONNX nodes: the body in onnxruntime, selections, and the plugin."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import torch

import msda
import trt_plugin
from onnx_path.nodes.attention import OPSET_VERSION, add_function_bodies
from onnx_path.nodes.domain import DOMAIN
from onnx_path.nodes.top_k_indices import TOP_K_INDICES
from onnx_path.precision import convert_precision
from onnx_path.surgery.graph import onnx_session
from onnx_path.surgery.rewrite.function_bodies import LOWEST_OPSET
from onnx_path.surgery.verify import selections
from onnx_path.tensorrt.optimization_profiles import ShapeRange
from tests.onnx.map_nodes import (
    add_bodies_of_opset,
    build_engine,
    exported_node,
    open_session,
    run_session,
    sizes_of,
)
from tests.onnx.selecting_models import PAYLOAD, SCORES
from tests.onnx.text_models import text_model

NODE = 'msda.TopKIndices<count: int = {}, plugin_namespace: string = "msda", plugin_version: string = "1">'


def one_node(count: int, opset: int = OPSET_VERSION) -> onnx.ModelProto:
    """A model of one node without a body. All sizes are dynamic."""
    body = f"output = {NODE.format(count)}(x)"
    return text_model(body, "float[n, s] x", f"int32[n, {count}] output", opset, domains=DOMAIN)


def numbers(rows: int, size: int) -> torch.Tensor:
    """Multiples of 0.5, which are often equal."""
    random = torch.Generator().manual_seed(size)
    return torch.randint(size, (rows, size), generator=random) * 0.5


@pytest.mark.parametrize("opset", [LOWEST_OPSET, 18, OPSET_VERSION, 22])
def test_body_in_onnxruntime(opset):
    """Equal numbers have the order of the reference."""
    model = one_node(7, opset)
    add_bodies_of_opset(model, opset)
    onnx.checker.check_model(model)
    session = open_session(model)
    for rows, size in ((1, 7), (3, 500), (0, 9), (2, 73656)):
        x = numbers(rows, size)
        found = run_session(session, {"x": x})
        assert found.dtype == np.int32
        np.testing.assert_array_equal(found, msda.top_k_reference.top_k_indices(x, 7))


def test_translation():
    class Call(torch.nn.Module):
        def forward(self, x):
            return msda.top_k_indices(x, 5)

    _, attributes, output = exported_node(Call(), [torch.randn(2, 30)], TOP_K_INDICES, dynamic=2)
    assert attributes == {"count": 5}
    assert (output.elem_type, sizes_of(output)) == (onnx.TensorProto.INT32, [0, 5])


def selecting() -> onnx.ModelProto:
    """A model that gathers rows by the four best of six scores, of a product."""
    body = f"""scores = MatMul(x, weight) best = {NODE.format(4)}(scores) four = Reshape(best, rows)
        picked = Gather(payload, four)"""
    constants = {"weight": np.eye(6, dtype=np.float32), "payload": PAYLOAD, "rows": np.int64([-1])}
    model = text_model(
        body, "float[1, 6] x", "float[4, 2] picked", OPSET_VERSION, domains=DOMAIN, **constants
    )
    add_function_bodies(model)
    return model


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_scores_stay_float32(precision):
    """So does the product that makes them: in 16 bits the first two scores would be equal."""
    model = selecting()
    report = convert_precision(model, precision)
    assert report.kept["top-k scores"] == 2, str(report)
    onnx.checker.check_model(model)
    (found,) = onnx_session.run(model, {"x": SCORES})
    np.testing.assert_array_equal(found, PAYLOAD[[3, 4, 1, 0]])


def test_selections_are_told():
    """A model selects what another has told, as with TopK."""
    model = selecting()
    assert selections.of(model) == ["best"]
    telling = selections.telling(model, ["best"])
    _, scores, choice = onnx_session.run(telling, {"x": SCORES})
    np.testing.assert_array_equal(scores, SCORES)
    np.testing.assert_array_equal(choice, [[3, 4, 1, 0]])
    other = np.int64([[0, 1, 4, 3]])
    inputs = {"x": SCORES, selections.choice_name("best"): other}
    picked, scores = onnx_session.run(selections.told(model, ["best"]), inputs)
    np.testing.assert_array_equal(picked, PAYLOAD[other[0]])
    np.testing.assert_array_equal(scores, SCORES)


@pytest.mark.gpu
@pytest.mark.parametrize("count", [300, 900])
def test_engine_of_dynamic_shapes(tmp_path, count):
    """Rows of one part and of several, in one engine."""
    profile = ShapeRange((1, count), (1, 73656), (8, 204600))
    path = build_engine(tmp_path, one_node(count), x=profile)
    with trt_plugin.EngineRunner(path) as runner:
        for rows, size in ((1, count), (3, 16384), (1, 16385), (1, 73656), (8, 72000), (2, 204600)):
            x = numbers(rows, size)
            found = runner({"x": x.numpy()})["output"]
            np.testing.assert_array_equal(found, msda.top_k_reference.top_k_indices(x, count))
