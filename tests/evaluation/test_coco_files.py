"""Datasets in COCO format: their content, their layouts, and wrong annotation files."""

from __future__ import annotations

import codecs
import json
import shutil
from pathlib import Path

import pytest

from codetr.dataset.coco_files import DatasetError, load_coco, read_picture, split_file
from tests.evaluation.coco_folders import document, write_dataset


def refusal(folder: Path, **places: Path) -> str:
    """Returns the message of the error that a dataset raises: one line."""
    with pytest.raises(DatasetError) as caught:
        load_coco(folder, "val", **places)
    message = str(caught.value)
    assert "\n" not in message
    return message


# Content.


def test_contents(coco_folder):
    dataset = load_coco(coco_folder, "val")
    assert dataset.annotation_file == coco_folder / "annotations/instances_val2017.json"
    assert dataset.category_ids == (1, 3, 18)
    assert dataset.class_names == ("person", "car", "dog")
    assert [picture.id for picture in dataset.pictures] == [7, 3, 9]
    first, second, third = dataset.pictures
    assert first.path == coco_folder / "val2017/a.jpg"
    assert (first.width, first.height) == (64, 48)
    assert first.boxes_xyxy_px.tolist() == [[10, 8.5, 30, 38.5], [0, 40, 6, 48]]
    assert first.labels.tolist() == [1, 0] and first.crowd.tolist() == [False, False]
    assert first.areas.tolist() == [451.5, 6 * 8]
    assert second.labels.tolist() == [2] and second.crowd.tolist() == [True]
    assert third.boxes_xyxy_px.shape == (0, 4)
    for picture in dataset.pictures:
        dtypes = [getattr(picture, name).dtype.name for name in ("boxes_xyxy_px", "labels", "crowd", "areas")]
        assert dtypes == ["float32", "int64", "bool", "float32"]
        assert read_picture(picture).shape == (picture.height, picture.width, 3)


def test_empty_boxes_are_left_out(tmp_path):
    """COCO train2017 has two."""
    contents = document()
    contents["annotations"].append({"id": 5, "image_id": 9, "category_id": 3, "bbox": [3, 4, 0.0, 5]})
    contents["annotations"].append({"id": 2, "image_id": 7, "category_id": 3, "bbox": [3, 4, 5, 0]})
    dataset = load_coco(write_dataset(tmp_path, contents), "val")
    assert [len(picture.labels) for picture in dataset.pictures] == [2, 1, 0]


def test_a_byte_order_mark_is_no_error(coco_folder, tmp_path):
    file = tmp_path / "mark.json"
    file.write_bytes(codecs.BOM_UTF8 + json.dumps(document()).encode())
    assert len(load_coco(coco_folder, "val", annotations=file, images=coco_folder / "val2017")) == 3


# Layouts.


@pytest.mark.parametrize(
    ("annotations", "images", "split"),
    [
        ("annotations/instances_val.json", "images/val", "val"),
        ("annotations/instances_val.json", "images", "val"),
        ("annotations/instances_val2017.json", "images/val2017", "val2017"),
        ("annotations/instances_val2017.json", "val", "val"),
        ("annotations.json", "images", "val"),
        ("annotations.json", ".", "val"),
        ("_annotations.coco.json", ".", "val"),
        ("valid/_annotations.coco.json", "valid", "val"),
    ],
)
def test_layouts(tmp_path, annotations, images, split):
    write_dataset(tmp_path, annotations=annotations, images=images)
    dataset = load_coco(tmp_path, split)
    assert dataset.annotation_file == tmp_path / annotations
    assert [picture.path for picture in dataset.pictures] == [tmp_path / images / f"{n}.jpg" for n in "abc"]


def test_file_names_with_folder(tmp_path):
    contents = document()
    for image in contents["images"]:
        image["file_name"] = f"val2017/{image['file_name']}"
    write_dataset(tmp_path, contents)
    assert load_coco(tmp_path, "val").pictures[2].path == tmp_path / "val2017/c.jpg"


def test_precedence_of_splits(tmp_path):
    """The exact name comes first, then a single year, then Roboflow's folder."""
    for name in ("val", "val2014", "val2017"):
        write_dataset(tmp_path, annotations=f"annotations/instances_{name}.json", images=name)
    write_dataset(tmp_path, annotations="valid/_annotations.coco.json", images="valid")
    assert load_coco(tmp_path, "val").pictures[0].path == tmp_path / "val/a.jpg"
    (tmp_path / "annotations/instances_val.json").unlink()
    assert "instances_val2014.json and instances_val2017.json" in refusal(tmp_path)
    assert load_coco(tmp_path, "val2014").pictures[0].path == tmp_path / "val2014/a.jpg"
    (tmp_path / "annotations/instances_val2014.json").unlink()
    assert load_coco(tmp_path, "val").annotation_file.name == "instances_val2017.json"
    assert split_file(tmp_path, "va") is None and split_file(tmp_path, "test") is None


