"""`codetr detect`: files and tables."""

from __future__ import annotations

import os

import numpy as np
from PIL import Image

from codetr.detector.preprocess import load_image
from tests.detector.detect_runs import CUP, ROOT, SPOON, detect, load, run


def test_one_picture(fake, photos, tmp_path, capsys):
    out = tmp_path / "new/out"
    assert run(photos / "a.jpg", "--out", out) == 0
    assert sorted(path.name for path in out.iterdir()) == ["a.jpg", "detections.json"]
    document = load(out)
    assert document["images"] == [{"id": 1, "file_name": "a.jpg", "width": 90, "height": 60}]
    first, second = document["annotations"]  # hard NMS drops the second cup
    assert (first["category_id"], first["category_name"], first["score"]) == (47, "cup", 0.9)
    np.testing.assert_allclose(first["bbox"], [0, 0, 45, 60], atol=0.01)
    np.testing.assert_allclose(second["bbox"], [22.5, 15, 45, 30], atol=0.01)
    with Image.open(out / "a.jpg") as drawn:
        assert drawn.size == (90, 60) and drawn.format == "JPEG"
    captured = capsys.readouterr()
    for word in ("cup", "0.900", "read", "preprocess", "inference", "postprocess", "draw", "detections.json"):
        assert word in captured.out
    assert captured.err == ""


def test_folders_globs_and_repeats(fake, photos, tmp_path, capsys):
    out = tmp_path / "out"
    assert run(photos, photos / "**/*.png", photos / "a.jpg", "--out", out, "--batch", 2) == 0
    assert [image["file_name"] for image in load(out)["images"]] == ["a.jpg", "b.png", "deep/a.png"]
    assert sorted(path.name for path in out.iterdir()) == ["a.jpg", "a_2.jpg", "b.jpg", "detections.json"]
    assert "3 pictures: 6 detections" in capsys.readouterr().out


def test_odd_file_names(fake, tmp_path, capsys):
    """Rich's markup, the pattern of a glob, and bytes that are not UTF-8."""
    folder = tmp_path / "[bold]in"
    folder.mkdir()
    names = ["[red]a*.png", "gr\u00fc\u00df.png", os.fsdecode(b"\xff.png")]
    for name in names:
        Image.new("RGB", (40, 30)).save(folder / name)
    assert run(*(folder / name for name in names), "--out", tmp_path / "out") == 0
    assert [image["file_name"] for image in load(tmp_path / "out")["images"]] == [*names[:2], "\ufffd.png"]
    printed = capsys.readouterr().out
    assert "[red]a*.png" in printed and "gr\u00fc\u00df.png" in printed and "\ufffd.png" in printed
    assert (tmp_path / "out" / os.fsdecode(b"\xff.jpg")).is_file()


def test_threshold_top_and_nms(fake, photos, tmp_path):
    def scores(*arguments: object) -> list[float]:
        assert run(photos / "a.jpg", "--out", tmp_path / "out", *arguments) == 0
        return [row["score"] for row in load(tmp_path / "out")["annotations"]]

    assert scores() == [0.9, 0.4]
    assert scores("--threshold", 0.5) == scores("--conf", 0.5) == [0.9]
    assert scores("--nms", "none") == [0.9, 0.6, 0.4]
    assert scores("--nms", "none", "--top", 2) == [0.9, 0.6]
    assert scores("--nms", "hard", "--nms-iou", 1.0) == [0.9, 0.6, 0.4]
    assert scores("--threshold", 1) == []
    soft = scores("--nms", "soft", "--threshold", 0.01)
    assert len(soft) == 3 and soft[-1] < 0.4


def test_classes_and_labels(fake, photos, tmp_path):
    def names(*arguments: object) -> list[str]:
        assert run(photos / "a.jpg", "--out", tmp_path / "out", *arguments) == 0
        return [row["category_name"] for row in load(tmp_path / "out")["annotations"]]

    assert names("--classes", "spoon") == names("--classes", SPOON) == ["spoon"]
    assert names("--classes", "spoon", CUP) == ["cup", "spoon"]
    labels = tmp_path / "labels.txt"
    labels.write_text("\n".join(f"thing {label}" for label in range(80)) + "\n")
    assert names("--labels", labels, "--classes", f"thing {SPOON}") == [f"thing {SPOON}"]


def test_rotated_photo_is_detected_upright(fake, tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (80, 40)).save(tmp_path / "phone.jpg", exif=exif)
    assert run(tmp_path / "phone.jpg", "--out", tmp_path / "out") == 0
    (image,) = load(tmp_path / "out")["images"]
    assert (image["width"], image["height"]) == (40, 80)
    with Image.open(tmp_path / "out/phone.jpg") as drawn:
        assert drawn.size == (40, 80) and 0x0112 not in drawn.getexif()


def test_default_model_finds_the_objects_of_a_held_out_scene(tmp_path, capsys):
    assert detect(ROOT / "assets/scene.jpg", "--out", tmp_path, "--device", "cpu") == 0
    assert "co_dino_demo" in capsys.readouterr().out
    document = load(tmp_path)
    names = {category["id"]: category["name"] for category in document["categories"]}
    found = sorted(names[row["category_id"]] for row in document["annotations"] if row["score"] > 0.8)
    assert found == [
        *("digit 2", "digit 2", "digit 8", "letter E", "letter R", "letter R", "no entry sign"),
        *("no entry sign", "screwdriver", "warning sign", "warning sign", "wrench"),
    ]
    scene, drawn = load_image(ROOT / "assets/scene.jpg"), load_image(tmp_path / "scene.jpg")
    assert scene.shape == drawn.shape and np.abs(scene.astype(int) - drawn).max() > 100
