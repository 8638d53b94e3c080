"""`codetr evaluate`: options, results, one line for every error, and pictures that cannot be used."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from PIL import Image

from tests.evaluation.coco_folders import document, write_dataset
from tests.evaluation.tiny_detector import command, results
from trt_plugin.atomic_files import atomic_write


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
        (lambda folder: folder, [], "data: no such folder"),
        (write_dataset, ["--annotations", "none.json"], "--annotations"),
        (write_dataset, ["--images", "none"], "none: no such folder"),
        (write_dataset, ["--nms-iou", 2], "--nms-iou"),
        (write_dataset, ["--engine", "x.engine"], "--model"),
    ],
)
def test_errors(make, arguments, message, tiny, tmp_path, monkeypatch, capsys):
    """One line that names the file or the option, exit status 2, nothing written."""
    monkeypatch.chdir(tmp_path)
    data = make(tmp_path / "data")
    given = ["--data", data, "--out", tmp_path / "out", "--model", tiny.config_file, "--device", "cpu"]
    assert command(*given, "--weights", tiny.weights, *arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith("codetr: error: ") and error.count("\n") == 1
    assert message in error
    assert {path.name for path in tmp_path.iterdir()} <= {"data"}


def bad_pictures(folder: Path) -> Path:
    """Writes ten pictures. Four are unusable: missing, of another size, empty, without the last rows."""
    names = [f"{index}.png" for index in range(10)]
    contents = document()
    contents["images"] = [
        {"id": index, "file_name": name, "width": 64, "height": 48} for index, name in enumerate(names)
    ]
    contents["annotations"] = [
        {"id": index, "image_id": index, "category_id": 1, "bbox": [5, 5, 20, 20]} for index in range(10)
    ]
    write_dataset(folder, contents, names=names, sizes=[(64, 48)] * 10)
    pictures = folder / "val2017"
    (pictures / "1.png").unlink()
    Image.new("RGB", (48, 64)).save(pictures / "3.png")
    (pictures / "4.png").write_bytes(b"")
    (pictures / "8.png").write_bytes((pictures / "8.png").read_bytes()[:3000])
    return folder


def test_bad_pictures_are_left_out(tiny, tmp_path, capsys):
    """They are reported once and counted. The result is that of the other pictures."""
    data = bad_pictures(tmp_path / "data")
    given = ["--data", data, *tiny.network(), "--device", "cpu", "--batch", 3]
    assert command(*given, "--out", tmp_path / "out") == 0
    printed, file = capsys.readouterr(), data / "annotations/instances_val2017.json"
    warnings = [
        f"{data}/val2017/1.png: no such file",
        f"{data}/val2017/3.png: the annotation file says 64x48, the picture has 48x64",
        f"{data}/val2017/4.png: the file is empty",
        f"3 of 10 pictures of {file} cannot be used and are left out",
        f"{data}/val2017/8.png: the image is truncated or damaged",
    ]
    lines = printed.err.splitlines()
    assert len(lines) == 5 and lines[-1].endswith("; left out")
    assert all(line.startswith(f"codetr: warning: {warning}") for line, warning in zip(lines, warnings))
    assert printed.out.startswith(f"7 pictures of {file}") and "6 objects in 6 pictures" in printed.out
    assert f"4 of 10 pictures of {file} left out" in printed.out
    content, rows = results(tmp_path / "out")
    assert content["pictures_left_out"] == 4
    assert (content["metrics"]["pictures"], content["metrics"]["objects"]) == (6, 6)
    assert {row["image_id"] for row in rows} <= {0, 2, 5, 6, 7, 9}


def test_strict_refuses_bad_pictures(tiny, tmp_path, capsys):
    """The check reports all that it finds. A picture with damaged pixels ends the command later."""
    data = bad_pictures(tmp_path / "data")
    given = ["--data", data, *tiny.network(), "--device", "cpu", "--out", tmp_path / "out", "--strict"]
    assert command(*given) == 2
    lines = capsys.readouterr().err.splitlines()
    assert all(f"val2017/{index}.png: " in line for index, line in zip((1, 3, 4), lines[:3]))
    file = data / "annotations/instances_val2017.json"
    assert lines[3:] == [f"codetr: error: --strict: 3 of 10 pictures of {file} cannot be used"]
    for name in ("1.png", "3.png", "4.png"):
        (data / "val2017" / name).write_bytes((data / "val2017/0.png").read_bytes())
    assert command(*given) == 2
    assert "8.png: the image is truncated or damaged" in capsys.readouterr().err


def test_metrics_file_is_whole_or_missing(tiny, tmp_path, monkeypatch, capsys):
    """A disk that is full while the second file is written leaves no part of it."""

    @contextlib.contextmanager
    def full(path):
        with atomic_write(path) as temporary:
            yield temporary
            if path.name == "metrics.json":
                raise OSError(28, "No space left on device")

    monkeypatch.setattr("trt_plugin.atomic_files.atomic_write", full)  # write_json calls it there
    assert command("--data", tiny.data, *tiny.network(), "--limit", 1, "--out", tmp_path / "out") == 1
    assert "No space left on device" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["detections.json"]


def test_limit_and_nms(tiny, tmp_path):
    given = ["--data", tiny.data, *tiny.network(), "--device", "cpu", "--out", tmp_path]
    assert command(*given, "--limit", 2, "--nms", "hard", "--nms-iou", 0.1, "--top", 5) == 0
    content, rows = results(tmp_path)
    assert content["metrics"]["pictures"] == 2
    assert len(rows) <= 10
    assert {row["image_id"] for row in rows} == {0, 1}
    assert content["options"]["nms_iou"] == 0.1 and content["options"]["data"] == str(tiny.data)
