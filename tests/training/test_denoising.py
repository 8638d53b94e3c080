"""Denoising queries: their layout, their noise, and their gradient."""

from __future__ import annotations

import pytest
import torch

from codetr.model.layers import inverse_sigmoid
from codetr.training import denoising as denoising_module
from codetr.training.targets import make_targets
from tests.training.loss_batches import make_denoising, random_targets


@pytest.mark.parametrize(
    ("counts", "pairs", "groups"),
    [([3, 1], 20, 6), ([7], 20, 2), ([7, 0, 2], 6, 1), ([0, 0], 20, 1)],
)
def test_layout(counts, pairs, groups):
    queries, layout = make_denoising(pairs)(random_targets(counts))
    images, largest = len(counts), max(counts)
    size = groups * 2 * largest
    assert (layout.num_groups, layout.num_queries) == (groups, size)
    assert queries.content.shape == (images, size, 256)
    assert queries.boxes_cxcywh.shape == (images, size, 4)
    assert queries.attention_mask.shape == (size + 12, size + 12)
    places = [place for count in counts for place in range(count)]
    expected = [[group * 2 * largest + place for place in places] for group in range(groups)]
    assert layout.positive.tolist() == expected


def test_boxes_stay_inside(monkeypatch):
    monkeypatch.setattr(denoising_module, "BOX_NOISE", 2.0)
    corner_cases = torch.tensor([[0.5, 0.5, 1.0, 1.0], [0.05, 0.97, 0.1, 0.06]])
    targets = make_targets(corner_cases, torch.tensor([0, 1]), torch.tensor([[480, 640]]), [2])
    boxes = make_denoising()(targets, torch.Generator().manual_seed(0))[0].boxes_cxcywh
    assert boxes.min() > 0 and boxes.max() < 1
    # The decoder takes their inverse sigmoid; what that clamps is clamped here already.
    torch.testing.assert_close(inverse_sigmoid(boxes).sigmoid(), boxes, rtol=0, atol=1e-5)


@pytest.mark.parametrize("counts", [[0, 0], [2, 0]])
def test_embedding_learns(counts):
    """It has a gradient even without objects: distributed training waits for every rank's."""
    denoising = make_denoising()
    queries, _ = denoising(random_targets(counts))
    decoded = torch.cat((queries.content, torch.zeros(2, 12, 256)), dim=1)
    decoded.square().sum().backward()
    gradient = denoising.label_embedding.weight.grad
    assert gradient is not None
    assert gradient.any() == (sum(counts) > 0)
