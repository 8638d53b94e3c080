"""The cells of a sweep: every combination of network, runtime, precision, batch size and shapes."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

from codetr.detector.sizes import SizeRange, fixed
from onnx_path.sweeping.networks import Network
from trt_plugin.metadata import EightBits

Runtime = Literal["torch", "torch-compile", "onnxruntime", "tensorrt"]
Shapes = Literal["static", "dynamic"]

_NO_FILE = {"onnx": "an ONNX file", "engine": "an engine"}


@dataclasses.dataclass(frozen=True)
class Cell:
    """A row of the table.

    Attributes:
        network: name of the network.
        shapes: "static" or "dynamic" for TensorRT; "any" for runtimes that take all batch sizes.
        reason: why it cannot exist; None for a cell to measure.
    """

    network: str
    runtime: str
    precision: str
    batch: int
    shapes: str
    reason: str | None = None

    @property
    def id(self) -> str:
        """A name for files, such as "resnet18-tensorrt-int8-b32-static"."""
        parts = (self.network, self.runtime, self.precision, f"b{self.batch}", self.shapes)
        return "-".join(part.replace("/", "_") for part in parts)


class MissingCell(RuntimeError):
    """A cell cannot exist, as its files show; the message is the reason."""


@dataclasses.dataclass(frozen=True)
class CellSpec:
    """Everything that a cell's process needs; its hash tells whether a finished cell is still valid.

    Attributes:
        network, cell: what to measure.
        folder: files of all networks.
        dataset: images to evaluate; None: no accuracy, random inputs.
        calibration: images that ranges are measured on; None: random inputs.
        calibration_images: number of these images.
        compare: number of inputs whose outputs are compared; 0: none.
        rtol, atol: tolerances of equal numbers.
        iterations, seconds: samples of a latency, and limit of their time.
        largest, best: batch sizes of dynamic engines.
        limit: number of images to evaluate; None: all.
        dataset_key, calibration_key: change with the files of these folders.
    """

    network: Network
    cell: Cell
    folder: str
    dataset: str | None = None
    calibration: str | None = None
    calibration_images: int = 64
    compare: int = 0
    rtol: float = 1e-3
    atol: float = 1e-8
    iterations: int = 100
    seconds: float = 5.0
    largest: int = 1
    best: int = 1
    limit: int | None = None
    dataset_key: str | None = None
    calibration_key: str | None = None

    @property
    def files(self) -> Path:
        """Folder of the network's files."""
        return Path(self.folder) / self.network.folder

    @property
    def batches(self) -> SizeRange:
        """Batch sizes of the cell's file."""
        static = self.cell.shapes == "static"
        return fixed(self.cell.batch) if static else SizeRange(1, self.best, self.largest)

    def as_dict(self) -> dict:
        """Returns the fields for JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def of_dict(cls, content: Mapping[str, Any]) -> CellSpec:
        """Reads `as_dict`'s result."""
        network = dict(content["network"])
        network["size"] = None if network["size"] is None else tuple(network["size"])
        return cls(**{**content, "network": Network(**network), "cell": Cell(**content["cell"])})


def plan(
    networks: Sequence[Network],
    runtimes: Sequence[str],
    precisions: Sequence[str],
    batches: Sequence[int],
    shapes: Sequence[str],
    has_gpu: bool,
) -> list[Cell]:
    """Lists the cells, those of a network together, the ones that cannot exist with their reason."""
    cells = []
    for network, runtime, precision in itertools.product(networks, runtimes, precisions):
        forms = shapes if runtime == "tensorrt" else ("any",)
        for form, batch in itertools.product(forms, batches):
            reason = missing(network, runtime, precision, batch, form, has_gpu)
            cells.append(Cell(network.name, runtime, precision, batch, form, reason))
    return cells


def missing(
    network: Network, runtime: str, precision: str, batch: int, shapes: str, has_gpu: bool
) -> str | None:
    """Returns why a cell cannot exist, or None."""
    wide = (network.source, network.precision) == ("onnx", None)
    reasons = {
        "TensorRT needs an NVIDIA GPU": runtime == "tensorrt" and not has_gpu,
        f"PyTorch has no module for {_NO_FILE.get(network.source)}": (
            runtime.startswith("torch") and network.source in _NO_FILE
        ),
        "an engine runs in TensorRT": network.source == "engine" and runtime != "tensorrt",
        f"PyTorch runs no {precision}": runtime.startswith("torch") and precision in get_args(EightBits),
        "TF32 is arithmetic of NVIDIA GPUs": precision == "tf32" and not has_gpu,
        "onnxruntime has no switch to TF32 for all its kernels": (
            precision == "tf32" and runtime == "onnxruntime"
        ),
        "onnxruntime lacks most kernels in bfloat16": precision == "bf16" and runtime == "onnxruntime",
        f"codetr quantize makes an {precision} file of this one": wide and precision in get_args(EightBits),
        "onnxruntime runs the file in its own fp32": (
            wide and runtime == "onnxruntime" and precision != "fp32"
        ),
        f"the file has batch {network.batch}": network.batch is not None and batch != network.batch,
        "the file has a static batch size": network.batch is not None and shapes == "dynamic",
        f"the file is in {network.precision}": network.precision not in (None, precision),
    }
    return next((reason for reason, holds in reasons.items() if holds), None)
