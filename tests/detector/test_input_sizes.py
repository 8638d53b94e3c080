"""Sizes of an export's input: ranges, profiles, and how pictures are brought to a dynamic size."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from codetr.config import load_config
from codetr.detector.preprocess import Preprocessor
from codetr.detector.sizes import ChosenSize, InputSizes, fixed
from codetr.errors import ArgumentError
from tests.detector.exported_metadata import DYNAMIC, FIXED, dynamic_metadata, fixed_metadata

R50 = [1333, 800]


@pytest.mark.parametrize(
    ("sizes", "photo", "padded"),
    [
        ({}, (480, 640), (800, 1067)),
        ({"max_size": 1000}, (480, 640), (750, 1000)),
        ({"max_size": 600}, (600, 600), (600, 600)),
        ({"imgsz": 2000}, (300, 400), (1500, 2000)),
        ({"imgsz": "640"}, (480, 640), (480, 640)),
        ({"imgsz": "480x640"}, (64, 64), (480, 640)),
        ({"imgsz": (480, 640)}, (64, 64), (480, 640)),
        ({"height": 64, "width": 32}, (64, 64), (64, 32)),
    ],
)
def test_chosen_sizes(sizes, photo, padded):
    preprocessor = Preprocessor.of_config(load_config("co_dino_r50"), ChosenSize(**sizes))
    assert preprocessor.batch([np.zeros((*photo, 3), np.uint8)]).images.shape[2:] == padded


@pytest.mark.parametrize("imgsz", ["0", "640x", "640x480x3", "", "six", (0, 3)])
def test_wrong_imgsz(imgsz):
    with pytest.raises(ArgumentError, match="imgsz: expected pixels"):
        ChosenSize(imgsz=imgsz)


def test_profiles_of_dynamic_inputs_only():
    assert FIXED.profiles() == {}
    assert DYNAMIC.shapes() == {"images": [-1, 3, -1, -1], "image_shapes": [-1, 2]}
    assert DYNAMIC.profiles() == {
        "images": {"min": [1, 3, 512, 512], "opt": [1, 3, 768, 1152], "max": [8, 3, 1344, 1344]},
        "image_shapes": {"min": [1, 2], "opt": [1, 2], "max": [8, 2]},
    }
    one = InputSizes(fixed(2), DYNAMIC.height, DYNAMIC.height)
    assert list(one.profiles()) == ["images"]
    assert one.shapes()["image_shapes"] == [2, 2]


def test_sizes_survive_metadata():
    assert InputSizes.of_artifact(fixed_metadata()) == FIXED
    assert InputSizes.of_artifact(dynamic_metadata()) == DYNAMIC
    for changed in ({"min": [1, 3, 500, 512]}, {"max": [8, 3, 1344, 1340]}):
        with pytest.raises(ValueError, match="expected heights and widths that are multiples of 32, got im"):
            InputSizes.of_artifact(dynamic_metadata(**changed))


@pytest.mark.parametrize(
    ("scale", "options", "photos", "shapes", "padded"),
    [
        (R50, {}, [(480, 640)], [(800, 1067)], (800, 1088)),
        (R50, {}, [(640, 480), (480, 640)], [(1067, 800), (800, 1067)], (1088, 1088)),
        (R50, {}, [(300, 3000)], [(133, 1333)], (512, 1344)),
        (R50, {"max_size": 700}, [(480, 640)], [(525, 700)], (544, 704)),
        (R50, {"max_size": 100}, [(480, 640)], [(75, 100)], (512, 512)),
        (R50, {"height": 576, "width": 608}, [(480, 640), (640, 480)], [(456, 608), (576, 432)], (576, 608)),
        # The file's range limits the model's rule.
        ([2048, 1280], {}, [(480, 640)], [(1008, 1344)], (1024, 1344)),
        # An older file does not say the model's rule: as large as fits.
        (None, {}, [(480, 640)], [(1008, 1344)], (1024, 1344)),
        (None, {}, [(300, 3000)], [(134, 1344)], (512, 1344)),
        (None, {"max_size": 1000}, [(480, 640)], [(750, 1000)], (768, 1024)),
    ],
)
def test_pictures_of_a_dynamic_input(scale, options, photos, shapes, padded):
    preprocessor = Preprocessor.of_artifact(dynamic_metadata(scale), ChosenSize(**options))
    batch = preprocessor.batch([np.full((*hw, 3), 255, np.uint8) for hw in photos])
    assert [tuple(shape) for shape in batch.image_shapes] == shapes
    assert batch.images.shape[2:] == padded
    for image, (height, width) in zip(batch.images, batch.image_shapes):
        assert (image[:, :height, :width] > 0).all()
        assert not image[:, height:].any() and not image[:, :, width:].any()


def test_pictures_of_a_fixed_input():
    """They fill a size that a caller chose. In the model's own size, rounded up, they follow its rule."""
    resize = {"height": 256, "width": 320, "mode": "fit_pad"}
    filled = dataclasses.replace(fixed_metadata(), resize=resize)
    own = dataclasses.replace(filled, resize={**resize, "scale": [320, 240]})
    image = np.zeros((480, 480, 3), np.uint8)
    for metadata, side in ((filled, 256), (own, 240)):
        batch = Preprocessor.of_artifact(metadata).batch([image])
        assert batch.images.shape[2:] == (256, 320) and batch.image_shapes.tolist() == [[side, side]]
