"""Custom operators of an ONNX file, and the plugins and the GPU that a build needs."""

from __future__ import annotations

import subprocess
import sys

import onnx
import pytest
from onnx import helper

from onnx_path import build
from onnx_path.custom_operators import custom_operators
from onnx_path.model_for_tensorrt import load_model
from tests.onnx.build_fixtures import (
    NO_GPU,
    REPOSITORY,
    SHAPES,
    attention_file,
    convolution,
    refuse,
)
from trt_plugin.engine_error import EngineError

pytest_plugins = ("tests.onnx.build_fixtures",)


def custom_node(op_type: str, domain: str, **attributes) -> onnx.NodeProto:
    return helper.make_node(op_type, ["maps"], ["output"], name="mine", domain=domain, **attributes)


def names_of(model: onnx.ModelProto) -> list[str]:
    return [operator.name for operator in custom_operators(model)]


def test_functions_and_names_of_onnx_are_no_custom_operators(tmp_path):
    """TensorRT's parser ignores domains: com.microsoft's Gelu is ONNX's to it."""
    path = convolution(tmp_path / "gelu.onnx", node=custom_node("Gelu", "com.microsoft"))
    assert names_of(onnx.load(path)) == []
    relu = helper.make_node("Relu", ["x"], ["y"])
    function = helper.make_function("mine", "Swirl", ["x"], ["y"], [relu], [helper.make_opsetid("", 20)])
    path = convolution(tmp_path / "model.onnx", node=custom_node("Swirl", "mine"), functions=(function,))
    model = load_model(path)
    assert names_of(model) == []
    model.functions[0].node[0].domain = "mine"
    model.functions[0].node[0].op_type = "Whirl"
    branch = helper.make_graph([custom_node("Twist", "mine")], "branch", [], [])
    model.graph.node.append(helper.make_node("If", ["c"], ["z"], then_branch=branch, else_branch=branch))
    assert names_of(model) == ["mine.Whirl", "mine.Twist"]


@pytest.mark.parametrize(
    ("op_type", "domain", "version", "expected"),
    [
        ("Swirl", "", "1", "operator Swirl of node mine, version '1' in namespace '', got none"),
        ("Swirl", "mine", "1", "operator mine.Swirl of node mine"),
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
    node = custom_node(op_type, domain, plugin_version=version)
    path = convolution(tmp_path / "model.onnx", node=node)
    line = refuse(capsys, tmp_path, path, "--out", tmp_path, *SHAPES, status=1 if expected == NO_GPU else 2)
    assert expected in line


def test_a_library_that_cannot_be_loaded_is_named(tensorrt, no_gpu, model, tmp_path, capsys):
    library = tmp_path / "lib.so"
    library.write_text("no library")
    assert str(library) in refuse(capsys, tmp_path, model, "--out", tmp_path, *SHAPES, "--plugins", library)


def test_our_library_is_loaded_if_the_file_needs_it(tensorrt, tmp_path, monkeypatch):
    import trt_plugin

    try:
        library = trt_plugin.load()
    except EngineError as error:
        pytest.skip(str(error))
    monkeypatch.setattr("trt_plugin.cuda_runtime.require_gpu", lambda: None)
    for bodies in (True, False):
        model = load_model(attention_file(tmp_path / "attention.onnx", bodies))
        assert build.check_machine([], model) == [library]
    model = load_model(convolution(tmp_path / "model.onnx"))
    assert build.check_machine([], model) == []
    assert build.check_machine([library, library], model) == [library]


def test_tensorrt_is_imported_after_the_file_is_checked(model, tmp_path):
    """The profile is the last check of the file."""
    code = (
        "import sys; from onnx_path.build import main; "
        f"status = main([{str(model)!r}, '--out', {str(tmp_path)!r}, '--precision', 'fp16']); "
        "found = {'tensorrt', 'polygraphy', 'cuda', 'torch', 'onnxruntime'} & set(sys.modules); "
        "sys.exit(f'{status} {found}')"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=REPOSITORY)
    error, found = result.stderr.splitlines()
    assert "--opt" in error
    assert found == "2 set()"
