"""Training losses, matching and denoising queries against upstream's numbers."""

from __future__ import annotations

import json

import pytest
import torch

import codetr
from codetr.checkpoint import UPSTREAM_LABEL_EMBEDDING
from codetr.model import TrainingOutputs
from codetr.training.criterion import compute_losses
from codetr.training.denoising import Denoising
from codetr.training.matching import match_queries, matching_costs
from tests.training.loss_batches import CUDA, GOLDEN, Golden, gradients, to


@pytest.fixture(scope="module")
def golden() -> Golden:
    return Golden()


class TestUpstream:
    @pytest.mark.parametrize("device", ["cpu", CUDA])
    def test_losses_and_gradients(self, golden, device):
        outputs, targets = to(device, golden.outputs(), golden.targets)
        _, layout = golden.denoising().to(device)(targets)
        losses = compute_losses(outputs, targets, layout)
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
        costs = matching_costs(logits, boxes, golden.targets).detach()
        torch.testing.assert_close(costs, golden["costs"], rtol=1e-6, atol=2e-6)
        matching = match_queries(logits, boxes, golden.targets)
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
        assert shapes[UPSTREAM_LABEL_EMBEDDING] == list(Denoising(config, 1).label_embedding.weight.shape)
