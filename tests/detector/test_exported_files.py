"""`codetr.Detector` and `codetr detect` with an engine or an ONNX file: without Torch, and unusable files."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from codetr.detector.detector import Detector
from codetr.errors import ArgumentError
from tests.detector.detect_runs import ROOT, detect, error_line, load
from tests.detector.exported_metadata import dynamic_metadata, fixed_metadata, write_onnx
from trt_plugin import ArtifactMetadata

FAKE_ENGINE = """
import numpy as np
import trt_plugin
from trt_plugin import TensorInfo, image_input
from trt_plugin.engine_error import EngineError

def launcher():
    raise EngineError("no plugin library, so the CPU makes the inputs")

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
        boxes[:, 1], boxes[:, 2] = np.nan, boxes[:, 0]  # non-finite rows neither count nor suppress
        scores = np.float32([[0.8, 0.9, np.nan]] * 2)
        return {"boxes": boxes, "scores": scores, "labels": np.int32([[1, 0, 1]] * 2)}

trt_plugin.EngineRunner, image_input.launcher = Runner, launcher
"""
RUN = """
import sys
from codetr.cli.app import main
status = main(sys.argv[1:])
assert "torch" not in sys.modules and "tensorrt" not in sys.modules, "imported"
sys.exit(status)
"""


def save(path: Path, metadata: ArtifactMetadata | None = None) -> Path:
    """Writes a file with its metadata beside it; returns its path. Nothing reads a fake engine's content."""
    path.write_bytes(b"content")
    (metadata or fixed_metadata()).save(path.with_suffix(".json"))
    return path


@pytest.fixture
def engine(tmp_path) -> Path:
    return save(tmp_path / "model.engine")


@pytest.fixture
def onnx_file(tmp_path) -> Path:
    """An ONNX file, which onnxruntime runs."""
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    return write_onnx(tmp_path)


