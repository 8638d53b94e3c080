"""Percentiles of the magnitudes of a model's tensors, over several runs.

The graph itself finds the largest numbers of each tensor, and gives Python no others. Onnxruntime's
calibrator takes all tensors out of the graph, and counts their numbers in histograms.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

SHARE = 1e-5
"""Share of the numbers that a percentile leaves out: one in 100,000."""

_PREFIX = "codetr_percentile"


@dataclass
class Percentile:
    """The largest numbers of a tensor in the runs so far.

    Attributes:
        numbers: how many the tensor has had.
        largest: magnitudes, among them all of which one may be the percentile.
        mean: NaN or infinity once a number was not finite.
    """

    numbers: int = 0
    largest: np.ndarray = field(default_factory=lambda: np.empty(0, np.float32))
    mean: float = 0.0

    def add(self, largest: np.ndarray, numbers: np.ndarray, mean: np.ndarray) -> None:
        """Adds a run: its largest magnitudes [K], the number of all, and their mean."""
        self.numbers += int(numbers)
        self.mean += float(mean)
        kept = max(len(self.largest), len(largest))
        merged = np.concatenate((self.largest, largest))
        self.largest = np.partition(merged, len(merged) - kept)[len(merged) - kept :]

    def value(self) -> float:
        """Returns the percentile; 0 without numbers, NaN or infinity if a number was not finite."""
        if not math.isfinite(self.mean) or not len(self.largest):
            return self.mean
        place = min(math.floor(SHARE * self.numbers), len(self.largest) - 1)
        return float(np.sort(self.largest)[::-1][place])


def add_percentiles(model: onnx.ModelProto, tensors: Iterable[str], runs: int) -> dict[str, list[str]]:
    """Lets a model tell the largest numbers of tensors, in place.

    Args:
        model: in float32, of opset 13 or later. Loses its outputs.
        tensors: names of floating tensors of its main graph.
        runs: their number. Each run tells as many numbers as the percentile of all runs may need.

    Returns:
        The names of three outputs for each tensor, the arguments of `Percentile.add`.
    """
    graph, outputs = model.graph, {}
    constants = {"share": np.float64(SHARE * runs), "one": np.int64(1), "row": np.array([-1], np.int64)}
    for name, number in constants.items():
        graph.initializer.append(numpy_helper.from_array(np.asarray(number), f"{_PREFIX}/{name}"))
    share, one, row = (f"{_PREFIX}/{name}" for name in constants)
    names = (f"{_PREFIX}/{number}" for number in itertools.count())

    def add(op_type: str, *inputs: str, results: int = 1, **attributes: object) -> str:
        made = list(itertools.islice(names, results))
        graph.node.append(helper.make_node(op_type, inputs, made, **attributes))
        return made[0]

    for name in tensors:
        numbers = add("Reshape", add("Abs", name), row)
        count = add("Size", numbers)
        left_out = add("Mul", add("Cast", count, to=TensorProto.DOUBLE), share)
        wanted = add("Add", add("Cast", left_out, to=TensorProto.INT64), one)
        most = add("Reshape", add("Min", wanted, count), row)
        largest = add("TopK", numbers, most, results=2, sorted=0)
        outputs[name] = [largest, count, add("ReduceMean", numbers, keepdims=0)]
    del graph.output[:]
    for output in itertools.chain(*outputs.values()):
        graph.output.append(onnx.ValueInfoProto(name=output))
    return outputs
