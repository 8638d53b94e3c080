"""Sizes of an export's input: options, profiles, and how pictures are brought to a dynamic one."""

from __future__ import annotations

import argparse
import copy
import dataclasses
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from codetr.cli.command import UsageError
from codetr.config import load_config
from codetr.detector.detector import Detector
from codetr.detector.preprocess import Batch, Preprocessor
from codetr.detector.sizes import InputSizes, Range, batch_range, fixed, size_ranges
from codetr.export.request import make_parser, request_from, size_note
from tests.engines.engine_samples import METADATA
from trt_plugin import EngineError, TensorInfo

DYNAMIC = InputSizes(Range(1, 1, 8), *size_ranges("512-768x1152-1344"))


def request_of(*options: str):
    given = ["--model", "co_dino_r50", "--out", "y", *options]
    return request_from(make_parser("test", "").parse_args(given))


@pytest.mark.parametrize(
    ("text", "expected"),
    [("4", (4, 4, 4)), ("1-8", (1, 1, 8)), ("1-4-8", (1, 4, 8)), ("2-2", (2, 2, 2))],
)
def test_batch(text, expected):
    assert batch_range(text) == expected
    assert batch_range(text).dynamic == (expected[0] < expected[2])


@pytest.mark.parametrize("text", ["", "0", "0-8", "8-1", "1-9-8", "x", "1-", "-1", "1-2-3-4", "1.5", "٣"])
def test_wrong_batch(text):
    with pytest.raises(argparse.ArgumentTypeError, match="expected"):
        batch_range(text)


def test_size_ranges():
    assert size_ranges("512-768x1152-1344") == ((512, 768, 1344), (512, 1152, 1344))
    assert size_ranges("512x640-512x640-512x1280") == ((512, 512, 512), (640, 640, 1280))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("512", "expected MIN-OPT-MAX"),
        ("512-768", "expected MIN-OPT-MAX"),
        ("512-768x-1344", "expected MIN-OPT-MAX"),
        ("512-770-1344", "expected multiples of 32, got 770"),
        ("0-768-1344", "expected multiples of 32, got 0"),
        ("768-512-1344", "expected MIN <= OPT <= MAX"),
        ("512-768x1376-1344", "expected MIN <= OPT <= MAX"),
    ],
)
def test_wrong_size_ranges(text, message):
    with pytest.raises(argparse.ArgumentTypeError, match=message):
        size_ranges(text)


def test_options():
    assert request_of().sizes == InputSizes(fixed(1), fixed(800), fixed(1344))
    assert request_of("--height", "512").sizes == InputSizes(fixed(1), fixed(512), fixed(1344))
    assert request_of("--dynamic-size", "512-768x1152-1344", "--batch", "1-8").sizes == DYNAMIC
    with pytest.raises(UsageError, match="--width and --dynamic-size: give one of them"):
        request_of("--dynamic-size", "512-768-1344", "--width", "512")
    with pytest.raises(UsageError, match="--dynamic-size: expected MIN-OPT-MAX, such as"):
        request_of("--dynamic-size", "512")


@pytest.mark.parametrize(
    ("options", "note"),
    [
        ((), None),
        (("--model", "co_dino_demo"), None),
        (("--height", "768", "--width", "1152"), None),
        (("--dynamic-size", "512-768x1152-1344"), None),
        (("--dynamic-size", "512-768x1152-800x1344"), None),
        (
            ("--height", "768", "--width", "1152", "--model", "co_dino_swin_l"),
            "768x1152 resizes a 4:3 picture to 768x1024, and co_dino_swin_l was trained for 1280x1707: "
            "export with --height 1280 --width 2048 or --dynamic-size",
        ),
        (
            ("--height", "768", "--width", "1152", "--model", "co_dino_demo"),
            "768x1152 resizes a 4:3 picture to 768x1024, and co_dino_demo was trained for 480x640: "
            "export with --height 480 --width 640 or --dynamic-size",
        ),
        (
            ("--dynamic-size", "512-768x1152-1312"),
            "--dynamic-size ends at 1312x1312, and co_dino_r50 was trained for 800x1344: export with that "
            "as the largest size, or 1344 for portrait pictures too",
        ),
    ],
)
def test_a_size_far_from_the_models_own_is_said(options, note):
    request = request_of(*options)
    assert size_note(request.sizes, load_config(request.model)) == note


