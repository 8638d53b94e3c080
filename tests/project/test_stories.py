"""Runs users' work from beginning to end: scripts that check their own results."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

STORIES = Path(__file__).parent / "stories"
PACKAGES = {
    "coco.sh": ("onnx", "onnxscript", "onnxruntime", "pycocotools", "scipy"),
    "onnx.sh": ("onnx", "onnxscript", "onnxruntime", "transformers"),
    "research.py": (),
}


@pytest.mark.slow
@pytest.mark.parametrize("script", ["coco.sh", "onnx.sh", "research.py"])
def test_story(script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert {path.name for path in STORIES.glob("*.*")} == set(PACKAGES)
    for package in PACKAGES[script]:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    for name, first in (("PATH", Path(sys.executable).parent), ("PYTHONPATH", STORIES.parents[2])):
        monkeypatch.setenv(name, os.pathsep.join([str(first), os.environ.get(name, "")]))
    done = subprocess.run(
        [sys.executable if script.endswith(".py") else "bash", STORIES / script, tmp_path / "work"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout
