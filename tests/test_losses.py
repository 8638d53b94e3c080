"""Training losses against upstream's numbers, formulas and brute force, and what holds for any batch."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import os
import subprocess
import sys
import warnings
from collections import Counter
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from torch import nn

import codetr
from codetr.layers import inverse_sigmoid
from codetr.model import TrainingOutputs
from codetr.training.criterion import Criterion, total
from codetr.training.denoising import UPSTREAM_LABEL_EMBEDDING, Denoising, DenoisingLayout
from codetr.training.losses import corners, focal_cost, overlaps, quality_focal_loss
from codetr.training.matching import Matcher, Matching, assign
from codetr.training.targets import Targets

ROOT = Path(__file__).parents[1]
GOLDEN = ROOT / "tests" / "golden" / "losses.safetensors"
CUDA = pytest.param("cuda", marks=pytest.mark.gpu)


def make_denoising(num_classes: int = 5, num_queries: int = 12, **noise) -> Denoising:
    config = codetr.load_config("co_dino_r50")
    return Denoising(
        dataclasses.replace(config, num_classes=num_classes, num_queries=num_queries, max_per_img=1), **noise
    )


def random_boxes(generator: torch.Generator, *shape: int) -> torch.Tensor:
    """Boxes inside the unit square, with sides of 0.05..0.45: [*shape, 4]."""
    sides = 0.05 + 0.4 * torch.rand((*shape, 2), generator=generator)
    return torch.cat(
        (0.5 * sides + torch.rand((*shape, 2), generator=generator) * (1 - sides), sides), dim=-1
    )


def random_targets(counts, num_classes: int = 5, seed: int = 0) -> Targets:
    generator = torch.Generator().manual_seed(seed)
    return Targets(
        tuple(random_boxes(generator, count) for count in counts),
        tuple(torch.randint(num_classes, (count,), generator=generator) for count in counts),
        torch.randint(64, 640, (len(counts), 2), generator=generator),
    )


def random_outputs(
    images: int, denoising: int = 0, queries: int = 12, num_classes: int = 5, layers: int = 2, seed: int = 1
) -> TrainingOutputs:
    generator = torch.Generator().manual_seed(seed)
    tensors = (
        torch.randn(images, queries, num_classes, generator=generator) - 1.0,
        random_boxes(generator, images, queries),
        torch.randn(layers, images, denoising + queries, num_classes, generator=generator) - 1.0,
        random_boxes(generator, layers, images, denoising + queries),
    )
    return TrainingOutputs(*(tensor.requires_grad_() for tensor in tensors))


def gradients(outputs: TrainingOutputs, losses: dict[str, torch.Tensor]) -> tuple[torch.Tensor, ...]:
    return torch.autograd.grad(total(losses), outputs)


def to(outputs, device: str):
    return type(outputs)(*(tensor.detach().to(device).requires_grad_() for tensor in outputs))


class Golden:
    """Upstream's numbers; the file's metadata says how they were made."""

    def __init__(self) -> None:
        with safe_open(GOLDEN, "pt") as file:
            self.tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            self.num_pairs = int(file.metadata()["num_pairs"])
        counts = self["targets.counts"].tolist()
        self.targets = Targets(
            self["targets.boxes_cxcywh"].split(counts),
            self["targets.labels"].split(counts),
            self["targets.image_shapes"],
        )

    def __getitem__(self, name: str) -> torch.Tensor:
        return self.tensors[name]

    def part(self, prefix: str) -> dict[str, torch.Tensor]:
        return {
            name.removeprefix(prefix): tensor
            for name, tensor in self.tensors.items()
            if name.startswith(prefix)
        }

    def outputs(self) -> TrainingOutputs:
        return TrainingOutputs(**{k: v.clone().requires_grad_() for k, v in self.part("outputs.").items()})

    def denoising(self) -> Denoising:
        denoising = make_denoising(num_pairs=self.num_pairs)
        denoising.label_embedding = nn.Embedding.from_pretrained(self["denoising.embedding"])
        return denoising


@pytest.fixture(scope="module")
def golden() -> Golden:
    return Golden()


class TestUpstream:
    @pytest.mark.parametrize("device", ["cpu", CUDA])
    def test_losses_and_gradients(self, golden, device):
        outputs, targets = to(golden.outputs(), device), golden.targets.to(device)
        _, layout = golden.denoising().to(device)(targets)
        losses = Criterion(5)(outputs, targets, layout)
        expected = golden.part("loss.")
        assert losses.keys() == expected.keys()
        for name, loss in losses.items():
            torch.testing.assert_close(loss.cpu(), expected[name], rtol=1e-5, atol=0, msg=name)
        for name, gradient in zip(TrainingOutputs._fields, gradients(outputs, losses)):
            torch.testing.assert_close(
                gradient.cpu(), golden[f"gradient.{name}"], rtol=1e-5, atol=1e-6, msg=name
            )

    def test_costs_and_matching(self, golden):
        outputs = golden.outputs()
        denoising = golden["denoising.content"].shape[1]
        logits = torch.cat((outputs.encoder_logits[None], outputs.class_logits[:, :, denoising:]))
        boxes = torch.cat((outputs.encoder_boxes[None], outputs.boxes_cxcywh[:, :, denoising:]))
        matcher, flat = Matcher(), golden.targets.flatten()
        torch.testing.assert_close(
            matcher.costs(logits, boxes, flat).detach(), golden["costs"], rtol=1e-6, atol=2e-6
        )
        matching = matcher(logits, boxes, flat)
        assert matching.query.tolist() == golden["query"].tolist()
        assert matching.target.tolist() == [list(range(12))] * 4

    def test_denoising_queries(self, golden, monkeypatch):
        noise = golden.part("noise.")
        uniform, integers = [noise["replace"], noise["amount"].clone()], [noise["labels"], noise["sign"]]
        monkeypatch.setattr(torch, "rand", lambda *_, **__: uniform.pop(0))
        monkeypatch.setattr(torch, "randint", lambda *_, **__: integers.pop(0))
        queries, layout = golden.denoising()(golden.targets)
        assert (layout.num_groups, layout.num_queries) == (2, 28)
        torch.testing.assert_close(queries.content, golden["denoising.content"], rtol=0, atol=0)
        torch.testing.assert_close(
            queries.boxes_cxcywh, golden["denoising.boxes_cxcywh"], rtol=1e-6, atol=2e-7
        )
        assert torch.equal(queries.attention_mask, golden["denoising.attention_mask"])

    def test_name_of_the_label_embedding(self):
        shapes = json.loads(
            (GOLDEN.parent / "checkpoint_keys_co_dino_5scale_r50_8xb2_1x_coco.json").read_text()
        )
        config = codetr.load_config("co_dino_r50")
        assert shapes[UPSTREAM_LABEL_EMBEDDING] == list(Denoising(config).label_embedding.weight.shape)


class TestFormulas:
    @given(st.floats(-30, 30), st.floats(0, 1))
    def test_quality_focal_loss(self, logit, quality):
        score = 1 / (1 + math.exp(-logit))
        background = math.log1p(math.exp(-abs(logit))) + max(logit, 0)  # -log(1 - score)
        expected = (quality - score) ** 2 * (background - quality * logit)
        loss = quality_focal_loss(torch.tensor(logit).double(), torch.tensor(quality).double())
        assert loss.item() == pytest.approx(expected, rel=1e-5, abs=1e-7)
        assert loss.item() >= 0

    def test_quality_focal_loss_by_hand(self):
        # A score of 1/2 for a quality of 1/4: (1/4)^2 log 2.
        loss = quality_focal_loss(torch.zeros(()), torch.tensor(0.25))
        assert loss.item() == pytest.approx(math.log(2) / 16, rel=1e-6)

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

    def test_corners(self):
        assert corners(torch.tensor([0.5, 0.25, 0.5, 0.5])).tolist() == [0.25, 0.0, 0.75, 0.5]


class TestMatching:
    @given(
        st.lists(st.integers(0, 4), min_size=1, max_size=3),
        st.integers(1, 4),
        st.integers(1, 2),
        st.integers(0, 2**32 - 1),
    )
    def test_is_the_best_of_all(self, counts, queries, layers, seed):
        costs = np.random.default_rng(seed).normal(size=(layers, sum(counts), queries)).astype(np.float32)
        if not sum(counts):
            return
        targets, matched = assign(costs, tuple(counts))
        assert targets.dtype == matched.dtype == np.int64
        assert targets.shape == matched.shape == (layers, sum(min(count, queries) for count in counts))
        for layer in range(layers):
            start = pair = 0
            for count in counts:
                pairs = min(count, queries)
                got_targets = targets[layer, pair : pair + pairs]
                got_queries = matched[layer, pair : pair + pairs]
                assert ((start <= got_targets) & (got_targets < start + count)).all()
                assert len({*got_targets}) == len({*got_queries}) == pairs
                best = min(
                    sum(costs[layer, start + t, q] for t, q in zip(chosen, order))
                    for chosen in itertools.combinations(range(count), pairs)
                    for order in itertools.permutations(range(queries), pairs)
                )
                assert costs[layer, got_targets, got_queries].sum() == pytest.approx(best, abs=1e-5)
                start, pair = start + count, pair + pairs

    def test_finds_the_boxes_and_labels(self):
        """Queries that are the objects, shuffled, with the same box for two objects of different labels."""
        targets = random_targets([5, 3])
        boxes = [image.clone() for image in targets.boxes_cxcywh]
        boxes[0][1] = boxes[0][0]
        labels = (torch.tensor([1, 4, 2, 2, 0]), targets.labels[1])
        targets = Targets(tuple(boxes), labels, targets.image_shapes)
        outputs = random_outputs(2)
        generator = torch.Generator().manual_seed(3)
        orders = [torch.randperm(12, generator=generator)[:count] for count in (5, 3)]
        logits, found = outputs.encoder_logits.detach(), outputs.encoder_boxes.detach()
        for image, order in enumerate(orders):
            found[image, order] = boxes[image]
            logits[image, order] = torch.where(torch.arange(5) == targets.labels[image][:, None], 4.0, -4.0)
        matching = Matcher()(logits[None], found[None], targets.flatten())
        assert matching.query[0].tolist() == [*orders[0].tolist(), *orders[1].tolist()]

    @pytest.mark.parametrize("value", [math.nan, math.inf])
    def test_divergence_is_an_error(self, value):
        outputs = random_outputs(2)
        with torch.no_grad():
            outputs.boxes_cxcywh[1, 1, 3, 2] = value
        with pytest.raises(RuntimeError, match="training diverged"):
            Criterion(5)(outputs, random_targets([1, 2]))

    def test_unknown_label_is_an_error(self):
        targets = random_targets([2, 1])
        targets.labels[0][1] = 5
        with pytest.raises(IndexError):
            Criterion(5)(random_outputs(2), targets)


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

    def test_mask_keeps_groups_apart(self):
        queries, layout = make_denoising(num_pairs=9)(random_targets([3, 2]))
        size = 6  # queries of a group
        mask = queries.attention_mask
        for row, column in itertools.product(range(18 + 12), repeat=2):
            if column >= 18:
                hidden = False  # everyone sees the matching queries
            elif row >= 18:
                hidden = True  # which see no denoising query
            else:
                hidden = row // size != column // size
            assert mask[row, column] == hidden, (row, column)
        assert layout.num_queries == 18

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

    def test_box_noise_scales(self):
        """The same draws with a noise of 0.4 move corners 0.4 times as far."""
        boxes = torch.tensor([[0.5, 0.5, 0.1, 0.2]])
        targets = Targets((boxes,), (torch.tensor([0]),), torch.tensor([[480, 640]]))
        moved = []
        for noise in (1.0, 0.4):
            denoising = make_denoising(box_noise=noise)
            queries, _ = denoising(targets, torch.Generator().manual_seed(0))
            positives = queries.boxes_cxcywh.view(100, 2, 4)[:, 0]
            moved.append(corners(positives) - corners(boxes))
        torch.testing.assert_close(moved[1], 0.4 * moved[0], rtol=1e-4, atol=1e-6)

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

    def test_padding(self):
        queries, _ = make_denoising(num_pairs=6)(random_targets([3, 1]))
        content = queries.content.detach().view(2, 2, 2, 3, 256)
        boxes = queries.boxes_cxcywh.view(2, 2, 2, 3, 4)
        assert (content[1, :, :, 1:] == 0).all() and (boxes[1, :, :, 1:] == 0.5).all()
        assert (content[0] != 0).any(-1).all() and (content[1, :, :, 0] != 0).any(-1).all()

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
        """It has a gradient without objects too: distributed training waits for one from every rank."""
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

    def test_each_term_falls_when_what_it_measures_gets_better(self):
        targets, outputs = random_targets([3]), random_outputs(1)
        before = Criterion(5)(outputs, targets)
        step = [
            tensor.detach() - 0.01 * gradient for tensor, gradient in zip(outputs, gradients(outputs, before))
        ]
        after = Criterion(5)(TrainingOutputs(*step), targets)
        assert total(after) < total(before)

    def test_order_of_objects_does_not_matter(self):
        targets = random_targets([6, 3])
        orders = (torch.tensor([4, 2, 0, 5, 1, 3]), torch.tensor([1, 2, 0]))
        permuted = Targets(
            tuple(boxes[order] for boxes, order in zip(targets.boxes_cxcywh, orders)),
            tuple(labels[order] for labels, order in zip(targets.labels, orders)),
            targets.image_shapes,
        )
        outputs = random_outputs(2)
        losses, others = Criterion(5)(outputs, targets), Criterion(5)(outputs, permuted)
        for name, loss in losses.items():
            torch.testing.assert_close(loss, others[name], rtol=1e-6, atol=0, msg=name)
        for gradient, other in zip(gradients(outputs, losses), gradients(outputs, others)):
            torch.testing.assert_close(gradient, other, rtol=1e-5, atol=1e-7)

    def test_images_are_independent(self):
        """With equal counts, the losses of a batch are the mean of its images'."""
        targets, outputs = random_targets([3, 3]), random_outputs(2)
        together = Criterion(5)(outputs, targets)
        alone = []
        for index in range(2):
            part = slice(index, index + 1)
            image = Targets(targets.boxes_cxcywh[part], targets.labels[part], targets.image_shapes[part])
            encoder_logits, encoder_boxes, logits, boxes = outputs
            picked = TrainingOutputs(
                encoder_logits[part], encoder_boxes[part], logits[:, part], boxes[:, part]
            )
            alone.append(Criterion(5)(picked, image))
        for name, loss in together.items():
            mean = (alone[0][name] + alone[1][name]) / 2
            torch.testing.assert_close(loss, mean, rtol=1e-6, atol=1e-7, msg=name)

    @pytest.mark.parametrize("name", TrainingOutputs._fields)
    def test_gradient_is_that_of_finite_differences(self, name):
        """Along random directions, with the matching held, and no coordinate near one that it is compared to.

        A box's IoU is a constant to the class loss, so boxes are tried without it.
        """
        targets, outputs = random_targets([3, 1]), random_outputs(2)
        flat = targets.flatten()
        generator = torch.Generator().manual_seed(11)
        with torch.no_grad():
            for boxes in (outputs.encoder_boxes[None], outputs.boxes_cxcywh):
                shift = 0.01 + 0.01 * torch.rand((len(boxes), 4, 4), generator=generator)
                shift[..., :2] += 0.02
                shift *= torch.randint(2, shift.shape, generator=generator) * 2 - 1
                boxes[:, flat.image, flat.place] = flat.boxes_cxcywh + shift
        held = Matching(torch.arange(4).expand(3, -1), flat.place.expand(3, -1))
        criterion = Criterion(5, class_weight=0.0 if "boxes" in name else 1.0, matcher=lambda *_: held)
        index = TrainingOutputs._fields.index(name)
        gradient = gradients(outputs, criterion(outputs, targets))[index]
        for _ in range(3):
            direction = torch.randn(outputs[index].shape, generator=generator)
            values = [
                total(
                    criterion(outputs._replace(**{name: outputs[index].detach() + step * direction}), targets)
                )
                for step in (1e-3, -1e-3)
            ]
            slope = (values[0] - values[1]).item() / 2e-3
            assert slope == pytest.approx((gradient * direction).sum().item(), rel=0.01, abs=0.01)

    def test_an_image_without_objects_is_background(self):
        targets, outputs = random_targets([3, 0]), random_outputs(2)
        losses = Criterion(5)(outputs, targets)
        _, encoder_boxes, class_logits, boxes = gradients(outputs, losses)
        assert not encoder_boxes[1].any() and not boxes[:, 1].any()
        # Nothing but lower scores is asked of the empty image.
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

    def test_one_class(self):
        targets = random_targets([2, 1], num_classes=1)
        _, layout = make_denoising(num_classes=1)(targets)
        losses = Criterion(1)(random_outputs(2, layout.num_queries, num_classes=1), targets, layout)
        assert all(loss.isfinite() and loss > 0 for loss in losses.values())

    def test_weights(self):
        targets, outputs = random_targets([2, 1]), random_outputs(2)
        usual = Criterion(5)(outputs, targets)
        other = Criterion(5, class_weight=3.0, box_weight=1.0, giou_weight=0.5)(outputs, targets)
        factors = {"class": 3.0, "box": 0.2, "giou": 0.25}
        for name, loss in usual.items():
            torch.testing.assert_close(other[name], loss * factors[name.split("/")[1]], msg=name)

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


