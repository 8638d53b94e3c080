"""`codetr evaluate`: one line for everything that goes wrong, and no half of a result."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from codetr.files import atomic_write
from tests.coco_folders import document, write_dataset
from tests.tiny_detector import Tiny, command, make_tiny

pytest.importorskip("pycocotools", reason="pycocotools is not installed")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> Tiny:
    return make_tiny(tmp_path_factory.mktemp("tiny"))


def wrong_document(folder: Path) -> Path:
    contents = document()
    contents["annotations"][0]["bbox"] = [1, 2, -3, 4]
    return write_dataset(folder, contents)


def missing_picture(folder: Path) -> Path:
    write_dataset(folder)
    (folder / "val2017/b.jpg").unlink()
    return folder


def damaged_picture(folder: Path) -> Path:
    write_dataset(folder)
    (folder / "val2017/c.jpg").write_bytes(b"")
    return folder


def other_classes(folder: Path) -> Path:
    contents = document()
    contents["categories"][0]["name"] = "dragon"
    return write_dataset(folder, contents)


@pytest.mark.parametrize(
    ("make", "arguments", "message"),
    [
        (wrong_document, [], "instances_val2017.json: annotation 11: bbox: expected [x, y, width, height]"),
        (lambda folder: write_dataset(folder, "{"), [], "instances_val2017.json: not a JSON file"),
        (missing_picture, [], "b.jpg: no such picture; 1 of the 3 that"),
        (damaged_picture, [], "c.jpg: the file is empty"),
        (other_classes, [], "instances_val2017.json: the model lacks 1 of its 3 classes: dragon; the model"),
        (lambda folder: folder.mkdir() or folder, [], "data: the folder is empty"),
        (lambda folder: folder, [], "data: no such folder"),
        (write_dataset, ["--split", "test"], "data: no annotations of split 'test'"),
        (write_dataset, ["--annotations", "none.json"], "none.json: no such file"),
        (write_dataset, ["--images", "none"], "none: no such folder"),
        (write_dataset, ["--limit", 0], "--limit: expected a whole number above 0"),
        (write_dataset, ["--width", 5], "--height and --width: give both or neither"),
        (write_dataset, ["--engine", "x.engine"], "--model: is fixed in the engine x.engine, leave it out"),
        (write_dataset, ["--onnx", "x", "--engine", "y"], "--engine and --onnx: give one of them"),
        (write_dataset, ["--backend", "onnxruntime"], "--backend onnxruntime: needs --onnx FILE"),
        (
            write_dataset,
            ["--backend", "torch", "--onnx", "x"],
            "--onnx: goes with --backend onnxruntime, got",
        ),
        (write_dataset, ["--out", __file__], "cannot write there"),
    ],
)
def test_errors(make, arguments, message, tiny, tmp_path, monkeypatch, capsys):
    """One line that names the file, exit status 2, nothing written."""
    monkeypatch.chdir(tmp_path)
    data = make(tmp_path / "data")
    given = ["--data", data, "--out", tmp_path / "out", "--model", tiny.config_file, "--device", "cpu"]
    assert command(*given, "--weights", tiny.weights, "--max-size", 128, *arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith("codetr: error: ") and error.count("\n") == 1
    assert message in error
    assert not (tmp_path / "out").exists()
    assert {path.name for path in tmp_path.iterdir()} <= {"data"}


@pytest.mark.parametrize(
    ("metadata", "option", "message"),
    [
        (None, "--engine", "model.file: its metadata model.json is not beside it"),
        ("{}", "--engine", "model.json: expected an object with"),
        (None, "--onnx", "model.file: its metadata model.json is not beside it"),
        ("[1]", "--onnx", "model.json: expected an object with"),
    ],
)
def test_wrong_engines(metadata, option, message, tmp_path, capsys):
    data = write_dataset(tmp_path / "data")
    (tmp_path / "model.file").write_bytes(b"no engine")
    if metadata is not None:
        (tmp_path / "model.json").write_text(metadata)
    given = ["--data", data, "--out", tmp_path / "out", option, tmp_path / "model.file"]
    assert command(*given) == 2
    printed = capsys.readouterr()
    assert message in printed.err and printed.err.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_metrics_file_is_whole_or_missing(tiny, tmp_path, monkeypatch, capsys):
    """A disk that is full when the second file is written leaves no half of it."""
    import codetr.evaluation.command as module

    @contextlib.contextmanager
    def full(path):
        with atomic_write(path) as temporary:
            yield temporary
            if path.name == "metrics.json":
                raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "atomic_write", full)
    assert command("--data", tiny.data, *tiny.network(), "--limit", 1, "--out", tmp_path / "out") == 1
    assert "No space left on device" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["detections.json"]
