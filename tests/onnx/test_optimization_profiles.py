"""Optimization profiles of ONNX files: the notation of shapes, and shapes that contradict the file."""

from __future__ import annotations

import numpy as np
import pytest

from codetr.errors import ArgumentError
from onnx_path.tensorrt.optimization_profiles import (
    OnnxInput,
    ShapeRange,
    fit_profiles,
    inputs_of,
    parse_shapes,
)
from tests.onnx.text_models import text_model


@pytest.mark.parametrize(
    ("texts", "shapes"),
    [
        ([], {}),
        (["images:1x3x8x8"], {"images": (1, 3, 8, 8)}),
        (["images:1x3,mask:2", "last:7"], {"images": (1, 3), "mask": (2,), "last": (7,)}),
        (["input:0:1x3,b,c:2"], {"input:0": (1, 3), "b,c": (2,)}),
    ],
)
def test_shapes_are_parsed(texts, shapes):
    assert parse_shapes("min", texts) == shapes


@pytest.mark.parametrize(
    "text", ["", "images:", ":1x3", "images:1x", "images:1x3,", "images:[1,3]", "images:0x3"]
)
def test_other_texts_are_refused(text):
    with pytest.raises(ArgumentError, match=r"^min: expected NAME:SIZExSIZE"):
        parse_shapes("min", [text])


IMAGES = OnnxInput("images", ("n", 3, "h"))
MASK = OnnxInput("mask", ("n",))


@pytest.mark.parametrize(
    ("smallest", "best", "largest", "argument", "words"),
    [
        ({}, {"image": (1,)}, {}, "opt", "(images, mask), got image"),
        ({}, {"images": (1, 3)}, {}, "opt", "images [n, 3, h], as in the file, got 1x3"),
        ({}, {"images": (1, 4, 8)}, {}, "opt", "got 1x4x8"),
        ({"images": (1, 3, 8)}, {}, {}, "opt", "a shape of images"),
        ({}, {"images": (1, 3, 8)}, {"images": (1, 3, 8)}, "min", "a shape of images"),
        ({}, {"images": (1, 3, 8)}, {}, "opt", "a shape of mask [n]"),
        ({"images": (2, 3, 8)}, {"images": (1, 3, 8)}, {"images": (4, 3, 8)}, "opt", "2x3x8 and 4x3x8"),
        ({"images": (1, 3, 8)}, {"images": (1, 3, 9)}, {"images": (4, 3, 8)}, "opt", "got 1x3x9"),
        ({}, {"images": (1, 3, 8), "mask": (2,)}, {}, "opt", "one size n in all inputs, got 1 and 2"),
        (
            {"images": (1, 3, 8), "mask": (1,)},
            {"images": (1, 3, 8), "mask": (1,)},
            {"images": (4, 3, 8), "mask": (3,)},
            "max",
            "one size n in all inputs, got 4 and 3",
        ),
    ],
)
def test_contradictions_are_named(smallest, best, largest, argument, words):
    with pytest.raises(ArgumentError) as caught:
        fit_profiles([IMAGES, MASK], {"min": smallest, "opt": best, "max": largest})
    assert caught.value.argument == argument
    assert words in caught.value.problem


def test_profiles_of_dynamic_inputs():
    fixed = OnnxInput("weights", (3, 4))
    ranges = {
        name: {"images": (n, 3, 8), "weights": (3, 4)} for name, n in (("min", 1), ("opt", 2), ("max", 4))
    }
    assert fit_profiles([fixed, IMAGES], ranges) == {"images": ShapeRange((1, 3, 8), (2, 3, 8), (4, 3, 8))}
    best = {"min": {}, "opt": {"images": (2, 3, 8)}, "max": {}}
    assert fit_profiles([fixed, IMAGES], best) == {"images": ShapeRange(*[(2, 3, 8)] * 3)}


def test_inputs_are_read_from_the_file():
    model = text_model("y = Add(a, w)", "float[n, ?, 3] a, float[1] w", "float[n, ?, 3] y", w=np.ones(1))
    (one,) = inputs_of(model)
    assert (one.name, one.shape, one.dynamic) == ("a", ("n", None, 3), True)
    assert str(one) == "a [n, ?, 3]"
    model.graph.input[0].type.tensor_type.ClearField("shape")
    with pytest.raises(ValueError, match="input a: expected a tensor of known rank"):
        inputs_of(model)
