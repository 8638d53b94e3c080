"""`codetr_detect`: one line names what is wrong; the exit status is that of `codetr detect`."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from codetr.detector.preprocess import ImageError, load_image
from codetr.detector.sizes import SizeRange
from tests.cpp.detect_program import Network, needs_program, read_document, refused, run

pytestmark = needs_program


@pytest.fixture
def photo(tmp_path) -> Path:
    file = tmp_path / "photo.png"
    Image.new("RGB", (40, 30)).save(file)
    return file


@pytest.fixture
def network(tmp_path) -> list[object]:
    return Network(32, 32).save(tmp_path / "net")


FIXED = Network(32, 32)
WITH_NMS = Network(32, 32, nms=None)
DYNAMIC = Network(SizeRange(32, 64, 96), SizeRange(64, 64, 96), batch=SizeRange(1, 1, 4))
FLOAT64 = Network(32, 32, (np.zeros((1, 1, 4), np.float32), np.zeros((1, 1)), np.zeros((1, 1), np.int64)))
IS_FIXED = "is fixed in the file that --engine gives, leave it out"


@pytest.mark.parametrize(
    ("network", "options", "message"),
    [
        (FIXED, "--threshold 2", "--threshold: Value 2 not in range 0.000000 to 1.000000"),
        (FIXED, "--nms fast", "--nms: fast not in {soft,hard,none}"),
        (FIXED, "--top 1.5", "--top: Value 1.5 not in range 1 to 999999999"),
        (FIXED, "--height 32", "--height requires --width"),
        (FIXED, "--height 32 --width 32 --max-size 32", "--max-size excludes --height"),
        (FIXED, "--max-size 32", f"--max-size: {IS_FIXED}"),
        (FIXED, "--height 32 --width 32", f"--height: {IS_FIXED}"),
        (FIXED, "--device cpu", "--device: expected auto, cuda, cuda:<number> or a GPU's number, got 'cpu'"),
        (FIXED, "--bogus", "The following argument was not expected: --bogus"),
        (FIXED, "absent.jpg", "absent.jpg: no such file"),
        (FIXED, "--benchmark 3", "--benchmark: needs a network to run, leave --replay out"),
        (WITH_NMS, "--nms soft", f"--nms: {IS_FIXED}"),
        (WITH_NMS, "--nms-iou 0.5", f"--nms-iou: {IS_FIXED}"),
        (DYNAMIC, "--height 2016 --width 64", "--height: expected a multiple of 32 from 32 to 96, "),
        (DYNAMIC, "--height 64 --width 80", "--width: expected a multiple of 32 from 64 to 96, "),
        (FLOAT64, "", "run 0: expected float32 boxes [N, K, 4], float32 scores [N, K] and int64 labels"),
    ],
    ids=lambda value: "" if isinstance(value, Network) else value,
)
def test_wrong_arguments(tmp_path, photo, network, options, message):
    assert message in refused(*network.save(tmp_path / "net"), photo, *options.split())


def test_missing_files(network, photo, tmp_path):
    assert refused(photo) == "--engine is required"
    assert refused(*network, tmp_path / "net") == f"{tmp_path / 'net'}: the folder holds no picture"
    assert "absent.json" in refused("--engine", tmp_path / "absent.engine", photo)
    engine = network[1]
    assert str(engine) in refused("--engine", engine, photo, status=1)


@pytest.mark.parametrize(
    ("name", "size"), [("empty.jpg", 0), ("text.jpg", None), ("short.png", 1500), ("short.webp", 1500)]
)
def test_unreadable_pictures(network, photo, tmp_path, name, size):
    """A picture that cannot be read ends a run only if it is alone."""
    file = tmp_path / name
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    Image.fromarray(noise).save(file)
    file.write_bytes(b"no picture" if size is None else file.read_bytes()[:size])
    message = f"{file}: cannot be read: no picture, or damaged"
    assert refused(*network, file) == message

    done = run(*network, "--json", tmp_path / "out.json", photo, file, status=1)
    assert done.stderr.splitlines()[-1] == f"codetr_detect: warning: {message}; left out"
    document, _ = read_document(tmp_path / "out.json")
    assert [image["file_name"] for image in document["images"]] == ["photo.png"]


@pytest.mark.parametrize("progressive", [False, True])
def test_truncated_jpeg_files_are_refused_as_by_python(network, tmp_path, progressive):
    """A thumbnail and bytes after the picture do not matter."""
    noise = np.random.default_rng(0).integers(0, 256, (40, 40, 3), dtype=np.uint8)
    file = tmp_path / "a.jpg"
    Image.fromarray(noise).save(file, progressive=progressive)
    whole = file.read_bytes()
    thumbnail = b"\xff\xe1" + (len(whole) + 2).to_bytes(2, "big") + whole
    whole = whole[:2] + thumbnail + whole[2:]
    for size in (len(whole) - 1, len(whole) // 2 + 100, 300):
        file.write_bytes(whole[:size])
        refused(*network, file)
        with pytest.raises(ImageError):
            load_image(file)
    file.write_bytes(whole + b"\xff\xda\x00 a film")
    run(*network, file)


def test_outputs(network, photo, tmp_path):
    """The program replaces no input, and names the file that it cannot write."""
    file = tmp_path / "a.jpg"
    Image.new("RGB", (16, 16)).save(file)
    assert refused(*network, "--out", tmp_path, file) == (
        f"--out {tmp_path}: {file} would replace an input, choose another folder"
    )
    assert str(photo) in refused(*network, "--json", photo / "out.json", photo, status=1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 2}, "format: expected 1, got 2"),
        ({"class_names": "cup"}, "(/class_names) type must be array, but is string"),
        ({"mean": [1, 2]}, "(/mean) array index 2 is out of range"),
        ({"nms": 3}, "(/nms)"),
    ],
)
def test_wrong_metadata(photo, tmp_path, change, message):
    network, file = Network(32, 32), tmp_path / "net/net.json"
    options = network.save(tmp_path / "net")
    file.write_text(json.dumps(network.metadata() | change))
    found = refused(*options, photo)
    assert found.startswith(f"the metadata {file} cannot be used: ") and message in found
    file.write_text("{")
    assert refused(*options, photo).startswith(f"the metadata {file} cannot be used: ")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_engine_without_a_gpu(network, photo):
    Path(network[1]).write_bytes(bytes(60))
    assert "--device 0: NVIDIA GPU not found: " in refused("--engine", network[1], photo, status=1)
