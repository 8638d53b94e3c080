"""Backbones: images [N, 3, H, W] to a list of feature maps [N, C_i, H_i, W_i], strides 4, 8, 16, 32.

A new backbone takes three steps:

1. A dataclass with `type` and `out_channels` in `codetr.config`, which joins the union of `Config.backbone`.
2. A file in this folder with the module: one map for each of `out_channels`, and attributes `first_stride`
   and `gives_cells`. The latter tells whether the maps are permuted tensors with channels innermost.
3. An entry in `BACKBONES`, and the names of its parameters in upstream's checkpoints in `codetr.checkpoint`.
"""

from __future__ import annotations

from torch import nn

from codetr.config import ResNetConfig, SwinConfig
from codetr.model.backbones.resnet import ResNet
from codetr.model.backbones.swin import SwinTransformer

BACKBONES: dict[type, type[nn.Module]] = {SwinConfig: SwinTransformer, ResNetConfig: ResNet}

__all__ = ["BACKBONES", "ResNet", "SwinTransformer", "make_backbone"]


def make_backbone(config: SwinConfig | ResNetConfig) -> nn.Module:
    """Makes the backbone of a configuration."""
    return BACKBONES[type(config)](config)
