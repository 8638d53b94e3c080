"""Evaluation: its metrics against pycocotools, and reading ahead."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
from pathlib import Path

import numpy as np
import pytest
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from codetr.coco_classes import COCO_CLASSES
from codetr.dataset.bad_pictures import BadPictures
from codetr.dataset.coco_files import DatasetError, load_coco
from codetr.evaluation import coco_metrics, detect_all, detect_dataset, evaluate
from codetr.evaluation.detect_dataset import categories_of_labels, read_ahead
from codetr.results import Detections
from tests.evaluation.coco_folders import document, write_dataset

NAMES = ("person", "car", "dog")  # of `coco_folder`


class FakeDetector:
    """Finds the given boxes: one (boxes, scores, labels) for each picture, in turn."""

    def __init__(self, class_names, *answers) -> None:
        self.class_names = tuple(class_names)
        self.answers = list(answers)
        self.batches: list[int] = []

    def detect_batch(self, images, *, threshold, nms, nms_iou):
        assert threshold == 0.0
        self.batches.append(len(images))
        results = []
        for image in images:
            boxes, scores, labels = self.answers.pop(0)
            found = Detections(
                np.float32(boxes).reshape(-1, 4),
                np.float32(scores),
                np.int64(labels),
                self.class_names,
                *image.shape[:2],
            )
            results.append(found.select())
        return results


NOTHING = ((), (), ())


@pytest.fixture(scope="module")
def small(coco_folder):
    """The dataset of three pictures."""
    return load_coco(coco_folder, "val")


def random_dataset(folder: Path, pictures: int):
    """Writes pictures of one size with random objects, whose areas differ from their boxes'."""
    random = np.random.default_rng(0)
    contents = document()
    names = [f"{index:03}.png" for index in range(pictures)]
    sizes = [(200, 160)] * pictures
    contents["images"] = [
        {"id": 100 - index, "file_name": name, "width": 200, "height": 160}
        for index, name in enumerate(names)
    ]
    contents["annotations"] = []
    for index in range(pictures * 6):
        x, y, width, height = random.uniform((0, 0, 5, 5), (100, 60, 100, 100)).round(1).tolist()
        contents["annotations"].append(
            {
                "id": index,
                "image_id": 100 - int(random.integers(pictures)),
                "category_id": int(random.choice([1, 3, 18])),
                "bbox": [x, y, width, height],
                "area": round(width * height * 0.7, 2),
                "iscrowd": int(index % 7 == 0),
            }
        )
    return load_coco(write_dataset(folder, contents, names=names, sizes=sizes), "val")


def noisy_answer(picture, random):
    """Returns most objects, moved a little; some twice, some of a wrong class, and some false ones."""
    boxes = np.concatenate([picture.boxes_xyxy_px, picture.boxes_xyxy_px[::2]])
    labels = np.concatenate([picture.labels, picture.labels[::2]])
    boxes = boxes + random.normal(0, 4, boxes.shape)
    labels = np.where(random.random(len(labels)) < 0.2, (labels + 1) % 3, labels)
    extra = random.uniform(0, 100, (3, 2))
    boxes = np.concatenate([boxes, np.concatenate([extra, extra + 30], axis=1)])
    return boxes, random.random(len(boxes)), np.concatenate([labels, [0, 1, 2]])


def test_same_as_pycocotools_on_the_files(tmp_path):
    """The annotation file and detections.json, read by pycocotools itself, give the same twelve numbers."""
    dataset = random_dataset(tmp_path, 12)
    random = np.random.default_rng(1)
    detector = FakeDetector(NAMES, *(noisy_answer(picture, random) for picture in dataset.pictures))
    run = detect_all(detector, dataset, batch=4, limit=9)
    metrics = coco_metrics(dataset, run.rows, run.pictures)
    (tmp_path / "detections.json").write_text(json.dumps(run.rows))
    # pycocotools takes id 0 for an object without a match.
    contents = json.loads(dataset.annotation_file.read_text())
    for annotation in contents["annotations"]:
        annotation["id"] += 1
    (tmp_path / "from_one.json").write_text(json.dumps(contents))
    with contextlib.redirect_stdout(io.StringIO()):
        coco = COCO(str(tmp_path / "from_one.json"))
        evaluation = COCOeval(coco, coco.loadRes(str(tmp_path / "detections.json")), "bbox")
        evaluation.params.imgIds = [picture.id for picture in dataset.pictures[:9]]
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    ours = [getattr(metrics, item.name) for item in dataclasses.fields(metrics)][:12]
    np.testing.assert_allclose(np.nan_to_num(ours, nan=-1), evaluation.stats, atol=1e-6)
    assert 0.1 < metrics.ap < 0.9  # neither trivial
    assert metrics.pictures == 9


