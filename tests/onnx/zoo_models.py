"""The makers of the zoo's models (`tests.onnx.model_zoo`): full, batch -> module and example inputs by name.

Small configurations have few layers, channels and pixels; all else is as published. Nothing is downloaded:
backbones and text encoders have random weights too.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import Callable
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import codetr
import msda
from tests.golden_models import GOLDEN
from tests.onnx.zoo_exporters import Exportable, randomise

Built = tuple[nn.Module, dict[str, Tensor]]
STAGES = ["stage2", "stage3", "stage4"]
DETECTIONS = ("logits", "pred_boxes")


def images(
    full: bool, batch: int, usual: tuple[int, int], small: tuple[int, int] = (96, 128)
) -> dict[str, Tensor]:
    """Images of the usual or of the small size, [batch, 3, H, W]."""
    return {"pixel_values": torch.randn(batch, 3, *(usual if full else small))}


def deformable_detr(full: bool, batch: int = 1, **options) -> Built:
    from transformers import DeformableDetrConfig, DeformableDetrForObjectDetection, ResNetConfig

    if full:
        backbone, sizes = ResNetConfig(out_features=STAGES), {"num_labels": 91}
    else:
        backbone = ResNetConfig(**_resnet(), out_features=STAGES)
        sizes = _encoder_and_decoder(heads=8) | {"num_queries": 12, "two_stage_num_proposals": 12}
    config = DeformableDetrConfig(backbone_config=backbone, disable_custom_kernels=True, **sizes, **options)
    inputs = images(full, batch, (800, 1333))
    inputs["pixel_mask"] = torch.ones(batch, *inputs["pixel_values"].shape[-2:], dtype=torch.int64)
    return _exportable(DeformableDetrForObjectDetection(config), inputs)


def deformable_detr_two_stage(full: bool, batch: int = 1) -> Built:
    return deformable_detr(full, batch, two_stage=True, with_box_refine=True)


def rt_detr(full: bool, batch: int = 1) -> Built:
    from transformers import RTDetrConfig, RTDetrForObjectDetection, RTDetrResNetConfig

    if full:
        config = RTDetrConfig(num_labels=80, num_denoising=0)
    else:
        backbone = RTDetrResNetConfig(**_resnet(), out_features=STAGES)
        config = RTDetrConfig(backbone_config=backbone, **_hybrid_encoder(heads=8))
    return _exportable(RTDetrForObjectDetection(config), images(full, batch, (640, 640)))


def rt_detr_v2(full: bool, batch: int = 1) -> Built:
    from transformers import RTDetrResNetConfig, RTDetrV2Config, RTDetrV2ForObjectDetection

    if full:
        config = RTDetrV2Config(num_labels=80, num_denoising=0)
    else:
        backbone = RTDetrResNetConfig(**_resnet(), out_features=STAGES)
        config = RTDetrV2Config(backbone_config=backbone, **_hybrid_encoder(heads=2))
    return _exportable(RTDetrV2ForObjectDetection(config), images(full, batch, (640, 640)))


def d_fine(full: bool, batch: int = 1) -> Built:
    from transformers import DFineConfig, DFineForObjectDetection, HGNetV2Config

    points = [3, 6, 3]
    if full:
        config = DFineConfig(num_labels=80, num_denoising=0, decoder_n_points=points)
    else:
        backbone = HGNetV2Config(
            embedding_size=8,
            hidden_sizes=[8, 16, 24, 32],
            depths=[1, 1, 1, 1],
            stem_channels=[3, 4, 8],
            stage_in_channels=[8, 8, 16, 24],
            stage_mid_channels=[4, 4, 8, 8],
            stage_out_channels=[8, 16, 24, 32],
            stage_num_blocks=[1, 1, 1, 1],
            stage_downsample=[False, True, True, True],
            stage_light_block=[False, False, True, True],
            stage_kernel_size=[3, 3, 5, 5],
            stage_numb_of_layers=[2, 2, 2, 2],
            out_features=STAGES,
        )
        sizes = _hybrid_encoder(heads=4) | {"lqe_hidden_dim": 8, "max_num_bins": 8, "hidden_expansion": 0.5}
        config = DFineConfig(backbone_config=backbone, decoder_n_points=points, **sizes)
    return _exportable(DFineForObjectDetection(config), images(full, batch, (640, 640)))


def grounding_dino(full: bool, batch: int = 1) -> Built:
    from transformers import BertConfig, GroundingDinoConfig, GroundingDinoForObjectDetection, SwinConfig
    from transformers.models.grounding_dino import modeling_grounding_dino as source

    if full:
        config = GroundingDinoConfig(disable_custom_kernels=True)
    else:
        text = BertConfig(
            vocab_size=1100,
            hidden_size=24,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=32,
            max_position_embeddings=32,
        )
        config = GroundingDinoConfig(
            backbone_config=SwinConfig(**_swin(), out_features=STAGES),
            text_config=text,
            disable_custom_kernels=True,
            num_queries=12,
            max_text_len=16,
            **_encoder_and_decoder(heads=4),
        )
    # "[CLS] word word . word . [SEP] [PAD]", the full stop being 1012
    prompt = torch.tensor([[101, 1005, 1006, 1012, 1007, 1012, 102, 0]] * batch)
    inputs = images(full, batch, (800, 1333))
    inputs["pixel_mask"] = torch.ones(batch, *inputs["pixel_values"].shape[-2:], dtype=torch.int64)
    model = GroundingDinoForObjectDetection(config)
    masks = source.generate_masks_with_special_tokens_and_transfer_map(
        prompt, special_tokens=model.model.special_tokens
    )

    def logits(self, vision_hidden_state: Tensor, text_hidden_state: Tensor, text_token_mask: Tensor):
        similarity = vision_hidden_state @ text_hidden_state.transpose(-1, -2)
        similarity = similarity.masked_fill(~text_token_mask.unsqueeze(1), -torch.inf)
        return F.pad(similarity, (0, self.max_text_len - similarity.shape[-1]), value=-torch.inf)

    def patches() -> list:
        name = "generate_masks_with_special_tokens_and_transfer_map"
        return [
            mock.patch.object(source, name, lambda *_, **__: masks),
            mock.patch.object(source.GroundingDinoContrastiveEmbedding, "forward", logits),
        ]

    fixed = {"input_ids": prompt, "attention_mask": (prompt != 0).long()}
    return _exportable(model, inputs, patches=patches, token_type_ids=torch.zeros_like(prompt), **fixed)


def mask2former(full: bool, batch: int = 1) -> Built:
    from transformers import Mask2FormerConfig, Mask2FormerForUniversalSegmentation, SwinConfig

    stages = ["stage1", *STAGES]
    if full:
        config = Mask2FormerConfig(backbone_config=SwinConfig(out_features=stages), num_labels=80)
    else:
        config = Mask2FormerConfig(
            backbone_config=SwinConfig(**_swin(), out_features=stages),
            feature_size=32,
            mask_feature_size=32,
            hidden_dim=32,
            encoder_feedforward_dim=32,
            encoder_layers=2,
            decoder_layers=3,
            num_attention_heads=2,
            dim_feedforward=32,
            num_queries=12,
            num_labels=5,
        )
    model = Mask2FormerForUniversalSegmentation(config)
    return _exportable(
        model, images(full, batch, (800, 1344)), outputs=("class_queries_logits", "masks_queries_logits")
    )


def omdet_turbo(full: bool, batch: int = 1) -> Built:
    from transformers import CLIPTextConfig, OmDetTurboConfig, OmDetTurboForObjectDetection, SwinConfig

    # transformers' Swin normalises its outputs itself; timm's, of the published checkpoint, does not.
    options = {"disable_custom_kernels": True, "apply_layernorm_after_vision_backbone": False}
    if full:
        text = CLIPTextConfig(hidden_size=512, intermediate_size=2048, num_attention_heads=8)
        backbone = SwinConfig(image_size=640, out_features=STAGES)
        config = OmDetTurboConfig(backbone_config=backbone, text_config=text, **options)
        classes, words = 80, text.vocab_size - 2
    else:
        text = CLIPTextConfig(
            vocab_size=100,
            hidden_size=24,
            intermediate_size=32,
            projection_dim=24,
            num_hidden_layers=1,
            num_attention_heads=2,
            max_position_embeddings=16,
            bos_token_id=98,
            eos_token_id=99,
            pad_token_id=0,
        )
        config = OmDetTurboConfig(
            backbone_config=SwinConfig(**_swin(), out_features=STAGES),
            text_config=text,
            image_size=128,
            text_projection_in_dim=24,
            text_projection_out_dim=24,
            class_embed_dim=24,
            task_encoder_hidden_dim=16,
            num_queries=12,
            encoder_hidden_dim=32,
            vision_features_channels=[32, 32, 32],
            encoder_in_channels=[16, 32, 64],
            encoder_attention_heads=4,
            encoder_dim_feedforward=32,
            decoder_hidden_dim=32,
            decoder_num_heads=4,
            decoder_num_layers=2,
            decoder_dim_feedforward=32,
            **options,
        )
        classes, words = 3, 98
    start, end = words, words + 1
    names = torch.tensor([[start, 1 + index, end, 0] for index in range(classes)] * batch)
    task = torch.tensor([[start, 1, 2, 3, end, 0]] * batch)
    prompt = {
        "classes_input_ids": names,
        "classes_attention_mask": (names != 0).long(),
        "tasks_input_ids": task,
        "tasks_attention_mask": (task != 0).long(),
        "classes_structure": torch.tensor([classes] * batch),
    }
    model = OmDetTurboForObjectDetection(config).eval()
    outputs = ("decoder_class_logits", "decoder_coord_logits")
    built = _exportable(model, images(full, batch, (640, 640)), outputs=outputs, **prompt)
    with torch.no_grad():
        embeddings = model.get_language_embedding(**prompt)
    model.get_language_embedding = lambda *_, **__: embeddings
    return built


def rf_detr(full: bool, batch: int = 1) -> Built:
    from rfdetr.config import RFDETRMediumConfig
    from rfdetr.models import build_model_from_config
    from rfdetr.models.backbone import dinov2

    options: dict = {"pretrain_weights": None, "device": "cpu"}
    with contextlib.ExitStack() as stack:
        logger = logging.getLogger("rf-detr")
        stack.enter_context(mock.patch.object(logger, "disabled", True))
        if not full:
            published, width = dinov2.get_config, {"hidden_size": 24, "num_hidden_layers": 3}
            tiny = lambda *_: published(*_) | width | {"num_attention_heads": 2}  # noqa: E731
            stack.enter_context(mock.patch.object(dinov2, "get_config", tiny))
            stack.enter_context(mock.patch.dict(dinov2.size_to_width, small=24))
            options |= {"hidden_dim": 32, "sa_nheads": 4, "ca_nheads": 8, "dec_layers": 2, "num_queries": 12}
            options |= {"num_select": 12, "num_classes": 5, "out_feature_indexes": [1, 2, 3]}
            options |= {"resolution": 128, "positional_encoding_size": 8, "group_detr": 1}
        model = build_model_from_config(RFDETRMediumConfig(**options)).eval()
    randomise(model)
    model.export()
    inputs = images(full, batch, (576, 576), (128, 128))
    return _First(model, 2), inputs


def co_dino(full: bool, batch: int = 1, *, golden: str, published: str) -> Built:
    if full:
        config, (height, width) = codetr.load_config(published), (768, 1152)
    else:
        config = codetr.load_config(GOLDEN / f"{golden}.json")
        height, width = config.input_hw
        config = dataclasses.replace(config, num_queries=12, encoder_layers=1)
        if config.backbone.type == "ResNet":
            backbone = dataclasses.replace(config.backbone, depth=18)
            neck = dataclasses.replace(config.neck, in_channels=(8, 16, 32, 64))
            config = dataclasses.replace(config, backbone=backbone, neck=neck, decoder_layers=1)
        else:
            # The third stage has blocks with and without a window shift.
            backbone = dataclasses.replace(config.backbone, depths=(1, 1, 2, 1))
            config = dataclasses.replace(config, backbone=backbone, decoder_layers=2)
    model = randomise(codetr.CoDino(config))
    inputs = {
        "images": torch.randn(batch, 3, height, width),
        "image_shapes": torch.tensor([[height - height // 8, width - width // 4]] * batch),
    }
    return _Decomposed(model), inputs


class _First(nn.Module):
    """The first outputs of a model."""

    def __init__(self, model: nn.Module, count: int):
        super().__init__()
        self.model, self.count = model, count

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        return tuple(self.model(*tensors)[: self.count])


class _Decomposed(nn.Module):
    """Our detector with the references in place of the operators."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        with (
            mock.patch("msda.module.linear", msda.linear_reference.linear),
            mock.patch("msda.module.fused_attention", msda.reference.fused_attention),
            mock.patch("msda.window_attention", msda.window_reference.window_attention),
        ):
            return self.model(*tensors)


