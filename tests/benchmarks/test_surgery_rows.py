"""`benchmarks.surgery` with commands that succeed, fail and hang."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

pytest.importorskip("onnx", reason="onnx is not installed")
pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")

from benchmarks import surgery
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
def folder(tmp_path: Path) -> Path:
    (tmp_path / "work").mkdir()
    return tmp_path / "work"


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

    monkeypatch.setattr(surgery, "command", command)
    monkeypatch.setattr(surgery, "run", run)


def subject(path: Path, attentions: int | None = 3) -> surgery.Subject:
    return surgery.Subject(MODEL, "small", path, attentions)


def measure(one: surgery.Subject, folder: Path, iterations: int = 1) -> dict:
    row = surgery.prepare(one, folder, "fp16", 300)
    surgery.time_engines(row, one, folder, "fp16", iterations)
    return row


def test_row_holds_surgery_and_both_engines(original, folder, no_gpu_needed):
    row = measure(subject(original), folder, iterations=5)
    assert not surgery.failures(row)
    assert row["replaced"] == 3
    assert row["nodes"][0] > row["nodes"][1]
    assert row["largest_relative_difference"] < 1e-5
    assert row["check"] == ""
    assert surgery.speedup(row) == 2.0
    assert row["original"]["timing"]["samples"] == 5
    assert row["rewritten"]["plugin_layers"] == 1
    assert "2.00 times" in surgery.summary(row)


def test_what_an_earlier_run_made_is_used_again(original, folder, no_gpu_needed, monkeypatch):
    first = measure(subject(original), folder)
    monkeypatch.setattr(surgery, "rewrite", None)
    monkeypatch.setattr(surgery, "command", None)
    again = measure(subject(original), folder)
    assert (again["replaced"], again["nodes"]) == (first["replaced"], first["nodes"])
    assert surgery.speedup(again) == 2.0


def test_another_number_of_attentions_is_a_failure(original, folder, no_gpu_needed):
    row = measure(subject(original, attentions=4), folder, iterations=1)
    assert surgery.failures(row) == ["3 attentions replaced, expected 4"]


def test_file_that_the_surgeon_refuses_is_a_failure(folder, tmp_path):
    (tmp_path / "broken.onnx").write_bytes(b"not a model")
    row = measure(subject(tmp_path / "broken.onnx"), folder, iterations=1)
    (failure,) = surgery.failures(row)
    assert failure.startswith("onnx_path.surgeon: ")
    assert "broken.onnx" in failure
    assert surgery.speedup(row) is None


def test_outputs_that_differ_are_a_note(original, folder, no_gpu_needed, monkeypatch):
    faked = surgery.command

    def command(arguments, seconds):
        if arguments[0] == "onnx_path.surgeon" and "--no-check" not in arguments:
            raise RuntimeError("onnx_path.surgeon: x.onnx is not written: output logits: differs by 0.01")
        faked(arguments, seconds)

    monkeypatch.setattr(surgery, "command", command)
    row = measure(subject(original), folder, iterations=1)
    assert not surgery.failures(row)
    assert surgery.speedup(row) == 2.0
    assert "output logits: differs by 0.01" in surgery.summary(row)


def test_engine_that_fails_leaves_the_other(original, folder, no_gpu_needed, monkeypatch):
    def run(engine, inputs, iterations):
        if "rewritten" not in engine.name:
            raise RuntimeError("no\nkernel")
        return [2.0]

    monkeypatch.setattr(surgery, "run", run)
    row = measure(subject(original), folder, iterations=1)
    assert surgery.failures(row) == ["no kernel"]
    assert row["rewritten"]["timing"]["median_ms"] == 2.0
    assert surgery.speedup(row) is None


@pytest.mark.parametrize(
    ("code", "seconds", "message"),
    [
        ("import time; time.sleep(60)", 1, "bad: not done after 1 s"),
        ("import os; os._exit(3)", 60, "bad: exit status 3"),
    ],
)
def test_commands_that_fail(code, seconds, message, monkeypatch, tmp_path):
    (tmp_path / "bad.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(RuntimeError, match=f"^{message}$"):
        surgery.command(["bad"], seconds)


def test_dynamic_shapes_are_named(tmp_path):
    model_zoo.ZOO[MODEL].require()
    path = model_zoo.export(MODEL, tmp_path, dynamic=True)
    with pytest.raises(ValueError, match="expected static shapes, got pixel_values"):
        surgery.random_inputs(path)


def test_file_says_what_it_is(original, tmp_path):
    assert surgery.read_subject(original) == surgery.Subject(MODEL, "small", original, 3)
    (tmp_path / "broken.onnx").write_bytes(b"not a model")
    with pytest.raises(surgery.UsageError, match=r"broken\.onnx: expected an ONNX file"):
        surgery.read_subject(tmp_path / "broken.onnx")


def test_every_model_is_in_the_zoo():
    assert set(zoo_files.MODELS) <= set(model_zoo.ZOO)
