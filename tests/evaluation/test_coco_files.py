"""Data sets in COCO's format: what is read, where it is found, and every way in which a file can be wrong."""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import ExifTags, Image

from codetr.dataset.bad_pictures import LeftOut, check_pictures
from codetr.dataset.coco_files import DatasetError, load_coco, read_picture, split_file
from tests.evaluation.coco_folders import document, write_dataset


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return write_dataset(tmp_path_factory.mktemp("coco"))


def refusal(folder: Path, split: str = "val", **places: Path) -> str:
    """The message with which a data set is refused: one line."""
    with pytest.raises(DatasetError) as caught:
        load_coco(folder, split, **places)
    message = str(caught.value)
    assert "\n" not in message
    return message


# What is read


def test_contents(folder):
    dataset = load_coco(folder, "val")
    assert dataset.annotation_file == folder / "annotations/instances_val2017.json"
    assert dataset.category_ids == (1, 3, 18)
    assert dataset.class_names == ("person", "car", "dog")
    assert dataset.empty_boxes == ()
    assert len(dataset) == 3
    assert [picture.id for picture in dataset.pictures] == [7, 3, 9]
    first, second, third = dataset.pictures
    assert first.path == folder / "val2017/a.jpg"
    assert (first.width, first.height) == (64, 48)
    assert first.boxes_xyxy_px.tolist() == [[10, 8.5, 30, 38.5], [0, 40, 6, 48]]
    assert first.labels.tolist() == [1, 0]
    assert first.crowd.tolist() == [False, False]
    assert first.areas.tolist() == [451.5, 6 * 8]
    assert second.labels.tolist() == [2]
    assert second.crowd.tolist() == [True]
    assert third.boxes_xyxy_px.shape == (0, 4)
    for picture in dataset.pictures:
        dtypes = [getattr(picture, name).dtype.name for name in ("boxes_xyxy_px", "labels", "crowd", "areas")]
        assert dtypes == ["float32", "int64", "bool", "float32"]
        assert read_picture(picture).shape == (picture.height, picture.width, 3)


def test_boxes_without_extent_are_left_out(folder, tmp_path):
    """COCO train2017 has two."""
    contents = document()
    contents["annotations"].append({"id": 5, "image_id": 9, "category_id": 3, "bbox": [3, 4, 0.0, 5]})
    contents["annotations"].append({"id": 2, "image_id": 7, "category_id": 3, "bbox": [3, 4, 5, 0]})
    dataset = load_coco(write_dataset(tmp_path, contents), "val")
    assert dataset.empty_boxes == (5, 2)
    assert [len(picture.labels) for picture in dataset.pictures] == [2, 1, 0]


