"""Measures how much each group of layers in 8 bits changes a model's results, and leaves the worst out."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
import onnx

from onnx_path.quantization.calibration_data import CalibrationData
from onnx_path.quantization.quantizer import Layer, Quantizer
from onnx_path.surgery.graph.onnx_session import Session
from onnx_path.surgery.verify import selections

if TYPE_CHECKING:
    from codetr.dataset.coco_files import CocoDataset


class Drop(Protocol):
    """Measures how much worse than the original's a quantised model's results are.

    Attributes:
        measure: the measure in words.
    """

    measure: str

    def __call__(self, model: onnx.ModelProto) -> float: ...


@dataclass(frozen=True)
class GroupDrop:
    """A group of layers and the drop when it alone becomes 8 bits.

    Attributes:
        group: block and kind of its layers.
        layers: names of its layers.
        drop: AP, or the mean relative difference of the outputs.
    """

    group: str
    layers: tuple[str, ...]
    drop: float


class OutputDrop:
    """Mean relative difference of a model's floating outputs from the original's.

    A relative difference is the norm of the difference over the norm of the original output. Both models
    select the same: TopK and thresholds of the quantised one get the choices of the original.
    """

    measure = "mean relative difference of the outputs"

    def __init__(
        self, model: onnx.ModelProto, folder: Path, data: CalibrationData, providers: Sequence[str]
    ) -> None:
        self._selections, self._providers = selections.of(model), providers
        self._count = len(model.graph.output)
        choices = [selections.choice_name(name) for name in self._selections]
        session = Session(selections.telling(model, self._selections), folder, providers)
        self._runs = []
        for sample in data:
            outputs = session.run(sample)
            told = dict(zip(choices, outputs[len(outputs) - len(choices) :], strict=True))
            self._runs.append(({**sample, **told}, outputs[: self._count]))

    def __call__(self, model: onnx.ModelProto) -> float:
        session = Session(selections.told(model, self._selections), providers=self._providers)
        errors = []
        for inputs, expected in self._runs:
            found = session.run(inputs)
            for one, other in zip(expected, found[: self._count], strict=True):
                if np.issubdtype(one.dtype, np.floating):
                    errors.append(_relative_difference(one, other))
        return float(np.mean(errors))


class PrecisionDrop:
    """Drop of COCO's AP of one of our detectors, on a dataset.

    Attributes:
        original: AP of the original file.
    """

    measure = "drop of AP"

    def __init__(self, file: Path, dataset: CocoDataset, device: str) -> None:
        self._metadata, self._dataset, self._device = file.with_suffix(".json"), dataset, device
        self.original = self._evaluate(file)

    def __call__(self, model: onnx.ModelProto) -> float:
        with tempfile.TemporaryDirectory(prefix="codetr-sensitivity-") as folder:
            file = Path(folder) / "model.onnx"
            onnx.save(model, file)
            shutil.copy(self._metadata, file.with_suffix(".json"))
            return self.original - self._evaluate(file)

    def _evaluate(self, file: Path) -> float:
        from codetr.detector.detector import Detector
        from codetr.detector.onnxruntime_backend import OnnxRuntimeBackend
        from codetr.evaluation import evaluate

        with Detector(backend=OnnxRuntimeBackend(file, device=self._device).load()) as detector:
            return evaluate(detector, self._dataset).ap


def measure_groups(
    quantizer: Quantizer,
    layers: Sequence[Layer],
    drop: Drop,
    advance: Callable[[int], None],
) -> list[GroupDrop]:
    """Measures the drop of each group alone, the largest first. `advance` is called with 1 after each."""
    groups: dict[str, list[Layer]] = {}
    for layer in layers:
        groups.setdefault(layer.group, []).append(layer)
    drops = []
    for name, its in groups.items():
        found = drop(quantizer.quantize(its))
        drops.append(GroupDrop(name, tuple(layer.name for layer in its), found))
        advance(1)
    return sorted(drops, key=lambda group: -group.drop)


def leave_out(
    quantizer: Quantizer,
    layers: Sequence[Layer],
    drop: Drop,
    groups: Sequence[GroupDrop],
    budget: float | None,
) -> tuple[list[Layer], list[GroupDrop], float]:
    """Leaves as few groups in 16 bits as the budget allows, the worst first.

    The number of groups is found by halving, since each trial evaluates the model.

    Args:
        quantizer: the model.
        layers: the layers to quantise.
        drop: the measure.
        groups: result of `measure_groups`.
        budget: largest drop; None for any.

    Returns:
        (layers that become 8 bits, groups left out, drop of that model).
    """

    def trial(count: int) -> tuple[list[Layer], float]:
        names = {group.group for group in groups[:count]}
        chosen = [layer for layer in layers if layer.group not in names]
        return chosen, drop(quantizer.quantize(chosen)) if chosen else 0.0

    chosen, found = trial(0)
    if budget is None or found <= budget:
        return chosen, [], found
    least, most, best = 0, len(groups), ([], 0.0)  # `least` groups are too few, `most` are enough
    while most - least > 1:
        middle = (least + most) // 2
        attempt = trial(middle)
        if attempt[1] <= budget:
            most, best = middle, attempt
        else:
            least = middle
    return best[0], list(groups[:most]), best[1]


def plot(groups: Sequence[GroupDrop], measure: str, path: Path) -> None:
    """Draws a bar for each group, in the order of the model's blocks."""
    from matplotlib.figure import Figure

    ordered = sorted(
        groups,
        key=lambda group: [int(x) if x.isdecimal() else x for x in group.group.replace(",", "").split()],
    )
    figure = Figure(figsize=(8, 1 + 0.22 * len(ordered)), layout="constrained")
    axes = figure.add_subplot()
    axes.barh([group.group for group in ordered], [group.drop for group in ordered], color="#76b900")
    axes.invert_yaxis()
    axes.margins(y=0.01)
    axes.set_xlabel(measure)
    axes.grid(axis="x", alpha=0.3)
    figure.savefig(path, dpi=120)


def _relative_difference(expected: np.ndarray, found: np.ndarray) -> float:
    finite = np.isfinite(expected)
    norm = np.linalg.norm(expected[finite].astype(np.float64))
    difference = np.linalg.norm((found[finite] - expected[finite]).astype(np.float64))
    return float(difference / norm) if norm else float(difference)
