"""`codetr detect` with an engine or an ONNX file: without Torch, and what is wrong with the files."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from codetr.cli.detect import main
from tests.cli_runs import ROOT, error_line, load
from tests.test_sizes import dynamic_metadata
from trt_plugin import ArtifactMetadata

pytest_plugins = ("tests.cli_fixtures",)


ENGINE_SCRIPT = """
import sys, types
import numpy as np
import trt_plugin
from trt_plugin import TensorInfo

class Runner:
    inputs = {"images": TensorInfo((2, 3, 64, 96), "float32"), "image_shapes": TensorInfo((2, 2), "int64")}
    outputs = {"boxes": TensorInfo((2, -1, 4), "float32"), "scores": TensorInfo((2, -1), "float32"),
               "labels": TensorInfo((2, -1), "int32")}
    profiles = {}
    def __init__(self, path, device): assert device == 0
    def close(self): print("closed")
    def __call__(self, inputs):
        images, shapes = inputs["images"], inputs["image_shapes"]
        assert images.shape == (2, 3, 64, 96) and images.dtype == np.float32 and images.flags.c_contiguous
        assert shapes.shape == (2, 2) and shapes.dtype == np.int64
        boxes = np.zeros((2, 3, 4), np.float32)
        boxes[:, 0] = np.tile(shapes[:, ::-1], 2) * (0, 0, 1, 1)
        boxes[:, 1], boxes[:, 2] = np.nan, boxes[:, 0]  # what is not finite neither counts nor suppresses
        scores = np.float32([[0.8, 0.9, np.nan]] * 2)
        return {"boxes": boxes, "scores": scores, "labels": np.int32([[1, 0, 1]] * 2)}

trt_plugin.EngineRunner = Runner
from codetr.cli.detect import main
status = main(sys.argv[1:])
assert "torch" not in sys.modules and "tensorrt" not in sys.modules, "imported"
sys.exit(status)
"""


ONNX_SCRIPT = """
import sys
from codetr.cli.detect import main
status = main(sys.argv[1:])
assert "torch" not in sys.modules and "tensorrt" not in sys.modules, "imported"
sys.exit(status)
"""

# What the fake engine answers.
ONNX_GRAPH = """
<ir_version: 8, opset_import: ["": 17]>
found (float[2, 3, 64, 96] images, int64[2, 2] image_shapes)
    => (float[2, 3, 4] boxes, float[2, 3] scores, int64[2, 3] labels)
<int64[4] order = {1, 0, 1, 0}, int64[3] rows = {2, 1, 4}, int64[2] pictures = {2, 1},
 float[1, 3, 4] corners = {0, 0, 1, 1, nan, nan, nan, nan, 0, 0, 1, 1},
 float[1, 3] best = {0.8, 0.9, nan}, int64[1, 3] classes = {1, 0, 1}>
{
    swapped = Gather<axis = 1>(image_shapes, order)
    sides = Cast<to = 1>(swapped)
    row = Reshape(sides, rows)
    boxes = Mul(row, corners)
    scores = Tile(best, pictures)
    labels = Tile(classes, pictures)
}
"""


@pytest.fixture
def engine(tmp_path) -> Path:
    """An engine file (its content is never read: the runner is a fake) with its metadata."""
    path = tmp_path / "model.engine"
    path.write_bytes(b"engine")
    make_metadata().save(path.with_suffix(".json"))
    return path


@pytest.fixture
def onnx_file(tmp_path) -> Path:
    """An ONNX file, which onnxruntime runs, with its metadata."""
    parser = pytest.importorskip("onnx.parser", reason="onnx is not installed")
    path = tmp_path / "model.onnx"
    path.write_bytes(parser.parse_model(ONNX_GRAPH).SerializeToString())
    make_metadata().save(path.with_suffix(".json"))
    return path


def make_metadata() -> ArtifactMetadata:
    return ArtifactMetadata(
        model="tiny",
        inputs=[
            {"name": "images", "shape": [2, 3, 64, 96], "dtype": "float32"},
            {"name": "image_shapes", "shape": [2, 2], "dtype": "int64"},
        ],
        outputs=[
            {"name": "boxes", "shape": [2, 3, 4], "dtype": "float32"},
            {"name": "scores", "shape": [2, 3], "dtype": "float32"},
            {"name": "labels", "shape": [2, 3], "dtype": "int32"},
        ],
        class_names=["cat", "dog"],
        mean=[0.0, 0.0, 0.0],
        std=[1.0, 1.0, 1.0],
        resize={"height": 64, "width": 96, "mode": "fit_pad"},
        max_per_img=3,
        nms={"method": "soft", "iou_threshold": 0.8},
        precision="fp32",
        batch=2,
        tensorrt_version="10.6.0",
        plugin_version="1",
        gpu="none",
        torch_version="2.11.0",
        source_weights="random",
    )


def detect(script: str, *arguments: object) -> subprocess.CompletedProcess:
    """`codetr detect` in a process of its own."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-c", script, "detect", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