def test_no_torch(folder):
    """A data set is read where Torch is not installed."""
    code = (
        "import sys; sys.modules['torch'] = None; from codetr.dataset.coco_files import load_coco, read_picture; "
        f"read_picture(load_coco({str(folder)!r}, 'val').pictures[0])"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


# Where it is found


@pytest.mark.parametrize(
    ("annotations", "images", "split"),
    [
        ("annotations/instances_val.json", "val", "val"),
        ("annotations/instances_val.json", "images/val", "val"),
        ("annotations/instances_val.json", "images", "val"),
        ("annotations/instances_val2017.json", "val2017", "val"),
        ("annotations/instances_val2017.json", "images/val2017", "val2017"),
        ("annotations/instances_val2017.json", "val", "val"),
        ("annotations/instances_train2014.json", "train2014", "train"),
        ("annotations.json", "images", "val"),
        ("annotations.json", ".", "val"),
        ("_annotations.coco.json", ".", "val"),
        ("valid/_annotations.coco.json", "valid", "valid"),
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


def test_given_places(tmp_path):
    write_dataset(tmp_path / "data", annotations="odd name.json", images="elsewhere")
    write_dataset(tmp_path / "data")
    places = {"annotations": tmp_path / "data/odd name.json", "images": tmp_path / "data/elsewhere"}
    dataset = load_coco(tmp_path, "val", **places)
    assert dataset.annotation_file == places["annotations"]
    assert dataset.pictures[0].path == places["images"] / "a.jpg"


def test_a_split_is_no_prefix_of_another(tmp_path):
    write_dataset(tmp_path, annotations="annotations/instances_valuable.json")
    assert f"{tmp_path}: no annotations of split 'val'" in refusal(tmp_path)


def test_exact_split_before_years(tmp_path):
    for name in ("val", "val2014", "val2017"):
        write_dataset(tmp_path, annotations=f"annotations/instances_{name}.json", images=name)
    assert load_coco(tmp_path, "val").pictures[0].path == tmp_path / "val/a.jpg"
    (tmp_path / "annotations/instances_val.json").unlink()
    message = refusal(tmp_path)
    assert str(tmp_path / "annotations") in message
    assert "instances_val2014.json and instances_val2017.json" in message
    assert load_coco(tmp_path, "val2014").pictures[0].path == tmp_path / "val2014/a.jpg"


def test_places_that_are_not_there(folder, tmp_path):
    assert refusal(tmp_path) == f"{tmp_path}: the folder is empty"
    assert refusal(tmp_path / "gone") == f"{tmp_path / 'gone'}: no such folder"
    assert refusal(folder / "val2017/a.jpg") == f"{folder / 'val2017/a.jpg'}: not a folder"
    assert refusal(folder, annotations=tmp_path / "x.json") == f"{tmp_path / 'x.json'}: no such file"
    assert refusal(folder, annotations=tmp_path) == f"{tmp_path}: not a file"
    assert refusal(folder, images=tmp_path / "x") == f"{tmp_path / 'x'}: no such folder"
    assert "no annotations of split 'test'" in refusal(folder, "test")
    assert "expected the name of a split" in refusal(folder, "../val")


def test_missing_pictures(tmp_path):
    """Those that are there tell the folder; all of them missing is an error."""
    write_dataset(tmp_path)
    file = tmp_path / "annotations/instances_val2017.json"
    (tmp_path / "val").mkdir()
    (tmp_path / "val2017/a.jpg").unlink()
    assert [picture.path for picture in load_coco(tmp_path, "val").pictures] == [
        tmp_path / f"val2017/{name}.jpg" for name in "abc"
    ]
    shutil.rmtree(tmp_path / "val2017")
    (tmp_path / "val2017").mkdir()
    path = tmp_path / "val2017/a.jpg"
    assert refusal(tmp_path) == f"{path}: no such picture; all of the 3 that {file} lists are missing"


def turned(path: Path, size: tuple[int, int]) -> None:
    """A picture that EXIF turns by a quarter; in a PNG file the block stands behind the pixels."""
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6
    Image.new("RGB", size).save(path, exif=exif)


def test_check_finds_what_headers_tell(tmp_path, capsys):
    """All of them, in the words of `read_picture`; pixels are not looked at."""
    names = [f"{index}.{'png' if index in (3, 6) else 'jpg'}" for index in range(12)]
    contents = document()
    contents["annotations"] = [{"id": 1, "image_id": 20, "category_id": 1, "bbox": [1, 1, 5, 5]}]
    contents["images"] = [
        {"id": 20 - index, "file_name": name, "width": 40, "height": 30} for index, name in enumerate(names)
    ]
    contents["images"][9]["file_name"] = "9\0.jpg"
    write_dataset(tmp_path, contents, names=names, sizes=[(40, 30)] * 12)
    pictures = tmp_path / "val2017"
    (pictures / names[1]).unlink()
    Image.new("RGB", (41, 30)).save(pictures / names[2])
    turned(pictures / names[3], (30, 40))  # right when it is turned
    turned(pictures / names[4], (30, 40))
    turned(pictures / names[5], (40, 30))  # wrong when it is turned
    (pictures / names[7]).write_text("no picture")
    (pictures / names[8]).unlink()
    (pictures / names[8]).mkdir()
    (pictures / names[11]).write_bytes((pictures / names[11]).read_bytes()[:-60])
    dataset = load_coco(tmp_path, "val")
    errors = check_pictures(dataset.pictures)
    for index, picture in enumerate(dataset.pictures[:11]):
        words = ""
        try:
            read_picture(picture)
        except DatasetError as error:
            words = str(error)
        assert str(errors.get(index, "")) == words, index
    assert sorted(errors) == [1, 2, 5, 7, 8, 9]
    no_text = dataclasses.replace(dataset.pictures[0], path=pictures / "\ud800.jpg")
    assert "not an image" in str(check_pictures([no_text])[0])

    left_out = LeftOut(dataset)
    left_out.check()
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 7 and all(line.startswith("codetr: warning: ") for line in lines)
    assert lines[6].endswith(f"6 of 12 pictures of {dataset.annotation_file} cannot be used and are left out")
    assert [picture.id for picture in left_out.usable().pictures] == [20, 17, 16, 14, 10, 9]
    last = dataset.pictures[11]
    for _ in range(2):
        with pytest.raises(DatasetError) as caught:
            read_picture(last)
        left_out.add(last, caught.value)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and f"{last.path}: the image is truncated" in lines[0]
    assert len(left_out.usable()) == 5


def test_a_long_check_tells_how_far_it_is(folder, monkeypatch, capsys):
    monkeypatch.setattr("codetr.dataset.bad_pictures._TELL_S", 0.0)
    assert check_pictures(load_coco(folder, "val").pictures) == {}
    assert capsys.readouterr().err.splitlines()[1] == "codetr: checking: 2 of 3 pictures"


# Roboflow's export


def roboflow(folder: Path, split: str, used: tuple[int, ...] = (1, 2)) -> Path:
    """A split as Roboflow writes it, with objects of some categories."""
    contents = document()
    contents["categories"] = [
        {"id": 0, "name": "fruit", "supercategory": "none"},
        {"id": 1, "name": "apple", "supercategory": "fruit"},
        {"id": 2, "name": "pear", "supercategory": "fruit"},
    ]
    contents["annotations"] = [
        {"id": index, "image_id": 7, "category_id": category, "bbox": [1, 1, 9, 9], "area": 81, "iscrowd": 0}
        for index, category in enumerate(used)
    ]
    return write_dataset(folder, contents, f"{split}/_annotations.coco.json", split)


def test_roboflow(tmp_path):
    """The split val is its valid; category 0 is no class, unless something is annotated with it."""
    for split in ("train", "valid", "test"):
        roboflow(tmp_path, split)
    for split, found in (("train", "train"), ("val", "valid"), ("valid", "valid"), ("test", "test")):
        dataset = load_coco(tmp_path, split)
        assert dataset.annotation_file == tmp_path / found / "_annotations.coco.json"
        assert dataset.pictures[0].path == tmp_path / found / "a.jpg"
        assert (dataset.class_names, dataset.category_ids) == (("apple", "pear"), (1, 2))
        assert dataset.supercategories == ("fruit",)
        assert dataset.pictures[0].labels.tolist() == [0, 1]
    assert load_coco(tmp_path, "val", keep=("fruit",)).class_names == ("fruit", "apple", "pear")
    roboflow(tmp_path, "train", used=(0, 1))
    dataset = load_coco(tmp_path, "train")
    assert dataset.class_names == ("fruit", "apple", "pear") and dataset.supercategories == ()
    assert load_coco(roboflow(tmp_path, "train", used=(1,)), "train").class_names == ("apple", "pear")


def test_project_with_the_name_of_a_class(tmp_path):
    """Roboflow names category 0 after the project."""
    contents = document()
    contents["categories"] = [
        {"id": 0, "name": "dog", "supercategory": "none"},
        {"id": 1, "name": "cat", "supercategory": "dog"},
        {"id": 2, "name": "dog", "supercategory": "dog"},
    ]
    for annotation in contents["annotations"]:
        annotation["category_id"] = 2
    folder = write_dataset(tmp_path, contents)
    for keep in ((), ("dog", "cat")):
        assert load_coco(folder, "val", keep=keep).class_names == ("cat", "dog")


def test_own_val_before_valid(tmp_path):
    roboflow(tmp_path, "valid")
    write_dataset(tmp_path, annotations="annotations/instances_val2017.json")
    assert load_coco(tmp_path, "val").annotation_file.name == "instances_val2017.json"
    assert split_file(tmp_path, "test") is None


def test_categories_that_stay(tmp_path):
    """Without annotations, but no other's supercategory, as COCO's person."""
    contents = document()
    del contents["annotations"][1:]
    assert load_coco(write_dataset(tmp_path, contents), "val").class_names == ("person", "car", "dog")
    contents["categories"][0]["supercategory"] = ["person"]
    assert load_coco(write_dataset(tmp_path, contents), "val").class_names == ("person", "car", "dog")
    contents["categories"][0]["supercategory"] = "person"
    assert load_coco(write_dataset(tmp_path, contents), "val").class_names == ("car", "dog")


def test_pictures_that_are_others(tmp_path):
    contents = document()
    contents["images"][0].update(width=48, height=64)
    dataset = load_coco(write_dataset(tmp_path, contents), "val")
    with pytest.raises(DatasetError, match=r"a\.jpg: the annotation file says 48x64, the picture has 64x48$"):
        read_picture(dataset.pictures[0])
    dataset.pictures[1].path.write_bytes(dataset.pictures[1].path.read_bytes()[:-40])
    with pytest.raises(DatasetError, match=r"b\.jpg: the image is truncated or damaged"):
        read_picture(dataset.pictures[1])
    dataset.pictures[2].path.unlink()
    with pytest.raises(DatasetError, match=r"c\.jpg: no such file$"):
        read_picture(dataset.pictures[2])


# What can be wrong in the file


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "not a JSON file"),
        ("{", "not a JSON file"),
        ('{"images": [}', "not a JSON file"),
        ("[" * 100_000, "not a JSON file"),
        ("\ufeff\ufeff{}", "not a JSON file"),
        ("[1, 2]", "expected an object with categories, images, annotations, got [1, 2]"),
        ("null", "expected an object with categories, images, annotations, got null"),
        ("{}", "'categories' is missing, it is not a COCO annotation file"),
    ],
)
def test_not_an_annotation_file(tmp_path, text, reason):
    write_dataset(tmp_path, text)
    assert f"instances_val2017.json: {reason}" in refusal(tmp_path)


