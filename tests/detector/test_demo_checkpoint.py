"""The weights of the package on 16 held-out scenes."""

from __future__ import annotations

import codetr
from codetr.dataset.coco_files import load_coco
from codetr.evaluation import evaluate
from tests.golden_models import GOLDEN

SCENES = GOLDEN.parent / "scenes"
"""The first 16 of `python -m tools.scenes --val 500 --seed 0`, stored so that they never change."""


def test_average_precision_on_held_out_scenes() -> None:
    """Measured on the CPU: AP 0.870, AP50 0.967. The margins are for other CPUs and versions."""
    data = load_coco(SCENES, "val")
    with codetr.Detector(device="cpu") as detector:
        assert detector.class_names == data.class_names
        metrics = evaluate(detector, data)
    assert len(data) == 16
    assert metrics.ap > 0.86
    assert metrics.ap50 > 0.96
