"""Runs of `codetr detect` for tests, and a network that always finds the same."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from codetr.cli.app import main
from codetr.coco_classes import COCO_CLASSES
from codetr.detector.preprocess import Preprocessor

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests/golden"
CUP, SPOON = COCO_CLASSES.index("cup"), COCO_CLASSES.index("spoon")


class FakeBackend:
    """Finds a cup (the image's left half), a second cup that overlaps it, and a spoon."""

    class_names = COCO_CLASSES
    description = "fake"

    def __init__(self, *_args, batch: int | None = None, fixed: bool = False) -> None:
        self.preprocessor = Preprocessor(height=64, width=96) if fixed else Preprocessor(scale=(128, 96))
        self.nms = {"method": "hard", "iou_threshold": 0.8}
        self.batch = batch
        self.shapes: list[tuple[int, ...]] = []
        self.loaded = self.closed = False

    def load(self) -> None:
        self.loaded = True

    def __call__(self, images, image_shapes):
        self.shapes.append(images.shape)
        self.images = images
        unit = np.array([[0, 0, 0.5, 1], [0, 0, 0.5, 0.95], [0.25, 0.25, 0.75, 0.75]])
        boxes = unit * np.tile(image_shapes[:, None, ::-1], (1, 1, 2))
        scores = np.tile(np.float32([0.9, 0.6, 0.4]), (len(images), 1))
        labels = np.tile([CUP, CUP, SPOON], (len(images), 1))
        return boxes.astype(np.float32), scores, labels

    def close(self) -> None:
        self.closed = True


def detect(*arguments: object) -> int:
    """Runs `codetr detect`; returns the exit status."""
    return main(["detect", *map(str, arguments)])


def run(*arguments: object) -> int:
    """Runs `codetr detect` with COCO's classes."""
    weights = GOLDEN / "codino_swin_tiny.safetensors"
    return detect(*arguments, "--model", "co_dino_r50", "--weights", weights)


def load(out: Path) -> dict:
    """Reads the detections.json of a run."""
    return json.loads((out / "detections.json").read_text(encoding="utf-8"))


def error_line(capsys) -> str:
    """Returns the error, which must be one line."""
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and lines[0].startswith("codetr: error: "), lines
    return lines[0]