def test_not_utf8(tmp_path):
    file = tmp_path / "annotations.json"
    file.write_bytes(b'{"categories": "\xff"}')
    assert refusal(tmp_path).startswith(f"{file}: not a JSON file")


def put(*path: str | int):
    """A change of a document: the value (or, without one, nothing) at a place, the last item of `path`."""
    *keys, last, value = path

    def change(contents):
        for key in keys:
            contents = contents[key]
        if value is GONE:
            del contents[last]
        else:
            contents[last] = value

    return change


GONE = object()
TWICE = "the id is there twice"
WRONG = {
    **{f"no {key}": (put(key, GONE), f"'{key}' is missing") for key in ("images", "annotations")},
    **{
        f"{key} empty": (put(key, []), f"{key}: the list is empty")
        for key in ("images", "annotations", "categories")
    },
    "images no list": (put("images", {"a": 1}), 'images: expected a list, got {"a": 1}'),
    "image no object": (put("images", 1, 5), "images[1]: expected an object, got 5"),
    "image id missing": (put("images", 1, "id", GONE), "images[1]: id: expected a whole number, got nothing"),
    "image id text": (put("images", 1, "id", "3"), 'images[1]: id: expected a whole number, got "3"'),
    "image id true": (put("images", 1, "id", True), "images[1]: id: expected a whole number, got true"),
    "image id twice": (put("images", 1, "id", 7), f"image 7: {TWICE}"),
    "file name missing": (
        put("images", 1, "file_name", GONE),
        "image 3: file_name: expected a text, got nothing",
    ),
    "file name number": (put("images", 1, "file_name", 5), "image 3: file_name: expected a text, got 5"),
    "file name empty": (put("images", 1, "file_name", ""), 'image 3: file_name: expected a text, got ""'),
    "width missing": (
        put("images", 1, "width", GONE),
        "image 3 (b.jpg): width: expected a number of pixels, got nothing",
    ),
    "height zero": (
        put("images", 1, "height", 0),
        "image 3 (b.jpg): height: expected a number of pixels, got 0",
    ),
    "height fraction": (put("images", 1, "height", 5.5), "height: expected a number of pixels, got 5.5"),
    "height huge": (put("images", 1, "height", 10**400), "height: expected a number of pixels, got 1000"),
    "category id twice": (put("categories", 1, "id", 18), f"category 18: {TWICE}"),
    "category id null": (
        put("categories", 1, "id", None),
        "categories[1]: id: expected a whole number, got null",
    ),
    "category name missing": (
        put("categories", 1, "name", GONE),
        "category 1: name: expected a text, got nothing",
    ),
    "category name twice": (
        put("categories", 1, "name", "dog"),
        "category 1: name: 'dog' is another category's as well",
    ),
    "annotation id twice": (put("annotations", 1, "id", 11), f"annotation 11: {TWICE}"),
    "annotation id missing": (
        put("annotations", 1, "id", GONE),
        "annotations[1]: id: expected a whole number, got nothing",
    ),
    "unknown image": (
        put("annotations", 1, "image_id", 4),
        "annotation 12: image_id: expected an image's id, got 4",
    ),
    "image of another type": (put("annotations", 1, "image_id", [3]), "annotation 12: image_id: expected"),
    "no image": (
        put("annotations", 1, "image_id", GONE),
        "annotation 12: image_id: expected an image's id, got nothing",
    ),
    "unknown category": (
        put("annotations", 1, "category_id", 2),
        "annotation 12: category_id: expected a category's id, got 2",
    ),
    "crowd": (put("annotations", 1, "iscrowd", "yes"), 'annotation 12: iscrowd: expected 0 or 1, got "yes"'),
    "no box": (
        put("annotations", 1, "bbox", GONE),
        "annotation 12: bbox: expected 4 finite numbers, got nothing",
    ),
    "box of three": (
        put("annotations", 1, "bbox", [1, 2, 3]),
        "annotation 12: bbox: expected 4 finite numbers, got [1, 2, 3]",
    ),
    "box of texts": (put("annotations", 1, "bbox", ["1", 2, 3, 4]), "annotation 12: bbox: expected 4 finite"),
    "box with true": (put("annotations", 1, "bbox", [True, 2, 3, 4]), "annotation 12: bbox: expected 4"),
    "box NaN": (put("annotations", 1, "bbox", [1, 2, float("nan"), 4]), "got [1, 2, NaN, 4]"),
    "box infinite": (put("annotations", 1, "bbox", [1, 2, float("inf"), 4]), "got [1, 2, Infinity, 4]"),
    "box huge": (put("annotations", 1, "bbox", [1, 2, 10**400, 4]), "annotation 12: bbox: expected 4 finite"),
    "box negative": (
        put("annotations", 1, "bbox", [9, 9, -5, 4]),
        "annotation 12: bbox: expected [x, y, width, height], got [9.0, 9.0, -5.0, 4.0]",
    ),
    "box outside": (
        put("annotations", 1, "bbox", [50, 5, 5, 4]),
        "annotation 12: bbox: [50.0, 5.0, 5.0, 4.0] lies outside its picture b.jpg of 40x56 pixels",
    ),
    "area text": (
        put("annotations", 1, "area", "12"),
        'annotation 12: area: expected a finite number, got "12"',
    ),
    "area negative": (
        put("annotations", 1, "area", -1),
        "annotation 12: area: expected a number of pixels, got -1",
    ),
    "area NaN": (put("annotations", 1, "area", float("nan")), "annotation 12: area: expected a finite"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_contents(folder, tmp_path, case):
    change, reason = WRONG[case]
    contents = document()
    change(contents)
    file = tmp_path / "wrong.json"
    file.write_text(json.dumps(contents))
    message = refusal(folder, annotations=file, images=folder / "val2017")
    assert str(file) in message
    assert reason in message


ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


def places(contents, prefix=()):
    """Every place in a document, as the path to it."""
    keys = contents if isinstance(contents, dict) else range(len(contents))
    for key in keys:
        yield (*prefix, key)
        if isinstance(contents[key], (dict, list)):
            yield from places(contents[key], (*prefix, key))


@given(st.sampled_from(list(places(document()))), st.just(GONE) | ANY_JSON)
def test_any_change_is_read_or_refused(folder, place, value):
    """Whatever stands anywhere in the file: either a sound data set, or one line that names the file."""
    contents = document()
    put(*place, value)(contents)
    file = folder / "changed.json"
    file.write_text(json.dumps(contents))
    try:
        dataset = load_coco(folder, "val", annotations=file, images=folder / "val2017")
    except DatasetError as error:
        assert str(file) in str(error)
        assert len(str(error).splitlines()) == 1
        return
    for picture in dataset.pictures:
        assert picture.path.is_file()
        boxes = picture.boxes_xyxy_px
        assert (boxes[:, :2] < boxes[:, 2:]).all()
        assert (boxes >= 0).all()
        assert (boxes <= [picture.width, picture.height] * 2).all()
        assert np.isfinite(picture.areas).all()
        assert (picture.areas >= 0).all()
        assert set(picture.labels.tolist()) <= set(range(len(dataset.class_names)))


def test_coco_val2017_sized_file(tmp_path):
    """5000 pictures and 36 781 annotations in gaps of ids, as COCO val2017 has, and no object is lost."""
    contents = document()
    random = np.random.default_rng(0)
    contents["images"] = [
        {"id": 37 * index + 1, "file_name": f"{37 * index + 1:012}.jpg", "width": 640, "height": 480}
        for index in range(5000)
    ]
    owners = random.integers(0, 5000, 36_781)
    boxes = random.uniform((0, 0, 1, 1), (500, 300, 140, 180), (36_781, 4)).round(2)
    contents["annotations"] = [
        {
            "id": 10_000 + index,
            "image_id": 37 * int(owner) + 1,
            "category_id": (1, 3, 18)[index % 3],
            "bbox": box,
            "area": box[2] * box[3] * 0.6,
            "iscrowd": int(index % 80 == 0),
        }
        for index, (owner, box) in enumerate(zip(owners, boxes.tolist(), strict=True))
    ]
    write_dataset(tmp_path, contents, names=(), sizes=())
    (tmp_path / "val2017").mkdir()
    for image in contents["images"]:
        (tmp_path / "val2017" / image["file_name"]).touch()
    dataset = load_coco(tmp_path, "val")
    counts = [len(picture.labels) for picture in dataset.pictures]
    assert counts == np.bincount(owners, minlength=5000).tolist()
    assert sum(int(picture.crowd.sum()) for picture in dataset.pictures) == -(-36_781 // 80)
    found = np.concatenate([picture.boxes_xyxy_px for picture in dataset.pictures])
    order = np.argsort(owners, kind="stable")
    corners = np.concatenate([boxes[:, :2], boxes[:, :2] + boxes[:, 2:]], axis=1)[order]
    np.testing.assert_allclose(found, corners, atol=1e-4)
