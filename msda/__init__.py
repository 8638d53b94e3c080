"""Multi-scale deformable attention (MSDA): the operator of Deformable DETR and its descendants.

`attention` samples multi-scale features at given locations, `fused_attention` computes softmax and locations
itself, `MultiScaleDeformableAttention` is the module around it, and `reference` the same in plain PyTorch.
"""

from msda import reference
from msda.library import BuildInfo, build_info
from msda.module import MultiScaleDeformableAttention
from msda.ops import attention, fused_attention

__all__ = [
    "BuildInfo",
    "MultiScaleDeformableAttention",
    "attention",
    "build_info",
    "fused_attention",
    "reference",
]
