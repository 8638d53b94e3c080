"""The C++ program `codetr_detect` for tests: where it is, and a run of it on given outputs of a network."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from codetr.detector.detector import Detector
from codetr.detector.preprocess import Batch, Preprocessor
from codetr.detector.sizes import InputSizes, Range, fixed
from codetr.results import Detections, coco_document

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


class Input(NamedTuple):
    """What a network got for a picture."""

    image: np.ndarray  # [3, H, W]
    image_shape: np.ndarray  # [2]
    batch: int  # N


@dataclasses.dataclass
class Network:
    """A network that gives the same outputs to the program and to Python's detector.

    Attributes:
        height, width: of its input; a range if they are dynamic.
        outputs: for each picture that it sees, in order.
        batch: how many pictures it takes.
        scale: limits of a picture's longer and shorter side, in the metadata; None for none.
        chosen: max_size, height and width that the detector is given.
        inputs: of each picture that Python's detector gave it, after `detect`.
    """

    height: int | Range
    width: int | Range
    outputs: Outputs
    class_names: Sequence[str] = ("cup", "spoon", "bowl")
    nms: Mapping[str, Any] | None = dataclasses.field(
        default_factory=lambda: {"method": "soft", "iou_threshold": 0.8}
    )
    mean: Sequence[float] = (123.675, 116.28, 103.53)
    std: Sequence[float] = (58.395, 57.12, 57.375)

    batch: int | Range = 1
    scale: Sequence[int] | None = None
    chosen: Mapping[str, int] = dataclasses.field(default_factory=dict)
    inputs: list[Input] = dataclasses.field(default_factory=list)

    # As codetr.detector.detector.Backend.
    description = "net, TensorRT 10.6.0, none, fp32"

    @property
    def preprocessor(self) -> Preprocessor:
        return Preprocessor.of_artifact(SimpleNamespace(**self.metadata()), **self.chosen)

    @property
    def sizes(self) -> InputSizes:
        return InputSizes(
            *(fixed(x) if isinstance(x, int) else x for x in (self.batch, self.height, self.width))
        )

    def __call__(self, images: np.ndarray, image_shapes: np.ndarray) -> Outputs:
        # What is beyond the pictures repeats the last.
        rows = np.minimum(len(self.inputs) + np.arange(len(images)), len(self.outputs[0]) - 1)
        self.inputs += (Input(*pair, len(images)) for pair in zip(images, image_shapes, strict=True))
        return tuple(output[rows] for output in self.outputs)

    def metadata(self) -> dict[str, Any]:
        """Of an engine that has this network."""
        rows = self.outputs[1].shape[1]
        shapes, count = self.sizes.shapes(), -1 if self.sizes.batch.dynamic else self.sizes.batch.opt
        return {
            "format": 1,
            "model": "net",
            "inputs": [
                {"name": "images", "shape": shapes["images"], "dtype": "float32"},
                {"name": "image_shapes", "shape": shapes["image_shapes"], "dtype": "int64"},
            ],
            "outputs": [
                {"name": "boxes", "shape": [count, rows, 4], "dtype": "float32"},
                {"name": "scores", "shape": [count, rows], "dtype": "float32"},
                {"name": "labels", "shape": [count, rows], "dtype": "int64"},
            ],
            "class_names": list(self.class_names),
            "mean": list(self.mean),
            "std": list(self.std),
            "resize": {
                "height": self.sizes.height.opt,
                "width": self.sizes.width.opt,
                "mode": "fit_pad",
                **({} if self.scale is None else {"scale": list(self.scale)}),
            },
            "profiles": self.sizes.profiles(),
            "max_per_img": max(1, rows),
            "nms": dict(self.nms or {"method": "hard", "iou_threshold": 0.8}),
            "nms_in_graph": self.nms is None,
            "precision": "fp32",
            "batch": self.sizes.batch.opt,
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
        chosen = [f"--{name.replace('_', '-')}={size}" for name, size in self.chosen.items()]
        return ["--engine", folder / "net.engine", "--replay", folder, *chosen]

    def detect(
        self, images: Sequence[np.ndarray], batch: int | None = None, **options: Any
    ) -> list[Detections]:
        """What Python's detector makes of the same outputs.

        Args:
            images: the pictures.
            batch: how many are padded to one size; default: as the program's.
        """
        together = batch or (1 if self.sizes.dynamic else self.sizes.batch.opt)
        detector, found = Detector(backend=self), []
        self.inputs = []
        for start in range(0, len(images), together):
            found += detector.detect_batch(images[start : start + together], **options)
            del self.inputs[len(found) :]  # those that fill up the last run
        return found

    def expected(self, names: Sequence[str], images: Sequence[np.ndarray], **options: Any) -> dict[str, Any]:
        """The document that Python's detector makes of the same outputs, without its "info"."""
        found = self.detect(list(images), **options)
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
