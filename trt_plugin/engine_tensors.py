"""Types and shapes of an engine's tensors, and the conversion of NumPy arrays to and from them.

NumPy has no bfloat16. The caller gives and gets such tensors as float32. Buffers hold the upper 16 bits as
uint16.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

# By the name of tensorrt.DataType's member. TensorRT's other types have no NumPy equivalent.
DTYPE_NAMES = {
    "FLOAT": "float32",
    "HALF": "float16",
    "BF16": "bfloat16",
    "INT64": "int64",
    "INT32": "int32",
    "INT8": "int8",
    "UINT8": "uint8",
    "BOOL": "bool",
}


class TensorInfo(NamedTuple):
    """Shape (-1: decided at run time) and type name (NumPy's, or "bfloat16") of an input or output."""

    shape: tuple[int, ...]
    dtype: str


def storage_dtype(dtype: str) -> np.dtype:
    """Returns the NumPy type of a buffer's elements."""
    return np.dtype(np.uint16) if dtype == "bfloat16" else np.dtype(dtype)


def to_storage(array: np.ndarray, dtype: str, name: str) -> np.ndarray:
    """Converts an input to the engine's type.

    A floating-point type converts to every other, rounded to nearest. An integer type converts to every other
    that holds its values.

    Returns:
        Contiguous array of `storage_dtype(dtype)`.

    Raises:
        TypeError, ValueError: the types are of different kinds, or an integer does not fit.
    """
    target = np.dtype(np.float32 if dtype == "bfloat16" else dtype)
    given = "f" if array.dtype.name == "bfloat16" else array.dtype.kind.replace("u", "i")
    if given != target.kind.replace("u", "i"):
        raise TypeError(f"{name}: expected {dtype}, got {array.dtype.name}")
    if given == "i" and array.size:
        limits, smallest, largest = np.iinfo(target), array.min(), array.max()
        if smallest < limits.min or largest > limits.max:
            raise ValueError(f"{name}: expected numbers that fit into {dtype}, got {smallest} to {largest}")
    with np.errstate(over="ignore"):  # values too large for float16 become infinite
        array = np.ascontiguousarray(array, target).reshape(array.shape)
    return _round_to_bfloat16(array) if dtype == "bfloat16" else array


def from_storage(array: np.ndarray, dtype: str) -> np.ndarray:
    """Copies a buffer's elements into a new array of the tensor's type, float32 for bfloat16."""
    if dtype == "bfloat16":
        return (array.astype(np.uint32) << 16).view(np.float32)
    return array.copy()


def _round_to_bfloat16(array: np.ndarray) -> np.ndarray:
    """Rounds float32 to the nearest bfloat16, ties to even, as uint16."""
    bits = array.view(np.uint32)
    rounded = ((bits + (0x7FFF + ((bits >> 16) & 1))) >> 16).astype(np.uint16)
    # Rounding could turn a NaN into infinity: keep its upper bits and set the quiet bit.
    return np.where(np.isnan(array), ((bits >> 16) | 0x40).astype(np.uint16), rounded)


def format_shape(shape: tuple[int, ...]) -> str:
    """[1, 3, ?] for (1, 3, -1)."""
    return "[" + ", ".join("?" if size < 0 else str(size) for size in shape) + "]"


def format_range(smallest: tuple[int, ...], largest: tuple[int, ...]) -> str:
    """[1 to 8, 3] for (1, 3) and (8, 3)."""
    pairs = zip(smallest, largest, strict=True)
    return "[" + ", ".join(str(low) if low == high else f"{low} to {high}" for low, high in pairs) + "]"