def test_missing_places(coco_folder, tmp_path):
    assert f"{tmp_path}: no annotations of split 'val'" in refusal(tmp_path)
    assert refusal(tmp_path / "gone") == f"{tmp_path / 'gone'}: no such folder"
    assert refusal(coco_folder, annotations=tmp_path / "x").startswith(f"{tmp_path / 'x'}: No such file")
    assert refusal(coco_folder, images=tmp_path / "x") == f"{tmp_path / 'x'}: no such folder"


def test_missing_pictures(tmp_path):
    """The pictures that exist tell the folder. It is an error if all are missing."""
    write_dataset(tmp_path)
    (tmp_path / "val").mkdir()
    (tmp_path / "val2017/a.jpg").unlink()
    assert load_coco(tmp_path, "val").pictures[0].path == tmp_path / "val2017/a.jpg"
    shutil.rmtree(tmp_path / "val2017")
    (tmp_path / "val2017").mkdir()
    assert "a.jpg: no such picture; all of the 3 that" in refusal(tmp_path)


# Supercategories.


FRUIT = ((0, "fruit", "none"), (1, "apple", "fruit"), (2, "pear", "fruit"))
PETS = ((0, "dog", "none"), (1, "cat", "dog"), (2, "dog", "dog"))


@pytest.mark.parametrize(
    ("categories", "used", "keep", "classes", "left_out"),
    [
        (FRUIT, (1, 2), (), ("apple", "pear"), ("fruit",)),  # Roboflow names category 0 after the project
        (FRUIT, (0, 1), (), ("fruit", "apple", "pear"), ()),
        (FRUIT, (1, 2), ("fruit",), ("fruit", "apple", "pear"), ()),
        (PETS, (2,), (), ("cat", "dog"), ("dog",)),  # a project with the name of a class
        (PETS, (2,), ("dog", "cat"), ("cat", "dog"), ("dog",)),
        (((1, "person", "person"), (2, "car", ["person"])), (2,), (), ("person", "car"), ()),
    ],
)
def test_supercategories(tmp_path, categories, used, keep, classes, left_out):
    contents = document()
    contents["categories"] = [{"id": i, "name": name, "supercategory": s} for i, name, s in categories]
    contents["annotations"] = [
        {"id": index, "image_id": 7, "category_id": category, "bbox": [1, 1, 9, 9]}
        for index, category in enumerate(used)
    ]
    dataset = load_coco(write_dataset(tmp_path, contents), "val", keep=keep)
    assert (dataset.class_names, dataset.supercategories) == (classes, left_out)


# Wrong annotation files.


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"images": [}', "Invalid JSON"),
        ("[1, 2]", "Input should be an object, got [1, 2]"),
        ("{}", "categories: Field required"),
    ],
)
def test_not_an_annotation_file(coco_folder, tmp_path, text, reason):
    file = tmp_path / "wrong.json"
    file.write_text(text)
    message = refusal(coco_folder, annotations=file, images=coco_folder / "val2017")
    assert message.startswith(f"{file}: {reason}")


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (("annotations",), [], "annotations: List should have at least 1 item"),
        (("images", 1), 5, "images[1]: Input should be an object, got 5"),
        (("images", 1, "id"), "3", 'images[1].id: Input should be a valid integer, got "3"'),
        (("images", 1, "id"), 7, "image 7: the id occurs twice"),
        (("images", 1, "height"), 0, "images[1].height: Input should be greater than or equal to 1"),
        (("categories", 1, "name"), "dog", "category 'dog': the name occurs twice"),
        (("annotations", 1, "category_id"), 2, "annotation 12: category_id: "),
        (("annotations", 1, "bbox"), [1, 2, 3], "annotations[1].bbox[3]: Field required"),
        (("annotations", 1, "bbox"), [1, 2, float("nan"), 4], "annotations[1].bbox[2]: "),
        (("annotations", 1, "bbox"), [9, 9, -5, 4], "annotations[1].bbox[2]: "),
        (("annotations", 1, "bbox"), [50, 5, 5, 4], "lies outside its picture b.jpg of 40x56 pixels"),
        (("annotations", 1, "area"), -1, "annotations[1].area: "),
    ],
)
def test_wrong_contents(coco_folder, tmp_path, place, value, message):
    contents = part = document()
    *keys, last = place
    for key in keys:
        part = part[key]
    part[last] = value
    file = tmp_path / "wrong.json"
    file.write_text(json.dumps(contents))
    found = refusal(coco_folder, annotations=file, images=coco_folder / "val2017")
    assert found.startswith(f"{file}: ") and message in found
