"""The losses of training: their formulas, and properties of the criterion."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from codetr.model import TrainingOutputs
from codetr.training.criterion import Criterion
from codetr.training.losses import corners, focal_cost, overlaps, quality_focal_loss
from codetr.training.matching import Matcher
from codetr.training.targets import Targets
from tests.training.loss_batches import (
    gradients,
    make_denoising,
    random_boxes,
    random_outputs,
    random_targets,
)


class TestFormulas:
    @given(st.floats(-30, 30), st.floats(0, 1))
    def test_quality_focal_loss(self, logit, quality):
        score = 1 / (1 + math.exp(-logit))
        background = math.log1p(math.exp(-abs(logit))) + max(logit, 0)  # -log(1 - score)
        expected = (quality - score) ** 2 * (background - quality * logit)
        loss = quality_focal_loss(torch.tensor(logit).double(), torch.tensor(quality).double())
        assert loss.item() == pytest.approx(expected, rel=1e-5, abs=1e-7)
        assert loss.item() >= 0

    @given(st.floats(-30, 30))
    def test_focal_cost(self, logit):
        def focal(score, weight):
            return -weight * math.log(score + 1e-12) * (1 - score) ** 2

        score = 1 / (1 + math.exp(-logit))
        cost = focal_cost(torch.tensor(logit, dtype=torch.float64)).item()
        assert cost == pytest.approx(focal(score, 0.25) - focal(1 - score, 0.75), rel=1e-9, abs=1e-12)

    @given(st.integers(0, 2**32 - 1))
    def test_overlaps_of_grid_cells(self, seed):
        """Boxes with integer corners, whose areas are counts of cells."""
        random = np.random.default_rng(seed)
        low = random.integers(0, 9, (2, 2))
        high = low + random.integers(1, 6, (2, 2))
        grids = np.zeros((2, 16, 16), dtype=bool)
        for grid, (x1, y1), (x2, y2) in zip(grids, low, high):
            grid[y1:y2, x1:x2] = True
        shared, union = (grids[0] & grids[1]).sum(), (grids[0] | grids[1]).sum()
        hull = np.prod(high.max(0) - low.min(0))
        boxes = torch.from_numpy(np.concatenate((low, high), axis=1)).double()
        iou, giou = overlaps(*boxes)
        assert iou.item() == pytest.approx(shared / union, rel=1e-12)
        assert giou.item() == pytest.approx(shared / union - (hull - union) / hull, rel=1e-12)

    def test_overlaps_broadcast(self):
        boxes = corners(random_boxes(torch.Generator().manual_seed(0), 7)) * 100
        pairs = overlaps(boxes[:, None], boxes[None])
        for i, j in itertools.product(range(7), repeat=2):
            for got, expected in zip(pairs, overlaps(boxes[i], boxes[j])):
                assert got[i, j] == expected
        torch.testing.assert_close(pairs[0].diagonal(), torch.ones(7))
        torch.testing.assert_close(pairs[1].diagonal(), torch.ones(7))

    def test_boxes_without_area_are_finite(self):
        """A sigmoid can round to 0 sides: neither overlap nor gradient may divide by them."""
        point = torch.full((4,), 3.0, requires_grad=True)
        for value in overlaps(point, point):
            (gradient,) = torch.autograd.grad(value, point, retain_graph=True)
            assert value.isfinite() and gradient.isfinite().all()


class TestCriterion:
    def test_perfect_predictions(self):
        targets = random_targets([4, 2], seed=2)
        outputs = random_outputs(2)
        with torch.no_grad():
            for logits in (outputs.encoder_logits[None], outputs.class_logits):
                logits.fill_(-30.0)
                for image, labels in enumerate(targets.labels):
                    logits[:, image, torch.arange(len(labels)), labels] = 30.0
            for boxes in (outputs.encoder_boxes[None], outputs.boxes_cxcywh):
                for image, wanted in enumerate(targets.boxes_cxcywh):
                    boxes[:, image, : len(wanted)] = wanted
        losses = Criterion(5)(outputs, targets)
        for name, loss in losses.items():
            assert loss.item() == pytest.approx(0.0, abs=1e-6), name
        encoder_logits, encoder_boxes, class_logits, boxes = gradients(outputs, losses)
        for gradient in (encoder_logits, class_logits):
            assert gradient.abs().max() < 1e-6
        for gradient in (encoder_boxes[None], boxes):
            assert not gradient[:, 0, 4:].any() and not gradient[:, 1, 2:].any()

    def test_an_image_without_objects_is_background(self):
        targets, outputs = random_targets([3, 0]), random_outputs(2)
        losses = Criterion(5)(outputs, targets)
        _, encoder_boxes, class_logits, boxes = gradients(outputs, losses)
        assert not encoder_boxes[1].any() and not boxes[:, 1].any()
        # The empty image only asks for lower scores.
        assert (class_logits[:, 1] > 0).all()

    def test_a_batch_without_objects(self):
        targets = random_targets([0, 0])
        _, layout = make_denoising()(targets)
        outputs = random_outputs(2, layout.num_queries)
        losses = Criterion(5)(outputs, targets, layout)
        assert len(losses) == 3 + 2 * 3 + 2 * 3
        background = quality_focal_loss(outputs.encoder_logits, torch.zeros_like(outputs.encoder_logits))
        torch.testing.assert_close(losses["encoder/class"], background.sum())  # over a count of at least 1
        for name, loss in losses.items():
            if not name.endswith("/class") or name.startswith("denoising"):
                assert loss.item() == 0, name
        for gradient in gradients(outputs, losses):
            assert gradient.isfinite().all()

    def test_more_objects_than_queries(self):
        targets, outputs = random_targets([15, 1], seed=4), random_outputs(2)
        losses = Criterion(5)(outputs, targets)
        matching = Matcher()(outputs.encoder_logits[None], outputs.encoder_boxes[None], targets.flatten())
        assert sorted(matching.query[0].tolist()[:12]) == list(range(12))
        assert len({*matching.target[0].tolist()}) == 13 and matching.target[0, -1] == 15
        found = outputs.encoder_boxes[[0] * 12 + [1], matching.query[0]]
        distance = (found - torch.cat(targets.boxes_cxcywh)[matching.target[0]]).abs().sum()
        torch.testing.assert_close(losses["encoder/box"], 5.0 * distance / 13)

    def test_is_fp32_under_autocast(self):
        targets, outputs = random_targets([2, 1]), random_outputs(2, 200)
        _, layout = make_denoising()(targets)
        expected = Criterion(5)(outputs, targets, layout)
        halves = TrainingOutputs(*(tensor.bfloat16() for tensor in outputs))
        rounded = Criterion(5)(TrainingOutputs(*(tensor.float() for tensor in halves)), targets, layout)
        with torch.autocast("cpu", torch.bfloat16):
            got = Criterion(5)(outputs, targets, layout)
            from_halves = Criterion(5)(halves, targets, layout)
        for name, loss in expected.items():
            assert got[name].dtype == torch.float32
            assert torch.equal(got[name], loss), name
            assert torch.equal(from_halves[name], rounded[name]), name

    @pytest.mark.parametrize(
        ("outputs", "counts", "message"),
        [
            (random_outputs(2, num_classes=4), [1, 1], "encoder_logits: expected 5 classes, got 4"),
            (random_outputs(2), [1, 1, 1], "targets: expected those of 2 images, got 3"),
            (random_outputs(2, 3), [1, 1], r"class_logits: expected \[layers, 2, 12, 5\]"),
        ],
    )
    def test_what_does_not_fit(self, outputs, counts, message):
        with pytest.raises(ValueError, match=message):
            Criterion(5)(outputs, random_targets(counts))

    def test_targets_that_do_not_fit_themselves(self):
        boxes, labels, shapes = random_targets([2, 1])
        with pytest.raises(ValueError, match="of 2 images"):
            Targets(boxes[:1], labels, shapes).flatten()
        with pytest.raises(ValueError, match=r"image 1 has 1 labels, expected boxes of shape \[1, 4\]"):
            Targets((boxes[0], boxes[0]), labels, shapes).flatten()
