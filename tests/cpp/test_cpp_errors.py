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
NOTHING = np.zeros((1, 0, 4), np.float32), np.zeros((1, 0), np.float32), np.zeros((1, 0), np.int64)
DYNAMIC = Network(SizeRange(32, 64, 96), SizeRange(64, 64, 96), batch=SizeRange(1, 1, 4))


@pytest.fixture
def photo(tmp_path) -> Path:
    file = tmp_path / "photo.png"
    Image.new("RGB", (40, 30)).save(file)
    return file


@pytest.fixture
def network(tmp_path) -> list[object]:
    return Network(32, 32).save(tmp_path / "net")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--threshold 2", "--threshold: Value 2 not in range 0.000000 to 1.000000"),
        ("--nms fast", "--nms: fast not in {{soft,hard,none}}"),
        ("--batch 0", "--batch: Value 0 not in range 1 to 999999999"),
        ("--top 1.5", "--top: Value 1.5 not in range 1 to 999999999"),
        ("--height -32 --width 32", "--height: Value -32 not in range 1 to 999999999"),
        ("--height 32", "--height requires --width"),
        ("--height 32 --width 32 --max-size 32", "--max-size excludes --height"),
        ("--max-size 32", "--max-size: is fixed in the file that --engine gives, leave it out"),
        ("--height 32 --width 32", "--height: is fixed in the file that --engine gives, leave it out"),
        ("--device cpu", "--device: expected auto, cuda, cuda:<number> or a GPU's number, got 'cpu'"),
        ("--plugins no.so", "--plugins: File does not exist: no.so"),
        ("--out {photo}", "--out: (Directory is actually a file: {photo}) OR (Path already exists: {photo})"),
        ("--bogus", "The following argument was not expected: --bogus"),
        ("--nms", "--nms: 1 required TEXT:{{soft,hard,none}} missing"),
        ("absent.jpg", "absent.jpg: no such file"),
        ("{photo.parent}/net", "{photo.parent}/net: the folder holds no picture"),
        ("--engine absent.engine", "--engine absent.engine: its metadata absent.json is not beside it"),
        ("--benchmark 3", "--benchmark: needs a network to run, leave --replay out"),
    ],
)
def test_wrong_arguments(network, photo, options, message):
    words = [word.format(photo=photo) for word in options.split()]
    assert refused(*network, photo, *words) == message.format(photo=photo)


def test_missing_arguments(network, photo, tmp_path):
    assert refused(photo) == "--engine is required"
    assert refused(*network) == "IMAGE is required"
    absent = tmp_path / "absent.engine"
    assert refused("--engine", absent, photo) == f"--engine {absent}: no such file"


