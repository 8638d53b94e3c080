"""Commands without an optional package: one line that names the package, and no file is written."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.classify.class_pictures import write_classes
from tests.evaluation.coco_folders import write_dataset
from tools.scenes import __main__ as scenes
from tools.scenes import sources

ROOT = Path(__file__).parents[2]
WITHOUT = """
import sys
sys.modules[sys.argv[1]] = None
from codetr.cli.app import main
sys.exit(main(sys.argv[2:]))
"""
DATASET = ("--data", "data", "--model", "co_dino_demo", "--device", "cpu", "--out", "out")
CLASSES = ("--data", "classes", "--weights", "none", "--device", "cpu", "--out", "out")
SHAPE = ("--opt", "images:1x3x8x8")


@pytest.fixture
def folder(tmp_path) -> Path:
    """Datasets, an ONNX file and a file in place of an engine."""
    write_dataset(tmp_path / "data", annotations="annotations/instances_train.json", images="train")
    for split in ("train", "val"):
        write_classes(tmp_path / "classes" / split, 2, names=("blue", "green"))
    onnx = pytest.importorskip("onnx", reason="onnx is not installed")
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[N, 3, 8, 8] images) => (float[N, 3, 8, 8] y) '
        "{ y = Relu(images) }"
    )
    onnx.save(model, tmp_path / "model.onnx")
    (tmp_path / "model.engine").touch()
    return tmp_path


@pytest.mark.parametrize(
    ("package", "command", "extra"),
    [
        ("scipy", ["train", "--init", "none", *DATASET], "train"),
        ("torchvision", ["train", "--task", "classify", "--network", "resnet18", *CLASSES], "train"),
        ("pycocotools", ["evaluate", *DATASET], "train"),
        ("av", ["detect", "clip.mp4", "--out", "out"], "video"),
        ("ray", ["batch", "data", "out", "--device", "cpu"], "batch,serve"),
        ("ray", ["serve", "--port", "18765"], "batch,serve"),
        ("onnx", ["surgeon", "model.onnx", "out"], "onnx"),
        ("polygraphy", ["build", "model.onnx", "--out", "out", *SHAPE], "tensorrt"),
        ("tensorrt", ["build", "model.onnx", "--out", "out", *SHAPE], "tensorrt"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else value,
)
def test_commands(folder, package, command, extra):
    before = sorted(folder.rglob("*"))
    found = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, package, *command],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "-1", "PYTHONPATH": found},
        check=False,
    )
    assert done.returncode in (1, 2)
    (line,) = done.stderr.splitlines()
    assert package in line.lower() and f"[{extra}]" in line
    assert sorted(folder.rglob("*")) == before


@pytest.mark.parametrize("split", sources.SPLITS)
def test_scenes(split, tmp_path, monkeypatch, capsys):
    source = sources.FONTS[split][0]
    find_spec = sources.find_spec
    monkeypatch.setattr(
        sources, "find_spec", lambda name: None if name == source.package else find_spec(name)
    )
    assert scenes.main(["--out", str(tmp_path / "new"), f"--{split}", "1"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert source.package in line and "pip install 'codetr-tensorrt[scenes]'" in line
    assert not (tmp_path / "new").exists()