def _exportable(
    model: nn.Module,
    inputs: dict[str, Tensor],
    outputs: tuple[str, ...] = DETECTIONS,
    patches: Callable[[], list] = list,
    **fixed: Tensor,
) -> Built:
    return Exportable(randomise(model), inputs, outputs, patches, **fixed), inputs


def _resnet() -> dict:
    return {
        "embedding_size": 8,
        "hidden_sizes": [8, 16, 24, 32],
        "depths": [1, 1, 1, 1],
        "layer_type": "basic",
    }


def _swin() -> dict:
    return {
        "image_size": 128,
        "embed_dim": 8,
        "depths": [1, 1, 1, 1],
        "num_heads": [1, 2, 2, 4],
        "window_size": 4,
    }


def _encoder_and_decoder(heads: int) -> dict:
    return {
        "d_model": 32,
        "encoder_layers": 1,
        "decoder_layers": 2,
        "encoder_attention_heads": heads,
        "decoder_attention_heads": heads,
        "encoder_ffn_dim": 32,
        "decoder_ffn_dim": 32,
        "num_labels": 5,
    }


def _hybrid_encoder(heads: int) -> dict:
    return {
        "encoder_hidden_dim": 32,
        "encoder_in_channels": [16, 24, 32],
        "encoder_ffn_dim": 32,
        "encoder_attention_heads": 4,
        "d_model": 32,
        "num_queries": 12,
        "decoder_in_channels": [32, 32, 32],
        "decoder_ffn_dim": 32,
        "decoder_layers": 2,
        "decoder_attention_heads": heads,
        "num_labels": 5,
        "num_denoising": 0,
    }
