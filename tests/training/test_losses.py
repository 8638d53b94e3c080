"""The losses of training: properties of the criterion. `test_losses_upstream` has upstream's numbers."""

from __future__ import annotations

import pytest
import torch

from codetr.model import TrainingOutputs
from codetr.training import criterion
from codetr.training.criterion import compute_losses, total
from codetr.training.losses import overlaps, quality_focal_loss
from codetr.training.matching import match_queries
from codetr.training.targets import make_targets
from tests.training.loss_batches import (
    gradients,
    make_denoising,
    random_outputs,
    random_targets,
)


def test_boxes_without_area_are_finite():
    """A sigmoid can round to 0 sides: neither overlap nor gradient may divide by them."""
    point = torch.full((4,), 3.0, requires_grad=True)
    for value in overlaps(point, point):
        (gradient,) = torch.autograd.grad(value, point, retain_graph=True)
        assert value.isfinite() and gradient.isfinite().all()


class TestCriterion:
    def test_a_batch_without_objects(self):
        targets = random_targets([0, 0])
        _, layout = make_denoising()(targets)
        outputs = random_outputs(2, layout.num_queries)
        losses = compute_losses(outputs, targets, layout)
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
        losses = compute_losses(outputs, targets)
        matching = match_queries(outputs.encoder_logits[None], outputs.encoder_boxes[None], targets)
        assert sorted(matching.query[0].tolist()[:12]) == list(range(12))
        assert len({*matching.target[0].tolist()}) == 13 and matching.target[0, -1] == 15
        found = outputs.encoder_boxes[[0] * 12 + [1], matching.query[0]]
        distance = (found - targets.boxes_cxcywh[matching.target[0]]).abs().sum()
        torch.testing.assert_close(losses["encoder/box"], 5.0 * distance / 13)

    def test_is_fp32_under_autocast(self):
        targets, outputs = random_targets([2, 1]), random_outputs(2, 200)
        _, layout = make_denoising()(targets)
        halves = TrainingOutputs(*(tensor.bfloat16() for tensor in outputs))
        expected = compute_losses(TrainingOutputs(*(tensor.float() for tensor in halves)), targets, layout)
        with torch.autocast("cpu", torch.bfloat16):
            got = compute_losses(halves, targets, layout)
        for name, loss in expected.items():
            assert got[name].dtype == torch.float32 and torch.equal(got[name], loss), name

    def test_ranks_share_a_batch(self, monkeypatch):
        """The mean over ranks, as DDP computes it of gradients, is the loss of the batch."""
        every, outputs = random_targets([3, 1, 3]), random_outputs(3, 18)

        def problem(images: slice, objects: slice):
            targets = make_targets(
                every.boxes_cxcywh[objects],
                every.labels[objects],
                every.image_shapes[images],
                every.counts[images],
            )
            encoded = (tensor[images] for tensor in outputs[:2])
            decoded = (tensor[:, images] for tensor in outputs[2:])
            return TrainingOutputs(*encoded, *decoded), targets, make_denoising(9)(targets)[1]

        whole = compute_losses(*problem(slice(3), slice(7)))
        parts, counts = (problem(slice(2), slice(4)), problem(slice(2, 3), slice(4, 7))), []
        monkeypatch.setattr(criterion, "average_over_ranks", lambda found: counts.append(found) or found)
        alone = [compute_losses(*part) for part in parts]
        monkeypatch.setattr(criterion, "average_over_ranks", lambda _: torch.stack(counts).mean(dim=0))
        first, second = (compute_losses(*part) for part in parts)
        for name, loss in whole.items():
            assert ((first[name] + second[name]) / 2).item() == pytest.approx(loss.item(), rel=1e-5), name
            assert first[name] != alone[0][name]


WAITING = {f"aten::{name}" for name in ("item", "_local_scalar_dense", "nonzero", "is_nonzero", "equal")}
"""Operations whose result the host needs. On a GPU they wait for all work before them."""


def test_the_host_waits_once(monkeypatch):
    targets, outputs, denoising = random_targets([3, 0, 5, 1]), random_outputs(4, 200), make_denoising()
    copies = []
    for name in ("cpu", "numpy", "tolist", "item"):
        original = getattr(torch.Tensor, name)

        def counted(tensor, *args, name=name, original=original, **kwargs):
            copies.append(name)
            return original(tensor, *args, **kwargs)

        monkeypatch.setattr(torch.Tensor, name, counted)
    cpu = torch.profiler.ProfilerActivity.CPU
    with torch.profiler.profile(activities=[cpu], acc_events=True) as profile:
        _, layout = denoising(targets)
        total(compute_losses(outputs, targets, layout)).backward()
    assert copies == ["cpu", "numpy"]
    assert WAITING.isdisjoint(event.name for event in profile.events())
