"""The parts of `python -m onnx_path.compare`: inputs, onnxruntime, errors, tensors of two files."""

from __future__ import annotations

import copy
import math
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from onnx_path.comparison.comparable_tensors import ComparableTensors, names_of
from onnx_path.comparison.input_arrays import read_inputs
from onnx_path.comparison.onnxruntime_reference import OnnxruntimeReference
from onnx_path.comparison.tensor_errors import TensorError, Tolerance
from onnx_path.nodes import attention
from onnx_path.surgery.rewrite import function_bodies
from onnx_path.tensorrt.optimization_profiles import inputs_of
from tests.onnx.engine_stand_ins import attention_file, converted
from tests.onnx.text_models import text_model


def test_inputs_are_read_by_name_and_get_the_files_types(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    inputs = "float[batch, 8] images, bfloat16[4] narrow, int32[5] tokens, bool[batch] mask"
    model = text_model("y = Identity(images)", inputs, "float[batch, 8] y")
    images = np.random.default_rng(0).standard_normal((2, 8))
    np.save("a=b.npy", images)
    np.save("narrow.npy", np.float32([1, 1 + 2**-9, -3, 1e30]))
    np.savez("rest.npz", tokens=np.int64([1, 2, 3, 4, 5]))
    given = read_inputs(model, ["images=a=b.npy", "narrow=narrow.npy"], Path("rest.npz"))
    assert {name: x.source for name, x in given.items()} == {
        "images": "--input images=a=b.npy",
        "narrow": "--input narrow=narrow.npy",
        "tokens": "--inputs rest.npz",
    }
    assert [x.array.dtype for x in given.values()] == [np.float32, ml_dtypes.bfloat16, np.int32]
    np.testing.assert_array_equal(given["images"].array, images.astype(np.float32))


# Errors.


def error(reference: object, found: object, precision: str = "fp32", dtype: str = "float32") -> TensorError:
    arrays = [np.asarray(x, None if dtype != "float32" else np.float32) for x in (reference, found)]
    return Tolerance(1e-4, precision, "", given=False).error("x", *arrays, dtype)


def test_error_is_the_norm_of_the_difference_over_that_of_the_reference():
    found = error([3, 0, 4], [3, 3e-4, 4])
    assert found.absolute == pytest.approx(3e-4) and found.relative == pytest.approx(6e-5)
    assert found.within and not error([3, 0, 4], [3, 6e-4, 4]).within
    large = np.ones(2**22 + 7)
    assert error(large, large + 0.5).relative == pytest.approx(0.5)  # in more than one piece
    labels = error(np.int64([2, 7]), np.int32([2, 8]), dtype="int32")
    assert labels.absolute == 1 and not labels.within
    assert error(np.bool_([1, 0]), np.bool_([1, 0]), dtype="bool").relative == 0
    assert error([1], [1, 2]).note == "onnxruntime gives [1]"
    assert error([1], [math.nan]).note.startswith("1 numbers")


@pytest.mark.parametrize(
    ("reference", "found", "precision", "relative"),
    [
        ([1, math.nan, math.inf], [1, math.nan, math.inf], "fp32", 0),
        ([1, math.nan], [1, 2], "fp32", math.inf),
        ([1, 2], [1, math.nan], "fp32", math.inf),
        ([1, math.inf], [1, -math.inf], "fp32", math.inf),
        ([1, -3.4e38], [1, -32752], "fp32", 1),
        ([1, -3.4e38], [1, -32752], "fp16", 0),  # a mask's
        ([1, -3.4e38], [1.5, -32752], "fp16", 0.5),  # and it does not hide the rest
        ([1, -3.4e38], [1, 32752], "fp16", 1),
        ([1, -3.4e38], [1, -1.7e38], "bf16", 0),
        ([1e-12, 3e-8], [0, 0], "fp16", 0),
        ([1e-12, 3e-8], [0, 0], "fp32", 1),
        ([0, 0], [0, 0], "fp32", 0),
        ([0, 0], [0, 1e-9], "fp32", math.inf),
        ([], [], "fp32", 0),
        ([1], [[1]], "fp32", math.inf),
    ],
)
def test_what_is_no_ordinary_number(reference, found, precision, relative):
    result = error(reference, found, precision)
    assert result.relative == pytest.approx(relative, rel=1e-4)
    assert result.as_dict()["relative"] is None or math.isfinite(relative)


# onnxruntime.


def test_nvidia_s_nodes_get_a_body(tmp_path):
    """Onnxruntime computes the same by them as by our nodes."""
    model = onnx.load(attention_file(tmp_path / "attention.onnx", bodies=False))
    nvidia = copy.deepcopy(model)
    random = np.random.default_rng(0)
    inputs = {x.name: random.random(x.shape, np.float32) for x in inputs_of(model)}
    inputs |= {"spatial_shapes": np.int64([[4, 4], [2, 2]]), "level_start_index": np.int64([0, 16])}
    (expected,) = OnnxruntimeReference(model, tmp_path, inputs)().values()
    assert np.abs(expected).max() > 0.1
    nvidia.graph.node[0].domain, nvidia.graph.node[0].op_type = (
        attention.NVIDIA_DOMAIN,
        function_bodies.NVIDIA,
    )
    nvidia.opset_import[1].domain = attention.NVIDIA_DOMAIN
    nvidia.graph.output[0].CopyFrom(helper.make_tensor_value_info("output", 1, None))
    found = OnnxruntimeReference(nvidia, tmp_path, inputs)()["output"]
    np.testing.assert_array_equal(found.reshape(expected.shape), expected)


def test_reference_gives_marks_beside_outputs_and_forgets_them(model):
    run = OnnxruntimeReference(onnx.load(model), model.parent, {"images": np.ones((1, 16, 16), np.float32)})
    assert list(run(["tanh_1", "score", "sum_2"])) == ["features", "score", "tanh_1", "sum_2"]
    assert list(run()) == ["features", "score"]


# Tensors of two files.


def test_tensors_of_a_converted_file_are_found_by_name(model):
    names = [x for node in onnx.load(model).graph.node for x in node.output]
    tensors = ComparableTensors(onnx.load(converted(model, "fp16")), names)
    assert tensors.names == names
    assert tensors.types["product_1"] == TensorProto.FLOAT16
    assert tensors.types["score"] == TensorProto.FLOAT
    assert tensors.sources("product_0") == ("images",)


def test_tensors_that_cannot_be_compared_are_left_out():
    model = text_model(
        """shape = Shape(x) [a] a = Neg(x) [alias] alias = Identity(a) [hidden] only_here = Neg(alias)
        [back] b = Reshape(only_here, shape) larger = Greater(b, x) wide = Cast<to = 11>(b)
        y = If (condition) <then_branch = one () => (float[4] p) { p = Abs(b) },
                            else_branch = two () => (float[4] q) { q = Abs(x) }>""",
        "float[4] x, bool condition",
        "float[4] y",
        20,
    )
    onnx.checker.check_model(model)
    tensors = ComparableTensors(model, names_of(model) - {"only_here"})
    assert tensors.names == ["b", "larger", "y"]
    assert list(map(str, tensors.nodes("b"))) == [
        "a (Neg)",
        "alias (Identity)",
        "hidden (Neg)",
        "back (Reshape)",
    ]
    assert set(tensors.sources("y")) == {"b", "x", "condition"} and tensors.ancestors("y") == {"b"}


def test_results_of_constants_are_compared_and_sizes_are_not():
    """Sampling offsets of learned queries depend on no input, and can be wrong all the same."""
    model = text_model(
        """turned = Transpose(weight) [offsets] offsets = MatMul(queries, turned) shape = Shape(x)
        sizes = Cast<to = 1>(shape) ratios = Div(sizes, queries) sum = Add(offsets, ratios)
        y = Mul(sum, x)""",
        "float[2, 2] x",
        "float[2, 2] y",
        20,
        weight=np.ones((2, 2), np.float32),
        queries=np.ones((2, 2), np.float32),
    )
    assert ComparableTensors(model, names_of(model)).names == ["offsets", "y"]
    tensors = ComparableTensors(onnx.shape_inference.infer_shapes(model), names_of(model))  # with ranks
    assert tensors.names == ["offsets", "ratios", "sum", "y"]
    assert tensors.sources("offsets") == tensors.sources("ratios") == ()
    assert tensors.sources("sum") == ("offsets", "ratios")
    assert [str(x) for x in tensors.nodes("offsets")] == ["offsets (MatMul)"]
