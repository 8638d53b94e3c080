"""The metadata beside an engine: written, read, and refused with the field's name."""

from __future__ import annotations

import json

import pytest

from tests.engines.engine_samples import METADATA
from trt_plugin import ArtifactMetadata, EngineError


def test_metadata_survives_a_file(tmp_path):
    path = tmp_path / "model.json"
    METADATA.save(path)
    assert ArtifactMetadata.load(path) == METADATA
    assert [file.name for file in tmp_path.iterdir()] == ["model.json"]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("inputs", []),
        ("outputs", [{"name": "boxes", "shape": [1, -2], "dtype": "float32"}]),
        ("mean", [1.0, 2.0]),
        ("std", [1.0, 0.0, 1.0]),
        ("resize", {"height": 64, "width": 96}),
        ("precision", "float16"),
        ("build_seconds", -1.0),
        ("profiles", {"images": {"min": [1], "opt": [2]}}),
        ("colour", "red"),
    ],
)
def test_wrong_field_is_named(tmp_path, field, value):
    path = tmp_path / "model.json"
    METADATA.save(path)
    path.write_text(json.dumps({**json.loads(path.read_text()), field: value}))
    with pytest.raises(EngineError, match=f"model.json is wrong: {field}[.:]"):
        ArtifactMetadata.load(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be read: .*No such file"),
        ("{", "cannot be read"),
        ("[]", 'expected an object with "format": 1'),
        ('{"format": 2}', 'expected an object with "format": 1'),
        ('{"format": 1, "model": "x"}', "is wrong: inputs: Field required"),
    ],
)
def test_wrong_file_is_one_line(tmp_path, content, message):
    path = tmp_path / "model.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(EngineError, match=message) as caught:
        ArtifactMetadata.load(path)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)
