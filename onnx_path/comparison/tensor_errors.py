"""The error of a tensor of an engine against the reference, and the tolerances."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from trt_plugin.engine_tensors import format_shape

TOLERANCES = {"fp32": 1e-4, "tf32": 1e-2, "fp16": 1e-2, "bf16": 8e-2, "int8": 8e-2, "fp8": 0.2}
"""Largest relative error by precision.

One rounding is 6e-8 (fp32), 5e-4 (TF32 and fp16) or 4e-3 (bf16) of a number, and a deep network adds up many.
The tolerance is twenty roundings for 16 bits. float32 has more room, for sums in another order. A rounding is
4e-3 of the largest number for INT8 and 3e-2 of a number for FP8, in the inputs of some layers only.
"""

_HALF = ("fp16", "int8", "fp8")  # the types of tensors in 8-bit engines are float16
_LARGEST = dict.fromkeys(_HALF, 65504.0) | {"bf16": 3.3895313892515355e38}
_SMALLEST = dict.fromkeys(_HALF, 2.0**-24)
_CHUNK = 2**22  # elements that are float64 at a time


@dataclass(frozen=True)
class TensorError:
    """The error of one tensor.

    Attributes:
        shape, dtype: as the engine gave them.
        absolute: largest absolute error.
        relative: L2 norm of the difference over the norm of the reference. Infinite if the shapes differ, if
            one side alone is non-finite somewhere, or if the reference is zero and the engine is not.
        tolerance: largest relative error allowed.
        note: explanation of an infinite error, or "".
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

    def as_dict(self) -> dict[str, object]:
        """Returns the content for JSON, which has no infinity: None stands for it."""
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
    """The measure of all tensors of a comparison.

    Attributes:
        relative: largest relative error.
        precision: precision of the engine, a key of `TOLERANCES`.
        why: source of the precision.
        given: whether the caller chose the relative error. It is the precision's default otherwise.
    """

    relative: float
    precision: str
    why: str
    given: bool

    def error(self, name: str, reference: np.ndarray, found: np.ndarray, dtype: str) -> TensorError:
        """Compares a tensor with the reference, element by element.

        NaN equals NaN, and an infinity equals one of its sign. In 16 bits all numbers beyond half of the
        type's largest are equal too: masks contain such numbers, and a conversion to 16 bits replaces them.
        In fp16 a difference of the smallest number is none, because smaller numbers become zero.
        """
        if reference.shape != found.shape:
            note = f"onnxruntime gives {format_shape(reference.shape)}"
            return TensorError(name, found.shape, dtype, math.inf, math.inf, self.relative, note)
        beyond = _LARGEST.get(self.precision, math.inf) / 2
        nothing = _SMALLEST.get(self.precision, 0.0)
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
        relative = math.sqrt(squares / reference_squares) if reference_squares else math.inf
        note = f"{differing} numbers are finite on one side only" if differing else ""
        return TensorError(
            name, found.shape, dtype, largest, relative if squares else 0.0, self.relative, note
        )


def _chunks(*arrays: np.ndarray) -> Iterator[list[np.ndarray]]:
    flat = [np.ascontiguousarray(array).reshape(-1) for array in arrays]
    for start in range(0, flat[0].size, _CHUNK):
        yield [array[start : start + _CHUNK].astype(np.float64) for array in flat]
