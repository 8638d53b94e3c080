"""The C++ program `codetr_detect` for tests: where it is, and a network that gives it recorded outputs."""

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
import pytest

from codetr.detector.detector import Detector
from codetr.detector.preprocess import Preprocessor
from codetr.detector.sizes import ChosenSize, InputSizes, SizeRange, fixed
from codetr.results import Detections, coco_document

ROOT = Path(__file__).resolve().parents[2]
COFFEE = ROOT / "codetr/demo/coffee.jpg"
SCENES = sorted(ROOT.glob("tests/scenes/val/*.jpg"))
Outputs = tuple[np.ndarray, np.ndarray, np.ndarray]
"""boxes [N, K, 4] float32, scores [N, K] float32, labels [N, K] int64 of N pictures."""


def find_program(name: str = "codetr_detect") -> Path | None:
    """Returns $CODETR_DETECT (or $CODETR_DETECT_TORCH), or the program that `make build` builds."""
    path = Path(os.environ.get(name.upper()) or ROOT / "trt_plugin" / name)
    return path if path.is_file() else None


needs_program = pytest.mark.skipif(
    find_program() is None,
    reason="codetr_detect is not built: it needs TensorRT, CUDA, OpenCV, CLI11 and nlohmann_json",
)


def run(
    *arguments: object, program: str = "codetr_detect", status: int = 0
) -> subprocess.CompletedProcess[str]:
    """Runs the program, which has to end with `status`."""
    command = [str(find_program(program)), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == status, done.stdout + done.stderr
    return done


def refused(*arguments: object, status: int = 2, **options: Any) -> str:
    """Runs the program, which has to end with one line. Returns it, without the program's name.

    OpenCV's decoders and TensorRT may print lines before.
    """
    *_, line = run(*arguments, status=status, **options).stderr.splitlines()
    name, _, message = line.partition(": error: ")
    assert name == options.get("program", "codetr_detect"), line
    return message


class NetworkRun(NamedTuple):
    """One run of the network: images [N, 3, H, W], image_shapes [N, 2] and outputs."""

    images: np.ndarray
    image_shapes: np.ndarray
    outputs: Outputs


@dataclasses.dataclass
class Network:
    """Gives the same outputs to the program and to Python's detector; a `codetr.detector.backend.Backend`.

    Attributes:
        height, width, batch: of its input; a range if they are dynamic.
        outputs: for each picture in order; by default nothing, for up to 40 pictures.
        scale: limits of a picture's longer and shorter side, in the metadata; None for none.
        chosen: max_size, height and width that the detector is given.
        runs: by Python's detector, after `detect`.
        done: pictures that Python's detector has given to the network.
    """

    height: int | SizeRange
    width: int | SizeRange
    outputs: Outputs = (
        np.zeros((40, 0, 4), np.float32),
        np.zeros((40, 0), np.float32),
        np.zeros((40, 0), np.int64),
    )
    class_names: Sequence[str] = ("cup", "spoon", "bowl")
    nms: Mapping[str, Any] | None = dataclasses.field(
        default_factory=lambda: {"method": "soft", "iou_threshold": 0.8}
    )
    mean: Sequence[float] = (123.675, 116.28, 103.53)
    std: Sequence[float] = (58.395, 57.12, 57.375)
    batch: int | SizeRange = 1
    scale: Sequence[int] | None = None
    chosen: Mapping[str, int] = dataclasses.field(default_factory=dict)
    runs: list[NetworkRun] = dataclasses.field(default_factory=list)
    done: int = 0

    description = "net, TensorRT 10.6.0, none, fp32"

    @property
    def preprocessor(self) -> Preprocessor:
        return Preprocessor.of_artifact(SimpleNamespace(**self.metadata()), ChosenSize(**self.chosen))

    @property
    def sizes(self) -> InputSizes:
        return InputSizes(
            *(fixed(x) if isinstance(x, int) else x for x in (self.batch, self.height, self.width))
        )

    def __call__(self, images: np.ndarray, image_shapes: np.ndarray) -> Outputs:
        # Rows after the last picture repeat it.
        rows = np.minimum(self.done + np.arange(len(images)), len(self.outputs[0]) - 1)
        outputs = tuple(output[rows] for output in self.outputs)
        self.runs.append(NetworkRun(images.copy(), image_shapes.copy(), outputs))
        self.done += len(images)
        return outputs

    def metadata(self) -> dict[str, Any]:
        """Returns the metadata of an engine with this network."""
        resize = {"height": self.sizes.height.opt, "width": self.sizes.width.opt, "mode": "fit_pad"}
        return {
            "format": 1,
            "model": "net",
            "inputs": [{"name": name, "shape": shape} for name, shape in self.sizes.shapes().items()],
            "outputs": [],
            "class_names": list(self.class_names),
            "mean": list(self.mean),
            "std": list(self.std),
            "resize": resize if self.scale is None else {**resize, "scale": list(self.scale)},
            "profiles": self.sizes.profiles(),
            "nms": dict(self.nms or {"method": "hard", "iou_threshold": 0.8}),
            "nms_in_graph": self.nms is None,
            "precision": "fp32",
            "batch": self.sizes.batch.opt,
            "tensorrt_version": "10.6.0",
            "gpu": "none",
        }

    def save(self, folder: Path) -> list[object]:
        """Writes metadata and outputs. Returns the program's options that use them.

        The outputs are those of the runs of `detect`, which comes first, or one picture a run.
        """
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "net.json").write_text(json.dumps(self.metadata()), encoding="utf-8")
        single = (tuple(output[i : i + 1] for output in self.outputs) for i in range(len(self.outputs[0])))
        for index, outputs in enumerate([run.outputs for run in self.runs] or single):
            for name, output in zip(("boxes", "scores", "labels"), outputs, strict=True):
                np.save(folder / f"{name}_{index}.npy", output)
        return ["--engine", folder / "net.engine", "--replay", folder, *options_of(self.chosen)]

    def detect(
        self, images: Sequence[np.ndarray], batch: int | None = None, **options: Any
    ) -> list[Detections]:
        """Runs Python's detector on the same outputs.

        Args:
            images: the pictures.
            batch: how many are padded to one size; default: as the program's.
        """
        together = batch or (1 if self.sizes.dynamic else self.sizes.batch.opt)
        detector, found = Detector(backend=self), []
        self.runs = []
        for start in range(0, len(images), together):
            self.done = start  # rows after the last picture of a run do not count
            found += detector.detect_batch(images[start : start + together], **options)
        return found

    def expected(self, names: Sequence[str], images: Sequence[np.ndarray], **options: Any) -> dict[str, Any]:
        """Returns the document of Python's detector on the same outputs, without its "info"."""
        found = self.detect(list(images), **options)
        document = coco_document(list(zip(names, found, strict=True)), self.class_names)
        return {name: value for name, value in json.loads(json.dumps(document)).items() if name != "info"}