def test_help_and_version(network, photo):
    assert "--cuda-graph" not in run("--help").stdout and "--no-cuda-graph" in run("--help").stdout
    assert run("--version").stdout.startswith("codetr_detect 0.1.0, TensorRT ")
    run(*network, "--nms=hard", "--threshold", 0.1, "--threshold=0.2", "--", photo)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("empty.jpg", b"", "the file is empty"),
        ("text.jpg", b"no picture at all", "not an image that OpenCV can read"),
        ("short.jpg", None, "the image is truncated or damaged"),
        ("short.png", None, "the image is truncated or damaged"),
        ("short.webp", None, "the image is truncated or damaged"),
        ("short.bmp", None, "the image is truncated or damaged"),
    ],
)
def test_unreadable_pictures(network, photo, tmp_path, name, content, message):
    """A picture that cannot be read ends a run only if it is alone."""
    file = tmp_path / name
    if content is None:
        noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
        Image.fromarray(noise).save(file)
        content = file.read_bytes()[:1500]
    file.write_bytes(content)
    assert refused(*network, file) == f"{file}: {message}"

    done = run(*network, "--json", tmp_path / "out.json", file, photo, status=1)
    *_, warning, error = done.stderr.splitlines()
    assert warning == f"codetr_detect: warning: {file}: {message}; left out"
    assert error == "codetr_detect: error: 1 of 2 pictures could not be processed, see the warnings above"
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
    for size in (len(whole) - 1, len(whole) - 2, len(whole) // 2 + 100, 700, 300, 30):
        file.write_bytes(whole[:size])
        assert refused(*network, file) == f"{file}: the image is truncated or damaged"
        with pytest.raises(ImageError):
            load_image(file)
    file.write_bytes(whole + b"\xff\xda\x00 a film")
    run(*network, file)
    load_image(file)


def test_outputs(network, photo, tmp_path):
    """The program replaces no input, and names the file that it cannot write."""
    file = tmp_path / "a.jpg"
    Image.new("RGB", (16, 16)).save(file)
    before = file.read_bytes()
    assert refused(*network, "--out", tmp_path, file) == (
        f"--out {tmp_path}: {file} would replace an input, choose another folder"
    )
    assert file.read_bytes() == before
    target = photo / "out.json"  # below a file
    assert refused(*network, "--json", target, photo, status=1).startswith(f"{target}: cannot be written: ")
    assert not list(tmp_path.glob("**/*.partial"))


RESIZE = {"height": 8, "width": 8, "mode": "fit_pad"}


@pytest.mark.parametrize(
    ("network", "change", "message"),
    [
        (Network(32, 32), {"format": 2}, "format: expected 1, got 2"),
        (Network(32, 32), {"batch": 0}, "batch: expected a positive integer, got 0"),
        (Network(32, 32), {"mean": [1, 2]}, "(/mean) array index 2 is out of range"),
        (Network(32, 32), {"std": [1, 2, 0]}, "std: expected three positive numbers (R, G, B), got [1,2,0]"),
        (Network(32, 32), {"class_names": "cup"}, "(/class_names) type must be array, but is string"),
        (Network(32, 32), {"resize": {**RESIZE, "mode": "crop"}}, "resize: expected {"),
        (Network(32, 32), {"resize": {**RESIZE, "scale": [8, 9]}}, "scale: expected [long, short], two "),
        (Network(32, 32), {"nms": {"method": "fast"}}, "nms: expected the method soft, hard or none, got {"),
        (Network(32, 32), {"model": None}, "key 'model' not found"),
        (DYNAMIC, {"profiles": {"images": 3}}, "(/profiles/images)"),
        (DYNAMIC, {"min": [1, 3, 128, 64]}, "profiles: expected min <= opt <= max, heights and "),
        (DYNAMIC, {"max": [4, 3, 100, 96]}, "profiles: expected min <= opt <= max, heights and "),
        (DYNAMIC, {"opt": [1, 3, 64]}, "profiles: expected min <= opt <= max, heights and "),
    ],
    ids=lambda value: str(value)[-40:],
)
def test_wrong_metadata(photo, tmp_path, network, change, message):
    options = network.save(tmp_path / "net")
    fields, file = network.metadata(), tmp_path / "net/net.json"
    if change.keys() <= {"min", "opt", "max"}:
        fields["profiles"]["images"] |= change
    else:
        fields |= change
    file.write_text(json.dumps({name: value for name, value in fields.items() if value is not None}))
    found = refused(*options, photo)
    assert found.startswith(f"the metadata {file} is wrong: ") and message in found
    file.write_text("{")
    assert refused(*options, photo).startswith(f"the metadata {file} cannot be read: ")


FIXED = "is fixed in the file that --engine gives, leave it out"
LABEL_3 = np.zeros((1, 1, 4), np.float32), np.ones((1, 1), np.float32), np.full((1, 1), 3)
OTHER_SHAPES = (np.zeros((1, 1, 4), np.float32), np.ones((1, 2), np.float32), np.zeros((1, 1), np.int64))
OTHER_TYPE = (*NOTHING[:1], np.zeros((1, 0)), *NOTHING[2:])


@pytest.mark.parametrize(
    ("network", "options", "message"),
    [
        (Network(32, 32, nms=None), ["--nms=soft"], f"--nms: {FIXED}"),
        (Network(32, 32, nms=None), ["--nms-iou=0.5"], f"--nms-iou: {FIXED}"),
        (DYNAMIC, ["--height=2016", "--width=64"], "--height: expected a multiple of 32 from 32 to 96, "),
        (DYNAMIC, ["--height=64", "--width=80"], "--width: expected a multiple of 32 from 64 to 96, "),
        (Network(32, 32, LABEL_3), [], "labels: expected numbers below 3, the number of class names, got 3"),
        (Network(32, 32, OTHER_SHAPES), [], "expected boxes [N, K, 4], scores [N, K] and labels [N, K]"),
        (Network(32, 32, OTHER_TYPE), [], "scores.npy: expected a whole .npy file of type <f4 in C order"),
        (Network(32, 32, NOTHING), ["{other}"], "expected outputs for every picture, got those of 1"),
    ],
    ids=lambda value: str(value)[-40:],
)
def test_options_and_outputs_must_fit_the_network(photo, tmp_path, network, options, message):
    other = tmp_path / "other.png"
    other.write_bytes(photo.read_bytes())
    words = [word.format(other=other) for word in options]
    status = 1 if message.startswith("labels") else 2
    assert message in refused(*network.save(tmp_path / "net"), photo, *words, status=status)


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"", "is empty: its export did not finish"), (b"no engine" * 9, "is not a TensorRT engine")],
)
def test_files_that_are_no_engines(network, photo, content, message):
    engine = Path(network[1])
    engine.write_bytes(content)
    assert refused("--engine", engine, photo, status=1) == f"{engine} {message}"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_engine_without_a_gpu(network, photo):
    """The machine may lack the headers of its TensorRT's version, which the program reports first."""
    engine = Path(network[1])
    engine.write_bytes((0x74727466).to_bytes(4, "little") + bytes(60))
    found = refused("--engine", engine, photo, status=1)
    assert "there is no NVIDIA GPU" in found or "was built with the headers of TensorRT" in found
