"""The metadata beside an engine: written, read, and refused with the field's name."""

from __future__ import annotations

import dataclasses
import json

import pytest

import trt_plugin
from tests.engines.engine_samples import METADATA
from trt_plugin import EngineError


def test_metadata_survives_a_file(tmp_path):
    path = tmp_path / "model.json"
    METADATA.save(path)
    assert trt_plugin.ArtifactMetadata.load(path) == METADATA
    assert [file.name for file in tmp_path.iterdir()] == ["model.json"]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("model", None),
        ("inputs", []),
        ("inputs", METADATA.inputs * 2),
        ("outputs", [{"name": "boxes", "shape": "1x300x4", "dtype": "float32"}]),
        ("outputs", [{"name": "boxes", "shape": [1, -2], "dtype": "float32"}]),
        ("class_names", "person"),
        ("mean", [1.0, 2.0]),
        ("std", [1.0, 0.0, 1.0]),
        ("resize", {"height": 64, "width": 96}),
        ("resize", {"height": 0, "width": 96, "mode": "fit_pad"}),
        ("max_per_img", 1.5),
        ("batch", True),
        ("nms", []),
        ("precision", "float16"),
        ("build_seconds", -1.0),
        ("build_seconds", True),
    ],
)
def test_wrong_field_is_named(tmp_path, field, value):
    with pytest.raises(ValueError, match=f"^{field}: .*, got "):
        dataclasses.replace(METADATA, **{field: value})
    path = tmp_path / "model.json"
    METADATA.save(path)
    path.write_text(json.dumps({**json.loads(path.read_text()), field: value}))
    with pytest.raises(EngineError, match=f"model.json is wrong: {field}: "):
        trt_plugin.ArtifactMetadata.load(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "does not exist"),
        ("{", "cannot be read"),
        ("[]", 'expected an object with "format": 1'),
        ('{"format": 2}', 'expected an object with "format": 1'),
        ('{"format": 1, "model": "x"}', "has wrong fields: missing .*'batch'"),
    ],
)
def test_wrong_file_is_one_line(tmp_path, content, message):
    path = tmp_path / "model.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(EngineError, match=message) as caught:
        trt_plugin.ArtifactMetadata.load(path)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)
