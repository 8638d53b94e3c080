"""Layouts: the origin of every element through movements."""

from __future__ import annotations

import numpy as np
import pytest

from onnx_path.surgery.layouts import layout as layouts
from onnx_path.surgery.layouts.layout import Layout, LayoutError


@pytest.mark.parametrize("seed", range(20))
def test_layouts_move_like_arrays(seed: int):
    random = np.random.default_rng(seed)
    array = np.arange(2 * 6 * 4 * 3).reshape(2, 6, 4, 3)
    layout = Layout.of(array.shape)
    for _ in range(6):
        axis = int(random.integers(array.ndim))
        match random.integers(5):
            case 0:
                order = random.permutation(array.ndim)
                array, layout = array.transpose(order), layout.transpose(order)
            case 1:
                picked = random.permutation(array.shape[axis])[: max(1, array.shape[axis] - 1)]
                array, layout = array.take(picked, axis), layout.take(axis, picked)
            case 2:
                shape = (*array.shape[:axis], array.shape[axis], 1, *array.shape[axis + 1 :])
                array, layout = array.reshape(shape), layout.reshape(shape)
            case 3 if axis:
                array = array.reshape((*array.shape[: axis - 1], -1, *array.shape[axis + 1 :]))
                layout = layout.reshape(array.shape)
            case 4:
                halves = [np.arange(array.shape[axis])] * 2
                array = np.concatenate([array.take(half, axis) for half in halves], axis)
                layout = layouts.concat([layout.take(axis, half) for half in halves], axis)
    np.testing.assert_array_equal(layout.indices(), array)


def test_layouts_refuse_what_they_cannot_express():
    uneven = Layout.of((2, 6)).take(1, np.array([0, 1, 3, 4])).reshape((2, 2, 2))
    assert uneven.shape == (2, 2, 2)
    with pytest.raises(LayoutError, match="no seam"):
        Layout.of((2, 6)).take(1, np.array([0, 1, 3, 5])).reshape((2, 2, 2))
    with pytest.raises(LayoutError, match="not a view of all"):
        layouts.view(Layout.of((2, 6)).take(1, np.arange(5)), (2, 6))
    with pytest.raises(LayoutError, match="is empty"):
        Layout.of((2, 0))
