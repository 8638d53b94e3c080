"""Multi-scale deformable attention (MSDA): the operator of Deformable DETR and its descendants.

`attention` samples multi-scale features at given locations. `fused_attention` also computes the softmax and
the locations, and `quantized_fused_attention` does so with values in int8. `MultiScaleDeformableAttention`
is the module around it. `window_attention` is the attention of Swin Transformer's windows. `group_norm`
normalises maps with channels innermost, and `group_norm_levels` all levels of a pyramid. `linear` is a linear
layer with its activation, residual and mask, and `quantized_linear` the same of int8 or FP8 numbers.
`quantized_layer_norm` is a layer normalisation that makes such numbers. `feed_forward` is the block of two
linear layers and a normalisation in DETR's encoders, and `quantized_feed_forward` the same in int8.
`linear_of_sum` is a linear layer of the sum of two tensors. `linear_max` is the largest output of a linear
layer, and `top_k_indices` finds the largest numbers of rows.
`image_input` resizes and normalises an image into a network's input. `reference`, `window_reference`,
`group_norm_reference`, `linear_reference`, `quantized_linear_reference`, `quantized_layer_norm_reference`,
`feed_forward_reference`, `quantized_feed_forward_reference`, `linear_of_sum_reference`,
`linear_max_reference`, `top_k_reference` and `image_input_reference` have the operators in plain PyTorch.
"""

from importlib.metadata import PackageNotFoundError, version

from msda import (
    feed_forward_reference,
    group_norm_reference,
    image_input_reference,
    linear_max_reference,
    linear_of_sum_reference,
    linear_reference,
    quantized_feed_forward_reference,
    quantized_layer_norm_reference,
    quantized_linear_reference,
    reference,
    top_k_reference,
    window_reference,
)
from msda.library import BuildInfo, build_info
from msda.module import MultiScaleDeformableAttention
from msda.ops import (
    attention,
    feed_forward,
    fused_attention,
    group_norm,
    group_norm_levels,
    has_fast_linear_max,
    image_input,
    linear,
    linear_max,
    linear_of_sum,
    longest_top_k_row,
    quantized_feed_forward,
    quantized_fused_attention,
    quantized_layer_norm,
    quantized_linear,
    top_k_indices,
    window_attention,
)

try:
    __version__ = version("codetr-tensorrt")
except PackageNotFoundError:  # a source tree, with MSDA_TORCH_LIBRARY set
    __version__ = "unknown"

__all__ = [
    "BuildInfo",
    "MultiScaleDeformableAttention",
    "__version__",
    "attention",
    "build_info",
    "feed_forward",
    "feed_forward_reference",
    "fused_attention",
    "group_norm",
    "group_norm_levels",
    "group_norm_reference",
    "has_fast_linear_max",
    "image_input",
    "image_input_reference",
    "linear",
    "linear_max",
    "linear_max_reference",
    "linear_of_sum",
    "linear_of_sum_reference",
    "linear_reference",
    "longest_top_k_row",
    "quantized_feed_forward",
    "quantized_feed_forward_reference",
    "quantized_fused_attention",
    "quantized_layer_norm",
    "quantized_layer_norm_reference",
    "quantized_linear",
    "quantized_linear_reference",
    "reference",
    "top_k_indices",
    "top_k_reference",
    "window_attention",
    "window_reference",
]
