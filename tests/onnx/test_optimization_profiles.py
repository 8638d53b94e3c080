"""Optimization profiles of ONNX files: the notation of shapes, and shapes that contradict the file."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from codetr.errors import ArgumentError
from onnx_path.optimization_profiles import (
    OnnxInput,
    ShapeRange,
    fit_profiles,
    inputs_of,
    parse_shapes,
)
from tests.onnx.text_models import text_model


def fit(inputs: list[OnnxInput], smallest: dict, best: dict, largest: dict) -> dict[str, ShapeRange]:
    return fit_profiles(inputs, {"min": smallest, "opt": best, "max": largest})


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
    "text",
    [
        "",
        "images",
        "images:",
        ":1x3",
        "images:1x",
        "images:1x3x-1",
        "images:1 x3",
        "images:٣",
        "images:1x3,",
        "images:[1,3]",
        "images:0x3",
        "images:4294967296",
        "a:1,a:2",
    ],
)
def test_other_texts_are_refused(text):
    with pytest.raises(ArgumentError) as caught:
        parse_shapes("min", [text])
    assert caught.value.argument == "min"


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
        fit([IMAGES, MASK], smallest, best, largest)
    assert caught.value.argument == argument
    assert words in caught.value.problem


SIZES = st.integers(1, 4)
NAMED = st.sampled_from(["n", "h", "w", None])


@given(st.lists(st.lists(st.one_of(SIZES, NAMED), min_size=1, max_size=3), min_size=1, max_size=3), st.data())
def test_accepted_profiles_fit_the_file(file_shapes, data):
    """Draws near misses now and then: wrong ranks, orders, names and fixed sizes."""
    inputs = [OnnxInput(f"input{i}", tuple(shape)) for i, shape in enumerate(file_shapes)]
    named = {name: sorted(data.draw(st.lists(SIZES, min_size=3, max_size=3))) for name in ("n", "h", "w")}
    given_shapes = [{}, {}, {}]
    for one in inputs:
        for which, shapes in enumerate(given_shapes):
            if data.draw(st.integers(0, 19)) == 7:
                continue
            shape = [named[x][which] if isinstance(x, str) else x or 2 for x in one.shape]
            if data.draw(st.integers(0, 11)) == 7:
                shape[data.draw(st.integers(0, len(shape) - 1))] = data.draw(SIZES)
            shapes[one.name] = tuple(shape[: len(shape) - (data.draw(st.integers(0, 29)) == 7)] or [1])
    try:
        found = fit(inputs, *given_shapes)
    except ArgumentError:
        return
    assert list(found) == [one.name for one in inputs if one.dynamic]
    sizes: dict[tuple[str, int], int] = {}
    for one in inputs:
        if not one.dynamic:
            continue
        profile = found[one.name]
        assert [len(shape) for shape in profile] == [len(one.shape)] * 3
        for axis, fixed in enumerate(one.shape):
            low, best, high = (shape[axis] for shape in profile)
            assert low <= best <= high
            if isinstance(fixed, int):
                assert low == high == fixed
            elif fixed is not None:
                for which, size in enumerate((low, best, high)):
                    assert sizes.setdefault((fixed, which), size) == size
        for shapes, shape in zip(given_shapes, profile):
            assert shapes.get(one.name, shape) == shape


def test_inputs_are_read_from_the_file():
    model = text_model("y = Add(a, w)", "float[n, ?, 3] a, float[1] w", "float[n, ?, 3] y", w=np.ones(1))
    (one,) = inputs_of(model)
    assert (one.name, one.shape, one.dynamic) == ("a", ("n", None, 3), True)
    assert str(one) == "a [n, ?, 3]"
    model.graph.input[0].type.tensor_type.ClearField("shape")
    with pytest.raises(ValueError, match="input a: expected a tensor of known rank"):
        inputs_of(model)
