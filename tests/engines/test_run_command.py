"""`python -m trt_plugin.run` without a GPU: every failure is one line, and no file is half-written."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from tests.engines.engine_samples import only_error, plan_header, run_python
from tests.engines.plugin_engines import save
from trt_plugin.run import main

ARGUMENTS = ["test.engine", "--inputs", "x.npz", "--out", "y.npz"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The current folder, with something like an engine and its inputs."""
    monkeypatch.chdir(tmp_path)
    save(tmp_path, plan_header())
    np.savez("x.npz", x=np.zeros(1, np.float32))
    return tmp_path


@pytest.fixture
def refuse(folder, capsys):
    """Runs the command, which must print one line and leave the folder as it was; returns status and line."""

    def run(arguments: list[str]) -> tuple[int, str]:
        before = sorted(folder.iterdir())
        status = main(arguments)
        (line,) = capsys.readouterr().err.splitlines()
        assert "error: " in line and sorted(folder.iterdir()) == before
        return status, line

    return run


def test_machine_without_a_gpu(folder):
    pytest.importorskip("tensorrt", reason="TensorRT is not installed", exc_type=ImportError)
    pytest.importorskip("cuda.bindings", reason="cuda-python is not installed", exc_type=ImportError)
    files = [str(folder / name) for name in ("test.engine", "x.npz", "y.npz")]
    done = run_python("-m", "trt_plugin.run", files[0], "--inputs", files[1], "--out", files[2])
    assert "TensorRT needs an NVIDIA GPU, and CUDA finds none" in only_error(done)


def test_missing_package_is_named(refuse, monkeypatch):
    """tests/project/test_missing_packages.py has TensorRT."""
    pytest.importorskip("tensorrt", reason="TensorRT is not installed", exc_type=ImportError)
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    status, line = refuse(ARGUMENTS)
    assert status == 1 and "pip install 'codetr-tensorrt[tensorrt]'" in line


@pytest.mark.parametrize("kind", ["text", "objects", "npy"])
def test_wrong_inputs_file(refuse, kind):
    with open("x.npz", "wb") as file:
        if kind == "text":
            file.write(b"text")
        elif kind == "objects":
            np.savez(file, np.array([{}], object))
        else:
            np.save(file, np.zeros(3))
    status, line = refuse(ARGUMENTS)
    assert status == 1 and "--inputs x.npz: cut off, or not an .npz file with arrays (" in line


@pytest.mark.parametrize(
    ("arguments", "status", "named"),
    [
        (["test.engine", "--inputs", "x.npz"], 2, "--out"),
        (["no.engine", *ARGUMENTS[1:]], 2, "no.engine"),
        ([*ARGUMENTS[:-1], "."], 1, ".: Is a directory"),
        (["x.npz", *ARGUMENTS[1:]], 1, "x.npz is not a TensorRT engine"),
    ],
)
def test_wrong_arguments(refuse, arguments, status, named):
    found, line = refuse(arguments)
    assert found == status and named in line
