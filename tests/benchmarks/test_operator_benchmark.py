"""`benchmarks.msda`: the inputs of a problem, and the methods."""

from __future__ import annotations

import torch

from benchmarks import msda, roofline
from benchmarks.problems import REAL, SMALL


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
    """The rooflines have a marker for each forward pass."""
    assert set(roofline.MARKERS) == {method for method in msda.METHODS if not method.endswith("_backward")}
