"""TopK as nodes `TopKIndices`, as builds write it for TensorRT."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from onnx_path.nodes.domain import DOMAIN
from onnx_path.opset import opset_of
from onnx_path.surgery.graph import onnx_session
from onnx_path.tensorrt.model_for_tensorrt import fit_to_tensorrt
from tests.onnx.map_nodes import add_bodies_of_opset
from tests.onnx.text_models import text_model


def make_model(
    search: str = "<axis = 1>",
    shape: str = "N, 9000",
    count: int = 30,
    dtype: str = "float",
    outputs: str = "int64[N, 30] i",
    plugin: str = 'w = msda.TopKIndices<count = 2, plugin_namespace = "msda", plugin_version = "1">(z)',
) -> onnx.ModelProto:
    body = f"v, i = TopK{search}(x, k) {plugin}"
    inputs = f"{dtype}[{shape}] x" + ", float[1, 4] z" * bool(plugin)
    others = ", int32[1, 2] w" * bool(plugin)
    return text_model(body, inputs, outputs + others, domains=DOMAIN, k=np.array([count]))


def ops(model: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node]


@pytest.mark.parametrize("search", ["<axis = 1>", "", "<axis = -1, sorted = 0>"])
def test_search_becomes_a_plugin(search):
    model = make_model(search)
    x = np.random.default_rng(0).standard_normal((2, 9000)).astype(np.float32)
    assert fit_to_tensorrt(model, Path())
    assert ops(model) == ["TopKIndices", "Cast", "TopKIndices"] and model.graph.node[0].domain == DOMAIN
    add_bodies_of_opset(model, opset_of(model))
    onnx.checker.check_model(model, full_check=True)
    found, _ = onnx_session.run(model, {"x": x, "z": np.zeros((1, 4), np.float32)})
    np.testing.assert_array_equal(found, np.argsort(-x, 1)[:, :30])


@pytest.mark.parametrize(
    "model",
    [
        make_model(outputs="int64[N, 30] i, float[N, 30] v"),
        make_model("<axis = 1, largest = 0>"),
        make_model("<axis = 0>", "9000, N", outputs="int64[30, N] i"),
        make_model(shape="N, 8000"),
        make_model(shape="N, S"),
        make_model(shape="N, 1, 9000", search="<axis = 2>", outputs="int64[N, 1, 30] i"),
        make_model(count=1025, outputs="int64[N, 1025] i"),
        make_model(dtype="float16"),
        make_model(plugin=""),
    ],
    ids=["values", "smallest", "columns", "short", "dynamic", "three axes", "many", "float16", "no plugins"],
)
def test_searches_that_stay(model):
    assert not fit_to_tensorrt(model, Path()) and ops(model)[0] == "TopK"
