"""What `python -m onnx_path.build` says of packages, plugins and the GPU, and when."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest

onnx = pytest.importorskip("onnx", reason="onnx is not installed")
pytest.importorskip("onnxscript", reason="onnxscript is not installed")

from onnx import helper  # noqa: E402

from onnx_path import build, requirements  # noqa: E402
from onnx_path import custom_operators as plugins
from onnx_path import model_for_tensorrt as preparation
from onnx_path.tensorrt_engine import Settings  # noqa: E402
from tests.onnx_builds import NO_GPU, REPOSITORY, SHAPES, attention_file, convolution, refuse  # noqa: E402
from trt_plugin.engine_error import EngineError  # noqa: E402

pytest_plugins = ("tests.onnx_builds",)


def run_without(
    path: Path, *absent: str, command: str = "build", shapes: tuple[str, ...] = SHAPES, **environment: str
) -> subprocess.CompletedProcess:
    """A command in a process of its own where some modules cannot be imported and CUDA finds no GPU."""
    blocked = "; ".join(f"sys.modules[{name!r}] = None" for name in absent)
    argv = [command, str(path), "--out", str(path.parent / "out"), *shapes]
    code = (
        f"import runpy, sys; {blocked}; sys.argv = {argv!r}; "
        f"runpy.run_module('onnx_path.{command}', run_name='__main__')"
    )
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "-1", **environment}
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=REPOSITORY, env=environment
    )


def line_without(path: Path, *absent: str, **options) -> str:
    """The only line of a command that refuses with status 2 and writes nothing, see `run_without`."""
    before = sorted(path.parent.iterdir())
    result = run_without(path, *absent, **options)
    assert (result.returncode, result.stdout) == (2, ""), result
    (line,) = result.stderr.splitlines()
    assert sorted(path.parent.iterdir()) == before
    return line.removeprefix("error: ")


INSTALL = "; install the packages with: pip install 'codetr-tensorrt"


def test_all_that_is_missing_is_named_at_once(tmp_path):
    path, library = attention_file(tmp_path / "attention.onnx"), tmp_path / "nowhere.so"
    absent = ("polygraphy", "tensorrt", "cuda")
    line = line_without(path, *absent, shapes=(), MSDA_TRT_PLUGIN=str(library))
    assert line == (
        f"this machine lacks polygraphy, TensorRT, cuda-python, the TensorRT plugin library {library}, named "
        f"by $MSDA_TRT_PLUGIN and an NVIDIA GPU{INSTALL}[tensorrt]'"
    )


def test_a_file_without_our_nodes_needs_no_plugin_library(model, tmp_path):
    absent = ("polygraphy", "tensorrt", "cuda")
    line = line_without(model, *absent, MSDA_TRT_PLUGIN=str(tmp_path / "nowhere.so"))
    assert (
        line == f"this machine lacks polygraphy, TensorRT, cuda-python and an NVIDIA GPU{INSTALL}[tensorrt]'"
    )


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("build", "onnx, onnx-ir, onnxscript, polygraphy, TensorRT, cuda-python"),
        ("compare", "onnx, onnx-ir, onnxscript, onnxruntime, TensorRT, cuda-python"),
        ("surgeon", "onnx, onnx-ir, onnxscript and onnxruntime; install"),
    ],
)
def test_commands_without_onnx_are_one_line(model, command, message):
    absent = ("onnx", "onnxruntime", "polygraphy", "tensorrt", "cuda")
    line = line_without(model, *absent, command=command)
    assert line.startswith(f"this machine lacks {message}")
    extras = "onnx" if command == "surgeon" else "onnx,tensorrt"
    assert line.endswith(f"{INSTALL}[{extras}]'")


def test_a_package_that_cannot_be_loaded_is_named_with_the_reason(model, tmp_path):
    folder = tmp_path / "packages"
    folder.mkdir()
    (folder / "tensorrt.py").write_text("raise ImportError('libnvinfer.so.10: cannot open')")
    found = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    line = line_without(model, "polygraphy", PYTHONPATH=found)
    assert "lacks polygraphy, TensorRT (cannot be loaded: libnvinfer.so.10: cannot open)" in line


@pytest.mark.parametrize(
    ("module", "message"),
    [
        ("polygraphy", "polygraphy is not installed: pip install 'codetr-tensorrt[tensorrt]'"),
        (
            "tensorrt",
            "TensorRT cannot be imported (import of tensorrt halted; None in sys.modules); install it with: "
            "pip install 'codetr-tensorrt[tensorrt]'",
        ),
    ],
)
def test_one_missing_package_is_told_in_its_own_words(module, message, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(EngineError) as raised:
        requirements.require(requirements.packages(module))
    assert str(raised.value) == message


def test_packages_are_looked_for_after_the_file_was_checked(model):
    model.write_bytes(b"damaged")
    line = line_without(model, "polygraphy", "tensorrt", "cuda")
    assert line == f"{model}: not an ONNX file, or a part of one is missing"


def test_tensorrt_is_not_imported_before_the_file_is_checked(model, tmp_path):
    """Refused for its profile, the last check of the file: until then nothing of TensorRT is there."""
    code = (
        "import sys; from onnx_path.build import main; "
        f"status = main([{str(model)!r}, '--out', {str(tmp_path)!r}, '--precision', 'fp16']); "
        "found = {'tensorrt', 'polygraphy', 'cuda', 'torch', 'onnxruntime'} & set(sys.modules); "
        "sys.exit(f'{status} {found}')"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=REPOSITORY)
    error, found = result.stderr.splitlines()
    assert "dimension 0 (batch) is dynamic" in error
    assert found == "2 set()"


def custom_node(op_type: str, domain: str, **attributes) -> onnx.NodeProto:
    return helper.make_node(op_type, ["maps"], ["output"], name="mine", domain=domain, **attributes)


def test_no_gpu_is_said_last_and_nothing_is_built(tensorrt, no_gpu, model, tmp_path, capsys):
    line = refuse(capsys, tmp_path, model, "--out", tmp_path / "out", *SHAPES)
    assert line.startswith(NO_GPU)


@pytest.mark.parametrize("domain", ["", "mine"])
def test_an_operator_without_plugin_is_named(tensorrt, no_gpu, tmp_path, capsys, domain):
    path = convolution(tmp_path / "model.onnx", node=custom_node("Swirl", domain))
    line = refuse(capsys, tmp_path, path, "--out", tmp_path, *SHAPES)
    name = "mine.Swirl" if domain else "Swirl"
    assert line == (
        f"{path}: node mine: no TensorRT plugin is registered for the operator {name}, version '1' in "
        "namespace ''; load its library with --plugins FILE"
    )


def test_a_plugin_of_another_version_is_told(tensorrt, no_gpu, tmp_path, capsys):
    node = custom_node("MultiscaleDeformableAttnPlugin_TRT", "trt.plugins", plugin_version="77")
    path = convolution(tmp_path / "model.onnx", node=node)
    line = refuse(capsys, tmp_path, path, "--out", tmp_path, *SHAPES)
    assert "version '77' in namespace '' (there is version '1' in namespace ''" in line


@pytest.mark.parametrize("domain", ["", "trt.plugins"])
def test_nvidias_plugins_are_known(tensorrt, no_gpu, tmp_path, capsys, domain):
    path = convolution(tmp_path / "model.onnx", node=custom_node("EfficientNMS_TRT", domain))
    assert refuse(capsys, tmp_path, path, "--out", tmp_path, *SHAPES).startswith(NO_GPU)


def test_a_function_of_the_file_is_no_custom_operator(tmp_path):
    imports = [helper.make_opsetid("", 20)]
    relu = helper.make_node("Relu", ["x"], ["y"])
    function = helper.make_function("mine", "Swirl", ["x"], ["y"], [relu], imports)
    path = convolution(tmp_path / "model.onnx", node=custom_node("Swirl", "mine"), functions=(function,))
    model = preparation.load(path)
    assert plugins.custom_operators(model) == []
    model.functions[0].node[0].domain = "mine"
    model.functions[0].node[0].op_type = "Whirl"
    assert [x.name for x in plugins.custom_operators(model)] == ["mine.Whirl"]
    branch = helper.make_graph([custom_node("Twist", "mine")], "branch", [], [])
    model.graph.node.append(helper.make_node("If", ["c"], ["z"], then_branch=branch, else_branch=branch))
    assert [x.name for x in plugins.custom_operators(model)] == ["mine.Whirl", "mine.Twist"]


def test_a_standard_name_in_another_domain_is_the_parsers(tmp_path):
    """TensorRT's parser looks at names only: com.microsoft's QuantizeLinear is ONNX's to it."""
    path = convolution(tmp_path / "model.onnx", node=custom_node("Gelu", "com.microsoft"))
    assert plugins.custom_operators(onnx.load(path)) == []


