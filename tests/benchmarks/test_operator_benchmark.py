"""`benchmarks.msda`: the registry of problem sizes, the methods, the compiled reference."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import pytest
import torch
from torch._dynamo.utils import counters

from benchmarks import msda, operator_errors, pictures, roofline
from benchmarks.problems import BY_NAME, REAL, SMALL, pyramid


def test_level_sizes() -> None:
    """S of Co-DINO's five levels at the three image sizes, and a size that no stride divides."""
    cells = {problem.name: problem.num_cells for problem in REAL}
    for size, expected in (("608x608", 30_785), ("768x1152", 73_656), ("1280x1920", 204_600)):
        assert cells[f"codino_encoder_{size}"] == cells[f"codino_decoder_{size}"] == expected
        assert BY_NAME[f"codino_encoder_{size}"].num_queries == expected
    assert pyramid(801, 1333) == ((201, 334), (101, 167), (51, 84), (26, 42), (13, 21))


def test_bytes_moved() -> None:
    """Every input read once and every output written once, counted from the tensors themselves."""
    for problem in (*REAL[1::2], *SMALL):
        inputs = problem.fused_inputs(torch.float16)
        tensors = [x for x in inputs if isinstance(x, torch.Tensor) and x.is_floating_point()]
        output = 2 * problem.batch * problem.num_queries * problem.num_heads * problem.head_dim
        moved = sum(tensor.nbytes for tensor in tensors) + output
        assert problem.bytes_moved(torch.float16, fused=True) == moved
        assert problem.bytes_moved(torch.float16, fused=True, backward=True) == 2 * moved - output


def test_both_forms_sample_the_same_places() -> None:
    """The inputs of attention are those of fused_attention after softmax and with locations computed."""
    for problem in SMALL:
        given, fused = problem.attention_inputs(seed=3), problem.fused_inputs(seed=3)
        assert torch.equal(given.value, fused.value)
        locations = problem.to_points(fused.reference_points[..., :2])
        offsets = fused.sampling_offsets.reshape(*fused.attention_logits.shape, 2)
        locations = locations + offsets * problem.cells_to_unit(fused.reference_points)
        torch.testing.assert_close(given.sampling_locations.reshape(locations.shape), locations)


def test_methods() -> None:
    """The charts have a marker for each forward pass, and a colour for each method and problem."""
    assert set(roofline.MARKERS) == {method for method in msda.METHODS if not method.endswith("_backward")}
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
