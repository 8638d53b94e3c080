"""Sizes of an export's input: ranges, profiles, and how pictures are brought to a dynamic size."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest

from codetr.config import load_config
from codetr.detector.preprocess import Preprocessor
from codetr.detector.sizes import ChosenSize, InputSizes, fixed
from codetr.errors import ArgumentError
from tests.detector.exported_metadata import DYNAMIC, dynamic_metadata, fixed_metadata


@pytest.mark.parametrize(
    ("sizes", "scale", "height_width"),
    [
        ({}, (1333, 800), None),
        ({"max_size": 1000}, (1000, 800), None),
        ({"max_size": 600}, (600, 600), None),
        ({"imgsz": 2000}, (2000, 2000), None),
        ({"imgsz": "640"}, (640, 640), None),
        ({"imgsz": "480x640"}, (1333, 800), (480, 640)),
        ({"imgsz": (480, 640)}, (1333, 800), (480, 640)),
        ({"height": 64, "width": 32}, (1333, 800), (64, 32)),
    ],
)
def test_chosen_sizes(sizes, scale, height_width):
    size = ChosenSize(**sizes)
    assert (size.scale((800, 1333)), size.height_width) == (scale, height_width)
    preprocessor = Preprocessor.of_config(load_config("co_dino_r50"), size)
    if height_width is None:
        assert preprocessor.scale == scale
    else:
        assert (preprocessor.height, preprocessor.width) == height_width


@pytest.mark.parametrize("imgsz", ["0", "640x", "x640", "640.5", "640x480x3", "", "six", 0, (0, 3), "٣"])
def test_wrong_imgsz(imgsz):
    with pytest.raises(ArgumentError, match="imgsz: expected pixels"):
        ChosenSize(imgsz=imgsz)


def test_profiles_of_dynamic_inputs_only():
    assert InputSizes(fixed(2), fixed(64), fixed(96)).profiles() == {}
    assert DYNAMIC.shapes() == {"images": [-1, 3, -1, -1], "image_shapes": [-1, 2]}
    assert DYNAMIC.profiles() == {
        "images": {"min": [1, 3, 512, 512], "opt": [1, 3, 768, 1152], "max": [8, 3, 1344, 1344]},
        "image_shapes": {"min": [1, 2], "opt": [1, 2], "max": [8, 2]},
    }
    one = InputSizes(fixed(2), DYNAMIC.height, DYNAMIC.height)
    assert list(one.profiles()) == ["images"]
    assert one.shapes()["image_shapes"] == [2, 2]


@pytest.mark.parametrize("sizes", [DYNAMIC, InputSizes(fixed(2), fixed(64), fixed(96))], ids=str)
def test_sizes_survive_metadata(sizes):
    resize = {"height": sizes.height.opt, "width": sizes.width.opt, "mode": "fit_pad", "scale": [1333, 800]}
    metadata = SimpleNamespace(resize=resize, batch=sizes.batch.opt, profiles=sizes.profiles())
    assert InputSizes.of_artifact(metadata) == sizes


@pytest.mark.parametrize("changed", [{"min": [1, 3, 500, 512]}, {"max": [8, 3, 1344, 1340]}], ids=str)
def test_sizes_that_pictures_cannot_be_padded_to(changed):
    with pytest.raises(ValueError, match="expected heights and widths that are multiples of 32, got images"):
        InputSizes.of_artifact(dynamic_metadata(**changed))


@pytest.mark.parametrize(
    ("options", "photos", "shapes", "padded"),
    [
        ({}, [(480, 640)], [(800, 1067)], (800, 1088)),
        ({}, [(640, 480), (480, 640)], [(1067, 800), (800, 1067)], (1088, 1088)),
        ({}, [(300, 3000)], [(133, 1333)], (512, 1344)),
        ({"max_size": 700}, [(480, 640)], [(525, 700)], (544, 704)),
        ({"max_size": 100}, [(480, 640)], [(75, 100)], (512, 512)),
        ({"height": 576, "width": 608}, [(480, 640), (640, 480)], [(456, 608), (576, 432)], (576, 608)),
    ],
)
def test_pictures_are_resized_by_the_models_rule(options, photos, shapes, padded):
    preprocessor = Preprocessor.of_artifact(dynamic_metadata([1333, 800]), ChosenSize(**options))
    batch = preprocessor.batch([np.zeros((*hw, 3), np.uint8) for hw in photos])
    assert [tuple(shape) for shape in batch.image_shapes] == shapes
    assert batch.images.shape[2:] == padded


def test_pictures_of_a_fixed_input():
    """They fill a size that a caller chose. In the model's own size, rounded up, they follow its rule."""
    resize = {"height": 256, "width": 320, "mode": "fit_pad"}
    filled = dataclasses.replace(fixed_metadata(), resize=resize)
    own = dataclasses.replace(filled, resize={**resize, "scale": [320, 240]})
    image = np.zeros((480, 480, 3), np.uint8)
    for metadata, side in ((filled, 256), (own, 240)):
        batch = Preprocessor.of_artifact(metadata).batch([image])
        assert batch.images.shape[2:] == (256, 320) and batch.image_shapes.tolist() == [[side, side]]


def test_portrait_pictures_in_a_landscape_input():
    landscape = Preprocessor(height=480, width=640)
    assert landscape.shrinks_by_turn(640, 480)
    assert not landscape.shrinks_by_turn(480, 640) and not landscape.shrinks_by_turn(500, 480)
    for both in (Preprocessor(scale=(1333, 800)), Preprocessor.of_artifact(dynamic_metadata([1333, 800]))):
        assert not both.shrinks_by_turn(640, 480)


def test_the_range_limits_the_models_rule():
    preprocessor = Preprocessor.of_artifact(dynamic_metadata([2048, 1280]))
    assert preprocessor.target_size(480, 640) == (1008, 1344)
    assert preprocessor.target_size(640, 480) == (1344, 1008)
    unknown = Preprocessor.of_artifact(dynamic_metadata(), ChosenSize(max_size=1000))
    assert unknown.target_size(480, 640) == (750, 1000)


@pytest.mark.parametrize(
    ("photos", "expected"),
    [
        ([(480, 640)], (1024, 1344)),  # as large as fits, then up to a multiple of 32
        ([(640, 480), (480, 640)], (1344, 1344)),
        ([(300, 3000)], (512, 1344)),
    ],
)
def test_pictures_of_a_dynamic_input_without_a_scale(photos, expected):
    """An older file does not say the model's rule."""
    preprocessor = Preprocessor.of_artifact(dynamic_metadata())
    batch = preprocessor.batch([np.full((*hw, 3), 255, np.uint8) for hw in photos])
    assert batch.images.shape == (len(photos), 3, *expected)
    for image, (height, width) in zip(batch.images, batch.image_shapes):
        assert max(height, width) == 1344
        assert (image[:, :height, :width] > 0).all()
        assert not image[:, height:].any() and not image[:, :, width:].any()


@pytest.mark.parametrize("sizes", [{}, {"height": 4}, {"height": 64, "width": 64, "min_height": 64}], ids=str)
def test_wrong_preprocessor(sizes):
    with pytest.raises(ValueError, match="expected"):
        Preprocessor(**sizes)
