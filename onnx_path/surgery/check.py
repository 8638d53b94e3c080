"""Random inputs for a whole model, and the comparison of two models on them."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir

from onnx_path import operator
from onnx_path.surgery import runtime, selections
from onnx_path.surgery.proof import TOLERANCE, relative_error, same_numbers
from onnx_path.surgery.protos import copied, replace_nodes

BATCHES = (2, 3)
HEIGHTS = (192, 256)
WIDTHS = (256, 320)
LENGTHS = (12, 9)
"""Sizes that dynamic dimensions get, at two tries: the first of a tensor; the third and fourth of a picture
[N, C, H, W]; any other."""

DISTURBANCE = 2.0**-20
"""Of an attention's result, at least: what the sum of some dozens of products differs by in another order."""

MAGNIFICATION = 4.0
"""How many times the response to a disturbance a rounding may be: both are one draw of many."""

LARGEST_ROUNDING = 0.05
"""Share of an output's largest number beyond which a rounding and a fault look alike."""

_PREFIX = "disturbed/"


class OutputsDiffer(ValueError):
    """The rewritten model gives other outputs."""


def input_shapes(model: ir.Model, attempt: int, batch: int | None = None) -> dict[str, tuple[int, ...]]:
    """Sizes for a model's inputs: fixed ones as they are, dynamic ones by the defaults above.

    Dimensions of one name get one size.

    Args:
        model: whose inputs.
        attempt: 0 or 1.
        batch: instead of the default.
    """
    named: dict[str, int] = {}
    shapes = {}
    for value in _inputs(model):
        shape = value.shape if value.shape is not None else ()
        sizes = []
        for axis, size in enumerate(shape):
            if not isinstance(size, int):
                default = _default(axis, len(shape), attempt, batch)
                size = named.setdefault(size.value, default) if size.value else default
            sizes.append(size)
        shapes[value.name] = tuple(sizes)
    return shapes


def _default(axis: int, rank: int, attempt: int, batch: int | None) -> int:
    if axis == 0:
        return batch or BATCHES[attempt]
    if rank >= 3 and axis == rank - 2:
        return HEIGHTS[attempt]
    if rank >= 3 and axis == rank - 1:
        return WIDTHS[attempt]
    return LENGTHS[attempt]


def is_dynamic(model: ir.Model) -> bool:
    """True if an input has a dimension without a fixed size."""
    return any(not isinstance(size, int) for value in _inputs(model) for size in value.shape or ())


def random_inputs(model: ir.Model, shapes: dict[str, tuple[int, ...]], seed: int) -> dict[str, np.ndarray]:
    """Random inputs: floats normal, as normalised pictures are, booleans true, whole numbers as they may be.

    Whole numbers: 1 where an input's name says mask; picture sizes where a vector of them or an [N, 2] comes
    with a picture; else 0 to 99, as token numbers are.

    Args:
        model: whose inputs.
        shapes: of the inputs.
        seed: of the numbers.
    """
    random = np.random.default_rng(seed)
    picture = next((shape for shape in shapes.values() if len(shape) == 4), None)
    inputs = {}
    for value in _inputs(model):
        shape, dtype = shapes[value.name], value.dtype
        if dtype == ir.DataType.BOOL:
            array = np.ones(shape, bool)
        elif dtype in (ir.DataType.INT64, ir.DataType.INT32, ir.DataType.INT8, ir.DataType.UINT8):
            if "mask" in value.name.lower():
                array = np.ones(shape)
            elif picture is not None and len(shape) == 2 and shape[1] == 2:
                array = np.broadcast_to(picture[2:], shape)
            else:
                array = random.integers(0, 100, shape)
        else:
            array = random.standard_normal(shape)
        inputs[value.name] = np.asarray(array).astype(dtype.numpy())
    return inputs


def _inputs(model: ir.Model) -> Sequence[ir.Value]:
    return [value for value in model.graph.inputs if not value.is_initializer()]


@dataclass(frozen=True)
class Comparison:
    """Two models whose outputs are the same.

    Attributes:
        error: the largest relative difference.
        stand_in: whether GridSample nodes ran in float32 in place of float64.
        notes: of outputs that differ by more than `TOLERANCE` and no more than roundings explain.
    """

    error: float
    stand_in: bool
    notes: tuple[str, ...]


def compare(
    before: onnx.ModelProto,
    after: onnx.ModelProto,
    inputs: Sequence[dict[str, np.ndarray]],
    folder: Path | None,
    disturbance: float = DISTURBANCE,
) -> Comparison:
    """Runs both models in onnxruntime and compares every output.

    Two right attentions round otherwise, and a deep network can magnify that (one with random weights does,
    a hundred thousand times in some rows). So an output that differs by more than `TOLERANCE` is held against
    what becomes of a disturbance of the rewritten model's attentions in their last digits: up to
    `MAGNIFICATION` times as much is a rounding, unless it is so large that it could hide a fault.

    A selection between nearly equal scores magnifies without bound. If outputs differ, the rewritten model
    runs once more with the original's selections, and what they are made from is compared as well.

    Args:
        before, after: the models.
        inputs: one set for every comparison.
        folder: of weights outside the models.
        disturbance: share of its result that an attention may be off by.

    Raises:
        OutputsDiffer: naming the first output that differs.
        runtime.CannotRun: onnxruntime cannot run one of the models.
    """
    names = [output.name for output in before.graph.output]
    expected, stand_in = _run(before, inputs, folder)
    try:
        worst, notes = _judge(names, expected, after, inputs, folder, disturbance)
    except OutputsDiffer:
        selected = selections.common(before, after)
        if not selected:
            raise
        results, _ = _run(selections.telling(before, selected), inputs, folder)
        kept = len(names) + len(selected)
        expected = [one[:kept] for one in results]
        told = [
            tensors | dict(zip(map(selections.choice_name, selected), one[kept:], strict=True))
            for tensors, one in zip(inputs, results, strict=True)
        ]
        names += [f"{name}'s scores" for name in selected]
        after = selections.told(after, selected)
        worst, notes = _judge(names, expected, after, told, folder, disturbance)
        notes.append(
            "scores that are equal, or as large as a threshold, but for their last digits are selected "
            f"otherwise; outputs were compared with the original's selections: {', '.join(selected)}"
        )
    return Comparison(worst, stand_in and math.isfinite(worst), tuple(notes))