def options_of(arguments: Mapping[str, Any]) -> list[str]:
    """Turns {"nms_iou": 0.5} into ["--nms-iou=0.5"]; leaves out None."""
    return [f"--{name.replace('_', '-')}={value}" for name, value in arguments.items() if value is not None]


def read_document(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Reads a detections.json: the document without its "info", and the "info"."""
    document = json.loads(path.read_text(encoding="utf-8"))
    return document, document.pop("info")


def crowd(count: int, rng: np.random.Generator) -> Outputs:
    """Draws boxes, scores and labels of a picture with many overlaps, some with an IoU of exactly 1/2.

    Some boxes are outside of the picture, upside down, non-finite or padding, and some scores are equal.
    """
    places = rng.choice([0.0, 20.0, 45.0], (count, 2))
    starts = places + rng.choice([0.0, 0.0, 1.0, 3.3, -30.0], (count, 2))
    ends = places + rng.choice([20.0, 40.0, 16.0, 21.7, 200.0, -5.0], (count, 2))
    boxes = np.concatenate([starts, ends], axis=1).astype(np.float32)
    scores = rng.choice([0.9, 0.5, 0.25, 0.003, 0.001], count) * rng.choice([1.0, rng.random()], count)
    labels = rng.choice([0, 0, 1, 2, -1], count)
    boxes[rng.random((count, 4)) < 0.02] = rng.choice([np.nan, np.inf, -np.inf])
    scores[rng.random(count) < 0.03] = np.nan
    return boxes, scores.astype(np.float32), labels.astype(np.int64)
