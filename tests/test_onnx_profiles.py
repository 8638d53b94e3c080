"""Optimization profiles of ONNX files: what options say, and what the file allows."""

from __future__ import annotations

import re
import shlex

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

onnx = pytest.importorskip("onnx", reason="onnx is not installed")
pytest.importorskip("onnxscript", reason="onnxscript is not installed")

from onnx import helper  # noqa: E402

from onnx_path import optimization_profiles as profiles  # noqa: E402
from onnx_path.optimization_profiles import BadProfile, Input, Profile  # noqa: E402

pytest_plugins = ("tests.onnx_builds",)


def file_input(shape, name="images") -> Input:
    return Input(name, tuple(shape))


@pytest.mark.parametrize(
    ("texts", "shapes"),
    [
        ([], {}),
        (["images:1x3x8x8"], {"images": (1, 3, 8, 8)}),
        (["images:1x3,mask:2", "last:7"], {"images": (1, 3), "mask": (2,), "last": (7,)}),
        (["input:0:1x3,b,c:2"], {"input:0": (1, 3), "b,c": (2,)}),
    ],
)
def test_shapes_are_read(texts, shapes):
    assert profiles.parse_shapes("--min", texts) == shapes


@pytest.mark.parametrize(
    "text",
    [
        "",
        "images",
        "images:",
        ":1x3",
        "images:1x",
        "images:x3",
        "images:1x3x-1",
        "images:1 x3",
        "images:٣",
        "images:1x3,",
        ",images:1x3",
        "images=1x3",
        "images:[1,3]",
        "images:0x3",
        "images:4294967296",
        "a:1,a:2",
    ],
)
def test_what_is_no_shape_is_refused(text):
    # Where a name could hold the comma, the file does not have it.
    if text == ",images:1x3":
        with pytest.raises(BadProfile, match="the file has no such input; its inputs are images"):
            profiles.fit([file_input(["n", 3])], profiles.parse_shapes("--min", [text]), {}, {})
        return
    with pytest.raises(BadProfile, match=rf"^--min {re.escape(text)}".rstrip()):
        profiles.parse_shapes("--min", [text])


SIZES = st.integers(1, 4)
NAMED = st.sampled_from(["n", "h", "w", None])


@given(st.lists(st.lists(st.one_of(SIZES, NAMED), min_size=1, max_size=3), min_size=1, max_size=3), st.data())
def test_accepted_profiles_fit_the_file(file_shapes, data):
    """Near misses are drawn: wrong ranks, orders, names and fixed sizes, each now and then."""
    inputs = [file_input(shape, f"input{i}") for i, shape in enumerate(file_shapes)]
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
        found = profiles.fit(inputs, *given_shapes)
    except BadProfile as error:
        assert re.match(r"--(min|opt|max) input\d|--(min|opt|max): expected|input input\d", str(error)), error
        return
    assert list(found) == [one.name for one in inputs if one.dynamic]
    sizes: dict[tuple[str, int], int] = {}
    for one in inputs:
        if not one.dynamic:
            continue
        profile = found[one.name]
        assert [len(shape) for shape in profile] == [len(one.shape)] * 3
        for axis, fixed in enumerate(one.shape):
            low, usual, high = (shape[axis] for shape in profile)
            assert low <= usual <= high
            if isinstance(fixed, int):
                assert low == high == fixed
            elif fixed is not None:
                for which, size in enumerate((low, usual, high)):
                    assert sizes.setdefault((fixed, which), size) == size
        for shapes, shape in zip(given_shapes, profile):
            assert shapes.get(one.name, shape) == shape


@given(st.lists(st.one_of(SIZES, NAMED), min_size=1, max_size=4))
def test_the_example_fits(shape):
    one = file_input(shape)
    assume(one.dynamic)
    words = shlex.split(profiles.example(one))
    assert words[::2] == list(profiles.OPTIONS)
    shapes = [profiles.parse_shapes(option, [text]) for option, text in zip(words[::2], words[1::2])]
    assert set(profiles.fit([one], *shapes)) == {"images"}


def test_opt_alone_fixes_a_shape():
    fixed = profiles.fit([file_input(["n", 3])], {}, {"images": (2, 3)}, {})
    assert fixed == {"images": Profile((2, 3), (2, 3), (2, 3))}


def test_a_name_of_a_dynamic_size_is_one_size():
    inputs = [file_input(["n", "h"]), file_input(["n"], "mask")]
    usual = {"images": (1, 8), "mask": (2,)}
    with pytest.raises(BadProfile, match=r"^--opt mask: expected 1 for n, as in images, got 2$"):
        profiles.fit(inputs, {}, usual, {})
    least, most = {"images": (1, 8), "mask": (1,)}, {"images": (4, 8), "mask": (3,)}
    with pytest.raises(BadProfile, match=r"^--max mask: expected 4 for n, as in images, got 3$"):
        profiles.fit(inputs, least, least, most)


def test_inputs_are_read_from_the_file():
    graph = helper.make_graph(
        [helper.make_node("Add", ["a", "w"], ["y"])],
        "g",
        [
            helper.make_tensor_value_info("a", 1, ["n", None, 3, -1]),
            helper.make_tensor_value_info("w", 1, [1]),
        ],
        [helper.make_tensor_value_info("y", 1, None)],
        [helper.make_tensor("w", 1, [1], [1.0])],
    )
    (one,) = profiles.inputs_of(helper.make_model(graph))
    assert (one.name, one.shape, one.dynamic) == ("a", ("n", None, 3, None), (0, 1, 3))
    assert str(one) == "a [n, ?, 3, ?]"
    graph.input[0].type.tensor_type.ClearField("shape")
    with pytest.raises(BadProfile, match="input a: expected a tensor with a shape"):
        profiles.inputs_of(helper.make_model(graph))
