"""Commands without an optional package: one line that says what to install, and nothing is written."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.detector.detect_runs import ROOT
from tests.coco_folders import write_dataset
from tools.scenes import __main__ as scenes
from tools.scenes import sources

WITHOUT = """
import sys
sys.modules[sys.argv[1]] = None
from codetr.cli.detect import main
sys.exit(main(sys.argv[2:]))
"""

SOURCES = {
    (split, source.package): source.distribution
    for split in sources.SPLITS
    for source in (*sources.FONTS[split], *sources.PHOTOS[split])
}


@pytest.mark.parametrize(
    ("package", "command", "message"),
    [
        (
            "scipy",
            ["train", "--init", "none"],
            r"training needs scipy \(.*\): pip install 'codetr-tensorrt\[train\]'",
        ),
        ("pycocotools", ["evaluate"], r"evaluation needs pycocotools \(.*\): pip install pycocotools"),
    ],
)
def test_commands(package, command, message, tmp_path):
    data = write_dataset(tmp_path / "data", annotations="annotations/instances_train.json", images="train")
    out = tmp_path / "out"
    given = [*command, "--data", data, "--model", "co_dino_demo", "--device", "cpu", "--out", out]
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, package, *map(str, given)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 1
    assert re.fullmatch(rf"codetr: error: {message}\n", done.stderr), done.stderr
    assert done.stdout == "" and not out.exists()


@pytest.mark.parametrize("split, package", SOURCES)
def test_scenes(split, package, tmp_path, monkeypatch, capsys):
    find_spec = sources.find_spec
    monkeypatch.setattr(sources, "find_spec", lambda name: None if name == package else find_spec(name))
    assert scenes.main(["--out", str(tmp_path / "new"), f"--{split}", "1"]) == 2
    error = capsys.readouterr().err
    assert error.startswith(
        f"tools.scenes: error: the package {SOURCES[split, package]} is not installed, scenes are drawn with"
    )
    assert error.endswith(": pip install 'codetr-tensorrt[scenes]'\n") and error.count("\n") == 1
    assert not (tmp_path / "new").exists()
