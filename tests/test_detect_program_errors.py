"""`codetr_detect`, the C++ program: what is wrong is one line that names it, with Python's exit status."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from codetr.detector.preprocess import ImageError, Preprocessor, load_image
from codetr.detector.sizes import Range
from tests.detect_program import Network, find_program, no_outputs, read_document, run
from trt_plugin import ArtifactMetadata, EngineError

pytestmark = pytest.mark.skipif(
    find_program() is None,
    reason="codetr_detect is not built: it needs TensorRT, CUDA, libjpeg-turbo, libpng and nlohmann_json",
)


@pytest.fixture
def photo(tmp_path) -> Path:
    file = tmp_path / "photo.png"
    Image.new("RGB", (40, 30)).save(file)
    return file


@pytest.fixture
def network(tmp_path) -> list[object]:
    return Network(32, 32, no_outputs(3)).save(tmp_path / "net")


def refused(done: subprocess.CompletedProcess, status: int = 2) -> str:
    assert done.returncode == status, done.stdout + done.stderr
    lines = done.stderr.splitlines()
    assert len(lines) == 1 and lines[0].startswith("codetr_detect: error: "), lines
    return lines[0].removeprefix("codetr_detect: error: ")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--threshold", "2"], "--threshold: expected a number from 0 to 1, got '2'"),
        (["--threshold", "nan"], "--threshold: expected a number from 0 to 1, got 'nan'"),
        (["--nms-iou="], "--nms-iou: expected a number from 0 to 1, got ''"),
        (["--nms", "fast"], "--nms: expected soft, hard or none, got 'fast'"),
        (["--batch", "0"], "--batch: expected a whole number above 0, got '0'"),
        (["--top", "0"], "--top: expected a whole number above 0, got '0'"),
        (["--height", "-32", "--width", "32"], "--height: expected a whole number above 0, got '-32'"),
        (["--height", "32"], "--height and --width: give both or neither"),
        (
            ["--height", "32", "--width", "32", "--max-size", "32"],
            "--max-size: does not go with --height and --width",
        ),
        (["--max-size", "32"], "--max-size: is fixed in the file that --engine gives, leave it out"),
        (
            ["--height", "32", "--width", "32"],
            "--height: is fixed in the file that --engine gives, leave it out",
        ),
        (["--benchmark", "-1"], "--benchmark: expected a whole number above 0, got '-1'"),
        (["--device", "gpu"], "--device: expected auto, cuda, cuda:<number> or a GPU's number, got 'gpu'"),
        (["--device", "cpu"], "--device: expected auto, cuda, cuda:<number> or a GPU's number, got 'cpu'"),
        (["--plugins", "no.so"], "--plugins no.so: no such file"),
        (["--out", ""], "--out: expected a path, got ''"),
        (["--bogus"], "--bogus: there is no such option (see codetr_detect --help)"),
        (["--nms"], "--nms: expected an argument, got none"),
        (["--no-cuda-graph=1"], "--no-cuda-graph=1: there is no such option"),
        (["absent.jpg"], "absent.jpg: no such file"),
        (["/"], "/: is a folder, not an image"),
        (["--engine", "absent.engine"], "--engine absent.engine: its metadata absent.json is not beside it"),
        (["--benchmark", "3"], "--benchmark: needs a network to run, leave --replay out"),
    ],
)
def test_wrong_arguments(network, photo, options, message):
    assert message in refused(run(*network, photo, *options))


def test_missing_arguments(network, photo, tmp_path):
    assert "--engine: needed" in refused(run(photo))
    assert "IMAGE: expected at least one picture" in refused(run(*network))
    absent = tmp_path / "absent.engine"
    assert refused(run("--engine", absent, photo)) == f"--engine {absent}: no such file"
    assert "is a file, not a folder" in refused(run(*network, "--out", photo, photo))
    assert "is a folder, not a file" in refused(run(*network, "--json", tmp_path, photo))


def test_help_and_version(network, photo):
    shown = run("--help")
    assert shown.returncode == 0 and shown.stdout.startswith("usage: codetr_detect --engine FILE")
    version = run("--version").stdout
    assert version.startswith("codetr_detect 0.1.0, TensorRT ")
    only = run(*network, "--", photo)
    assert only.returncode == 0, only.stderr


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("empty.jpg", b"", "the file is empty"),
        ("text.jpg", b"no picture at all", "expected a JPEG or PNG file, got another kind"),
        ("short.jpg", None, "the image is truncated or damaged"),
        ("short.png", None, "the image is truncated or damaged"),
        ("header.png", None, "the image is truncated or damaged"),
    ],
)
def test_unreadable_pictures(network, photo, tmp_path, name, content, message):
    file = tmp_path / name
    if content is None:
        noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
        Image.fromarray(noise).save(file)
        content = file.read_bytes()[: 20 if name == "header.png" else 1500]
    file.write_bytes(content)
    assert f"{file}: {message}" in refused(run(*network, file))

    done = run(*network, "--json", tmp_path / "out.json", file, photo)
    assert done.returncode == 1
    warning, error = done.stderr.splitlines()
    assert warning.startswith(f"codetr_detect: warning: {file}: {message}") and warning.endswith("; left out")
    assert error == "codetr_detect: error: 1 of 2 pictures could not be processed, see the warnings above"
    document, _ = read_document(tmp_path / "out.json")
    assert [image["file_name"] for image in document["images"]] == ["photo.png"]


@pytest.mark.parametrize("progressive", [False, True])
def test_a_jpeg_file_cut_off_anywhere_is_refused_as_by_python(network, tmp_path, progressive):
    noise = np.random.default_rng(0).integers(0, 256, (40, 40, 3), dtype=np.uint8)
    file = tmp_path / "a.jpg"
    Image.fromarray(noise).save(file, progressive=progressive)
    whole = file.read_bytes()
    for size in (len(whole) - 1, len(whole) - 2, len(whole) - 5, len(whole) // 2, 700, 300, 30):
        file.write_bytes(whole[:size])
        assert f"{file}: the image is truncated or damaged" in refused(run(*network, file))
        with pytest.raises(ImageError):
            load_image(file)


def test_outputs_never_replace_inputs(network, tmp_path):
    file = tmp_path / "a.jpg"
    Image.new("RGB", (16, 16)).save(file)
    before = file.read_bytes()
    assert "would replace an input" in refused(run(*network, "--out", tmp_path, file))
    assert file.read_bytes() == before


def test_what_cannot_be_written_is_named(network, photo, tmp_path):
    target = photo / "out.json"  # below a file
    message = refused(run(*network, "--json", target, photo), 1)
    assert message.startswith(f"{target}: cannot be written: ")
    assert not list(tmp_path.glob("**/*.partial"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 2}, 'expected an object with "format": 1'),
        ({"batch": 0}, "batch: expected a positive integer, got 0"),
        ({"mean": [1, 2]}, "mean: expected three numbers (R, G, B), got [1,2]"),
        ({"std": [1, 2, 0]}, "std: expected three positive numbers (R, G, B), got [1,2,0]"),
        ({"class_names": "cup"}, 'class_names: expected a list of strings, got "cup"'),
        ({"resize": {"height": 8, "width": 8, "mode": "crop"}}, "resize: expected {"),
        (
            {"resize": {"height": 8, "width": 8, "mode": "fit_pad", "scale": [8, 9]}},
            "scale: expected [long, short], two positive integers, got [8,9]",
        ),
        (
            {"resize": {"height": 8, "width": 8, "mode": "fit_pad", "scale": None}},
            "scale: expected [long, short], two positive integers, got null",
        ),
        ({"inputs": []}, 'inputs: expected a list of {"name", "shape", "dtype"}, got []'),
        ({"nms": {"method": "fast"}}, 'method: expected soft, hard or none, got "fast"'),
        ({"nms_in_graph": 1}, "nms_in_graph: expected true or false, got 1"),
        ({"nms_in_graph": True, "nms": {}}, 'nms: expected an object with "method" and "iou_threshold"'),
        ({"model": None}, "the field model is missing"),
    ],
)
def test_wrong_metadata(network, photo, change, message):
    file = Path(network[1]).with_suffix(".json")
    fields = {**json.loads(file.read_text()), **change}
    file.write_text(json.dumps({name: value for name, value in fields.items() if value is not None}))
    found = refused(run(*network, photo))
    assert f"the metadata {file} is wrong: " in found and message in found


FULL = 'expected for every input with a size of -1, and no other, {"min", "opt", "max"}, shapes in this order'


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (None, f"profiles: {FULL}, got {{}}"),
        ({}, f"profiles: {FULL}, got {{}}"),
        ([], "profiles: expected an object, got []"),
        ({"images": 3}, f"profiles: {FULL}, got {{"),
        ({"other": {"min": [1], "opt": [1], "max": [1]}}, f"profiles: {FULL}, got {{"),
        ({"images": {"min": [1, 3, 32, 32], "max": [4, 3, 96, 96]}}, f"profiles: {FULL}, got {{"),
        ({"min": [1, 3, 128, 32]}, f"profiles: {FULL}, got {{"),
        ({"max": [4, 4, 96, 96]}, f"profiles: {FULL}, got {{"),
        ({"opt": [1, 3, 64]}, f"profiles: {FULL}, got {{"),
        ({"opt": [1, 3, 64, 64.5]}, f"profiles: {FULL}, got {{"),
        ({"min": [0, 3, 32, 32]}, f"profiles: {FULL}, got {{"),
        ({"max": [4, 3, 100, 96]}, "profiles: expected heights and widths that are multiples of 32, got {"),
    ],
)
def test_wrong_profiles(photo, tmp_path, changed, message):
    """What Python refuses as well, but for a file without profiles."""
    network = Network(Range(32, 64, 96), Range(32, 64, 96), no_outputs(1), batch=Range(1, 1, 4))
    options = network.save(tmp_path / "net")
    fields = network.metadata()
    if isinstance(changed, dict) and changed.keys() <= {"min", "opt", "max"} and changed:
        fields["profiles"]["images"] |= changed
    elif isinstance(changed, dict) and changed:
        fields["profiles"] |= changed
    else:
        fields["profiles"] = changed
    file = tmp_path / "net/net.json"
    file.write_text(json.dumps({name: value for name, value in fields.items() if value is not None}))
    found = refused(run(*options, photo))
    assert f"the metadata {file} is wrong: {message}" in found
    if changed:
        with pytest.raises((EngineError, ValueError)):
            Preprocessor.of_artifact(ArtifactMetadata.load(file))


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"height": 2016, "width": 64}, "height: expected a multiple of 32 from 32 to 96, the range of "),
        ({"height": 64, "width": 80}, "width: expected a multiple of 32 from 64 to 96, the range of "),
    ],
)
def test_sizes_outside_of_the_range(photo, tmp_path, sizes, message):
    """In Python's words, but for the option's dashes."""
    network = Network(Range(32, 64, 96), Range(64, 64, 96), no_outputs(1), chosen=sizes)
    options = network.save(tmp_path / "net")
    with pytest.raises(ValueError, match=message) as caught:
        Preprocessor.of_artifact(SimpleNamespace(**network.metadata()), "engine", options[1], **sizes)
    assert refused(run(*options, photo)) == f"--{caught.value}"


def test_profiles_of_fixed_sizes(network, photo):
    """Only inputs with a size of -1 have any; a file of before there were profiles has none."""
    file = Path(network[1]).with_suffix(".json")
    fields = json.loads(file.read_text())
    del fields["profiles"]
    file.write_text(json.dumps(fields))
    done = run(*network, photo)
    assert done.returncode == 0, done.stderr
    shape = [1, 3, 32, 32]
    fields["profiles"] = {"images": {"min": shape, "opt": shape, "max": shape}}
    file.write_text(json.dumps(fields))
    assert f"profiles: {FULL}, got {{" in refused(run(*network, photo))


def test_unreadable_metadata(network, photo):
    Path(network[1]).with_suffix(".json").write_text("{")
    assert "cannot be read" in refused(run(*network, photo))


def test_nms_inside_the_network_is_fixed(photo, tmp_path):
    options = Network(32, 32, no_outputs(1), nms=None).save(tmp_path / "net")
    for given in (["--nms", "soft"], ["--nms-iou", "0.5"]):
        assert f"{given[0]}: is fixed in the file that --engine gives" in refused(
            run(*options, photo, *given)
        )


def test_replayed_outputs_must_fit(network, photo, tmp_path):
    folder = tmp_path / "net"
    many = [
        photo.rename(tmp_path / f"{index}.png") if index == 0 else tmp_path / f"{index}.png"
        for index in range(4)
    ]
    for file in many[1:]:
        Image.new("RGB", (8, 8)).save(file)
    assert "expected outputs for every picture, got those of 3" in refused(run(*network, *many))
    np.save(folder / "scores.npy", np.zeros((3, 2), np.float32))
    assert "expected boxes [N, K, 4], scores [N, K] and labels [N, K]" in refused(run(*network, many[0]))
    np.save(folder / "scores.npy", np.zeros((3, 0)))
    assert "scores.npy: expected a .npy file of type <f4, row by row, got {'descr': '<f8'" in refused(
        run(*network, many[0])
    )
    (folder / "scores.npy").write_bytes(b"no")
    assert "scores.npy: expected a .npy file of type <f4, row by row, got another file" in refused(
        run(*network, many[0])
    )
    (folder / "scores.npy").unlink()
    assert "scores.npy: cannot be read: No such file" in refused(run(*network, many[0]), 1)


def test_label_without_a_name(photo, tmp_path):
    outputs = np.zeros((1, 1, 4), np.float32), np.ones((1, 1), np.float32), np.full((1, 1), 3)
    options = Network(32, 32, outputs).save(tmp_path / "net")
    found = refused(run(*options, photo), 1)
    assert found == "labels: expected numbers below 3, the number of class names, got 3"


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"", "is empty: its export did not finish"), (b"no engine" * 9, "is not a TensorRT engine")],
)
def test_files_that_are_no_engines(network, photo, content, message):
    engine = Path(network[1])
    engine.write_bytes(content)
    assert message in refused(run("--engine", engine, photo), 1)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_engine_without_a_gpu(network, photo):
    """The tests' machine may lack the headers of its TensorRT's version, which comes first."""
    engine = Path(network[1])
    engine.write_bytes((0x74727466).to_bytes(4, "little") + bytes(60))
    found = refused(run("--engine", engine, photo), 1)
    assert "there is no NVIDIA GPU" in found or "was built with the headers of TensorRT" in found
