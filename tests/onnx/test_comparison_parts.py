"""The parts of `python -m onnx_path.compare`: inputs, onnxruntime, errors, tensors of two files."""

from __future__ import annotations

import math
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from codetr.errors import ArgumentError, UsageError
from onnx_path import operator
from onnx_path.comparison.comparable_tensors import ComparableTensors, names_of
from onnx_path.comparison.input_arrays import GivenArray, choose_shapes, read_inputs
from onnx_path.comparison.onnxruntime_reference import OnnxruntimeReference
from onnx_path.comparison.tensor_errors import TensorError, Tolerance
from onnx_path.optimization_profiles import OnnxInput, inputs_of
from onnx_path.surgery.rewrite import function_bodies
from onnx_path.surgery.verify.random_inputs import random_inputs
from tests.onnx.build_fixtures import attention_file
from tests.onnx.comparison_fixtures import converted, network
from tests.onnx.text_models import text_model
from trt_plugin.inspection.engine_summary import TensorReport

PICTURE = text_model(
    "y = Identity(images)",
    "float[batch, 3, 8, 8] images, bool[batch, 8, 8] mask, bfloat16[4] narrow, int64[batch, 2] sizes, "
    "int32[5] tokens",
    "float[batch, 3, 8, 8] y",
)


def test_inputs_are_read_by_name_and_get_the_files_types(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    images = np.random.default_rng(0).standard_normal((2, 3, 8, 8))
    np.save("a=b.npy", images)
    np.save("narrow.npy", np.float32([1, 1 + 2**-9, -3, 1e30]))
    np.savez("rest.npz", tokens=np.int64([1, 2, 3, 4, 5]))
    given = read_inputs(PICTURE, ["images=a=b.npy", "narrow=narrow.npy"], Path("rest.npz"))
    assert {name: x.source for name, x in given.items()} == {
        "images": "--input images=a=b.npy",
        "narrow": "--input narrow=narrow.npy",
        "tokens": "--inputs rest.npz",
    }
    assert [x.array.dtype for x in given.values()] == [np.float32, ml_dtypes.bfloat16, np.int32]
    np.testing.assert_array_equal(given["images"].array, images.astype(np.float32))


@pytest.mark.parametrize(
    ("content", "option", "words"),
    [
        (None, "images=x.npy", "'x.npy' (x.npy: No such file"),
        (b"text", "images=x.npy", "expected NAME=FILE.npy"),
        ({"tokens": np.zeros(5)}, "tokens=x.npy", "an archive of arrays, see --inputs"),
        (np.zeros(1), "image=x.npy", "expected an input of the file (images, mask"),
        (np.zeros((1, 3, 8)), "images=x.npy", "images [batch, 3, 8, 8], as in the file, got 1x3x8"),
        (np.zeros((1, 4, 8, 8)), "images=x.npy", "got 1x4x8x8"),
        (np.zeros((1, 3, 8, 8), int), "images=x.npy", "images: expected float32, got int64"),
    ],
)
def test_a_wrong_input_is_named(tmp_path, monkeypatch, content, option, words):
    monkeypatch.chdir(tmp_path)
    if content is not None:
        with open("x.npy", "wb") as file:
            if isinstance(content, bytes):
                file.write(content)
            elif isinstance(content, dict):
                np.savez(file, **content)
            else:
                np.save(file, content)
    with pytest.raises(ArgumentError) as caught:
        read_inputs(PICTURE, [option], None)
    assert caught.value.argument == "input" and words in caught.value.problem


INPUTS = [OnnxInput("images", ("batch", 3, 8)), OnnxInput("tokens", (5,))]
ENGINE = {
    "images": TensorReport("images", (-1, 3, 8), "float32", (1, 3, 8), (2, 3, 8), (4, 3, 8)),
    "tokens": TensorReport("tokens", (5,), "int32"),
}
GIVEN = {"images": GivenArray(np.zeros((3, 3, 8)), "--input images=x.npy")}


@pytest.mark.parametrize(
    ("given", "asked", "expected"),
    [({}, {}, (2, 3, 8)), ({}, {"images": (4, 3, 8)}, (4, 3, 8)), (GIVEN, {}, (3, 3, 8))],
)
def test_shapes_are_the_arrays_the_ones_asked_for_or_the_best(given, asked, expected):
    assert choose_shapes(INPUTS, given, asked, ENGINE) == {"images": expected, "tokens": (5,)}


def test_an_engine_with_other_inputs_is_refused():
    with pytest.raises(UsageError, match=r"\(images, tokens\), got one with images$"):
        choose_shapes(INPUTS, {}, {}, {"images": ENGINE["images"]})


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


def attention_inputs(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    shapes = {x.name: x.shape for x in inputs_of(model)}
    arrays = random_inputs(ir.from_proto(model), shapes, 0)
    arrays["spatial_shapes"] = np.int64([[4, 4], [2, 2]])
    return arrays | {"level_start_index": np.int64([0, 16])}


def test_bodies_that_a_file_lacks_are_put_in(tmp_path):
    model = onnx.load(attention_file(tmp_path / "attention.onnx", bodies=True))
    inputs = attention_inputs(model)
    (expected,) = OnnxruntimeReference(model, tmp_path, inputs)().values()
    bare = onnx.load(attention_file(tmp_path / "bare.onnx", bodies=False))
    np.testing.assert_array_equal(OnnxruntimeReference(bare, tmp_path, inputs)()["output"], expected)
    assert np.abs(expected).max() > 0.1
    nvidia = onnx.load(attention_file(tmp_path / "nvidia.onnx", bodies=False))
    nvidia.graph.node[0].domain, nvidia.graph.node[0].op_type = operator.NVIDIA_DOMAIN, function_bodies.NVIDIA
    nvidia.opset_import[1].domain = operator.NVIDIA_DOMAIN
    nvidia.graph.output[0].CopyFrom(helper.make_tensor_value_info("output", 1, None))
    found = OnnxruntimeReference(nvidia, tmp_path, inputs)()["output"]
    np.testing.assert_array_equal(found.reshape(expected.shape), expected)


def test_reference_gives_marks_beside_outputs_and_forgets_them(tmp_path):
    model = onnx.load(network(tmp_path / "model.onnx", external=True), load_external_data=False)
    run = OnnxruntimeReference(model, tmp_path, {"images": np.ones((1, 16, 16), np.float32)})
    found = run(["tanh_1", "score", "sum_2"])
    assert list(found) == ["features", "score", "tanh_1", "sum_2"]
    np.testing.assert_array_equal(found["features"], -found["sum_2"])
    assert list(run()) == ["features", "score"]


# Tensors of two files.


def test_tensors_of_a_converted_file_are_found_by_name(tmp_path):
    path = network(tmp_path / "model.onnx")
    model = onnx.load(path)
    tensors = ComparableTensors(onnx.load(converted(path, "fp16")), names_of(model))
    assert tensors.names == [x for node in model.graph.node for x in node.output]
    assert tensors.types["product_1"] == TensorProto.FLOAT16
    assert tensors.types["score"] == TensorProto.FLOAT
    assert set(tensors.sources("sum_1")) == {"sum_0", "tanh_1"}
    assert tensors.ancestors("sum_0") == {"product_0", "biased_0", "tanh_0"}
    assert tensors.sources("product_0") == ("images",) and tensors.is_input("images")
    assert str(tensors.nodes("product_1")[-1]) == "product_1 (MatMul)"


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
