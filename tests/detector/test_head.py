"""The search for the best of long rows, and the selection of queries."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import codetr
from codetr.model.geometry import make_pyramid, proposal_boxes
from codetr.model.head import UNUSABLE_LOGIT, QuerySelection, best_indices
from tests.golden_models import GOLDEN


class TestBestIndices:
    @given(
        count=st.integers(1, 40),
        size=st.integers(0, 4000),
        rows=st.integers(1, 3),
        different=st.sampled_from((2, 50, 100_000)),
        seed=st.integers(0, 2**31),
    )
    @settings(max_examples=300, deadline=None)
    def test_they_are_the_best_in_order(self, count, size, rows, different, seed):
        size += count
        numbers = torch.randint(
            different, (rows, size), generator=torch.Generator().manual_seed(seed)
        ).float()
        index = best_indices(numbers, count)
        assert index.dtype == torch.int64 and index.shape == (rows, count)
        torch.testing.assert_close(numbers.gather(1, index), numbers.topk(count, dim=1).values)
        assert all(len(set(row)) == count for row in index.tolist())

    @pytest.mark.parametrize(("largest", "fast"), [(5_000, True), (10_000_000, False)])
    def test_symbols_need_no_condition_of_their_own(self, largest, fast):
        """The largest value of a symbol decides whether the kernel is fast."""

        class Best(torch.nn.Module):
            def forward(self, x):
                return best_indices(x, 30)

        sizes = {0: torch.export.Dim("N", max=4), 1: torch.export.Dim("S", min=50, max=largest)}
        exported = torch.export.export(Best(), (torch.rand(2, 3_000),), dynamic_shapes=(sizes,), strict=True)
        target = torch.ops.msda.top_k_indices.default if fast else torch.ops.aten.topk.default
        assert [node.target for node in exported.graph.nodes].count(target) == 1
        for size in (50, 53, 4_999, 5_000):
            x = torch.rand(3, size)
            torch.testing.assert_close(x.gather(1, exported.module()(x)), x.topk(30, dim=1).values)


@pytest.mark.parametrize("num_queries", [3, 40])
def test_cells_that_are_no_proposals_count_as_empty(num_queries):
    """As upstream says it: their features are set to zero, and their boxes put into the corner."""
    config = codetr.load_config(GOLDEN / "codino_swin_tiny.json")
    config = dataclasses.replace(config, num_queries=num_queries)
    selection = QuerySelection(config)
    for parameter in selection.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    level_hw = torch.tensor([[16.0, 16.0], [8.0, 8.0], [4.0, 4.0], [2.0, 2.0], [1.0, 1.0]])
    cells = int(level_hw.prod(dim=1).sum())
    image_shapes = torch.tensor([[64, 64], [10, 8]])  # the second has six cells of the finest level
    pyramid = make_pyramid(image_shapes, torch.tensor([64.0, 64.0]), level_hw, cells)
    memory = torch.randn(2, cells, config.embed_dims)
    logits, boxes = selection(memory, pyramid)

    proposals, usable = proposal_boxes(pyramid)
    x = selection.norm(selection.output(memory.masked_fill(~usable[:, :, None], 0.0)))
    start = torch.log(proposals / (1.0 - proposals)).masked_fill(~usable[:, :, None], UNUSABLE_LOGIT)
    every_logit, every_box = selection.class_branch(x), torch.sigmoid(selection.box_branch(x) + start)
    best = every_logit.amax(dim=-1).topk(num_queries, dim=1)
    torch.testing.assert_close(logits.amax(dim=-1), best.values)
    assert num_queries == 3 or 0 < usable[1].sum() < num_queries
    # Empty cells are equal, so the order among them does not matter.
    picked = best.indices[:, :, None]
    torch.testing.assert_close(logits, every_logit.gather(1, picked.expand(-1, -1, config.num_classes)))
    torch.testing.assert_close(boxes, every_box.gather(1, picked.expand(-1, -1, 4)))
