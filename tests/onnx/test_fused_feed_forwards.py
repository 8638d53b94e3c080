"""Feed-forward blocks of two `Linear` nodes, each replaced by one `FeedForward` node before a build."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import Mock

import numpy as np
import onnx
import pytest

from onnx_path.nodes.attention import OPSET_VERSION
from onnx_path.nodes.domain import DOMAIN
from onnx_path.nodes.feed_forward import FEED_FORWARD
from onnx_path.nodes.linear import LINEAR
from onnx_path.opset import opset_of
from onnx_path.tensorrt import model_for_tensorrt
from onnx_path.tensorrt.fused_feed_forwards import fuse_feed_forwards
from onnx_path.tensorrt.graph_passes import run_passes
from tests.onnx.map_nodes import add_bodies_of_opset, open_session
from tests.onnx.text_models import text_model
from trt_plugin import library
from trt_plugin.engine_error import EngineError

ROWS, CHANNELS, HIDDEN = 63, 16, 32
RELU, GELU = 2, 1


def layer(inputs: str, activation: int = 0, residual: int = 0, mask: int = 0, normalise: int = 0) -> str:
    numbers = f"add_residual = {residual}, multiply_mask = {mask}, normalise = {normalise}, eps = 0.001"
    return f"msda.Linear<activation = {activation}, {numbers}>({inputs})"


FIRST = f"h = {layer('x, W, b, b, b, b, b', RELU)}"
SECOND = f" y = {layer('h, T, c, x, c, f, g', residual=1, normalise=1)}"


def make_model(
    body: str = FIRST + SECOND, outputs: str = "", element: str = "float16", rows: str = f"2, {ROWS}"
) -> onnx.ModelProto:
    random = np.random.default_rng(0)
    dtype = np.dtype(element.replace("float16", "half").replace("bfloat", "half"))
    shapes = {"W": (HIDDEN, CHANNELS), "b": (HIDDEN,), "T": (CHANNELS, HIDDEN)}
    shapes |= {name: (CHANNELS,) for name in "cfg"} | {"m": (2, ROWS, 1)}
    weights = {name: random.standard_normal(shape).astype(dtype) for name, shape in shapes.items()}
    x, y = (f"{element}[{rows}, {CHANNELS}] {name}" for name in "xy")
    model = text_model(body, x, y + outputs, OPSET_VERSION, domains=DOMAIN, **weights)
    for node in model.graph.node:
        node.name = f"/block/{node.output[0]}/{node.op_type}"
    return model


def types_of(model: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node]


@pytest.fixture(autouse=True)
def has_fast(monkeypatch) -> Mock:
    """What a build asks the library for a block."""
    has_fast = Mock(return_value=True)
    monkeypatch.setattr(library, "has_fast_feed_forward", has_fast)
    return has_fast


def test_block_that_becomes_a_node(has_fast):
    model = make_model()
    fused = onnx.ModelProto.FromString(model.SerializeToString())
    assert run_passes(fused, Path(), fuse_feed_forwards) == 1
    (node,) = fused.graph.node
    assert (node.op_type, node.name) == (FEED_FORWARD, "/block/FeedForward")
    assert list(node.input) == ["x", "W", "b", "T", "c", "f", "g"] and list(node.output) == ["y"]
    numbers = {x.name: onnx.helper.get_attribute_value(x) for x in node.attribute}
    assert numbers["eps"] == pytest.approx(1e-3)
    has_fast.assert_called_once_with(2 * ROWS, CHANNELS, HIDDEN)
    x = np.random.default_rng(1).standard_normal((2, ROWS, CHANNELS)).astype(np.float16)
    results = []
    for each in (model, fused):
        add_bodies_of_opset(each, opset_of(each))
        onnx.checker.check_model(each, full_check=True)
        results.extend(open_session(each).run(None, {"x": x}))
    np.testing.assert_allclose(*(result.astype(np.float32) for result in results), rtol=4e-3, atol=4e-3)


OTHER = f", float16[2, {ROWS}, "
STAY = {
    "another residual": (f"v = Neg(x) {FIRST} {SECOND.replace(', x,', ', v,')}", ""),
    "a GELU": (FIRST.replace(f"activation = {RELU}", f"activation = {GELU}") + SECOND, ""),
    "no normalisation": (FIRST + SECOND.replace("normalise = 1", "normalise = 0"), ""),
    "hidden numbers with a reader": (f"{FIRST} {SECOND} v = Neg(h)", f"{OTHER}{HIDDEN}] v"),
    "hidden numbers that are an output": (FIRST + SECOND, f"{OTHER}{HIDDEN}] h"),
    "a mask": (f"h = {layer('x, W, b, b, m, b, b', RELU, mask=1)} {SECOND}", ""),
}


@pytest.mark.parametrize("name", STAY)
def test_blocks_that_stay(name):
    model = make_model(*STAY[name])
    before = types_of(model)
    assert run_passes(model, Path(), fuse_feed_forwards) == 0 and types_of(model) == before


def test_float32_stays(has_fast):
    assert run_passes(make_model(element="float"), Path(), fuse_feed_forwards) == 0
    has_fast.assert_not_called()


@pytest.mark.parametrize("answer", [{"return_value": False}, {"side_effect": EngineError("no TensorRT")}])
def test_blocks_without_a_fast_kernel_stay(answer, has_fast):
    has_fast.configure_mock(**answer)
    model = make_model()
    assert run_passes(model, Path(), fuse_feed_forwards) == 0 and types_of(model).count(LINEAR) == 2


@pytest.mark.parametrize(("rows", "count"), [("n, 63", 63), ("n, s", 2**15), ("2, s", 2**15), ("n", 1)])
def test_dynamic_rows(rows, count, has_fast):
    """A batch counts as one image, a dynamic number of rows of an image as many."""
    model = make_model(rows=rows)
    assert run_passes(model, Path(), fuse_feed_forwards) == 1
    has_fast.assert_called_once_with(count, CHANNELS, HIDDEN)


def test_build_asks_for_the_block_before_its_layers(has_fast, monkeypatch):
    """Otherwise the first layer would be written out."""
    monkeypatch.setattr(library, "has_fast_linear", lambda *layer: False)
    model = make_model()
    assert model_for_tensorrt.fit_to_tensorrt(model, Path())
    assert types_of(model) == [FEED_FORWARD]
