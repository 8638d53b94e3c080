"""Random inputs for a whole model, and the comparison of two models on them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir

from onnx_path.surgery import runtime
from onnx_path.surgery.proof import TOLERANCE, relative_error

BATCHES = (2, 3)
HEIGHTS = (192, 256)
WIDTHS = (256, 320)
LENGTHS = (12, 9)
"""Sizes that dynamic dimensions get, at two tries: the first of a tensor; the third and fourth of a picture
[N, C, H, W]; any other."""


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


def compare(
    before: onnx.ModelProto,
    after: onnx.ModelProto,
    inputs: Sequence[dict[str, np.ndarray]],
    folder: Path | None,
) -> tuple[float, bool]:
    """Runs both models in onnxruntime and compares every output.

    Args:
        before, after: the models.
        inputs: one set for every comparison.
        folder: of weights outside the models.

    Returns:
        The largest relative difference, and whether GridSample nodes ran in float32 in place of float64.

    Raises:
        OutputsDiffer: naming the first output that differs.
        runtime.CannotRun: onnxruntime cannot run one of the models.
    """
    names = [output.name for output in before.graph.output]
    results = []
    for model in (before, after):  # one after the other: only one is in memory
        session = runtime.Session(model, folder)
        results.append(([session.run(tensors) for tensors in inputs], session.stand_in))
    (expected, stand_in), (actual, _) = results
    worst = 0.0
    for one, other in zip(expected, actual):
        for name, a, b in zip(names, one, other, strict=True):
            if a.shape != b.shape:
                raise OutputsDiffer(f"output {name}: shape {list(a.shape)} before, {list(b.shape)} after")
            error = relative_error(a, b)
            if not error <= TOLERANCE:
                where = (
                    np.unravel_index(int(np.argmax(np.abs(a.astype(float) - b))), a.shape) if a.size else ()
                )
                raise OutputsDiffer(
                    f"output {name}: differs by {error:.2g} of its largest number (allowed {TOLERANCE:.0e}), "
                    f"most at {[int(i) for i in where]}: {a[where]:.6g} before, {b[where]:.6g} after"
                )
            worst = max(worst, error)
    return worst, stand_in and math.isfinite(worst)
