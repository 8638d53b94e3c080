"""Denoising queries: their layout, their noise, and their gradient."""

from __future__ import annotations

import pytest
import torch

from codetr.model.layers import inverse_sigmoid
from codetr.training import denoising as denoising_module
from codetr.training.losses import corners, overlaps
from codetr.training.targets import Targets, make_targets
from tests.training.loss_batches import make_denoising, random_targets


def one_image(boxes: list[list[float]], labels: list[int]) -> Targets:
    return make_targets(torch.tensor(boxes), torch.tensor(labels), torch.tensor([[480, 640]]), [len(labels)])


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


def test_noise_is_bounded_and_negatives_are_farther(monkeypatch):
    """Corners of positives move by less than half a side, those of negatives by half a side or more."""
    monkeypatch.setattr(denoising_module, "LABEL_NOISE", 0.0)
    denoising = make_denoising(400)
    targets = one_image([[0.5, 0.5, 0.1, 0.2], [0.4, 0.6, 0.2, 0.1]], [1, 3])  # far from the border
    boxes = targets.boxes_cxcywh
    queries, layout = denoising(targets, torch.Generator().manual_seed(0))
    assert layout.num_groups == 200
    positive, negative = queries.boxes_cxcywh.view(200, 2, 2, 4).unbind(1)  # [G, T, 4] each
    moved = (corners(positive) - corners(boxes)).abs() / boxes[:, [2, 3, 2, 3]]
    assert moved.max() < 0.5 + 1e-5
    assert moved.mean() == pytest.approx(0.25, abs=0.02)
    # Where the corners of a negative have not changed places, they can be read off.
    proper = (negative[..., 2:] > 2e-3).all(-1)
    far = ((corners(negative) - corners(boxes)).abs() / boxes[:, [2, 3, 2, 3]])[proper]
    assert proper.float().mean() > 0.3
    assert far.min() > 0.5 - 1e-5
    assert far.max() < 1.0 + 1e-5
    near_iou, _ = overlaps(corners(positive), corners(boxes))
    far_iou, _ = overlaps(corners(negative), corners(boxes))
    assert near_iou.mean() > far_iou.mean() + 0.2
    content = queries.content.view(200, 2, 2, 256)
    assert torch.equal(content, denoising.label_embedding.weight[targets.labels].expand_as(content))


def test_boxes_stay_inside(monkeypatch):
    monkeypatch.setattr(denoising_module, "BOX_NOISE", 2.0)
    targets = one_image([[0.5, 0.5, 1.0, 1.0], [0.05, 0.97, 0.1, 0.06]], [0, 1])
    boxes = make_denoising()(targets, torch.Generator().manual_seed(0))[0].boxes_cxcywh
    assert boxes.min() > 0 and boxes.max() < 1
    # The decoder takes their inverse sigmoid; what that clamps is clamped here already.
    torch.testing.assert_close(inverse_sigmoid(boxes).sigmoid(), boxes, rtol=0, atol=1e-5)


def test_share_of_noised_labels():
    denoising = make_denoising(4000, num_classes=50)
    with torch.no_grad():
        denoising.label_embedding.weight.copy_(torch.arange(50.0)[:, None].expand(-1, 256))
    queries, _ = denoising(one_image([[0.5] * 4], [7]), torch.Generator().manual_seed(0))
    labels = queries.content[0, :, 0]
    assert (labels != 7).float().mean() == pytest.approx(0.25 * 49 / 50, abs=0.015)
    assert labels.unique().tolist() == list(range(50))


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