def test_profiles_of_dynamic_inputs_only():
    assert InputSizes(fixed(2), fixed(64), fixed(96)).profiles() == {}
    assert DYNAMIC.shapes() == {"images": [-1, 3, -1, -1], "image_shapes": [-1, 2]}
    assert DYNAMIC.profiles() == {
        "images": {"min": [1, 3, 512, 512], "opt": [1, 3, 768, 1152], "max": [8, 3, 1344, 1344]},
        "image_shapes": {"min": [1, 2], "opt": [1, 2], "max": [8, 2]},
    }
    one = InputSizes(fixed(2), *size_ranges("512-768-1344"))
    assert list(one.profiles()) == ["images"]
    assert one.shapes()["image_shapes"] == [2, 2]


@pytest.mark.parametrize("sizes", [DYNAMIC, InputSizes(fixed(2), fixed(64), fixed(96))], ids=str)
def test_sizes_survive_metadata(sizes):
    resize = {"height": sizes.height.opt, "width": sizes.width.opt, "mode": "fit_pad", "scale": [1333, 800]}
    metadata = SimpleNamespace(resize=resize, batch=sizes.batch.opt, profiles=sizes.profiles())
    assert InputSizes.of_artifact(metadata) == sizes


@pytest.mark.parametrize(
    ("profiles", "message"),
    [
        ([], "profiles: expected an object"),
        ({"images": {"min": [1], "opt": [1], "max": [2]}}, "profiles: expected for every input"),
        ({"other": {}}, "profiles: expected for every input"),
    ],
)
def test_metadata_of_a_fixed_engine_has_no_profiles(profiles, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(METADATA, profiles=profiles)


def dynamic_metadata(scale=None, /, **changed):
    shapes = DYNAMIC.shapes()
    inputs = [{"name": name, "shape": shapes[name], "dtype": "float32"} for name in shapes]
    resize = {"height": 768, "width": 1152, "mode": "fit_pad"} | ({"scale": scale} if scale else {})
    profiles = DYNAMIC.profiles()
    profiles["images"] |= changed
    return dataclasses.replace(METADATA, inputs=inputs, resize=resize, batch=1, profiles=profiles)


@pytest.mark.parametrize(
    "changed",
    [{"min": [9, 3, 512, 512]}, {"max": [8, 4, 1344, 1344]}, {"opt": [1, 3, 768]}, {"usual": []}],
    ids=str,
)
def test_wrong_profiles(changed):
    with pytest.raises(ValueError, match="profiles: expected for every input"):
        dynamic_metadata(**changed)


def test_metadata_of_a_dynamic_engine_has_profiles():
    with pytest.raises(ValueError, match="profiles: expected for every input"):
        dataclasses.replace(dynamic_metadata(), profiles={})


@pytest.mark.parametrize("changed", [{"min": [1, 3, 500, 512]}, {"max": [8, 3, 1344, 1340]}], ids=str)
def test_sizes_that_pictures_cannot_be_padded_to(changed):
    with pytest.raises(ValueError, match="expected heights and widths that are multiples of 32, got images"):
        InputSizes.of_artifact(dynamic_metadata(**changed))


@pytest.mark.parametrize("scale", [[800, 1333], [1333], [1333, 0], [1333.0, 800], "1333x800", None], ids=str)
def test_wrong_scale(scale):
    with pytest.raises(ValueError, match=r'resize\["scale"\]: expected \[long, short\], two positive'):
        dataclasses.replace(METADATA, resize={**METADATA.resize, "scale": scale})


def test_dynamic_metadata_is_saved_and_read(tmp_path):
    metadata = dynamic_metadata([1333, 800])
    metadata.save(tmp_path / "model.json")
    assert type(metadata).load(tmp_path / "model.json") == metadata


def test_metadata_of_another_profile_is_refused():
    """An engine of the same model whose sizes have another range."""
    metadata = dynamic_metadata()
    inputs, outputs = (
        {tensor["name"]: TensorInfo(tuple(tensor["shape"]), tensor["dtype"]) for tensor in tensors}
        for tensors in (metadata.inputs, metadata.outputs)
    )
    profiles = copy.deepcopy(metadata.profiles)
    metadata.check_engine(Path("m.json"), inputs, outputs, profiles)
    profiles["images"]["max"] = [8, 3, 1024, 1024]
    with pytest.raises(EngineError) as caught:
        metadata.check_engine(Path("m.json"), inputs, outputs, profiles)
    assert str(caught.value) == (
        "the metadata m.json is that of another engine: the profile of images (smallest, usual, largest) is "
        "[1, 3, 512, 512], [1, 3, 768, 1152], [8, 3, 1344, 1344] in it and [1, 3, 512, 512], "
        "[1, 3, 768, 1152], [8, 3, 1024, 1024] in the engine; it must be the file that was exported with the "
        "engine"
    )
    with pytest.raises(EngineError, match=r"\[8, 3, 1344, 1344\] in it and missing in the engine"):
        metadata.check_engine(Path("m.json"), inputs, outputs, {})


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
    preprocessor = Preprocessor.of_artifact(dynamic_metadata([1333, 800]), **options)
    batch = preprocessor.batch([np.zeros((*hw, 3), np.uint8) for hw in photos])
    assert [tuple(shape) for shape in batch.image_shapes] == shapes
    assert batch.images.shape[2:] == padded


def test_pictures_of_a_fixed_input():
    """They fill a size that a caller chose. In the model's own size, rounded up, they follow its rule."""
    resize = {"height": 256, "width": 320, "mode": "fit_pad"}
    filled = dataclasses.replace(METADATA, resize=resize)
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
    unknown = Preprocessor.of_artifact(dynamic_metadata(), max_size=1000)
    assert unknown.target_size(480, 640) == (750, 1000)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"height": 2016, "width": 512},
            "height: expected a multiple of 32 from 512 to 1344, the range of e, got 2016",
        ),
        (
            {"height": 512, "width": 480},
            "width: expected a multiple of 32 from 512 to 1344, the range of e, got 480",
        ),
        (
            {"height": 520, "width": 512},
            "height: expected a multiple of 32 from 512 to 1344, the range of e, got 520",
        ),
        ({"height": 512}, "height and width: give both or neither, got 512 and None"),
        (
            {"height": 512, "width": 512, "max_size": 512},
            "max_size: does not go with a fixed height and width",
        ),
        ({"max_size": 0}, "max_size: expected a positive number of pixels, got 0"),
    ],
)
def test_sizes_outside_of_the_range(options, message):
    with pytest.raises(ValueError, match=message):
        Preprocessor.of_artifact(dynamic_metadata(), "engine", "e", **options)


