"""The registry of problem sizes: sizes, bytes and inputs."""

from __future__ import annotations

import torch

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
