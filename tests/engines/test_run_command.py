"""`python -m trt_plugin.run` without a GPU: every failure is one line, and no file is half-written."""

from __future__ import annotations

import io

import numpy as np
import pytest

from tests.engines.engine_samples import hide_package, only_error, plan_header, run_python
from tests.engines.plugin_engines import save
from trt_plugin.run import main


def npz(save=np.savez, **arrays: np.ndarray) -> bytes:
    """The content of an .npz file, or with `np.save` of an .npy file."""
    file = io.BytesIO()
    save(file, **arrays)
    return file.getvalue()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The current folder, with something like an engine and its inputs."""
    monkeypatch.chdir(tmp_path)
    save(tmp_path, plan_header())
    np.savez("x.npz", x=np.zeros(1, np.float32))
    return tmp_path


def error_of_run(folder, **environment: str) -> str:
    files = [str(folder / name) for name in ("test.engine", "x.npz", "y.npz")]
    done = run_python(
        "-m", "trt_plugin.run", files[0], "--inputs", files[1], "--out", files[2], **environment
    )
    assert not (folder / "y.npz").exists()
    return only_error(done)


def test_machine_without_a_gpu(folder):
    pytest.importorskip("tensorrt", reason="TensorRT is not installed", exc_type=ImportError)
    pytest.importorskip("cuda.bindings", reason="cuda-python is not installed", exc_type=ImportError)
    assert "TensorRT needs an NVIDIA GPU, and CUDA finds none" in error_of_run(folder)


@pytest.mark.parametrize("package", ["tensorrt", "cuda"])
def test_missing_package_is_named(folder, package):
    message = error_of_run(folder, PYTHONPATH=hide_package(folder, package))
    assert "pip install 'codetr-tensorrt[tensorrt]'" in message


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "cut off, or not an .npz file with arrays ("),
        (b"text", "cut off, or not an .npz file with arrays ("),
        (npz(x=np.zeros(99))[:200], "cut off, or not an .npz file with arrays ("),
        (npz(x=np.array([{}], object)), "cut off, or not an .npz file with arrays ("),
        (npz(np.save, arr=np.zeros(3)), "(it holds a single array without a name)"),
    ],
    ids=["empty", "text", "cut", "objects", "npy"],
)
def test_wrong_inputs_file(folder, capsys, content, message):
    (folder / "x.npz").write_bytes(content)
    assert main(["test.engine", "--inputs", "x.npz", "--out", "y.npz"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "error: --inputs x.npz: " in line and message in line
    assert not (folder / "y.npz").exists()


@pytest.mark.parametrize(
    ("arguments", "status", "named"),
    [
        ([], 2, "ENGINE"),
        (["test.engine", "--inputs", "x.npz"], 2, "--out"),
        (["no.engine", "--inputs", "x.npz", "--out", "y.npz"], 2, "no.engine"),
        (["test.engine", "--inputs", "no.npz", "--out", "y.npz"], 2, "no.npz"),
        (["test.engine", "--inputs", "x.npz", "--out", ""], 2, "--out"),
        (["test.engine", "--inputs", "x.npz", "--out", "y.npz", "--time", "-1"], 2, "--time"),
        (["test.engine", "--inputs", "x.npz", "--out", "."], 1, ".: Is a directory"),
        (["x.npz", "--inputs", "x.npz", "--out", "y.npz"], 1, "x.npz is not a TensorRT engine"),
    ],
)
def test_wrong_arguments(folder, capsys, arguments, status, named):
    before = sorted(folder.iterdir())
    assert main(arguments) == status
    (line,) = capsys.readouterr().err.splitlines()
    assert "error: " in line and named in line
    assert sorted(folder.iterdir()) == before


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (OSError(28, "No space left on device"), 1, "error: y.npz: No space left on device"),
        (MemoryError("too\nlarge"), 1, "error: out of memory: too large"),
    ],
    ids=["full disk", "memory"],
)
def test_failure_of_the_run_leaves_no_file(folder, capsys, monkeypatch, error, status, line):
    def runner(*_arguments, **_options):
        raise error

    monkeypatch.setattr("trt_plugin.run.EngineRunner", runner)
    assert main(["test.engine", "--inputs", "x.npz", "--out", "y.npz"]) == status
    assert capsys.readouterr().err.endswith(f"{line}\n")
    assert not any(path.name.startswith((".y", "y")) for path in folder.iterdir())
