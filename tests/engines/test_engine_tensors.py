"""NumPy arrays on their way into an engine and out of it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from trt_plugin.engine_tensors import from_storage, to_storage


def test_bfloat16_rounds_like_torch():
    values = np.concatenate(
        [
            np.random.default_rng(0).normal(size=10_000).astype(np.float32) * 1e3,
            np.float32([0, -0.0, 1 + 2**-8, 1 + 3 * 2**-8, 3.4e38, -3.4e38, np.inf, -np.inf, np.nan, 1e-40]),
            np.uint32([0x7F800001, 0xFFFFFFFF, 0x7FFFFFFF]).view(np.float32),
        ]
    )
    stored = to_storage(values, "bfloat16", "x")
    expected = torch.from_numpy(values).bfloat16().float().numpy()
    assert stored.dtype == np.uint16
    np.testing.assert_array_equal(from_storage(stored, "bfloat16"), expected)


@pytest.mark.parametrize(
    ("array", "dtype", "expected"),
    [
        (np.float64([[0.1, 70000.0]]), "float16", np.float16([[0.1, np.inf]])),
        (np.arange(6, dtype=np.int64).reshape(2, 3).T, "int32", np.int32([[0, 3], [1, 4], [2, 5]])),
        (np.bool_([True]), "bool", np.bool_([True])),
        (np.zeros((0, 4), np.float32), "float16", np.zeros((0, 4), np.float16)),
    ],
)
def test_inputs_are_converted(array, dtype, expected):
    stored = to_storage(array, dtype, "x")
    assert stored.dtype == expected.dtype and stored.flags.c_contiguous
    np.testing.assert_array_equal(stored, expected)


@pytest.mark.parametrize(
    ("array", "dtype", "error", "message"),
    [
        (np.int64([1]), "float32", TypeError, "x: expected float32, got int64"),
        (np.float32([1]), "int64", TypeError, "x: expected int64, got float32"),
        (np.bool_([1]), "int32", TypeError, "x: expected int32, got bool"),
        (np.array(["1"]), "float32", TypeError, "x: expected float32, got str"),
        (np.int64([1, 2**31]), "int32", ValueError, "x: expected .* fit into int32, got 1 to 2147483648"),
    ],
)
def test_wrong_inputs_are_named(array, dtype, error, message):
    with pytest.raises(error, match=message):
        to_storage(array, dtype, "x")