def detect_in_process(script: str, *arguments: object) -> subprocess.CompletedProcess:
    """`codetr detect` in a process of its own."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-c", script + RUN, "detect", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


@pytest.mark.parametrize("kind", ["engine", "onnx"])
def test_detection_without_torch(request, photos, tmp_path, kind):
    """Each of three pictures holds a dog as large as itself."""
    file = request.getfixturevalue("engine" if kind == "engine" else "onnx_file")
    given = [f"--{kind}", file, "--out", tmp_path / "out", "--batch", 3]
    script, device = (FAKE_ENGINE, []) if kind == "engine" else ("", ["--device", "cpu"])
    done = detect_in_process(script, photos, photos / "deep", *given, *device)
    assert done.returncode == 0, done.stderr
    document = load(tmp_path / "out")
    assert kind == "engine" or document["info"]["network"].startswith("tiny, onnxruntime ")
    assert document["categories"] == [{"id": 0, "name": "cat"}, {"id": 1, "name": "dog"}]
    found = [(row["category_name"], row["score"]) for row in document["annotations"]]
    assert found == [("dog", 0.8)] * 3
    sizes = [[image["width"], image["height"]] for image in document["images"]]
    assert [row["bbox"][2:] for row in document["annotations"]] == sizes


def test_metadata_of_another_engine(engine, photos, tmp_path):
    """Found before anything is detected."""
    path = engine.with_suffix(".json")
    path.write_text(path.read_text().replace("96", "128"))
    done = detect_in_process(FAKE_ENGINE, photos, "--engine", engine, "--out", tmp_path / "out")
    assert (done.returncode, done.stdout) == (1, "closed\n")
    words = "images is [2, 3, 64, 128] in it and [2, 3, 64, 96] in the engine"
    assert done.stderr.startswith(f"codetr: error: the metadata {path} is that of another engine: {words}")
    assert done.stderr.count("\n") == 1 and not (tmp_path / "out").exists()


FILES = pytest.mark.parametrize(
    ("argument", "kind", "backend"),
    [("engine", "engine", "tensorrt"), ("onnx", "ONNX file", "onnxruntime")],
)


@FILES
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": "co_dino_r50"}, "model: is fixed in the {file}, leave it out"),
        ({"weights": "w.pth"}, "weights: is fixed in the {file}, leave it out"),
        ({"precision": "fp16"}, "precision: is fixed in the {file}, leave it out"),
        ({"max_size": 64}, "max_size: is fixed in the {file}, leave it out"),
        ({"height": 64, "width": 64}, "height: is fixed in the {file}, leave it out"),
        ({"imgsz": 64}, "imgsz: is fixed in the {file}, leave it out"),
        ({"height": 64}, "width: expected a size"),
        ({"backend": "torch"}, "{argument}: expected none with the backend torch"),
        ({"device": "gpu"}, "device: expected auto, "),
    ],
)
def test_contradictions(tmp_path, argument, kind, backend, options, message):
    path = save(tmp_path / "model.file")
    with pytest.raises(ArgumentError) as caught:
        Detector(**{argument: path, **options})
    assert message.format(file=f"{kind} {path}", argument=argument) in str(caught.value)


def test_an_engine_runs_on_a_gpu(engine):
    with pytest.raises(ArgumentError, match="device: expected auto, cuda or cuda:<number>, got 'cpu'"):
        Detector(engine=engine, device="cpu")


@FILES
def test_size_outside_of_the_range(tmp_path, argument, kind, backend):
    path = save(tmp_path / "model.file", metadata=dynamic_metadata())
    for options, name, got in (
        ({"height": 608, "width": 2000}, "width", 2000),
        ({"imgsz": (600, 608)}, "imgsz", 600),
        ({"imgsz": "480x640"}, "imgsz", 480),
    ):
        with pytest.raises(ArgumentError) as caught:
            Detector(**{argument: path, **options})
        expected = f"expected a multiple of 32 from 512 to 1344, the range of the {kind} {path}"
        assert str(caught.value) == f"{name}: {expected}, got {got}"


@FILES
def test_files_that_are_not_there(photos, tmp_path, capsys, argument, kind, backend):
    def fails(*arguments: object) -> str:
        assert detect(photos, "--out", tmp_path / "out", "--backend", backend, *arguments) == 2
        assert not (tmp_path / "out").exists()
        return error_line(capsys)

    path, option = tmp_path / "model.file", f"--{argument}"
    assert f"{option}: expected an {kind}, got none" in fails()
    assert f"{option}: expected an {kind}, got '.', is a folder" in fails(option, "")
    assert f"{option}: expected an {kind}, got '{path}', no such file" in fails(option, path)
    save(path)
    metadata = path.with_suffix(".json")
    metadata.unlink()
    assert f"{option}: {metadata}: expected the metadata, got no such file" in fails(option, path)
    metadata.write_text("{}")
    assert f"{option}: the metadata {metadata}: expected an object with" in fails(option, path)


def test_wrong_onnx_files(onnx_file, photos, tmp_path, capsys):
    command = [photos, "--out", tmp_path / "out", "--onnx", onnx_file, "--device", "cpu"]
    metadata = onnx_file.with_suffix(".json")
    metadata.write_text(metadata.read_text().replace("96", "128"))
    assert detect(*command) == 2
    line = error_line(capsys)
    assert f"--onnx: {metadata}: is the metadata of another file, with {{'images': [2, 3, 64, 128]" in line
    assert "instead of {'images': [2, 3, 64, 96]" in line
    onnx_file.write_bytes(b"no graph")
    assert detect(*command) == 2
    assert f"--onnx: {onnx_file}: onnxruntime cannot run it (" in error_line(capsys)
    assert not (tmp_path / "out").exists()


def test_onnxruntime_without_a_gpu(onnx_file):
    import onnxruntime

    if "CUDAExecutionProvider" in onnxruntime.get_available_providers():
        pytest.skip("this onnxruntime has the CUDA provider")
    with pytest.raises(RuntimeError, match="device cuda: this onnxruntime has no CUDA provider"):
        Detector(onnx=onnx_file, device="cuda")
