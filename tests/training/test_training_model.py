"""The model's side of training: training outputs, denoising queries, batch norms, initialisation."""

from __future__ import annotations

import dataclasses

import pytest
import torch

import codetr
from codetr.model.layers import (
    DropPath,
    Float32Linear,
    FrozenBatchNorm2d,
    thaw_batch_norms,
)
from codetr.model.transformer import DenoisingQueries
from codetr.training.initialise import CLASS_PRIOR, initialise
from tests.golden_models import MODELS, load_golden

RESNET = "codino_resnet_tiny"


@pytest.fixture(params=list(MODELS))
def golden(request):
    """A golden model with its sample input."""
    model, tensors = load_golden(request.param)
    return model, tensors["in/images"].float(), tensors["in/image_shapes_hw"]


def denoising_queries(model: codetr.CoDino, batch: int, count: int, blocked: bool) -> DenoisingQueries:
    """Random denoising queries; `blocked` hides them from the selected ones and the other way round."""
    generator = torch.Generator().manual_seed(7)
    total = count + model.config.num_queries
    mask = torch.zeros(total, total, dtype=torch.bool)
    if blocked:
        mask[count:, :count] = mask[:count, count:] = True
    return DenoisingQueries(
        torch.randn(batch, count, model.config.embed_dims, generator=generator),
        torch.rand(batch, count, 4, generator=generator) * 0.5 + 0.2,
        mask,
    )


class TestTrainingOutputs:
    def test_are_the_stages_of_inference(self, golden):
        model, images, image_shapes = golden
        with torch.inference_mode():
            stages = model.stages(images, image_shapes)
            outputs = model.training_outputs(images, image_shapes)
        for name, stage in (
            ("encoder_logits", "topk_scores"),
            ("encoder_boxes", "topk_boxes"),
            ("class_logits", "class_logits"),
            ("boxes_cxcywh", "boxes_cxcywh"),
        ):
            torch.testing.assert_close(getattr(outputs, name), stages[stage], rtol=0, atol=0, msg=name)

    def test_hidden_denoising_queries_change_nothing(self, golden):
        model, images, image_shapes = golden
        with torch.inference_mode():
            alone = model.training_outputs(images, image_shapes)
            queries = denoising_queries(model, len(images), 5, blocked=True)
            both = model.training_outputs(images, image_shapes, queries)
            seen = model.training_outputs(images, image_shapes, queries._replace(
                attention_mask=torch.zeros_like(queries.attention_mask)
            ))  # fmt: skip
        assert both.class_logits.shape[2] == 5 + model.config.num_queries
        torch.testing.assert_close(both.class_logits[:, :, 5:], alone.class_logits, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(both.boxes_cxcywh[:, :, 5:], alone.boxes_cxcywh, rtol=1e-4, atol=1e-4)
        # The same queries unhidden do: the mask is what kept them apart.
        assert (seen.class_logits[:, :, 5:] - alone.class_logits).abs().max() > 1e-2

    def test_the_decoder_does_not_teach_the_selection_its_boxes(self, golden):
        """Upstream detaches the selected boxes before they are decoded."""
        model, images, image_shapes = golden
        model.training_outputs(images, image_shapes).boxes_cxcywh.sum().backward()
        assert all(parameter.grad is None for parameter in model.query_selection.box_branch.parameters())

    @pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
    def test_float32_linear_under_autocast(self, dtype):
        layer = Float32Linear(64, 8)
        x = torch.randn(4, 64, dtype=dtype)
        expected = layer(x)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            result = layer(x)
        assert result.dtype == torch.float32
        torch.testing.assert_close(result, expected, rtol=0, atol=0)


class TestBatchNorms:
    def test_thawed_norms_give_the_same_until_they_learn(self):
        model, tensors = load_golden(RESNET)
        images = tensors["in/images"].float()
        with torch.no_grad():
            expected = model.backbone(images)
            thaw_batch_norms(model)
            thawed = model.backbone(images)  # in evaluation mode
        torch.testing.assert_close(thawed, expected, rtol=1e-4, atol=1e-4)
        assert not any(isinstance(module, FrozenBatchNorm2d) for module in model.modules())

        model.train()
        model.backbone(images)  # moves the statistics
        model.eval()
        with torch.no_grad():
            moved = model.backbone(images)
            frozen, _ = load_golden(RESNET)
            learned = model.state_dict()
            frozen.load_state_dict({name: learned[name] for name in frozen.state_dict()})
            again = frozen.backbone(images)
        assert (moved[0] - expected[0]).abs().max() > 1e-2
        torch.testing.assert_close(again, moved, rtol=1e-4, atol=1e-4)


class TestInitialise:
    @pytest.mark.parametrize("name", list(MODELS))
    def test_is_seeded_and_sane(self, name):
        (first, tensors), (second, _) = load_golden(name), load_golden(name)
        initialise(first, 3)  # overwrites the golden weights
        initialise(second, 3)
        weights, same = first.state_dict(), second.state_dict()
        assert all(torch.equal(weights[key], same[key]) for key in weights)
        with torch.no_grad():
            stages = first.stages(tensors["in/images"].float(), tensors["in/image_shapes_hw"])
        scores = stages["class_logits"].sigmoid()
        assert CLASS_PRIOR / 50 < scores.median() < CLASS_PRIOR * 20
        # No box has moved from where its query was selected.
        torch.testing.assert_close(stages["boxes_cxcywh"][-1], stages["boxes_cxcywh"][0], rtol=0, atol=2e-3)
        assert all(tensor.isfinite().all() for tensor in stages.values())


class TestDropPath:
    def test_drops_whole_images_while_training_and_keeps_the_mean(self):
        torch.manual_seed(0)
        layer = DropPath(0.25)
        x = torch.ones(4000, 3, 2)
        assert torch.equal(layer.eval()(x), x)
        out = layer.train()(x)
        kept = out[:, 0, 0] != 0
        assert torch.equal(out, kept[:, None, None] * x / 0.75)
        assert abs(kept.float().mean() - 0.75) < 0.03

    def test_swin_uses_the_configured_rate(self):
        config = load_golden("codino_swin_tiny")[0].config
        rates = [module.rate for module in codetr.CoDino(config).modules() if isinstance(module, DropPath)]
        assert rates[0] == 0.0 and rates[-1] == pytest.approx(0.3) and rates == sorted(rates)
        with pytest.raises(ValueError, match=r"backbone\.drop_path_rate: expected .*, got 1\.0"):
            dataclasses.replace(config.backbone, drop_path_rate=1.0)


def test_class_names_of_a_configuration():
    config = load_golden(RESNET)[0].config
    names = tuple(f"thing {i}" for i in range(config.num_classes))
    assert dataclasses.replace(config, class_names=names).label_names == names
    for wrong, words in (("one",), "number of names: expected"), (("a",) * len(names), "got 'a' twice"):
        with pytest.raises(ValueError, match=f"class_names: .*{words}"):
            dataclasses.replace(config, class_names=wrong)