def test_engine_without_torch(engine, photos, tmp_path):
    given = ["--engine", engine, "--out", tmp_path / "out", "--batch", 3]
    done = detect(ENGINE_SCRIPT, photos, photos / "deep", *given)
    assert done.returncode == 0, done.stderr
    assert_found(load(tmp_path / "out"))


def test_onnx_without_torch(onnx_file, photos, tmp_path):
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    given = ["--onnx", onnx_file, "--out", tmp_path / "out", "--batch", 3, "--device", "cpu"]
    done = detect(ONNX_SCRIPT, photos, photos / "deep", *given)
    assert done.returncode == 0, done.stderr
    document = load(tmp_path / "out")
    assert_found(document)
    assert document["info"]["network"].startswith("tiny, onnxruntime ")


def assert_found(document: dict) -> None:
    """Each of three pictures holds a dog as large as itself."""
    assert document["categories"] == [{"id": 0, "name": "cat"}, {"id": 1, "name": "dog"}]
    found = [(row["category_name"], row["score"]) for row in document["annotations"]]
    assert found == [("dog", 0.8)] * 3
    sizes = [[image["width"], image["height"]] for image in document["images"]]
    assert [row["bbox"][2:] for row in document["annotations"]] == sizes


def test_metadata_of_another_engine(engine, photos, tmp_path):
    """Found before anything is detected, whether the tensors' names differ or their shapes."""
    path = engine.with_suffix(".json")
    for old, new, message in (
        ("96", "128", "images is [2, 3, 64, 128] in it and [2, 3, 64, 96] in the engine"),
        ('"name": "labels"', '"name": "classes"', "classes is [2, 3] in it and missing in the engine"),
    ):
        text = path.read_text()
        path.write_text(text.replace(old, new))
        done = detect(ENGINE_SCRIPT, photos, "--engine", engine, "--out", tmp_path / "out")
        path.write_text(text)
        assert (done.returncode, done.stdout) == (1, "closed\n")
        assert done.stderr.startswith(
            f"codetr: error: the metadata {path} is that of another engine: {message}"
        )
        assert done.stderr.count("\n") == 1 and not (tmp_path / "out").exists()


@pytest.mark.parametrize("option", ["--engine", "--onnx"])
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "co_dino_r50"], "--model: is fixed in the {file}, leave it out"),
        (["--weights", "w.pth"], "--weights: is fixed in the {file}, leave it out"),
        (["--precision", "fp16"], "--precision: is fixed in the {file}, leave it out"),
        (["--height", "600"], "--height and --width: give both or neither"),
        (["--backend", "torch"], "{option}: goes with --backend {backend}, got --backend torch"),
        (["--engine", "other", "--onnx", "other"], "--engine and --onnx: give one of them"),
    ],
)
def test_contradictions(photos, tmp_path, capsys, option, arguments, message):
    path = tmp_path / "model"
    kind, backend = {"--engine": ("engine", "tensorrt"), "--onnx": ("ONNX file", "onnxruntime")}[option]
    assert main(command(photos, tmp_path, option, path, *arguments)) == 2
    assert message.format(file=f"{kind} {path}", option=option, backend=backend) in error_line(capsys)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("option", "kind"), [("--engine", "engine"), ("--onnx", "ONNX file")])
