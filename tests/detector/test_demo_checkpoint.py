"""The weights that ship with the project, on 16 held-out scenes."""

from __future__ import annotations

from pathlib import Path

import codetr
from codetr.dataset.coco_files import load_coco
from codetr.evaluation import evaluate

SCENES = Path(__file__).parent / "scenes"
"""The first 16 of `python -m tools.scenes --val 500 --seed 0`, kept so that they are the same everywhere."""


def test_average_precision_on_held_out_scenes() -> None:
    """Measured on the CPU: AP 0.870, AP50 0.967. The margins are for other CPUs and versions."""
    data = load_coco(SCENES, "val")
    with codetr.Detector(device="cpu") as detector:
        assert detector.class_names == data.class_names
        metrics = evaluate(detector, data)
    assert len(data) == 16
    assert metrics.ap > 0.86
    assert metrics.ap50 > 0.96
