"""Detections: which are kept, and their form in COCO's files."""

from __future__ import annotations

import numpy as np

from codetr.coco_classes import COCO_CATEGORY_IDS, COCO_CLASSES, category_ids_for, class_names_for
from codetr.results import Detections, coco_document, image_ids_for


def test_select_sorts_and_keeps_the_threshold_itself():
    scores = np.float32([0.25, 0.75, 0.5])
    boxes = np.arange(12, dtype=np.float32).reshape(3, 4)
    detections = Detections(boxes, scores, np.array([3, 1, 2]), COCO_CLASSES, 30, 40)
    assert detections.select().labels.tolist() == [1, 2, 3]
    kept = detections.select(threshold=0.5)
    assert kept.labels.tolist() == [1, 2] and kept.boxes_xyxy_px[:, 0].tolist() == [4, 8]
    assert detections.select(top=1).names() == ["bicycle"] and len(detections.select(threshold=0.8)) == 0
    assert detections.select(0.3, labels=[3, 2]).labels.tolist() == [2]


def test_document_is_coco():
    arrays = np.float32([[1, 2, 11, 22]]), np.float32([0.5]), np.array([79])
    detections = Detections(*arrays, COCO_CLASSES, 30, 40)
    document = coco_document([("000000000139.jpg", detections), ("285.jpg", detections)], COCO_CLASSES)
    assert [image["id"] for image in document["images"]] == [139, 285]
    place = {"id": 2, "image_id": 285, "file_name": "285.jpg"}
    found = {"category_id": 90, "category_name": "toothbrush", "bbox": [1.0, 2.0, 10.0, 20.0], "score": 0.5}
    assert document["annotations"][1] == {**place, **found, "area": 200.0, "iscrowd": 0}
    assert len(document["categories"]) == 80
    assert document["categories"][-1] == {"id": 90, "name": "toothbrush"}


def test_image_ids():
    assert image_ids_for(["a.jpg", "7.jpg"]) == [1, 2]
    assert image_ids_for(["x/7.jpg", "y/007.png"]) == [1, 2]
    assert image_ids_for(["x/0012.jpg", "7.jpg"]) == [12, 7]


def test_classes():
    assert len(set(COCO_CLASSES)) == 80 and list(COCO_CATEGORY_IDS) == sorted(set(COCO_CATEGORY_IDS))
    assert set(range(1, 91)) - set(COCO_CATEGORY_IDS) == {12, 26, 29, 30, 45, 66, 68, 69, 71, 83}
    assert class_names_for(80) == COCO_CLASSES and class_names_for(2) == ("class 0", "class 1")
    assert category_ids_for(("a", "b")) == (0, 1)
