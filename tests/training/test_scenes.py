"""The scenes for the demo detector: reproducible, correctly annotated, with disjoint splits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest

from codetr.dataset.coco_files import load_coco
from tools.scenes import CLASS_NAMES, canvas, make_scene, write_split
from tools.scenes.__main__ import main
from tools.scenes.canvas import Canvas
from tools.scenes.object_classes import draw_object
from tools.scenes.sources import FONTS, PHOTOS, SPLITS
from tools.scenes.textures import TEXTURES

MAGENTA = (255, 0, 255)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A dataset by two workers."""
    path = tmp_path_factory.mktemp("scenes") / "data"
    assert main(["--out", str(path), "--train", "18", "--val", "3", "--seed", "3", "--workers", "2"]) == 0
    return path


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_files_depend_on_the_seed_and_not_on_the_workers(folder, tmp_path):
    steps = []
    write_split(tmp_path, "train", 18, 3, workers=1, advance=steps.append)
    write_split(tmp_path, "val", 3, 3, workers=1)
    assert contents(tmp_path) == contents(folder)
    assert sum(steps) == 18
    first = make_scene(3, "train", 5)
    for other in (make_scene(4, "train", 5), make_scene(3, "val", 5), make_scene(3, "train", 6)):
        assert first.image.shape != other.image.shape or not np.array_equal(first.image, other.image)


def test_dataset_is_coco(folder):
    for split, count in (("train", 18), ("val", 3)):
        dataset = load_coco(folder, split)
        assert dataset.class_names == CLASS_NAMES
        assert dataset.category_ids == tuple(range(1, 21))
        assert len(dataset.pictures) == count
        for index, picture in enumerate(dataset.pictures):
            scene = make_scene(3, split, index)
            assert picture.path.name == f"{index:06d}.jpg"
            np.testing.assert_array_equal(picture.boxes_xyxy_px, scene.boxes_xyxy_px)
            np.testing.assert_array_equal(picture.labels, scene.labels)
            assert not picture.crowd.any()
            sides = scene.boxes_xyxy_px[:, 2:] - scene.boxes_xyxy_px[:, :2]
            np.testing.assert_array_equal(picture.areas, sides.prod(axis=1))
            image = cv2.cvtColor(cv2.imread(str(picture.path)), cv2.COLOR_BGR2RGB)
            assert (picture.width, picture.height) == image.shape[1::-1]
            coarse = [cv2.blur(pixels, (16, 16)).astype(int) for pixels in (image, scene.image)]
            assert np.abs(coarse[0] - coarse[1]).mean() < 3  # JPEG changes details only


def test_splits_share_nothing_and_are_varied():
    used = {}
    for split in SPLITS:
        scenes = [make_scene(7, split, index) for index in range(40)]
        used[split] = set().union(*(scene.sources for scene in scenes))
        fonts, photos = ({source.file for source in table[split]} for table in (FONTS, PHOTOS))
        assert used[split] <= fonts | photos | {field.__name__.lstrip("_") for field in TEXTURES[split]}
        assert used[split] & fonts and used[split] & photos
        assert set(np.concatenate([scene.labels for scene in scenes])) == set(range(20))
        sizes, shares = [], []
        for scene in scenes:
            height, width = scene.image.shape[:2]
            assert scene.image.dtype == np.uint8 and max(height, width) <= 640 and min(height, width) <= 480
            boxes = scene.boxes_xyxy_px
            assert len(boxes) == len(scene.labels) <= 20
            assert (boxes >= 0).all() and (boxes[:, 2:] <= (width, height)).all()
            assert (boxes[:, 2:] > boxes[:, :2]).all()
            sides = np.sqrt((boxes[:, 2:] - boxes[:, :2]).prod(axis=1))
            sizes += sides.tolist()
            shares += (sides / np.sqrt(width * height)).tolist()
        assert 11 <= min(sizes) < 19  # 16 pixels, of which the border may cut off some
        assert 0.4 < max(shares) < 0.55
        assert {scene.image.shape[0] < scene.image.shape[1] for scene in scenes} == {True, False}
    assert not used["train"] & used["val"]
    assert not set(FONTS["train"]) & set(FONTS["val"]) and not set(PHOTOS["train"]) & set(PHOTOS["val"])


@pytest.mark.parametrize("label", range(20), ids=CLASS_NAMES)
def test_boxes_are_tight(label, monkeypatch):
    """Without shadow, blur, plate and pole, the box holds exactly the changed pixels."""

    def alone(*arguments):
        drawing = draw_object(*arguments[:3], plate=False)
        return replace(drawing, parts=tuple(drawing.front))

    monkeypatch.setattr(canvas, "draw_object", alone)
    monkeypatch.setattr(canvas.cv2, "GaussianBlur", lambda layer, *_: layer)
    monkeypatch.setattr(Canvas, "_cast_shadow", lambda *_: None)
    compared = 0
    for seed in range(7):
        paper = np.full((240, 320, 3), MAGENTA, np.uint8)
        picture = Canvas(paper.copy(), np.random.default_rng(seed), "train")
        picture.add(label, 20.0 + 14 * seed)
        if not picture.boxes:
            continue
        rows, columns = np.nonzero(np.abs(picture.image.astype(int) - paper).max(axis=2) > 12)
        changed = (columns.min(), rows.min(), columns.max() + 1, rows.max() + 1)
        np.testing.assert_allclose(picture.boxes[0], changed, atol=1.01)
        compared += 1
    assert compared >= 5


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--train", "-3"), "--train"),
        (("--val", "1", "--workers", "0"), "--workers"),
        (("--val", "1", "--size", "100"), "--size"),
        ((), "--train: expected --train or --val above 0"),
        (("--val", "1", "--out", "{folder}"), "--out: expected a folder without val"),
        (("--val", "1", "--out", __file__), "--out: expected a folder to write"),
    ],
)
def test_wrong_arguments(arguments, words, folder, tmp_path, capsys):
    before = contents(folder)
    given = [text.format(folder=folder) for text in arguments]
    if "--out" not in given:
        given += ["--out", str(tmp_path / "new")]
    assert main(given) == 2
    error = capsys.readouterr().err
    assert words in error and error.count("\n") == 1
    assert not (tmp_path / "new").exists() and contents(folder) == before


def test_a_failed_run_leaves_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("tools.scenes.scene_dataset.make_scene", lambda *_: 1 / 0)
    assert main(["--out", str(tmp_path / "new"), "--val", "2"]) == 1
    assert "ZeroDivisionError" in capsys.readouterr().err and not list(tmp_path.iterdir())
