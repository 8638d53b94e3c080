"""Denoising queries: their layout, their noise, and their gradient."""

from __future__ import annotations

import math

import pytest
import torch

from codetr.model.layers import inverse_sigmoid
from codetr.training.losses import corners, overlaps
from codetr.training.targets import Targets
from tests.training.loss_batches import make_denoising, random_targets


class TestDenoising:
    @pytest.mark.parametrize(
        ("counts", "pairs", "groups"),
        [([3, 1], 20, 6), ([7], 20, 2), ([7, 0, 2], 6, 1), ([0, 0], 20, 1)],
    )
    def test_layout(self, counts, pairs, groups):
        queries, layout = make_denoising(num_pairs=pairs)(random_targets(counts))
        images, largest = len(counts), max(counts)
        size = groups * 2 * largest
        assert layout.num_groups == groups
        assert layout.num_queries == size
        assert queries.content.shape == (images, size, 256)
        assert queries.boxes_cxcywh.shape == (images, size, 4)
        assert queries.attention_mask.shape == (size + 12, size + 12)
        places = [place for count in counts for place in range(count)]
        expected = [[group * 2 * largest + place for place in places] for group in range(groups)]
        assert layout.positive.tolist() == expected

    def test_noise_is_bounded_and_negatives_are_farther(self):
        """Corners of positives move by less than half a side, those of negatives by half a side or more."""
        denoising = make_denoising(num_pairs=400, label_noise=0.0)
        boxes = torch.tensor([[0.5, 0.5, 0.1, 0.2], [0.4, 0.6, 0.2, 0.1]])  # no noise reaches the border
        targets = Targets((boxes,), (torch.tensor([1, 3]),), torch.tensor([[480, 640]]))
        queries, layout = denoising(targets, torch.Generator().manual_seed(0))
        assert layout.num_groups == 200
        noised = queries.boxes_cxcywh.view(200, 2, 2, 4)
        positive, negative = noised.unbind(1)  # [G, T, 4] each
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
        embedding = denoising.label_embedding.weight
        content = queries.content.view(200, 2, 2, 256)
        assert torch.equal(content, embedding[torch.tensor([1, 3])].expand_as(content))

    def test_boxes_stay_inside(self):
        targets = Targets(
            (torch.tensor([[0.5, 0.5, 1.0, 1.0], [0.05, 0.97, 0.1, 0.06]]),),
            (torch.tensor([0, 1]),),
            torch.tensor([[100, 100]]),
        )
        queries, _ = make_denoising(box_noise=2.0)(targets, torch.Generator().manual_seed(0))
        boxes = queries.boxes_cxcywh
        assert boxes.min() > 0 and boxes.max() < 1
        # The decoder takes their inverse sigmoid; what that clamps is clamped here already.
        torch.testing.assert_close(inverse_sigmoid(boxes).sigmoid(), boxes, rtol=0, atol=1e-5)

    def test_share_of_noised_labels(self):
        denoising = make_denoising(num_classes=50, num_pairs=4000, label_noise=0.5)
        with torch.no_grad():
            denoising.label_embedding.weight.copy_(torch.arange(50.0)[:, None].expand(-1, 256))
        targets = Targets((torch.full((1, 4), 0.5),), (torch.tensor([7]),), torch.tensor([[9, 9]]))
        queries, _ = denoising(targets, torch.Generator().manual_seed(0))
        labels = queries.content[0, :, 0]
        assert (labels != 7).float().mean() == pytest.approx(0.25 * 49 / 50, abs=0.015)
        assert labels.unique().tolist() == list(range(50))

    def test_draws_come_from_the_generator(self):
        denoising, targets = make_denoising(), random_targets([3, 1])
        first, again, other = (
            denoising(targets, torch.Generator().manual_seed(seed))[0] for seed in (5, 5, 6)
        )
        assert torch.equal(first.boxes_cxcywh, again.boxes_cxcywh)
        assert torch.equal(first.content, again.content)
        assert not torch.equal(first.boxes_cxcywh, other.boxes_cxcywh)
        state = torch.get_rng_state()
        denoising(targets, torch.Generator().manual_seed(5))
        assert torch.equal(state, torch.get_rng_state())

    @pytest.mark.parametrize("counts", [[0, 0], [2, 0]])
    def test_embedding_learns(self, counts):
        """It has a gradient even without objects: distributed training waits for every rank's."""
        denoising = make_denoising()
        queries, _ = denoising(random_targets(counts))
        decoded = torch.cat((queries.content, torch.zeros(2, 12, 256)), dim=1)
        decoded.square().sum().backward()
        gradient = denoising.label_embedding.weight.grad
        assert gradient is not None
        assert gradient.any() == (sum(counts) > 0)

    @pytest.mark.parametrize(
        "options", [{"num_pairs": 0}, {"label_noise": 2.1}, {"box_noise": -1.0}, {"box_noise": math.nan}]
    )
    def test_wrong_settings(self, options):
        (name,) = options
        with pytest.raises(ValueError, match=f"{name}: expected"):
            make_denoising(**options)
