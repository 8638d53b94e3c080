"""CumSum as a matrix product, as builds write it for TensorRT."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.helper as oh
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onnx_path.surgery.graph import onnx_session
from onnx_path.tensorrt.model_for_tensorrt import fit_to_tensorrt
from tests.onnx import model_zoo

MASKED = "deformable_detr", "grounding_dino"
"""Models of the zoo that number the cells of their masks."""


def model_of(shape: list[int | str], axis: int, dtype: int = onnx.TensorProto.FLOAT, **attributes: int):
    x, y = (oh.make_tensor_value_info(name, dtype, shape) for name in "xy")
    node = oh.make_node("CumSum", ["x", "axis"], ["y"], name="sum", **attributes)
    axes = oh.make_tensor("axis", onnx.TensorProto.INT64, [], [axis])
    graph = oh.make_graph([node], "sums", [x], [y], [axes])
    return oh.make_model(graph, opset_imports=[oh.make_opsetid("", 17)], ir_version=8)


def ops(model: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node]


@given(st.data())
def test_sums_of_whole_numbers_are_exact(data):
    shape = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=4))
    axis = data.draw(st.sampled_from([len(shape) - 1, -1, *([len(shape) - 2, -2] if len(shape) > 1 else [])]))
    known = len(shape) < 3 or data.draw(st.booleans())
    model = model_of(
        shape if known else [f"size_{i}" for i in range(len(shape))],
        axis,
        exclusive=data.draw(st.integers(0, 1)),
        reverse=data.draw(st.integers(0, 1)),
    )
    numbers = np.random.default_rng(data.draw(st.integers(0, 99))).integers(-9, 9, shape).astype(np.float32)
    (expected,) = onnx_session.run(model, {"x": numbers})
    assert fit_to_tensorrt(model, Path())
    onnx.checker.check_model(model, full_check=True)
    assert ops(model)[-1] == "MatMul" and model.graph.node[-1].name == "sum"
    assert "CumSum" not in ops(model) and (len(ops(model)) == 1) == known
    np.testing.assert_array_equal(onnx_session.run(model, {"x": numbers})[0], expected)


@pytest.mark.parametrize(
    "model",
    [
        model_of([2, 4, 5], 0),
        model_of([2, 1025], 1),
        model_of(["batch", "cells"], 1),
        model_of([2, 4], 1, onnx.TensorProto.INT64),
    ],
    ids=["first of three axes", "long", "unknown", "integers"],
)
def test_what_stays(model):
    before = model.SerializeToString()
    assert not fit_to_tensorrt(model, Path())
    assert model.SerializeToString() == before


@pytest.mark.slow
@pytest.mark.parametrize("name", MASKED)
def test_positions_of_the_zoo(name, zoo_folder):
    """No loop of TensorRT is left: each level has two sums."""
    model = model_zoo.operated(name, zoo_folder)
    assert ops(model).count("CumSum") >= 8
    fit_to_tensorrt(model, zoo_folder)
    assert "CumSum" not in ops(model)