def test_best_count(small):
    """The best detections of a picture count, without classes that the dataset lacks."""
    many = [[0, 0, 5, 5]] * 150
    scores = np.linspace(0.9, 0.1, 150)
    answer = (many, scores, [index % 2 for index in range(150)])
    run = detect_all(FakeDetector((*NAMES[:1], "cup", *NAMES[1:]), answer), small, limit=1)
    assert len(run.rows) == 75
    assert {row["category_id"] for row in run.rows} == {1}
    run = detect_all(FakeDetector(NAMES, answer), small, limit=1)
    assert [row["score"] for row in run.rows] == pytest.approx(scores[:100], abs=1e-6)
    assert len(detect_all(FakeDetector(NAMES, answer), small, limit=1, top=7).rows) == 7


def test_batches_and_progress(small):
    detector, done = FakeDetector(NAMES, NOTHING, NOTHING, NOTHING), []
    run = detect_all(detector, small, batch=2, advance=done.append)
    assert detector.batches == done == [2, 1]
    assert run.rows == [] and run.pictures_per_s > 0


# Classes.


def test_classes_by_name(small):
    assert categories_of_labels(NAMES, small) == (1, 3, 18)
    assert categories_of_labels(("dog", "cup", "person", "car"), small) == (18, None, 1, 3)
    assert categories_of_labels(("class 0", "class 1", "class 2"), small) == (1, 3, 18)
    coco = categories_of_labels(COCO_CLASSES, small)
    assert (coco[0], coco[1], coco[2], coco[16]) == (1, None, 3, 18)


def test_other_classes(small):
    with pytest.raises(DatasetError) as caught:
        evaluate(FakeDetector(f"class {label}" for label in range(4)), small)
    assert str(caught.value) == (
        f"{small.annotation_file}: the model lacks 3 of its 3 classes: person, car, dog; the model has 4, "
        "among them class 0, class 1, class 2, …"
    )


# Reading.


def test_read_ahead(small, monkeypatch):
    """In order, ahead of the consumer, but not all at once."""
    pictures, started, taken = small.pictures * 10, [], []

    def read(picture):
        started.append(picture)
        return picture.id

    monkeypatch.setattr(detect_dataset.os, "cpu_count", lambda: 2)
    for chunk, images in read_ahead(pictures, 4, read=read):
        assert images == [picture.id for picture in chunk]
        taken += chunk
        assert len(started) <= len(taken) + 2 * 4 + 2
    assert taken == list(pictures) and len(started) == 30


def test_pictures_that_the_network_refuses_are_left_out(small, capsys):
    refused = small.pictures[1]

    class Refusing(FakeDetector):
        def detect_batch(self, images, **options):
            if any(image.shape[:2] == (refused.height, refused.width) for image in images):
                raise ValueError("images: too small")
            return super().detect_batch(images, **options)

    detector = Refusing(NAMES, *[NOTHING] * 2)
    run = detect_all(detector, small, batch=3, bad_pictures=(bad := BadPictures(small)))
    assert run.pictures == (small.pictures[0], small.pictures[2]) and list(bad.errors) == [refused.id]
    assert f"{refused.path}: images: too small; left out" in capsys.readouterr().err
    with pytest.raises(DatasetError, match=rf"{refused.path.name}: images: too small$"):
        detect_all(Refusing(NAMES, NOTHING), small, batch=2)
