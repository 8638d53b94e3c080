"""Proof by numbers: a region and the nodes drafted for it, cut out, run on the same random tensors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from onnx_path.surgery import bodies, runtime
from onnx_path.surgery.draft import Draft
from onnx_path.surgery.graph import cut
from onnx_path.surgery.probe import Probe

TOLERANCE = 1e-5
"""Largest difference of two outputs, as a share of the original's largest number; both compute in float32."""

LARGEST_ROUNDING = 1e-4
"""The same where coordinates' last digits alone make more than `TOLERANCE`, as they do on wide levels."""

COORDINATES = ("locations", "grid", "points")
"""Kinds of tensors, see `random_tensor`."""


class Disagreement(ValueError):
    """The draft gives other numbers than the region."""


def prove(
    model: ir.Model,
    draft: Draft,
    end: ir.Value,
    probes: Sequence[Probe],
    seed: int,
    target: str,
) -> float:
    """Runs a region and its draft, at every probe's sizes.

    The two round coordinates at different places, and a coordinate of a level of hundreds of cells has few
    digits left within a cell. So a difference beyond `TOLERANCE` is held against what becomes of the region's
    own result when its coordinates move by their last digit: the draft is wrong if it differs by more.

    Args:
        model: which the region is part of.
        draft: with its result and the tensors that it reads.
        end: the tensor that the result shall equal.
        probes: of the model.
        seed: of the random tensors.
        target: whose bodies the nodes need.

    Returns:
        The largest relative difference.

    Raises:
        Disagreement: with the difference.
        graph.NotClosed: the region depends on more than the draft's inputs.
        runtime.CannotRun: onnxruntime cannot run one of them.
    """
    functions = bodies.functions(model.opset_imports[""], target)
    worst = 0.0
    for number, probe in enumerate(probes):
        random = np.random.default_rng([seed, number])
        tensors = {
            value.name: random_tensor(random, kind, probe.shape(value), value.dtype)
            for value, kind in draft.inputs.items()
        }
        original = cut(model, [end], list(draft.inputs), probe.shape)
        rewritten = cut(model, [draft.result], list(draft.inputs), probe.shape, functions)
        (expected,), (actual,) = (runtime.run(part, tensors) for part in (original, rewritten))
        if expected.shape != actual.shape:
            raise Disagreement(
                f"its result has shape {list(expected.shape)}, the operator's {list(actual.shape)}"
            )
        error, allowed = relative_error(expected, actual), TOLERANCE
        if not error <= TOLERANCE:
            moved = {
                value.name: _next_numbers(random, tensors[value.name])
                for value, kind in draft.inputs.items()
                if kind in COORDINATES
            }
            (other,) = runtime.run(original, tensors | moved)
            allowed = min(relative_error(expected, other), LARGEST_ROUNDING)
        if not error <= allowed:
            raise Disagreement(f"the operator's numbers differ by {error:.2g} of the largest")
        worst = max(worst, error)
    return worst


def relative_error(expected: np.ndarray, actual: np.ndarray) -> float:
    """Largest difference as a share of the largest expected number; equal NaNs and infinities are none."""
    expected, actual = (x.astype(np.float64) for x in (expected, actual))
    same = same_numbers(expected, actual)
    if same.all():
        return 0.0
    finite = np.isfinite(expected)
    if not (np.isfinite(actual) | same).all() or not (finite | same).all():
        return float("inf")
    return float(np.abs(expected[~same] - actual[~same]).max() / max(np.abs(expected[finite]).max(), 1e-30))


def _next_numbers(random: np.random.Generator, tensor: np.ndarray) -> np.ndarray:
    """Every number moved to a neighbour, up or down: in float32, which 16-bit numbers are computed in."""
    tensor = tensor.astype(np.float64 if tensor.dtype == np.float64 else np.float32)
    towards = random.choice([-np.inf, np.inf], tensor.shape).astype(tensor.dtype)
    return np.nextafter(tensor, towards)


def same_numbers(expected: np.ndarray, actual: np.ndarray) -> np.ndarray:
    """Where they are equal, NaN to NaN."""
    return (expected == actual) | (np.isnan(expected) & np.isnan(actual))


def random_tensor(
    random: np.random.Generator, kind: str, shape: tuple[int, ...], dtype: ir.DataType
) -> np.ndarray:
    """Numbers of a kind.

    Args:
        random: their source.
        kind: "normal", "weights" (0 to 1), "locations" (-0.3 to 1.3, so that some lie outside), "grid" (the
            same as GridSample counts), "points" (0 to 1), "offsets" (some cells or points).
        shape: of the tensor.
        dtype: of the tensor.
    """
    if kind in ("normal", "offsets"):
        array = random.standard_normal(shape) * (3 if kind == "offsets" else 1)
    else:
        low, high = {"weights": (0, 1), "locations": (-0.3, 1.3), "grid": (-1.6, 1.6), "points": (0, 1)}[kind]
        array = random.uniform(low, high, shape)
    return array.astype(dtype.numpy())
