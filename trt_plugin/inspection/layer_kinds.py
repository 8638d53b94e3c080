"""Tells the kind of a layer from TensorRT's type, the kernel's name and the model's nodes in the layer."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from trt_plugin.inspection.module_names import origin_of

MSDA = "MSDA"
ATTENTION = "attention"
GEMM = "GEMM, convolution"
NORMALISATION = "normalisation"
MOVEMENT = "data movement"
SORT = "top-k, sort"
OTHER = "elementwise, other"

KIND_COLOURS = {
    MSDA: "#c44e52",
    GEMM: "#4c72b0",
    ATTENTION: "#dd8452",
    NORMALISATION: "#55a868",
    MOVEMENT: "#8c8c8c",
    SORT: "#8172b3",
    OTHER: "#ccb974",
}
"""Colour of each kind in every picture."""

LAYER_KINDS = tuple(KIND_COLOURS)
"""All kinds, in the order of tables and pictures."""

_PLUGINS = {
    MSDA: r"multi_?scale_?deformable_?att|\bfused_attention|\bms_?deform",
    ATTENTION: r"qkv|attention|fmha",
    NORMALISATION: r"norm",
    SORT: r"nms|top_?k|sort",
}
_FUSED_ATTENTION = r"_mha_|mha_v\d|fmha|flash_?att|fused_?attention"
_PRODUCT_TYPES = (
    r"^(gemm|conv|convolution|matrixmultiply|fullyconnected|deconvolution|einsum|caskconvolution"
    r"|caskdeconvolution|caskgemmconvolution|caskgemmmatrixmultiply|caskfusedconvpool)$"
)
_PRODUCT_KERNEL = r"xmma|implicit_?gemm|cutlass|cublas|gemm|gemv|fprop|wgrad|dgrad|\bconv"
_SORT_TYPES = "^(topk|sort|nms|nonzero|unique)$"
_MOVEMENT_TYPES = (
    r"^(reformat|reformatcopy|shuffle|slice|concat|concatenation|copy|gather|scatter|pad|resize|fill|memcpy|memset"
    r"|cast)$"
)
IDLE_TYPES = ("signal", "wait", "shape_call", "noop", "constant", "shape", "assertion", "condition")
"""Types of layers that do no work, in lower case."""

# Operators of nodes, of ONNX and of Torch.
_NORMALISATIONS = r"(layer|group|instance|batch|rms)_?norm"
_SORTS = r"^(top_?k|sort|argsort|nonmaxsuppression|nms)"
_SOFTMAX = r"^_?(log_?)?softmax|scaled_dot_product"
_MOVEMENTS = (
    r"^(reshape|transpose|permute|slice|split|concat|cat|stack|unsqueeze|squeeze|gather|scatter|expand|tile|repeat|pad"
    r"|roll|view|_?unsafe_view|clone|flatten|unbind|getitem|select|index|cast|identity|copy|alias|to|_to_copy|shuffle"
    r"|constant|unflatten|window|slice_scatter|as_strided|contiguous)"
)

# Myelin names a generated kernel by the first letters of its steps: __myl_MoveTranMulAdd, __myl_CasMeaSubMul.
_GENERATED = re.compile(r"__myl_(?:bb\d+_\d+_)?([A-Z][A-Za-z]+)")
_STEP = re.compile(r"[A-Z][a-z]*")
# A mean and the difference to it, a square root below a fraction, or a group normalisation.
_NORMALISING_STEPS = "MeaSub|SubMulMea|SqrDiv|Gno"
_SOFTMAX_STEPS = "MaxSubExpSum|SubExpSumDiv"
_MOVING_STEPS = "^(Mov|Tra|Res|Sli|Con|Cas|Rep|Gat|Sca|Squ|Uns|Bro|Pad|Cop|Spl)"


def classify(
    name: str,
    layer_type: str,
    tactic: str = "",
    nodes: Sequence[str] = (),
    attributes: Mapping[str, Any] | None = None,
) -> str:
    """Tells the kind of a layer.

    Args:
        name, layer_type, tactic: as TensorRT's inspector writes them, "" where it tells names only.
        nodes: names of the model's nodes in the layer.
        attributes: the inspector's other entries for the layer.

    Returns:
        One of `LAYER_KINDS`.
    """
    kind = layer_type.lower()
    operators = origin_of(nodes).operators
    if kind.startswith("plugin"):
        words = " ".join((name, tactic, *nodes, *map(str, (attributes or {}).values())))
        return next((kind for kind, pattern in _PLUGINS.items() if _found(pattern, words)), OTHER)
    if kind in IDLE_TYPES:
        return OTHER
    if _found(_FUSED_ATTENTION, tactic, name):
        return ATTENTION
    # A product that other steps are fused into has a generated kernel's name, but a product's tactic.
    if _found(_PRODUCT_TYPES, kind) or (not _GENERATED.search(tactic) and _found(_PRODUCT_KERNEL, tactic)):
        return GEMM
    generated = _GENERATED.search(name) or _GENERATED.search(tactic)
    steps = generated.group(1) if generated else ""
    if steps.startswith("Fc"):
        return GEMM
    if _found(_SORT_TYPES, kind) or steps.startswith(("Top", "Sor")) or _found(_SORTS, *operators):
        return SORT
    if steps and all(re.search(_MOVING_STEPS, step) for step in _STEP.findall(steps)):
        return MOVEMENT
    if kind.startswith("norm") or re.search(_NORMALISING_STEPS, steps) or _found(_NORMALISATIONS, *operators):
        return NORMALISATION
    if kind == "softmax" or re.search(_SOFTMAX_STEPS, steps) or _found(_SOFTMAX, *operators):
        return ATTENTION
    if steps:
        return OTHER
    moves = operators and all(_found(_MOVEMENTS, operator) for operator in operators)
    return MOVEMENT if _found(_MOVEMENT_TYPES, kind) or moves else OTHER


def _found(pattern: str, *words: str) -> bool:
    return any(re.search(pattern, word, re.IGNORECASE) for word in words)
