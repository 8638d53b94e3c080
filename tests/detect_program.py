"""The C++ program `codetr_detect` for tests: where it is, and a run of it on given outputs of a network."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from codetr.detect import Detector
from codetr.preprocess import Batch, Preprocessor
from codetr.results import coco_document

ROOT = Path(__file__).resolve().parents[1]
BUILT = ROOT / "trt_plugin"
Outputs = tuple[np.ndarray, np.ndarray, np.ndarray]
"""boxes [N, K, 4] float32, scores [N, K] float32, labels [N, K] int64, of N pictures."""


def find_program(name: str = "codetr_detect") -> Path | None:
    """$CODETR_DETECT (or its namesake), or where `make` builds it; None if it is not there."""
    path = Path(os.environ.get(name.upper()) or BUILT / name)
    return path if path.is_file() else None


def run(*arguments: object, program: str = "codetr_detect") -> subprocess.CompletedProcess:
    command = [str(find_program(program)), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@dataclasses.dataclass
class Network:
    """A network that gives the same outputs to the program and to Python's detector.

    Attributes:
        height, width: of its input.
        outputs: for each picture that it sees, in order.
    """

    height: int
    width: int
    outputs: Outputs
    class_names: Sequence[str] = ("cup", "spoon", "bowl")
    nms: Mapping[str, Any] | None = dataclasses.field(
        default_factory=lambda: {"method": "soft", "iou_threshold": 0.8}
    )
    mean: Sequence[float] = (123.675, 116.28, 103.53)
    std: Sequence[float] = (58.395, 57.12, 57.375)

    # As codetr.detect.Backend.
    batch = 1
    description = "net, TensorRT 10.6.0, none, fp32"

    @property
    def preprocessor(self) -> Preprocessor:
        return Preprocessor(self.mean, self.std, height=self.height, width=self.width)

    _next: int = 0

    def __call__(self, images: np.ndarray, image_shapes: np.ndarray) -> Outputs:
        row = slice(self._next, self._next + 1)
        self._next += 1
        return tuple(output[row] for output in self.outputs)

    def metadata(self) -> dict[str, Any]:
        """Of an engine that has this network."""
        rows = self.outputs[1].shape[1]
        return {
            "format": 1,
            "model": "net",
            "inputs": [
                {"name": "images", "shape": [1, 3, self.height, self.width], "dtype": "float32"},
                {"name": "image_shapes", "shape": [1, 2], "dtype": "int64"},
            ],
            "outputs": [
                {"name": "boxes", "shape": [1, rows, 4], "dtype": "float32"},
                {"name": "scores", "shape": [1, rows], "dtype": "float32"},
                {"name": "labels", "shape": [1, rows], "dtype": "int64"},
            ],
            "class_names": list(self.class_names),
            "mean": list(self.mean),
            "std": list(self.std),
            "resize": {"height": self.height, "width": self.width, "mode": "fit_pad"},
            "max_per_img": max(1, rows),
            "nms": dict(self.nms or {"method": "hard", "iou_threshold": 0.8}),
            "nms_in_graph": self.nms is None,
            "precision": "fp32",
            "batch": 1,
            "tensorrt_version": "10.6.0",
            "plugin_version": "1",
            "gpu": "none",
            "torch_version": "2.11.0",
            "source_weights": "seed 0",
        }

    def save(self, folder: Path) -> list[object]:
        """Writes metadata and outputs; returns the program's options that use them."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "net.json").write_text(json.dumps(self.metadata()), encoding="utf-8")
        for name, output in zip(("boxes", "scores", "labels"), self.outputs, strict=True):
            np.save(folder / f"{name}.npy", output)
        return ["--engine", folder / "net.engine", "--replay", folder]

    def expected(self, names: Sequence[str], images: Sequence[np.ndarray], **options: Any) -> dict[str, Any]:
        """The document that Python's detector makes of the same outputs, without its "info"."""
        self._next = 0
        detector = Detector(backend=self)
        found = detector.detect(list(images), **options)
        document = coco_document(list(zip(names, found, strict=True)), self.class_names)
        return {name: value for name, value in json.loads(json.dumps(document)).items() if name != "info"}

    def input(self, images: Sequence[np.ndarray]) -> Batch:
        """Python's input of the network."""
        return self.preprocessor.batch(images)


def no_outputs(count: int) -> Outputs:
    """Of a network that finds nothing in so many pictures."""
    return (
        np.zeros((count, 0, 4), np.float32),
        np.zeros((count, 0), np.float32),
        np.zeros((count, 0), np.int64),
    )


def read_document(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """A detections.json: the document without its "info", and that."""
    document = json.loads(path.read_text(encoding="utf-8"))
    return document, document.pop("info")
