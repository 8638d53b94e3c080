"""Percentiles of tensors over the runs of a calibration."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onnx_path.quantization import percentiles
from onnx_path.quantization.ranges import measure_ranges
from onnx_path.surgery.graph.onnx_session import CannotRun
from tests.onnx.text_models import text_model

WEIGHT = np.random.default_rng(0).standard_normal((8, 60)).astype(np.float32)
MODEL = text_model("y = MatMul (x, w) z = Relu (y)", "float[n, 8] x", "float[n, 60] z", 20, w=WEIGHT)


def runs_of(*rows: int, seed: int = 1) -> list[dict[str, np.ndarray]]:
    random = np.random.default_rng(seed)
    return [{"x": random.standard_normal((size, 8)).astype(np.float32)} for size in rows]


def expected(numbers: list[np.ndarray], share: float) -> float:
    magnitudes = np.sort(np.abs(np.concatenate([x.ravel() for x in numbers])))[::-1]
    return float(magnitudes[math.floor(share * magnitudes.size)])


@given(st.lists(st.integers(1, 60), min_size=1, max_size=5), st.sampled_from([1e-5, 1e-3, 0.02, 0.3]))
def test_share_that_is_left_out(rows, share):
    """The same number as of all runs together, for runs of different sizes."""
    runs = runs_of(*rows)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(percentiles, "SHARE", share)
        found = measure_ranges(MODEL, ["x", "y"], runs, "percentile")
    x = [run["x"] for run in runs]
    assert found["x"] == expected(x, share)
    assert found["y"] == pytest.approx(expected([one @ WEIGHT for one in x], share), rel=1e-5)


def test_few_numbers():
    """Fewer than 100,000 numbers leave none out."""
    runs = runs_of(9, 4)
    assert measure_ranges(MODEL, ["x"], runs, "percentile") == measure_ranges(MODEL, ["x"], runs, "minmax")


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_numbers_that_are_not_finite(number):
    """One of them in one run is enough."""
    runs = runs_of(9, 9, 9)
    runs[1]["x"][3, 3] = number
    found = measure_ranges(MODEL, ["x", "y"], runs, "percentile")
    assert not math.isfinite(found["x"]) and not math.isfinite(found["y"])


def test_zeros():
    assert measure_ranges(MODEL, ["x"], [{"x": np.zeros((5, 8), np.float32)}], "percentile") == {"x": 0}


def test_model_that_does_not_run():
    with pytest.raises(CannotRun, match="x"):
        measure_ranges(MODEL, ["x"], [{"x": np.zeros((5, 9), np.float32)}], "percentile")
