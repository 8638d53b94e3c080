"""Proof by numbers: a part of the graph, and what shall replace it, run on the same random tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import onnx_ir as ir

from onnx_path.surgery.graph.probe import Probe

TOLERANCE = 1e-5
"""Largest difference of two results, as a share of the original's largest number; both compute in float32."""

LARGEST_ROUNDING = 1e-4
"""The same where the last digits of coordinates alone cause more than `TOLERANCE`, as on wide levels."""

COORDINATES = ("locations", "points")
"""Kinds of tensors that hold coordinates, see `random_tensor`."""

_CACHED = 2**16  # so many numbers, and what is computed from them, lie in a processor's cache

Tensors = Mapping[ir.Value, np.ndarray]


class Disagreement(ValueError):
    """The replacement gives other numbers than the original."""


def prove(
    probe: Probe,
    end: ir.Value,
    kinds: Mapping[ir.Value, str],
    replacement: Callable[[Tensors], np.ndarray],
    seed: int,
) -> float:
    """Runs a part of the graph and its replacement at a probe's sizes.

    The two round coordinates at different places. On a level of hundreds of cells, float32 leaves few digits
    within a cell. Therefore a difference beyond `TOLERANCE` is compared with the effect of moving the
    original's coordinates by their last digit: the replacement is wrong if it differs by more.

    Args:
        end: the tensor that the replacement shall equal.
        kinds: the tensors that the replacement reads, and the kind of their numbers, see `random_tensor`.
        replacement: computes `end` from these tensors.

    Returns:
        The largest relative difference.

    Raises:
        Disagreement: with the difference.
        partial_models.NotClosed: `end` depends on more than these tensors.
        onnx_session.CannotRun: onnxruntime cannot run one of the two.
    """
    random = np.random.default_rng(seed)
    tensors = {x: random_tensor(random, kind, probe.shape(x), x.dtype) for x, kind in kinds.items()}
    expected, actual = probe.run(tensors, end), replacement(tensors)
    if expected.shape != actual.shape:
        raise Disagreement(
            f"its result has shape {list(expected.shape)}, the operator's {list(actual.shape)}"
        )
    error, allowed = relative_error(expected, actual), TOLERANCE
    if not error <= TOLERANCE:
        moved = {x: _next_numbers(random, tensors[x]) for x, kind in kinds.items() if kind in COORDINATES}
        allowed = min(relative_error(expected, probe.run(tensors | moved, end)), LARGEST_ROUNDING)
    if not error <= allowed:
        raise Disagreement(f"the operator's numbers differ by {error:.2g} of the largest")
    return error


def relative_error(expected: np.ndarray, actual: np.ndarray) -> float:
    """Returns the largest difference as a share of the largest expected number.

    Equal infinities and NaN in the same place are no difference.
    """
    expected, actual = expected.reshape(-1), actual.reshape(-1)
    difference, largest = 0.0, 1e-30
    for start in range(0, expected.size, _CACHED):
        a, b = (x[start : start + _CACHED].astype(np.float64) for x in (expected, actual))
        if not (np.isfinite(a).all() and np.isfinite(b).all()):
            finite, same = np.isfinite(a), same_numbers(a, b)
            if not (np.isfinite(b) | same).all() or not (finite | same).all():
                return float("inf")
            a, b = a[finite], b[finite]
        difference = np.abs(a - b).max(initial=difference)
        largest = np.abs(a).max(initial=largest)
    return float(difference / largest)


def same_numbers(expected: np.ndarray, actual: np.ndarray) -> np.ndarray:
    """Returns where two arrays are equal, NaN to NaN."""
    return (expected == actual) | (np.isnan(expected) & np.isnan(actual))


def random_tensor(
    random: np.random.Generator, kind: str, shape: tuple[int, ...], dtype: ir.DataType
) -> np.ndarray:
    """Draws a tensor.

    Kinds: "normal"; "weights" (0 to 1); "locations" (-0.3 to 1.3, so that some lie outside); "points" (0 to
    1); "offsets" (some cells or points); "mask" (True or False).
    """
    if kind == "mask":
        array = random.random(shape) < 0.5
    elif kind in ("normal", "offsets"):
        array = random.standard_normal(shape) * (3 if kind == "offsets" else 1)
    else:
        low, high = {"weights": (0, 1), "locations": (-0.3, 1.3), "points": (0, 1)}[kind]
        array = random.uniform(low, high, shape)
    return array.astype(dtype.numpy())


def _next_numbers(random: np.random.Generator, tensor: np.ndarray) -> np.ndarray:
    """Moves every number up or down by its last digit in float32, in which 16-bit models run."""
    tensor = tensor.astype(np.float64 if tensor.dtype == np.float64 else np.float32)
    towards = random.choice([-np.inf, np.inf], tensor.shape).astype(tensor.dtype)
    return np.nextafter(tensor, towards)
