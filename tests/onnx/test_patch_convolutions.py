"""Convolutions of an image's patches as products, as builds write them for TensorRT."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from onnx_path.surgery.graph import onnx_session
from onnx_path.tensorrt.model_for_tensorrt import fit_to_tensorrt
from tests.onnx.text_models import text_model

CHANNELS, SIDE = 10, 4


def make_model(
    convolution: str = "strides = [4, 4]",
    size: str = "N, 3, 12, 20",
    result: str = "N, 10, 3, 5",
    dtype: type = np.float16,
    bias: bool = True,
) -> onnx.ModelProto:
    """A float32 image that becomes patches in another type, then a map."""
    random = np.random.default_rng(0)
    weight = random.standard_normal((CHANNELS, 3, SIDE, SIDE)).astype(dtype)
    code = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    name = onnx.TensorProto.DataType.Name(code).lower()
    body = f"h = Cast<to = {code}>(x) [conv] y = Conv<{convolution}>(h, W{', b' * bias})"
    constants = {"W": weight} | ({"b": random.standard_normal(CHANNELS).astype(dtype)} if bias else {})
    return text_model(body, f"float[{size}] x", f"{name}[{result}] y", **constants)


def ops(model: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("batch", ["N", "2"])
def test_patches_become_rows_of_a_product(batch, bias):
    model = make_model(size=f"{batch}, 3, 12, 20", result=f"{batch}, 10, 3, 5", bias=bias)
    image = np.random.default_rng(1).standard_normal((2, 3, 12, 20)).astype(np.float32)
    (expected,) = onnx_session.run(model, {"x": image})
    assert fit_to_tensorrt(model, Path())
    onnx.checker.check_model(model, full_check=True)
    product = [
        "Reshape",
        "Transpose",
        "Reshape",
        "MatMul",
        *(["Add"] if bias else []),
        "Transpose",
        "Reshape",
    ]
    assert ops(model) == ["Cast", *product] and all(x.name.startswith("conv/") for x in model.graph.node[1:])
    np.testing.assert_allclose(onnx_session.run(model, {"x": image})[0], expected, rtol=2e-3, atol=2e-2)


@pytest.mark.parametrize(
    "model",
    [
        make_model(dtype=np.float32),
        make_model("strides = [2, 2]", result="N, 10, 5, 9"),
        make_model("strides = [4, 4], pads = [0, 0, 4, 0]", result="N, 10, 4, 5"),
        make_model("strides = [4, 4], dilations = [2, 2]", result="N, 10, 2, 4"),
        make_model(size="N, 3, 13, 20"),
        make_model(size="N, 3, H, 20", result="N, 10, h, 5"),
    ],
    ids=["float32", "overlap", "padding", "dilation", "a rest", "a dynamic height"],
)
def test_convolutions_that_stay(model):
    before = ops(model)
    assert not fit_to_tensorrt(model, Path()) and ops(model) == before