def test_a_library_that_is_none_is_named(tensorrt, no_gpu, model, tmp_path, capsys):
    library = tmp_path / "lib.so"
    library.write_text("no library")
    line = refuse(capsys, tmp_path, model, "--out", tmp_path, *SHAPES, "--plugins", library)
    assert line.startswith(f"--plugins {library}: cannot be loaded (")


def test_our_plugin_is_loaded_where_the_file_needs_it(tensorrt, tmp_path, monkeypatch):
    import trt_plugin

    try:
        library = trt_plugin.load()
    except EngineError as error:
        pytest.skip(str(error))
    monkeypatch.setattr("trt_plugin.cuda_runtime.require_gpu", lambda: None)
    settings = Settings(workspace_bytes=7)
    for bodies in (True, False):
        model = preparation.load(attention_file(tmp_path / "attention.onnx", bodies))
        assert build._check_machine([], model, settings) == dataclasses.replace(settings, plugins=(library,))
    model = preparation.load(convolution(tmp_path / "model.onnx"))
    assert build._check_machine([], model, settings) == settings
    assert build._check_machine([library, library], model, settings).plugins == (library,)


def test_a_missing_plugin_library_is_named(tensorrt, no_gpu, tmp_path, capsys, monkeypatch):
    library = tmp_path / "nowhere.so"
    monkeypatch.setenv("MSDA_TRT_PLUGIN", str(library))
    path = attention_file(tmp_path / "attention.onnx")
    line = refuse(capsys, tmp_path, path, "--out", tmp_path)
    assert line == (
        f"this machine lacks the TensorRT plugin library {library}, named by $MSDA_TRT_PLUGIN and an "
        "NVIDIA GPU (no CUDA-capable device is detected)"
    )
