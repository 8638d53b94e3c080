"""Runs the commands and Python examples of README and docs, page by page, in the order of the blocks.

A machine with a GPU also runs the blocks that are marked `gpu`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.project.doc_pages import PAGES, ROOT, Block, blocks

SCENES = ROOT / "tests" / "scenes"


def runs(block: Block) -> bool:
    return block.mark is None or (block.mark == "gpu" and torch.cuda.is_available())


TESTED = [page for page in PAGES if any(runs(block) for block in blocks(page))]
SLOW = ("batch.md", "classifier.md", "detect.md", "engines.md", "quantization.md", "training.md", "video.md")


def copy_pictures(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("000000.jpg", "000001.jpg"):
        shutil.copy(SCENES / "val" / name, folder)


def make_more(folder: Path) -> None:
    from PIL import Image

    (folder / "more" / "deep").mkdir(parents=True)
    Image.open(SCENES / "val" / "000002.jpg").save(folder / "more" / "deep" / "picture.png")


def make_clip(folder: Path) -> None:
    pytest.importorskip("av")
    from fractions import Fraction

    from codetr.detector.preprocess import load_image
    from codetr.detector.video import VideoWriter

    writer = VideoWriter(folder / "clip.mp4", Fraction(10))
    for index in range(3):
        writer.write(load_image(SCENES / "val" / "000000.jpg"), index / 10)
    writer.close()


def make_dataset(folder: Path) -> None:
    (folder / "data" / "annotations").mkdir(parents=True)
    content = json.loads((SCENES / "annotations" / "instances_val.json").read_text())
    for split in ("train", "val"):
        (folder / f"data/annotations/instances_{split}.json").write_text(json.dumps(content))
        (folder / "data" / split).symlink_to(SCENES / "val")


def make_classifier(folder: Path) -> None:
    pytest.importorskip("timm")
    import torchvision

    torch.save(torchvision.models.resnet18(num_classes=2).state_dict(), folder / "own.pth")


def make_class_folders(folder: Path) -> None:
    for part in ("train", "val"):
        for i, name in enumerate(("daisy", "tulip")):
            (folder / "flowers" / part / name).mkdir(parents=True)
            for j in range(4):
                shutil.copy(SCENES / "val" / f"{4 * i + j:06}.jpg", folder / "flowers" / part / name)


def make_detr(folder: Path, model: str, name: str, dynamic: bool = False) -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("transformers")
    from tests.onnx import model_zoo

    model_zoo.export(model, folder, dynamic=dynamic).rename(folder / name)


FILES: dict[str, Callable[[Path], object]] = {
    "assets/": lambda folder: (folder / "assets").symlink_to(ROOT / "assets"),
    "own.pth": make_classifier,
    "--dataset flowers": make_class_folders,
    "photo.jpg": lambda folder: shutil.copy(ROOT / "assets" / "scene.jpg", folder / "photo.jpg"),
    "batch photos": lambda folder: copy_pictures(folder / "photos"),
    "detect photos": lambda folder: copy_pictures(folder / "photos"),
    'Path("photos")': lambda folder: copy_pictures(folder / "photos"),
    "more/**": make_more,
    "clip.mp4": make_clip,
    "--data data": make_dataset,
    "--calibration-data data": make_dataset,
    "model.onnx rewritten.onnx": lambda folder: make_detr(folder, "deformable_detr", "model.onnx"),
    "quantize model.onnx": lambda folder: make_detr(folder, "deformable_detr", "model.onnx"),
    "--data photos": lambda folder: copy_pictures(folder / "photos"),
    "build dynamic.onnx": lambda folder: make_detr(folder, "rt_detr_v2", "dynamic.onnx", dynamic=True),
    "finetuned.safetensors": lambda folder: shutil.copy(
        ROOT / "codetr" / "demo" / "co_dino_demo.safetensors", folder / "finetuned.safetensors"
    ),
}
"""Makes the files of a user, by a text of the page that needs them."""


@pytest.fixture(autouse=True)
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands of this environment and the packages of this clone are found from any folder.

    TensorRT times few kernels for an engine, and a sweep measures few runs: these tests are about commands,
    not about speed.
    """
    monkeypatch.chdir(tmp_path)
    for command in ("BUILD", "EXPORT"):
        monkeypatch.setenv(f"CODETR_{command}_OPTIMIZATION_LEVEL", "1")
    for option, value in (("ITERATIONS", "3"), ("SECONDS", "0.1"), ("INPUTS", "8")):
        monkeypatch.setenv(f"CODETR_SWEEP_{option}", value)
    for name, first in (("PATH", Path(sys.executable).parent), ("PYTHONPATH", ROOT)):
        monkeypatch.setenv(name, os.pathsep.join([str(first), os.environ.get(name, "")]))


@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=pytest.mark.slow if page in SLOW else ()) for page in TESTED]
)
def test_page(page: str, tmp_path: Path) -> None:
    chosen = [block for block in blocks(page) if runs(block)]
    code = "".join(block.code for block in chosen)
    for text, make in FILES.items():
        if text in code:
            make(tmp_path)
    for block in chosen:
        if block.language == "python":
            exec(compile(block.code, page, "exec"), {})
        else:
            run("bash", "-euo", "pipefail", "-c", block.code)


def run(*command: str | Path) -> None:
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, f"{command[-1]}\n{done.stdout}"
