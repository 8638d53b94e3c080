"""Backbones: images [N, 3, H, W] to a list of feature maps [N, C_i, H_i, W_i], strides 4, 8, 16, 32."""

from __future__ import annotations

from torch import nn

from codetr.config import ResNetConfig, SwinConfig
from codetr.model.backbones.resnet import ResNet
from codetr.model.backbones.swin import SwinTransformer

__all__ = ["ResNet", "SwinTransformer", "make_backbone"]


def make_backbone(config: SwinConfig | ResNetConfig) -> nn.Module:
    """The backbone that a configuration describes."""
    return SwinTransformer(config) if isinstance(config, SwinConfig) else ResNet(config)
