"""`benchmarks.msda` and `benchmarks.sanitize`: methods, the compiled reference, the inputs of edge cases."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import pytest
import torch
from torch._dynamo.utils import counters

from benchmarks import msda, operator_errors, pictures, roofline, sanitize
from benchmarks.problems import BY_NAME


def test_sanitize_spoils_some_samples_only() -> None:
    inputs = sanitize.spoil(BY_NAME["pyramid"].attention_inputs())
    finite = inputs.sampling_locations.isfinite().double().mean()
    assert 0.8 < finite < 1.0


def test_methods() -> None:
    """Every method is a slow baseline or not, a forward pass or not, and has a colour of its own."""
    assert set(msda.REFERENCES) == {method for method in msda.METHODS if method.startswith("reference")}
    assert set(msda.REFERENCES) < set(msda.NO_BFLOAT16) < set(msda.METHODS)
    assert set(roofline.MARKERS) == {method for method in msda.METHODS if not method.endswith("_backward")}
    assert len(set(roofline.MARKERS.values())) == len(roofline.MARKERS)
    assert len(set(pictures.COLOURS)) >= max(len(msda.METHODS), len(msda.PROBLEMS))


@pytest.fixture
def compiled_by_aot_eager(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """`torch.compile` traces both passes, but needs no C++ compiler and none of its time."""
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="aot_eager"))
    msda.compiled_reference.cache_clear()
    torch.compiler.reset()
    yield
    msda.compiled_reference.cache_clear()
    torch.compiler.reset()


@pytest.mark.slow
@pytest.mark.usefixtures("compiled_by_aot_eager")
@pytest.mark.parametrize("name", ["boxes", "ragged_skipped_level"])
def test_compiled_reference(name: str) -> None:
    """It is compiled and right, the timed calls compile nothing, and the backward pass can be repeated."""
    inputs = BY_NAME[name].attention_inputs()
    before = counters["stats"]["unique_graphs"]
    (forward,) = msda.make_calls("reference_compiled", [inputs], None, torch.float32)
    (backward,) = msda.make_calls("reference_compiled_backward", [inputs], None, torch.float32)
    compiled = counters["stats"]["unique_graphs"]
    assert compiled == before + 4  # locations, and levels; each without gradients and with them
    assert operator_errors.relative_error(forward(), operator_errors.truth(inputs)) < 1e-6
    expected = msda.backward_of_reference(operator_errors.in_float64(inputs))()
    for _ in range(2):
        for gradient, wanted in zip(backward(), expected):
            assert operator_errors.relative_error(gradient, wanted) < 1e-4
    assert counters["stats"]["unique_graphs"] == compiled
