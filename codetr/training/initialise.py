"""Initialises the weights of a detector for training from scratch, as upstream does.

Sources: ResNet, arXiv 1502.01852 (convolutions); Deformable DETR, arXiv 2010.04159, appendix A.4 (sampling
offsets); RetinaNet, arXiv 1708.02002, section 4.1 (the prior of the classes).
"""

from __future__ import annotations

import math

import torch
from torch import nn

from codetr.model import CoDino
from codetr.model.head import BoxBranch
from codetr.model.layers import FrozenBatchNorm2d, MultiheadAttention
from msda import MultiScaleDeformableAttention

CLASS_PRIOR = 0.01
"""The initial score of every class."""


@torch.no_grad()
def initialise(model: CoDino, seed: int = 0) -> CoDino:
    """Initialises all weights of an fp32 model in place and returns it.

    The same seed gives the same weights. The caller's random generator keeps its state.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for module in model.backbone.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            elif isinstance(module, nn.Linear):  # of Swin
                nn.init.trunc_normal_(module.weight, std=0.02)
            elif isinstance(module, (nn.BatchNorm2d, FrozenBatchNorm2d)):
                module.weight.fill_(1.0)
                module.bias.zero_()
                module.running_mean.zero_()
                module.running_var.fill_(1.0)
            if isinstance(module, (nn.Conv2d, nn.Linear)) and module.bias is not None:
                nn.init.zeros_(module.bias)
        for name, parameter in model.backbone.named_parameters():
            if name.endswith("relative_position_bias_table"):
                nn.init.trunc_normal_(parameter, std=0.02)
        for module in (model.neck, model.encoder, model.query_selection, model.decoder):
            for parameter in module.parameters():
                if parameter.dim() > 1:
                    nn.init.xavier_uniform_(parameter)
        for module in model.modules():
            if isinstance(module, MultiScaleDeformableAttention):
                module.reset_parameters()
            elif isinstance(module, MultiheadAttention):
                nn.init.zeros_(module.in_proj_bias)
                nn.init.zeros_(module.out_proj.bias)
            elif isinstance(module, BoxBranch):  # boxes start at their reference boxes
                nn.init.zeros_(module.fc3.weight)
                nn.init.zeros_(module.fc3.bias)
        nn.init.normal_(model.encoder.level_embeds)
        nn.init.normal_(model.decoder.query_embed)
        for branch in (model.query_selection.class_branch, *model.decoder.class_branches):
            nn.init.constant_(branch.bias, -math.log((1.0 - CLASS_PRIOR) / CLASS_PRIOR))
    return model
