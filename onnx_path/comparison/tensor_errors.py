"""How far a tensor of an engine is from the reference's, and how far it may be."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from trt_plugin.engine_tensors import format_shape

TOLERANCES = {"fp32": 1e-4, "tf32": 1e-2, "fp16": 1e-2, "bf16": 8e-2}
"""Largest relative error by precision. A rounding is 6e-8, 5e-4 (TF32 and fp16) or 4e-3 of a number; a deep
network adds many up: about twenty for 16 bits. float32 has more room, for sums in another order."""

_LARGEST = {"fp16": 65504.0, "bf16": 3.3895313892515355e38}
_SMALLEST = {"fp16": 2.0**-24}
_CHUNK = 2**22  # elements that are float64 at a time


@dataclass(frozen=True)
class TensorError:
    """One tensor, compared.

    Attributes:
        name: of it.
        shape, dtype: what the engine gave.
        absolute: largest absolute error.
        relative: norm (L2) of the difference over norm of the reference; infinite if the shapes differ, one
            side alone is not finite somewhere, or the reference is zero and the engine is not.
        tolerance: largest relative error allowed.
        note: what numbers do not say, or "".
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    absolute: float
    relative: float
    tolerance: float
    note: str = ""

    @property
    def within(self) -> bool:
        """Whether the relative error is within the tolerance."""
        return self.relative <= self.tolerance

    def content(self) -> dict[str, object]:
        """For JSON, which has no infinity: null in place of it."""
        numbers = {"absolute": self.absolute, "relative": self.relative}
        return {
            "name": self.name,
            "shape": list(self.shape),
            "dtype": self.dtype,
            **{name: number if math.isfinite(number) else None for name, number in numbers.items()},
            "within": self.within,
            "note": self.note,
        }


@dataclass(frozen=True)
class Tolerance:
    """What tensors are measured by.

    Attributes:
        relative: largest relative error.
        precision: of the engine, one of `TOLERANCES`.
        why: what says that it has this precision.
        given: whether the relative error was asked for, not the precision's default.
    """

    relative: float
    precision: str
    why: str
    given: bool

    def error(self, name: str, reference: np.ndarray, found: tuple[np.ndarray, str]) -> TensorError:
        """Compares a tensor of the engine, given with its type, with onnxruntime's; see `tensor_error`."""
        return tensor_error(name, reference, *found, self.relative, self.precision)


def tensor_error(
    name: str, reference: np.ndarray, found: np.ndarray, dtype: str, tolerance: float, precision: str
) -> TensorError:
    """Compares a tensor with the reference's, element by element.

    NaN equals NaN, and an infinity one of its sign. In 16 bits so does every number beyond half of the type's
    largest: masks hold such numbers, which a conversion to 16 bits has to replace by others. In fp16 a
    difference of its smallest number is none: what is smaller becomes zero.

    Args:
        name: of the tensor.
        reference: as onnxruntime gave it.
        found: as the engine gave it.
        dtype: name of the engine's type.
        tolerance: largest relative error allowed.
        precision: of the engine, one of `TOLERANCES`.
    """
    if reference.shape != found.shape:
        note = f"onnxruntime gives {format_shape(reference.shape)}"
        return TensorError(name, found.shape, dtype, math.inf, math.inf, tolerance, note)
    beyond = _LARGEST.get(precision, math.inf) / 2
    nothing = _SMALLEST.get(precision, 0.0)
    largest = squares = reference_squares = 0.0
    differing = 0
    for expected, actual in _chunks(reference, found):
        with np.errstate(invalid="ignore", over="ignore"):
            large = (np.abs(expected) >= beyond) & (np.abs(actual) >= beyond)
            same = (expected == actual) | (np.isnan(expected) & np.isnan(actual))
            same |= large & (np.sign(expected) == np.sign(actual))
            difference = np.where(same, 0.0, np.abs(expected - actual))
            difference[difference <= nothing] = 0.0
            difference[np.isnan(difference)] = math.inf
            differing += int((~np.isfinite(difference)).sum())
            largest = max(largest, float(difference.max(initial=0.0)))
            squares += float(np.square(difference).sum())
            counted = np.isfinite(expected) & ~(large & same)
            reference_squares += float(np.square(expected[counted]).sum())
    if squares == 0:
        relative = 0.0
    else:
        relative = math.sqrt(squares / reference_squares) if reference_squares else math.inf
    note = f"{differing} numbers finite on one side only" if differing else ""
    return TensorError(name, found.shape, dtype, largest, relative, tolerance, note)


def table(errors: Sequence[TensorError], title: str, columns: Sequence[Sequence[str]] = ()) -> list[str]:
    """Lines of a table with one row for each tensor.

    Args:
        errors: of the tensors.
        title: of the first column.
        columns: more columns behind the name: title and texts of each.
    """
    rows = [[title, *(column[0] for column in columns), "shape", "type", "absolute", "relative", ""]]
    for i, error in enumerate(errors):
        verdict = "within" if error.within else "DIFFERS"
        rows.append(
            [
                error.name,
                *(column[i + 1] for column in columns),
                format_shape(error.shape),
                error.dtype,
                f"{error.absolute:.3g}",
                f"{error.relative:.3g}",
                f"{verdict}: {error.note}" if error.note else verdict,
            ]
        )
    widths = [max(map(len, column)) for column in zip(*rows)]
    return ["  ".join(text.ljust(width) for text, width in zip(row, widths)).rstrip() for row in rows]


def _chunks(*arrays: np.ndarray) -> Iterator[list[np.ndarray]]:
    flat = [np.ascontiguousarray(array).reshape(-1) for array in arrays]
    for start in range(0, flat[0].size, _CHUNK):
        yield [array[start : start + _CHUNK].astype(np.float64) for array in flat]
