"""`benchmarks.surgery` with commands that succeed, fail and hang."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

pytest.importorskip("onnx", reason="onnx is not installed")
pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")

import onnx.parser

from benchmarks import result_files, surgery, timing
from tests.onnx import model_zoo, zoo_files

MODEL = "rt_detr"


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model_zoo.ZOO[MODEL].require()
    return zoo_files.write(MODEL, tmp_path_factory.mktemp("zoo"), full=False)


@pytest.fixture(scope="module")
def operated(original, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The rewritten file and the report of the real surgeon."""
    folder = tmp_path_factory.mktemp("operated")
    paths = folder / "rewritten.onnx", folder / "report.json"
    surgery.command(["onnx_path.surgeon", original, paths[0], "--json", paths[1]], 300)
    return paths


@pytest.fixture
def no_gpu_needed(operated, monkeypatch):
    """The surgeon copies its files, a build writes a report, and runs take 4 ms and, rewritten, 2 ms."""

    def command(arguments, seconds):
        words = [str(word) for word in arguments]
        if words[0] == "onnx_path.surgeon":
            shutil.copy(operated[0], words[2])
            shutil.copy(operated[1], words[4])
            return
        assert words[0] == "onnx_path.build"
        assert words[words.index("--precision") + 1] == "fp16"
        content = {"engine_bytes": 100, "device_memory_bytes": 10, "layers": 7, "plugin_layers": ["a"]}
        Path(words[words.index("--json") + 1]).write_text(
            json.dumps({"build_seconds": 1.5, "report": content})
        )

    def run(engine, inputs, iterations):
        assert [array.shape for array in inputs.values()] == [(1, 3, 96, 128)]
        return [2.0 if "rewritten" in engine.name else 4.0] * iterations

    monkeypatch.setattr(timing, "require_gpu", lambda: None)
    monkeypatch.setattr(result_files, "describe", lambda module: {"gpu": {"name": "NVIDIA H0"}})
    monkeypatch.setattr(surgery, "command", command)
    monkeypatch.setattr(surgery, "run", run)


def measure(path: Path, folder: Path, status: int = 0) -> dict:
    """Runs the benchmark on a file, and returns its row."""
    given = [path, "--work", folder / "work", "--out", folder / "x.json", "--iterations", 5]
    assert surgery.main(list(map(str, given))) == status
    (row,) = json.loads((folder / "x.json").read_text())["results"]
    return row


def test_row_holds_surgery_and_both_engines(original, tmp_path, no_gpu_needed, monkeypatch, capsys):
    row = measure(original, tmp_path)
    assert row["model"] == MODEL and row["configuration"] == "small"
    assert row["replaced"] == row["expected_attentions"] == model_zoo.ZOO[MODEL].layers
    assert row["nodes"][0] > row["nodes"][1]
    assert row["largest_relative_difference"] < 1e-5
    assert row["check"] == ""
    assert row["original"]["timing"]["samples"] == 5
    assert row["rewritten"]["plugin_layers"] == 1
    assert "original 4.000 ms  rewritten 2.000 ms  2.00 times" in capsys.readouterr().out
    # A second run uses the files of the first one.
    monkeypatch.setattr(surgery, "command", None)
    again = measure(original, tmp_path)
    assert {**again, "check": ""} == row


def test_another_number_of_attentions_is_a_failure(original, tmp_path, no_gpu_needed, monkeypatch):
    monkeypatch.setattr(surgery, "read_subject", lambda path: surgery.Subject(path, "small", 9))
    (failure,) = surgery.failures(measure(original, tmp_path, 1))
    assert failure.endswith(" attentions replaced, expected 9")


def test_outputs_that_differ_are_a_note(original, tmp_path, no_gpu_needed, monkeypatch, capsys):
    faked = surgery.command

    def command(arguments, seconds):
        if arguments[0] == "onnx_path.surgeon" and "--no-check" not in arguments:
            raise RuntimeError("onnx_path.surgeon: x.onnx is not written: output logits: differs by 0.01")
        faked(arguments, seconds)

    monkeypatch.setattr(surgery, "command", command)
    measure(original, tmp_path)
    assert "2.00 times  onnx_path.surgeon: x.onnx is not written: output logits: differs by 0.01" in (
        capsys.readouterr().out
    )


def test_engine_that_fails_leaves_the_other(original, tmp_path, no_gpu_needed, monkeypatch, capsys):
    def run(engine, inputs, iterations):
        if "rewritten" not in engine.name:
            raise RuntimeError("no\nkernel")
        return [2.0]

    monkeypatch.setattr(surgery, "run", run)
    row = measure(original, tmp_path, 1)
    assert surgery.failures(row) == ["no kernel"]
    assert row["rewritten"]["timing"]["median_ms"] == 2.0
    assert "original failed  rewritten 2.000 ms  no kernel" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("code", "seconds", "message"),
    [
        ("import time; time.sleep(60)", 1, "bad: not done after 1 s"),
        ("import os; os._exit(3)", 60, "bad: exit status 3"),
        ("raise SystemExit('codetr: error: x.onnx: no model')", 60, "bad: x.onnx: no model"),
    ],
)
def test_commands_that_fail(code, seconds, message, monkeypatch, tmp_path):
    (tmp_path / "bad.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(RuntimeError, match=f"^{message}$"):
        surgery.command(["bad"], seconds)


def test_dynamic_shapes_are_named(tmp_path):
    text = '<ir_version: 8, opset_import: ["" : 17]> g (float[N, 3] x) => (float[N, 3] y) { y = Relu(x) }'
    onnx.save(onnx.parser.parse_model(text), tmp_path / "x.onnx")
    with pytest.raises(ValueError, match="expected static shapes, got x"):
        surgery.draw_inputs(tmp_path / "x.onnx")


def test_every_model_is_in_the_zoo():
    assert set(zoo_files.MODELS) <= set(model_zoo.ZOO)
