"""What users do from beginning to end, as the scripts in tests/stories type it."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

STORIES = Path(__file__).parent / "stories"


class Story(NamedTuple):
    """A script of Bash or Python, which takes a folder for its files, and what it prints.

    Attributes:
        script: its name in tests/stories.
        packages: optional ones that it needs.
        lines: regular expressions of lines that it prints, on stdout or stderr, in this order.
        files: that it leaves in the folder; None for any.
    """

    script: str
    packages: tuple[str, ...]
    lines: tuple[str, ...]
    files: tuple[str, ...] | None = None


ALL = (
    Story(
        "coco.sh",
        ("onnx", "onnxscript", "onnxruntime", "pycocotools", "scipy"),
        (
            r"training co_dino_demo_trained: 10 pictures, 20 classes; 8 steps; .*",
            r"training was killed",
            r"training co_dino_demo_trained: .*; going on from step \d+",
            r"wrote runs/a/model\.safetensors and model\.json, after 8 steps",
            r"14 pictures of data/annotations/instances_val\.json; co_dino_demo_trained, PyTorch .*",
            r"wrote out/000003\.jpg and out/detections\.json",
            r"wrote out/onnx/000003\.jpg and out/onnx/detections\.json",
            r"every file is within 0\.01 AP of PyTorch",
        ),
    ),
    Story(
        "research.py",
        (),
        (
            r"msda \S+ on (cpu|cuda)",
            r"gradcheck and gradgradcheck pass",
            r"jvp: .*",
            r"hvp: .*",
            r"vmap of grad: \[3, 2, 64, 2, 4\]",
            r"torch\.compile: equal to eager, with gradients",
            r"meta: \[2, 5, 8\]",
        ),
    ),
    Story(
        "onnx.sh",
        ("onnx", "onnxscript", "onnxruntime", "transformers"),
        (
            r"replaced .*: FusedMultiScaleDeformableAttention, 4 levels, 4 points, 8 heads x 4 channels .*",
            r"wrote rewritten\.onnx: 4 replaced, \d+ -> \d+ nodes; outputs: largest relative difference .*",
            r"onnxruntime: largest difference \S+",
            r"no decomposed .* found \(the file read has 4 MSDA nodes already\): again\.onnx is a copy of .*",
            r"error: unexpected\.onnx is not written: 0 replaced, expected 4 \(the file read has 4 MSDA .*",
            r"all outputs agree|error: (this machine lacks|TensorRT|the TensorRT plugin library) .*",
        ),
        ("deformable_detr.onnx", "rewritten.onnx", "again.onnx"),
    ),
)


@pytest.mark.parametrize("story", ALL, ids=lambda story: story.script)
def test_story(story: Story, tmp_path: Path) -> None:
    for package in story.packages:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    folder = tmp_path / "work"
    paths = {
        name: os.pathsep.join([str(first), os.environ.get(name, "")])
        for name, first in (("PATH", Path(sys.executable).parent), ("PYTHONPATH", STORIES.parents[1]))
    }
    program = sys.executable if story.script.endswith(".py") else "bash"
    done = subprocess.run(
        [program, STORIES / story.script, folder],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, **paths},
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    lines = iter(done.stdout.splitlines())
    for expected in story.lines:
        assert any(re.fullmatch(expected, line) for line in lines), f"{expected}\n\n{done.stdout}"
    if story.files is not None:
        assert {file.name for file in folder.iterdir()} - {"engines"} == set(story.files)


def test_every_script_is_run() -> None:
    assert {path.name for path in STORIES.glob("*.*")} == {story.script for story in ALL}