def test_sizes(photos, tmp_path, capsys, option, kind):
    """What the file cannot follow is said before it is loaded."""

    def fails(metadata: ArtifactMetadata, *arguments: object) -> str:
        metadata.save(path.with_suffix(".json"))
        assert main(command(photos, tmp_path, option, path, *arguments)) == 2
        assert not (tmp_path / "out").exists()
        return error_line(capsys).removeprefix("codetr: error: ")

    path = tmp_path / "model.file"
    path.write_bytes(b"content")
    both = ["--height", 608, "--width", 608]
    assert (
        fails(make_metadata(), "--max-size", 600)
        == f"--max-size: is fixed in the {kind} {path}, leave it out"
    )
    assert fails(make_metadata(), *both) == f"--height: is fixed in the {kind} {path}, leave it out"
    assert fails(dynamic_metadata(), "--max-size", 600, *both).startswith(
        "--max-size: does not go with --height"
    )
    assert fails(dynamic_metadata(), "--height", 608, "--width", 2000) == (
        f"--width: expected a multiple of 32 from 512 to 1344, the range of {path}, got 2000"
    )


def test_an_engine_runs_on_a_gpu(engine, photos, tmp_path, capsys):
    assert main(command(photos, tmp_path, "--engine", engine, "--device", "cpu")) == 2
    assert "--device cpu: an engine runs on a GPU" in error_line(capsys)


@pytest.mark.parametrize(("option", "backend"), [("--engine", "tensorrt"), ("--onnx", "onnxruntime")])
def test_files_that_are_not_there(photos, tmp_path, capsys, option, backend):
    def fails(*arguments: object) -> str:
        assert main(command(photos, tmp_path, "--backend", backend, *arguments)) == 2
        assert not (tmp_path / "out").exists()
        return error_line(capsys)

    path = tmp_path / "model.file"
    assert f"--backend {backend}: needs {option} FILE" in fails()
    assert f"{option}: expected a path, got ''" in fails(option, "")
    assert f"{option} {path}: no such file" in fails(option, path)
    path.write_bytes(b"content")
    assert f"{option} {path}: its metadata model.json is not beside it" in fails(option, path)
    path.with_suffix(".json").write_text("{}")
    assert f"{option}: the metadata {path.with_suffix('.json')}: expected an object with" in fails(
        option, path
    )


def test_wrong_onnx_files(onnx_file, photos, tmp_path, capsys):
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    metadata = onnx_file.with_suffix(".json")
    metadata.write_text(metadata.read_text().replace("96", "128"))
    assert main(command(photos, tmp_path, "--onnx", onnx_file, "--device", "cpu")) == 2
    assert (
        f"--onnx: {metadata}: is the metadata of another file: images is [2, 3, 64, 128] in it and "
        f"[2, 3, 64, 96] in {onnx_file}" in error_line(capsys)
    )
    onnx_file.write_bytes(b"no graph")
    assert main(command(photos, tmp_path, "--onnx", onnx_file, "--device", "cpu")) == 2
    assert f"--onnx: {onnx_file}: onnxruntime cannot run it (" in error_line(capsys)
    assert not (tmp_path / "out").exists()


def test_missing_onnxruntime(onnx_file, photos, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    assert main(command(photos, tmp_path, "--onnx", onnx_file)) == 1
    assert error_line(capsys) == (
        "codetr: error: onnxruntime is missing: pip install onnxruntime (or onnxruntime-gpu)"
    )
    assert not (tmp_path / "out").exists()


def command(photos: Path, folder: Path, *arguments: object) -> list[str]:
    return ["detect", str(photos), "--out", str(folder / "out"), *map(str, arguments)]