def _run(
    model: onnx.ModelProto, inputs: Sequence[dict[str, np.ndarray]], folder: Path | None
) -> tuple[list[list[np.ndarray]], bool]:
    """All outputs for every set of inputs, and whether GridSample nodes ran in float32.

    The model is in memory only meanwhile.
    """
    session = runtime.Session(model, folder)
    return [session.run(tensors) for tensors in inputs], session.stand_in


def _judge(
    names: Sequence[str],
    expected: Sequence[Sequence[np.ndarray]],
    after: onnx.ModelProto,
    inputs: Sequence[dict[str, np.ndarray]],
    folder: Path | None,
    disturbance: float,
) -> tuple[float, list[str]]:
    """Whether a model's outputs are the expected ones, or as different as roundings make them.

    Args:
        names: of the outputs.
        expected: the outputs for every set of inputs.
        after: the model, which is run, and once more disturbed if need be.
        inputs, folder, disturbance: as `compare`.

    Returns:
        The largest relative difference, and notes on roundings.

    Raises:
        OutputsDiffer: naming the first output that differs.
    """
    actual, _ = _run(after, inputs, folder)

    @functools.cache
    def disturbed_outputs() -> list[list[np.ndarray]]:
        return _run(disturbed(after, disturbance), inputs, folder)[0]

    worst = 0.0
    notes = {}
    for number, (one, other) in enumerate(zip(expected, actual, strict=True)):
        for index, (name, a, b) in enumerate(zip(names, one, other, strict=True)):
            if a.shape != b.shape:
                raise OutputsDiffer(f"output {name}: shape {list(a.shape)} before, {list(b.shape)} after")
            error = relative_error(a, b)
            if not error <= TOLERANCE:
                response = relative_error(b, disturbed_outputs()[number][index])
                if not error <= min(MAGNIFICATION * response, LARGEST_ROUNDING):
                    raise OutputsDiffer(_difference(name, a, b, error))
                notes[name] = (
                    f"output {name} differs by {error:.1e} of its largest number, a rounding: the model "
                    f"magnifies {disturbance:.0e} of its attentions' results to {response:.1e}"
                )
            worst = max(worst, error)
    return worst, list(notes.values())


def _difference(name: str, before: np.ndarray, after: np.ndarray, error: float) -> str:
    with np.errstate(invalid="ignore"):  # of equal infinities
        distance = np.where(same_numbers(before, after), 0, np.abs(before.astype(float) - after))
    place = np.argmax(distance) if before.size else 0
    where = np.unravel_index(int(place), before.shape) if before.size else ()
    return (
        f"output {name}: differs by {error:.2g} of its largest number (allowed {TOLERANCE:.0e}), "
        f"most at {[int(i) for i in where]}: {before[where]:.6g} before, {after[where]:.6g} after"
    )


def disturbed(model: onnx.ModelProto, disturbance: float = DISTURBANCE) -> onnx.ModelProto:
    """A copy in which every attention's result is x (1 + d sin(k x)): off in the last digits, each number
    by another share of up to d, and by the same in every run.

    Args:
        model: with the nodes that surgery writes.
        disturbance: d.
    """
    copy = copied(model)
    constants = {"share": disturbance, "frequency": 1e4}
    for name, number in constants.items():
        copy.graph.initializer.append(onnx.numpy_helper.from_array(np.float32(number), f"{_PREFIX}{name}"))
    make = onnx.helper.make_node
    nodes = []
    for node in copy.graph.node:
        nodes.append(node)
        if node.domain not in (operator.DOMAIN, operator.NVIDIA_DOMAIN):
            continue
        result = node.output[0]
        exact, phase, wave, small, change, share, frequency = (
            f"{_PREFIX}{result}/{part}"
            for part in ("exact", "phase", "wave", "small", "change", "share", "frequency")
        )
        node.output[0] = exact
        nodes += [
            make("CastLike", [f"{_PREFIX}share", exact], [share]),
            make("CastLike", [f"{_PREFIX}frequency", exact], [frequency]),
            make("Mul", [exact, frequency], [phase]),
            make("Sin", [phase], [wave]),
            make("Mul", [wave, share], [small]),
            make("Mul", [small, exact], [change]),
            make("Add", [exact, change], [result]),
        ]
    replace_nodes(copy.graph, nodes)
    return copy
