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
    """A script, which takes a folder for its files, and what it prints.

    Attributes:
        script: its name in tests/stories.
        packages: optional ones that it needs.
        lines: regular expressions of lines that it prints, on stdout or stderr, in this order.
        files: that it leaves in the folder.
    """

    script: str
    packages: tuple[str, ...]
    lines: tuple[str, ...]
    files: tuple[str, ...]


ALL = (
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
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        ["bash", STORIES / story.script, folder],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PATH": path},
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    lines = iter(done.stdout.splitlines())
    for expected in story.lines:
        assert any(re.fullmatch(expected, line) for line in lines), f"{expected}\n\n{done.stdout}"
    names = {file.name for file in folder.iterdir()} - {"engines"}
    assert names == set(story.files)


def test_every_script_is_run() -> None:
    assert {path.name for path in STORIES.glob("*.sh")} == {story.script for story in ALL}
