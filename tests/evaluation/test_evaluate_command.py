"""`codetr evaluate`: options, results, one line for every error, and pictures that cannot be used."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.evaluation.coco_folders import document, write_dataset
from tests.evaluation.tiny_detector import command, results


def wrong_document(folder: Path) -> Path:
    contents = document()
    contents["annotations"][0]["bbox"] = [1, 2, -3, 4]
    return write_dataset(folder, contents)


def empty_pictures(folder: Path) -> Path:
    write_dataset(folder)
    for name in "abc":
        (folder / f"val2017/{name}.jpg").write_bytes(b"")
    return folder


def other_classes(folder: Path) -> Path:
    contents = document()
    contents["categories"][0]["name"] = "dragon"
    return write_dataset(folder, contents)


@pytest.mark.parametrize(
    ("make", "arguments", "message"),
    [
        (wrong_document, [], "instances_val2017.json: annotations[0].bbox[2]: "),
        (empty_pictures, [], "a.jpg: the file is empty; none of the 3 pictures of"),
        (other_classes, [], "instances_val2017.json: the model lacks 1 of its 3 classes: dragon; the model"),
        (lambda folder: folder, [], 'data" for --data. "'),
        (write_dataset, ["--annotations", "none.json"], "--annotations"),
        (write_dataset, ["--images", "none"], '"none" for --images. "none" does not exist'),
        (write_dataset, ["--nms-iou", 2], "--nms-iou"),
        (write_dataset, ["--engine", "x.engine"], "--model"),
    ],
)
def test_errors(make, arguments, message, tiny, tmp_path, monkeypatch, capsys):
    """One line that names the file or the option, exit status 2, nothing written, no network loaded."""
    monkeypatch.chdir(tmp_path)
    data = make(tmp_path / "data")
    given = ["--data", data, "--out", tmp_path / "out", "--model", tiny.config_file, "--device", "cpu"]
    assert command(*given, "--weights", tiny.weights, *arguments) == 2
    printed, error = capsys.readouterr()
    assert printed == "" and error.startswith("codetr: error: ") and error.count("\n") == 1
    assert message in error
    assert {path.name for path in tmp_path.iterdir()} <= {"data"}


def test_out_that_is_no_folder(tiny, tmp_path, capsys):
    file = tmp_path / "file"
    file.touch()
    for out in (file, file / "new"):
        assert command("--data", tiny.data, *tiny.network(), "--device", "cpu", "--out", out) == 2
        printed, error = capsys.readouterr()
        assert printed == "" and f"error: --out: expected a folder to write, got {out} (" in error


def test_bad_pictures(tiny, tmp_path, capsys):
    """They are reported once, counted and left out with their objects. With --strict they are an error."""
    data = shutil.copytree(tiny.data, tmp_path / "data")
    (data / "val/1.png").unlink()
    (data / "val/3.png").write_bytes((data / "val/3.png").read_bytes()[:3000])
    given = ["--data", data, *tiny.network(), "--device", "cpu", "--batch", 3, "--out", tmp_path / "out"]
    assert command(*given) == 0
    printed, file = capsys.readouterr(), data / "annotations/instances_val.json"
    lines = printed.err.splitlines()
    assert lines[:2] == [
        f"codetr: warning: {data}/val/1.png: no such file",
        f"codetr: warning: 1 of 4 pictures of {file} cannot be used and are left out",
    ]
    assert len(lines) == 3 and lines[2].startswith(
        f"codetr: warning: {data}/val/3.png: the image is truncated"
    )
    assert printed.out.startswith(f"3 pictures of {file}") and "24 objects in 2 pictures" in printed.out
    assert f"2 of 4 pictures of {file} left out" in printed.out
    content, rows = results(tmp_path / "out")
    assert (content["pictures_left_out"], content["metrics"]["pictures"]) == (2, 2)
    assert content["metrics"]["ap"] > 0.8 and {row["image_id"] for row in rows} == {0, 2}

    assert command(*given, "--strict") == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[1:] == [f"codetr: error: --strict: 1 of 4 pictures of {file} cannot be used"]
    (data / "val/1.png").write_bytes((tiny.data / "val/1.png").read_bytes())
    assert command(*given, "--strict") == 2
    assert "3.png: the image is truncated or damaged" in capsys.readouterr().err


def test_limit_and_nms(tiny, tmp_path):
    given = ["--data", tiny.data, *tiny.network(), "--device", "cpu", "--out", tmp_path]
    assert command(*given, "--limit", 2, "--nms", "hard", "--nms-iou", 0.1, "--top", 5) == 0
    content, rows = results(tmp_path)
    assert content["metrics"]["pictures"] == 2
    assert len(rows) <= 10
    assert {row["image_id"] for row in rows} == {0, 1}
    assert content["options"]["nms_iou"] == 0.1 and content["options"]["data"] == str(tiny.data)
