"""Class folders: labels, what is an error, what is only left out; preprocessing; top-1 and top-5."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from codetr.classify.class_folders import find_bad_pictures, load_class_folders
from codetr.classify.pictures import ClassifierPreprocessing, read_batches
from codetr.classify.top_k import TopK
from codetr.dataset.coco_files import DatasetError
from codetr.detector.preprocess import load_image
from codetr.errors import ArgumentError
from tests.classify.class_pictures import COLOURS, write_classes
from tests.project.doc_pages import ROOT


def test_labels_are_those_of_image_folder(tmp_path):
    torchvision = pytest.importorskip("torchvision")
    folder = write_classes(tmp_path / "set", 8)
    (folder / "red" / "deep").mkdir()
    Image.new("RGB", (4, 4)).save(folder / "red" / "deep" / "more.JPEG")
    for hidden in (folder / ".cache", folder / "red" / ".trash"):
        hidden.mkdir()
    (folder / "red" / "notes.txt").touch()
    theirs = torchvision.datasets.ImageFolder(folder, allow_empty=True, is_valid_file=None)
    dataset = load_class_folders(folder)
    assert dataset.class_names == tuple(sorted(COLOURS))
    assert {(str(picture.path), picture.label) for picture in dataset.pictures} == {
        (path, label - 1)
        for path, label in theirs.samples  # .cache has label 0 there
    }
    assert [picture.id for picture in dataset.pictures] == list(range(9))


def test_labels_follow_the_network(tmp_path):
    write_classes(tmp_path, 8)
    names = ("red", "violet", "white", "green", "blue")
    dataset = load_class_folders(tmp_path, names)
    assert dataset.class_names == names
    assert all(names[picture.label] == picture.path.parent.name for picture in dataset.pictures)


def no_pictures(folder):
    for path in folder.glob("*/*.png"):
        path.unlink()


@pytest.mark.parametrize(
    ("prepare", "names", "words"),
    [
        (None, ("red", "green", "blue"), "the network's 3 classes (red, …), got {}/white"),
        (None, ("red",), "the network's 1 classes (red, …), got {}/blue and 2 more"),
        (None, (*COLOURS, "red"), "got {}/red, the name of several; use WordNet ids"),
        (no_pictures, None, "got 4 class folders without pictures in {}"),
        (lambda folder: folder.rename(folder.parent / "val"), None, "got {}: no such folder"),
    ],
)
def test_a_dataset_that_does_not_fit(tmp_path, prepare, names, words):
    folder = write_classes(tmp_path / "set", 4)
    if prepare:
        prepare(folder)
    with pytest.raises(ArgumentError) as caught:
        load_class_folders(folder, names, argument="data")
    assert caught.value.argument == "data"
    assert words.format(folder) in str(caught.value) and "\n" not in str(caught.value)


def test_empty_folder_and_folder_of_splits(tmp_path):
    with pytest.raises(ArgumentError, match="got no class folders in"):
        load_class_folders(tmp_path)
    write_classes(tmp_path / "val", 4)
    (tmp_path / "train").mkdir()
    with pytest.raises(ArgumentError, match=r"class folders such as .*train, got"):
        load_class_folders(tmp_path)


def test_bad_pictures_are_counted_and_named(tmp_path, capsys):
    write_classes(tmp_path, 12)
    (tmp_path / "red" / "002.png").write_text("no picture")
    damaged = tmp_path / "white" / "007.png"
    damaged.write_bytes(damaged.read_bytes()[:-200])
    (tmp_path / "yellow").mkdir()
    dataset = load_class_folders(tmp_path)
    bad = find_bad_pictures(dataset)
    assert len(bad.usable()) == 11
    preprocessing = ClassifierPreprocessing(36, 32)
    batches = list(read_batches(bad.usable().pictures, preprocessing, 4, bad))
    assert [images.shape for images, _ in batches] == [(4, 3, 32, 32), (4, 3, 32, 32), (2, 3, 32, 32)]
    assert np.concatenate([labels for _, labels in batches]).tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 3, 3]
    lines = capsys.readouterr().err.splitlines()
    expected = ("yellow: the class", "red/002.png: not", "1 of 12 pictures", "white/007.png: the")
    assert all(words in line for words, line in zip(expected, lines, strict=True))
    assert str(bad) == f"2 of 12 pictures of {tmp_path}"
    with pytest.raises(DatasetError, match=r"007\.png"):
        list(read_batches(dataset.pictures[-1:] + dataset.pictures[-2:], preprocessing, 4))
    with pytest.raises(DatasetError, match="--strict"):
        find_bad_pictures(dataset, strict=True)


def test_no_usable_picture(tmp_path):
    write_classes(tmp_path, 2, names=("red", "green"))
    for path in tmp_path.glob("*/*.png"):
        path.write_bytes(b"")
    with pytest.raises(DatasetError, match="none of the 2 pictures of"):
        find_bad_pictures(load_class_folders(tmp_path))


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic", "nearest", "lanczos"])
@pytest.mark.parametrize("resize", [224, 256])
@pytest.mark.parametrize("turned", [False, True])
def test_preprocessing_is_torchvisions(interpolation, resize, turned):
    transforms = pytest.importorskip("torchvision.transforms")
    presets = pytest.importorskip("torchvision.transforms._presets")
    image = load_image(ROOT / "assets" / "scene.jpg")[:, :-37]
    image = np.ascontiguousarray(image.transpose(1, 0, 2) if turned else image)
    theirs = presets.ImageClassification(
        crop_size=224, resize_size=resize, interpolation=transforms.InterpolationMode(interpolation)
    )(Image.fromarray(image))
    ours = ClassifierPreprocessing(resize, 224, interpolation=interpolation).batch([image, image])
    assert ours.dtype == np.float32 and ours.shape == (2, 3, 224, 224)
    assert np.abs(ours - theirs.numpy()).max() <= 1e-6


@pytest.mark.parametrize("mode", ["center", "squash"])
def test_preprocessing_is_timms(mode):
    data = pytest.importorskip("timm.data")
    image = load_image(ROOT / "assets" / "scene.jpg")[:, :-37]
    theirs = data.create_transform(224, crop_pct=0.9, crop_mode=mode, interpolation="bicubic")
    ours = ClassifierPreprocessing(248, 224, interpolation="bicubic", squash=mode == "squash")
    expected = theirs(Image.fromarray(image)).numpy()
    assert np.abs(ours.picture(image) - expected).max() <= 1e-6


@pytest.mark.parametrize(
    ("fields", "argument"),
    [
        ({"crop": 300}, "crop"),
        ({"interpolation": "cubic"}, "interpolation"),
        ({"mean": (0.5, 0.5)}, "mean"),
        ({"std": (0.2, 0.0, 0.2)}, "std"),
    ],
)
def test_wrong_preprocessing(fields, argument):
    with pytest.raises(ArgumentError) as caught:
        ClassifierPreprocessing(**fields)
    assert caught.value.argument == argument


def test_top_k():
    draws = np.random.default_rng(0)
    counts, logits, labels = TopK(), draws.normal(size=(64, 9)), draws.integers(9, size=64)
    for part in np.array_split(np.arange(64), 3):
        counts.update(logits[part], labels[part])
    best = torch.from_numpy(logits).topk(5).indices.numpy()
    assert counts.images == 64
    assert counts.top1 == (best[:, 0] == labels).mean()
    assert counts.top5 == (best == labels[:, None]).any(axis=1).mean()


@pytest.mark.parametrize(
    ("logits", "label", "top1", "top5"),
    [
        ([1, 1, 1, 1, 1, 1], 0, 1, 1),  # equal logits: the first classes
        ([1, 1, 1, 1, 1, 1], 4, 0, 1),
        ([1, 1, 1, 1, 1, 1], 5, 0, 0),
        ([np.nan] * 6, 0, 0, 0),
        ([np.nan, 0, 0, 0, 0, 3], 5, 1, 1),
        ([3, 2, 1], 2, 0, 1),  # fewer than five classes
    ],
)
def test_top_k_of_special_logits(logits, label, top1, top5):
    counts = TopK()
    assert np.isnan(counts.top1)
    counts.update(np.array([logits], np.float32), np.array([label]))
    assert (counts.top1, counts.top5) == (top1, top5)


def test_top_k_refuses_other_shapes():
    for logits, labels in (((2, 3), [0]), ((1, 3), [3]), ((3,), [0])):
        with pytest.raises(ValueError, match="expected"):
            TopK().update(np.zeros(logits), np.array(labels))
