"""Custom operators of an ONNX file, and the plugins and the GPU that a build needs."""

from __future__ import annotations

import functools

import onnx
import pytest
from onnx import helper

from onnx_path import build
from onnx_path.nodes.custom_operators import custom_operators
from onnx_path.tensorrt.model_for_tensorrt import load_model
from tests.engines.plugin_engines import plugin_or_skip
from tests.onnx.engine_stand_ins import NO_GPU, SHAPES, attention_file, network, refuse_by
from tests.onnx.text_models import text_model
from trt_plugin.library import library_path

refuse = functools.partial(refuse_by, build.main)


def names_of(model: onnx.ModelProto) -> list[str]:
    return [operator.name for operator in custom_operators(model)]


def test_functions_and_names_of_onnx_are_no_custom_operators():
    """TensorRT's parser ignores domains: com.microsoft's Gelu is ONNX's to it."""
    branch = "{0} = {1} () => (float[3] {1}) {{ {1} = mine.Twist(b) }}"
    branches = ", ".join((branch.format("then_branch", "p"), branch.format("else_branch", "q")))
    model = text_model(
        f"a = com.microsoft.Gelu(x) b = mine.Swirl(a) y = If (c) <{branches}>",
        "float[3] x, bool c",
        "float[3] y",
        20,
        domains="com.microsoft mine",
    )
    assert names_of(model) == ["mine.Swirl", "mine.Twist"]
    whirl = helper.make_node("Whirl", ["x"], ["y"], domain="mine")
    opsets = [helper.make_opsetid("mine", 1)]
    model.functions.append(helper.make_function("mine", "Swirl", ["x"], ["y"], [whirl], opsets))
    assert names_of(model) == ["mine.Whirl", "mine.Twist"]


@pytest.mark.parametrize(
    ("op_type", "domain", "version", "expected"),
    [
        ("Swirl", "", "1", "operator Swirl of node score, version '1' in namespace '', got none"),
        ("Swirl", "mine", "1", "operator mine.Swirl of node score"),
        (
            "MultiscaleDeformableAttnPlugin_TRT",
            "trt.plugins",
            "77",
            "version '77' in namespace '', got version '1' in namespace ''",
        ),
        ("EfficientNMS_TRT", "", "1", NO_GPU),
        ("EfficientNMS_TRT", "trt.plugins", "1", NO_GPU),
    ],
)
def test_an_operator_without_plugin_is_named(
    tensorrt, no_gpu, tmp_path, capsys, op_type, domain, version, expected
):
    """Plugins are checked before the GPU. TensorRT has EfficientNMS_TRT itself."""
    head = f'{domain}{"." * bool(domain)}{op_type}<plugin_version = "{version}">'
    path = network(tmp_path / "model.onnx", head=head)
    line = refuse(capsys, tmp_path, path, "--out", tmp_path, *SHAPES, status=1 if expected == NO_GPU else 2)
    assert expected in line


def test_a_library_that_cannot_be_loaded_is_named(tensorrt, no_gpu, model, tmp_path, capsys):
    library = tmp_path / "lib.so"
    library.write_text("no library")
    assert str(library) in refuse(capsys, tmp_path, model, "--out", tmp_path, *SHAPES, "--plugins", library)


def test_our_library_is_loaded_if_the_file_needs_it(tensorrt, model, tmp_path, monkeypatch):
    plugin_or_skip()
    library = library_path()
    monkeypatch.setattr("trt_plugin.cuda_runtime.require_gpu", lambda: None)
    for bodies in (True, False):
        attention = load_model(attention_file(tmp_path / "attention.onnx", bodies))
        assert build.check_machine([], attention) == [library]
    other = load_model(model)
    assert build.check_machine([], other) == []
    assert build.check_machine([library, library], other) == [library]
