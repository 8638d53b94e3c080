"""Random inputs for a whole model: sizes for its dynamic dimensions, and numbers that a network expects."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

BATCHES = (2, 3)
HEIGHTS = (192, 256)
WIDTHS = (256, 320)
LENGTHS = (12, 9)
"""Sizes of dynamic dimensions at two attempts: of the first one, of the last two of three or more, of any
other."""


def input_shapes(model: ir.Model, attempt: int, batch: int | None = None) -> dict[str, tuple[int, ...]]:
    """Returns sizes for a model's inputs: dynamic dimensions get the defaults above, one size for each name.

    `attempt` is 0 or 1. `batch` replaces the default of the first dimension.
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
    sizes = {2: HEIGHTS, 1: WIDTHS} if rank >= 3 else {}
    return sizes.get(rank - axis, LENGTHS)[attempt]


def is_dynamic(model: ir.Model) -> bool:
    """Returns True if an input has a dimension without a fixed size."""
    return any(not isinstance(size, int) for value in _inputs(model) for size in value.shape or ())


def random_inputs(model: ir.Model, shapes: dict[str, tuple[int, ...]], seed: int) -> dict[str, np.ndarray]:
    """Draws random inputs.

    Floats are normal, as normalised images are; booleans are true. Whole numbers are 1 if the input's name
    contains "mask". An [N, 2] tensor beside an image holds its size. Others are 0 to 99, as token ids are.
    """
    random = np.random.default_rng(seed)
    image = next((shape for shape in shapes.values() if len(shape) == 4), None)
    inputs = {}
    for value in _inputs(model):
        shape, dtype = shapes[value.name], value.dtype
        if dtype == ir.DataType.BOOL:
            array = np.ones(shape, bool)
        elif dtype in (ir.DataType.INT64, ir.DataType.INT32, ir.DataType.INT8, ir.DataType.UINT8):
            if "mask" in value.name.lower():
                array = np.ones(shape)
            elif image is not None and len(shape) == 2 and shape[1] == 2:
                array = np.broadcast_to(image[2:], shape)
            else:
                array = random.integers(0, 100, shape)
        else:
            array = random.standard_normal(shape)
        inputs[value.name] = np.asarray(array).astype(dtype.numpy())
    return inputs


def _inputs(model: ir.Model) -> Sequence[ir.Value]:
    return [value for value in model.graph.inputs if not value.is_initializer()]
