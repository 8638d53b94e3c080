"""`codetr detect`: each failure is one line that names its cause, and leaves no half result."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from PIL import Image

from codetr.detector import network_options
from tests.detector.detect_runs import GOLDEN, FakeBackend, detect, error_line, load, run


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["absent.jpg"], "absent.jpg: no such file"),
        (["notes.txt"], "notes.txt: not an image"),
        (["empty"], "empty: the folder holds no picture"),
        (["*.gif"], "no picture matches"),
        (["short.jpg"], "short.jpg: the image is truncated or damaged"),
        (["broken1.jpg", "broken2.jpg"], "none of the 2 pictures could be read"),
        ([""], "IMAGE: expected a path, got ''"),
        ([], "IMAGES"),
        (["a.jpg", "--out", "."], "--out: expected another folder, a.jpg would replace an input"),
        (["a.jpg", "--out", "notes.txt"], "--out: expected a folder to write, got notes.txt (it is a file)"),
        (["a.jpg", "--model", "co_dino_x"], "--model: model 'co_dino_x': expected one of co_dino_demo, "),
        (["a.jpg", "--model", "notes.txt"], "--model: notes.txt: not a JSON file"),
        (["a.jpg", "--model", "empty"], "--model: model 'empty': the folder holds no model.json"),
        (["a.jpg", "--weights", "absent.pth"], "--weights: expected a file, a URL, or one of co_"),
        (["a.jpg", "--weights", "empty"], "--weights: expected a file"),
        (["a.jpg", "--labels", "notes.txt"], "--labels: expected 80 names, one for each class, got 1"),
        (["a.jpg", "--labels", "absent.txt"], "--labels: absent.txt cannot be read"),
        (["a.jpg", "--classes", "cupp"], "--classes: expected a number below 80 or one of person, bicycle, "),
        (["a.jpg", "--classes"], "--classes: expected at least one class, got none"),
        (["a.jpg", "--threshold", "1.5"], "--threshold: expected a number from 0 to 1, got 1.5"),
        (["a.jpg", "--nms-iou", "nan"], "--nms-iou: expected a number from 0 to 1, got nan"),
        (["a.jpg", "--nms", "maybe"], "--nms"),
        (["a.jpg", "--batch", "0"], "--batch: expected at least 1, got 0"),
        (["a.jpg", "--top", "0"], "--top: expected at least 1, got 0"),
        (["a.jpg", "--height", "64"], "--width: expected a size, height and width belong together, got none"),
        (["a.jpg", "--height", "64", "--width", "64", "--max-size", "64"], "--max-size: expected none with"),
        (["a.jpg", "--max-size", "-1"], "--max-size: expected a positive number of pixels, got -1"),
        (["a.jpg", "--imgsz", "0"], "--imgsz: expected pixels (640) or HEIGHTxWIDTH (480x640), got '0'"),
        (["a.jpg", "--imgsz", "64", "--width", "64"], "--imgsz: expected alone, got width too"),
        (["a.jpg", "--device", "gpu"], "--device: expected auto, cpu, cuda or cuda:<number>, got 'gpu'"),
        (["a.jpg", "--backend", "torch", "--engine", "e"], "--engine: expected none with the backend torch"),
        (["a.jpg", "--backend", "tensorrt"], "--engine: expected an engine, got none"),
        (["a.jpg", "--engine", "e"], "--model: is fixed in the engine e, leave it out"),
        (["a.jpg", "--unknown"], "--unknown"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_usage_errors(photos, monkeypatch, capsys, arguments, message):
    """The exit status is 2, and no file is written."""
    monkeypatch.setattr(network_options.TorchBackend, "load", lambda self: None)
    monkeypatch.chdir(photos)
    (photos / "empty").mkdir()
    (photos / "short.jpg").write_bytes((photos / "a.jpg").read_bytes()[:900])
    for name in ("broken1.jpg", "broken2.jpg"):
        (photos / name).write_bytes(b"text")
    before = {path: path.read_bytes() for path in photos.rglob("*") if path.is_file()}
    weights = GOLDEN / "codino_swin_tiny.safetensors"
    given = {"--model": "co_dino_r50", "--weights": weights, "--out": photos.parent / "out"}
    defaults = [
        item for option, value in given.items() if option not in arguments for item in (option, value)
    ]
    assert detect(*arguments, *defaults) == 2
    assert message in capsys.readouterr().err.splitlines()[-1]
    assert {path: path.read_bytes() for path in photos.rglob("*") if path.is_file()} == before
    assert not (photos.parent / "out").exists()


def test_weights_and_their_model(photos, tmp_path, capsys):
    model = shutil.copy(GOLDEN / "codino_swin_tiny.json", tmp_path / "own.json")
    assert detect(photos, "--model", model, "--out", tmp_path / "out") == 2
    assert f"--weights: expected weights: none lie beside {model}" in error_line(capsys)
    assert detect(photos, "--weights", "co_dino_r50", "--out", tmp_path / "out") == 2
    assert "--weights: expected none without a model" in error_line(capsys)


def test_no_gpu(photos, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert run(photos / "a.jpg", "--device", "cuda:1", "--out", tmp_path / "out") == 1
    assert "device cuda:1: PyTorch finds no GPU here" in error_line(capsys)


def test_one_bad_picture_among_many(fake, photos, tmp_path, capsys):
    """The others are done, the bad ones are named, and the exit status is 1."""
    (photos / "bad.jpg").write_bytes(b"text")
    (photos / "cut.jpg").write_bytes((photos / "a.jpg").read_bytes()[:900])
    assert run(photos, "--out", tmp_path / "out", "--batch", 3) == 1
    assert [image["file_name"] for image in load(tmp_path / "out")["images"]] == ["a.jpg", "b.png"]
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(": ")[1] for line in lines] == ["warning", "warning", "error"]
    assert "bad.jpg: not an image" in lines[0] and "cut.jpg: the image is truncated" in lines[1]
    assert "2 of 4 pictures could not be processed" in lines[2]


def test_weights_of_another_model(photos, tmp_path, capsys):
    """The verdict and examples in a short line."""
    path = GOLDEN / "codino_resnet_tiny.safetensors"
    network = ["--model", GOLDEN / "codino_swin_tiny.json", "--weights", path]
    assert detect(photos / "a.jpg", *network, "--out", tmp_path / "out") == 1
    line = error_line(capsys)
    assert f"{path}: the weights are not those of model codino_swin_tiny (" in line and line[-1] != "…"
    assert not (tmp_path / "out").exists()


def test_failing_network_leaves_nothing(fake, monkeypatch, photos, tmp_path, capsys):
    def fail(*_args):
        raise RuntimeError("out of\nmemory")

    monkeypatch.setattr(FakeBackend, "__call__", fail)
    assert run(photos / "a.jpg", "--out", tmp_path / "x/out") == 1
    assert error_line(capsys) == "codetr: error: out of memory"
    assert not (tmp_path / "x").exists()


def test_full_disk(fake, monkeypatch, photos, tmp_path, capsys):
    """No half picture stays, and the error names the picture instead of the temporary file."""

    def save(self, path, **options):
        Path(path).write_bytes(b"half")
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(Image.Image, "save", save)
    assert run(photos / "a.jpg", "--out", tmp_path / "out") == 1
    assert error_line(capsys) == f"codetr: error: {tmp_path / 'out/a.jpg'}: No space left on device"
    assert not (tmp_path / "out").exists()