@pytest.mark.parametrize("argument", ["max_size", "height", "width"])
def test_sizes_of_a_fixed_file_cannot_be_chosen(argument):
    with pytest.raises(ValueError, match=f"{argument}: is fixed in the engine e, leave it out"):
        Preprocessor.of_artifact(METADATA, "engine", "e", **{argument: 64})


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


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"min_height": 64}, "min_height and min_width: give both or neither"),
        ({"min_height": 512, "min_width": 64}, "height: expected a multiple of 32 from 512 on, got 256"),
        ({"min_height": 64, "min_width": 64, "width": 250}, "width: expected a multiple of 32 from 64 on"),
    ],
)
def test_wrong_preprocessor(sizes, message):
    with pytest.raises(ValueError, match=message):
        Preprocessor(**{"height": 256, "width": 256, "pad_divisor": 32} | sizes)


@pytest.mark.parametrize(
    ("batch", "count", "runs"),
    [
        (Range(1, 1, 4), 6, [4, 2]),
        (Range(3, 3, 4), 5, [4, 3]),
        (Range(2, 2, 4), 1, [2]),
        (4, 6, [4, 4]),
        (None, 6, [6]),
    ],
)
def test_runs_of_a_backend_with_limits(batch, count, runs):
    sizes = []

    def backend(images, image_shapes):
        sizes.append(len(images))
        return image_shapes[:, None], image_shapes[:, :1], image_shapes[:, 1:]

    backend.batch = batch
    detector = object.__new__(Detector)
    detector.backend = backend
    shapes = np.arange(2 * count).reshape(count, 2)
    boxes, _, _ = detector._run(Batch(np.zeros((count, 3, 4, 4)), shapes, shapes, shapes))
    assert sizes == runs
    assert np.array_equal(boxes[:, 0], shapes)