def operations(step) -> list[str]:
    """The names of all operations of a step, those of backward and those inside others too."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], acc_events=True) as profile:
        step()
    return [event.name for event in profile.events() if event.name.startswith("aten::")]


WAITING = {f"aten::{name}" for name in ("item", "_local_scalar_dense", "nonzero", "is_nonzero", "equal")}
"""Operations whose result the host needs, which on a GPU waits for all work before."""


class TestWaiting:
    """A GPU must not idle: the host waits for it once a step."""

    def test_one_copy_to_the_host(self, monkeypatch):
        targets = random_targets([3, 0, 5, 1])
        denoising = make_denoising()
        copies = []
        for name in ("cpu", "numpy", "tolist", "item"):
            original = getattr(torch.Tensor, name)

            def counted(tensor, *args, name=name, original=original, **kwargs):
                copies.append(name)
                return original(tensor, *args, **kwargs)

            monkeypatch.setattr(torch.Tensor, name, counted)

        def step():
            _, layout = denoising(targets)
            total(Criterion(5)(outputs, targets, layout)).backward()

        outputs = random_outputs(4, 200, layers=6)
        names = operations(step)
        assert copies == ["cpu", "numpy"]
        assert WAITING.isdisjoint(names)

    @pytest.mark.parametrize(("images", "layers"), [(2, 2), (8, 6)])
    def test_operations_do_not_grow_with_the_batch(self, images, layers):
        counts = []
        for size, depth in ((1, 1), (images, layers)):
            targets, outputs = random_targets([2] * size), random_outputs(size, layers=depth)
            names = operations(lambda: Criterion(5)(outputs, targets))  # noqa: B023
            counts.append(Counter(names))
        # Losses are taken apart by layer, in views.
        grown = {name for name in counts[1] if counts[1][name] > counts[0][name]}
        assert grown <= {"aten::as_strided", "aten::select"}

    @pytest.mark.gpu
    def test_on_the_gpu(self):
        targets = random_targets([3, 0, 5, 1]).to("cuda")
        denoising, criterion = make_denoising().cuda(), Criterion(5)

        def step() -> list[str]:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                _, layout = denoising(targets)
                total(criterion(outputs, targets, layout)).backward()
            return [str(warning.message) for warning in caught if "synchroniz" in str(warning.message)]

        outputs = to(random_outputs(4, 200, layers=6), "cuda")
        step()  # memory is pinned and kernels are loaded
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("warn")
        try:
            waits = step()
        finally:
            torch.cuda.set_sync_debug_mode("default")
        assert len(waits) == 1, waits


OTHER_RANK = """
import json, sys
from tests.test_losses import rank_losses
print(json.dumps(rank_losses(1, sys.argv[1])))
"""


def rank_losses(rank: int, store: str) -> dict[str, float]:
    """The losses of one of two processes that share a batch."""
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=2, timeout=timedelta(seconds=60)
    )
    try:
        return {name: loss.item() for name, loss in Criterion(5)(*distributed_problem(rank)).items()}
    finally:
        torch.distributed.destroy_process_group()


def distributed_problem(rank: int | None) -> tuple[TrainingOutputs, Targets, DenoisingLayout]:
    """A batch of three images, or a rank's share of it: two images or one."""
    boxes, labels, shapes = random_targets([3, 1, 3])
    outputs = random_outputs(3, 18)
    part = {None: slice(0, 3), 0: slice(0, 2), 1: slice(2, 3)}[rank]
    targets = Targets(boxes[part], labels[part], shapes[part])
    _, layout = make_denoising(num_pairs=9)(targets)
    shares = (
        outputs.encoder_logits[part],
        outputs.encoder_boxes[part],
        outputs.class_logits[:, part],
        outputs.boxes_cxcywh[:, part],
    )
    return TrainingOutputs(*shares), targets, layout


def test_ranks_share_a_batch(tmp_path):
    """The mean over ranks, which is what DDP makes of gradients, is the loss of the whole batch."""
    store = str(tmp_path / "store")
    path = os.pathsep.join((str(ROOT), os.environ.get("PYTHONPATH", "")))
    other = subprocess.Popen(
        [sys.executable, "-c", OTHER_RANK, store],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    try:
        first = rank_losses(0, store)
        output, _ = other.communicate(timeout=60)
    finally:
        other.kill()
    assert other.returncode == 0
    second = json.loads(output.splitlines()[-1])
    for name, loss in Criterion(5)(*distributed_problem(None)).items():
        assert (first[name] + second[name]) / 2 == pytest.approx(loss.item(), rel=1e-5), name
        assert first[name] != second[name]
