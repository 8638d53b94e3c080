"""Constant shapes for reshapes whose result has symbols. Imports nothing."""

from __future__ import annotations

from collections.abc import Sequence


def constant_reshape(sizes: Sequence[int | None], stays: Sequence[bool]) -> tuple[int, ...] | None:
    """Returns the constant shape that makes a reshape give a shape of symbols.

    In the result 0 copies the size of the same dimension, and -1 stands for the remaining elements.

    Args:
        sizes: sizes of the reshaped tensor, None for a symbol.
        stays: whether a size equals that of the same dimension before the reshape.

    Returns:
        None if no constant gives the shape: two sizes or more would be -1, or one size is 0.
    """
    target = tuple(
        size if size is not None else 0 if same else -1 for size, same in zip(sizes, stays, strict=True)
    )
    return target if target.count(-1) <= 1 and 0 not in sizes else None
