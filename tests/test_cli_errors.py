"""`codetr detect`: one clear line for everything that goes wrong, and nothing half done left behind."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from PIL import Image

import codetr.detector.detector
from codetr.cli.detect import main
from tests.cli_runs import GOLDEN, FakeBackend, error_line, load, run
from trt_plugin.atomic_files import atomic_write

pytest_plugins = ("tests.cli_fixtures",)


# Arguments


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["absent.jpg"], "absent.jpg: no such file"),
        (["a.jpg", "absent.jpg"], "absent.jpg: no such file"),
        (["notes.txt"], "notes.txt: not an image"),
        (["empty"], "empty: the folder holds no picture"),
        (["*.gif"], "no picture matches"),
        (["short.jpg"], "short.jpg: the image is truncated or damaged"),
        (["a.jpg", "--out", "."], "would replace an input"),
        (["a.jpg", "--out", "notes.txt"], "notes.txt: cannot write there (is a file, not a folder)"),
        (["a.jpg", "--out", "notes.txt/out"], "cannot write there"),
        (
            ["a.jpg", "--model", "co_dino_x"],
            "--model: model 'co_dino_x': expected one of co_dino_demo, co_dino_r50, co_dino_swin_l",
        ),
        (["a.jpg", "--model", "notes.txt"], "not a JSON file"),
        (
            ["a.jpg", "--weights", "absent.pth"],
            "--weights absent.pth: no such file; expected a file, a URL, or one of co_",
        ),
        (["a.jpg", "--threshold", "1.5"], "--threshold/--conf: expected a number from 0 to 1, got '1.5'"),
        (["a.jpg", "--batch", "0"], "--batch: expected a whole number above 0, got '0'"),
        (["a.jpg", "--nms", "maybe"], "--nms: invalid choice"),
        (["a.jpg", "--height", "64"], "--height and --width: give both or neither"),
        (["a.jpg", "--height", "64", "--width", "64", "--max-size", "64"], "--max-size: does not go with"),
        (["a.jpg", "--backend", "torch", "--engine", "e.engine"], "--engine: goes with --backend tensorrt"),
        (["a.jpg", "--engine", "e.engine"], "--model: is fixed in the engine"),
        (["a.jpg", "--backend", "tensorrt"], "--backend tensorrt: needs --engine"),
        (["a.jpg", "--unknown"], "unrecognized arguments: --unknown"),
        ([""], "IMAGE: expected a path, got ''"),
        (["a.jpg", "--out", ""], "--out: expected a path, got ''"),
        (["a.jpg", "--weights", ""], "--weights: expected a path, got ''"),
        (["a.jpg", "--weights", "empty"], "--weights empty: is a folder, not a file"),
        (
            ["a.jpg", "--weights", "ftp://host/w.pth"],
            "--weights ftp://host/w.pth: no such file; expected a file",
        ),
        (["a.jpg", "--weights", "/dev/null"], "--weights /dev/null: not a file"),
        (["a.jpg", "--imgsz", "0"], "--imgsz: expected pixels (640) or HEIGHTxWIDTH (480x640), got '0'"),
        (["a.jpg", "--imgsz", "64", "--width", "64"], "--imgsz: does not go with --width"),
        (["a.jpg", "--device", "gpu"], "--device: expected auto, cpu, cuda or cuda:<number>, got 'gpu'"),
        (["a.jpg", "--model", "deep.json"], "--model: deep.json: not a JSON file"),
        ([], "IMAGE"),
    ],
)
def test_usage_errors(fake, photos, monkeypatch, capsys, arguments, message):
    """Exit status 2, one line, nothing written."""
    monkeypatch.chdir(photos)
    (photos / "empty").mkdir()
    (photos / "short.jpg").write_bytes((photos / "a.jpg").read_bytes()[:900])
    (photos / "deep.json").write_text("[" * 100_000)
    before = {path: path.read_bytes() for path in photos.rglob("*") if path.is_file()}
    weights = str(GOLDEN / "codino_swin_tiny.safetensors")
    defaults = ["--model", "co_dino_r50", "--weights", weights, "--out", str(photos.parent / "out")]
    assert main(["detect", *defaults, *arguments]) == 2
    assert message in error_line(capsys)
    assert {path: path.read_bytes() for path in photos.rglob("*") if path.is_file()} == before
    assert not (photos.parent / "out").exists()


@pytest.mark.parametrize("arguments", [[], ["fly"], ["detect"]])
def test_command_is_needed(capsys, arguments):
    assert main(arguments) == 2
    assert "--help)" in error_line(capsys)


def test_weights_are_needed_for_an_own_model(photos, tmp_path, capsys):
    model = shutil.copy(GOLDEN / "codino_swin_tiny.json", tmp_path / "own.json")
    assert main(["detect", str(photos), "--model", str(model), "--out", str(tmp_path / "out")]) == 2
    assert f"--weights: needed, none lie beside {model} and none are published for" in error_line(capsys)


def test_folder_that_is_no_run(photos, tmp_path, capsys):
    assert main(["detect", str(photos), "--model", str(photos), "--out", str(tmp_path / "out")]) == 2
    assert f"--model: model '{photos}': the folder holds no model.json" in error_line(capsys)


def test_weights_need_their_model(tmp_path, capsys):
    assert main(["detect", "x.jpg", "--weights", "co_dino_r50", "--out", str(tmp_path / "out")]) == 2
    assert "--weights: goes with --model" in error_line(capsys)


def test_no_gpu(photos, tmp_path, capsys, monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    weights = GOLDEN / "codino_swin_tiny.safetensors"
    arguments = [photos / "a.jpg", "--model", GOLDEN / "codino_swin_tiny.json", "--weights", weights]
    arguments += ["--device", "cuda:1", "--out", tmp_path / "out"]
    assert main(["detect", *map(str, arguments)]) == 1
    assert "device cuda:1: PyTorch finds no GPU here" in error_line(capsys)


# Pictures


def test_one_bad_picture_among_many(fake, photos, tmp_path, capsys):
    """The others are done; the bad ones are named; exit status 1."""
    (photos / "bad.jpg").write_bytes(b"text")
    (photos / "cut.jpg").write_bytes((photos / "a.jpg").read_bytes()[:900])
    assert run(photos, "--out", tmp_path / "out", "--batch", 3) == 1
    assert [image["file_name"] for image in load(tmp_path / "out")["images"]] == ["a.jpg", "b.png"]
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(": ")[1] for line in lines] == ["warning", "warning", "error"]
    assert "bad.jpg: not an image" in lines[0] and "cut.jpg: the image is truncated" in lines[1]
    assert "2 of 4 pictures could not be processed" in lines[2]


def test_all_pictures_bad(fake, tmp_path, capsys):
    for name in ("a.jpg", "b.jpg"):
        (tmp_path / name).write_bytes(b"text")
    assert run(tmp_path / "a.jpg", tmp_path / "b.jpg", "--out", tmp_path / "out") == 2
    assert "none of the 2 pictures" in capsys.readouterr().err.splitlines()[-1]
    assert not (tmp_path / "out").exists()


# Weights


@pytest.mark.parametrize(
    ("model", "weights", "cut"),
    [("codino_swin_tiny", "codino_swin_tiny", 100_000), ("codino_swin_tiny", "codino_resnet_tiny", None)],
)
def test_wrong_checkpoints(photos, tmp_path, capsys, model, weights, cut):
    """A truncated checkpoint, and the weights of another model."""
    path = tmp_path / "weights.safetensors"
    path.write_bytes((GOLDEN / f"{weights}.safetensors").read_bytes()[:cut])
    arguments = [
        photos / "a.jpg",
        "--model",
        GOLDEN / f"{model}.json",
        "--weights",
        path,
        "--out",
        tmp_path / "out",
    ]
    assert main(["detect", *map(str, arguments)]) == 1
    line = error_line(capsys)
    assert "weights.safetensors" in line and not line.endswith("…")
    assert not (tmp_path / "out").exists()


def test_misfit_is_a_short_line(photos, tmp_path, capsys):
    """The verdict and examples, where the Python API lists all."""
    torch = pytest.importorskip("torch")
    torch.save({"a": torch.ones(2)}, tmp_path / "w.pth")
    arguments = ["--model", GOLDEN / "codino_swin_tiny.json", "--weights", tmp_path / "w.pth"]
    assert main(["detect", *map(str, [photos / "a.jpg", *arguments, "--out", tmp_path / "out"])]) == 1
    line = error_line(capsys)
    assert "w.pth: the weights are not those of model codino_swin_tiny (" in line
    assert line.endswith(
        "1 unexpected tensors): missing backbone.patch_embed.projection.weight, unexpected a"
    )


# The network, the disk, the user


def test_failing_network_leaves_nothing(monkeypatch, photos, tmp_path, capsys):
    class Failing(FakeBackend):
        def __call__(self, images, image_shapes):
            raise RuntimeError("out of\nmemory")

    monkeypatch.setattr(codetr.detector.detector, "TorchBackend", Failing)
    assert run(photos / "a.jpg", "--out", tmp_path / "x/out") == 1
    assert error_line(capsys) == "codetr: error: out of memory"
    assert not (tmp_path / "x").exists()


def test_full_disk_leaves_no_half_picture(fake, monkeypatch, photos, tmp_path, capsys):
    def save(self, path, **options):
        Path(path).write_bytes(b"half")
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(Image.Image, "save", save)
    assert run(photos / "a.jpg", "--out", tmp_path / "out") == 1
    assert "No space left on device" in error_line(capsys)
    assert not (tmp_path / "out").exists()


def test_full_disk_is_named(fake, monkeypatch, photos, tmp_path, capsys):
    """Errors without a file name get it, and the temporary one's name is not shown."""
    for error in (OSError(28, "No space left on device"), OSError(5, "Input/output error", "temporary")):

        def save(self, path, error=error, **options):
            raise OSError(error.errno, error.strerror, error.filename and str(path))

        monkeypatch.setattr(Image.Image, "save", save)
        assert run(photos / "a.jpg", "--out", tmp_path / "out") == 1
        assert error_line(capsys) == f"codetr: error: {tmp_path / 'out/a.jpg'}: {error.strerror}"


def test_interrupt(fake, photos, tmp_path, capsys, monkeypatch):
    def interrupt(*_args, **_options):
        raise KeyboardInterrupt

    monkeypatch.setattr(FakeBackend, "__call__", interrupt)
    assert run(photos, "--out", tmp_path / "out") == 130
    assert error_line(capsys) == "codetr: error: interrupted"


def test_atomic_write(tmp_path):
    path = tmp_path / "file.txt"
    path.write_text("before")
    with pytest.raises(RuntimeError), atomic_write(path) as temporary:
        temporary.write_text("half")
        assert temporary.parent == tmp_path and temporary.suffix == ".txt"
        raise RuntimeError
    assert path.read_text() == "before" and list(tmp_path.iterdir()) == [path]
    with atomic_write(path) as temporary:
        temporary.write_text("after")
    assert path.read_text() == "after" and list(tmp_path.iterdir()) == [path]
