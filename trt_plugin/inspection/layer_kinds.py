"""Kinds of layers, told by TensorRT's type, the kernel's name and the model's nodes inside."""

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

KINDS = (MSDA, GEMM, ATTENTION, NORMALISATION, MOVEMENT, SORT, OTHER)
"""In the order of tables and pictures."""

COLOURS = {
    MSDA: "#c44e52",
    GEMM: "#4c72b0",
    ATTENTION: "#dd8452",
    NORMALISATION: "#55a868",
    MOVEMENT: "#8c8c8c",
    SORT: "#8172b3",
    OTHER: "#ccb974",
}
"""Of each kind in every picture."""

_MSDA = re.compile(r"multi_?scale_?deformable_?att|\bfused_attention|\bms_?deform", re.I)
_PLUGINS = {
    MSDA: _MSDA,
    ATTENTION: re.compile(r"qkv|attention|fmha", re.I),
    NORMALISATION: re.compile(r"norm", re.I),
    SORT: re.compile(r"nms|top_?k|sort", re.I),
}
_FUSED_ATTENTION = re.compile(r"_mha_|mha_v\d|fmha|flash_?att|fused_?attention", re.I)
_PRODUCT_TYPES = {
    *("gemm", "conv", "convolution", "matrixmultiply", "fullyconnected", "deconvolution", "einsum"),
    *(
        "caskconvolution",
        "caskgemmconvolution",
        "caskgemmmatrixmultiply",
        "caskdeconvolution",
        "caskfusedconvpool",
    ),
}
_PRODUCT_KERNEL = re.compile(r"xmma|implicit_?gemm|cutlass|cublas|gemm|gemv|fprop|wgrad|dgrad|\bconv", re.I)
_SORT_TYPES = {"topk", "sort", "nms", "nonzero", "unique"}
_MOVEMENT_TYPES = {
    *(
        "reformat",
        "shuffle",
        "slice",
        "concat",
        "concatenation",
        "copy",
        "gather",
        "scatter",
        "pad",
        "reformatcopy",
    ),
    *("resize", "fill", "memcpy", "memset", "cast"),
}
_IDLE_TYPES = {"signal", "wait", "shape_call", "noop", "constant", "shape", "assertion", "condition"}

# Operators of nodes, of ONNX and of Torch.
_NORMALISATIONS = re.compile(r"(layer|group|instance|batch|rms)_?norm", re.I)
_SORTS = re.compile(r"^(top_?k|sort|argsort|nonmaxsuppression|nms)", re.I)
_SOFTMAX = re.compile(r"^_?(log_?)?softmax|scaled_dot_product", re.I)
_MOVEMENTS = re.compile(
    r"^(reshape|transpose|permute|slice|split|concat|cat|stack|unsqueeze|squeeze|gather|scatter|expand|tile|repeat|pad|"
    r"roll|view|_?unsafe_view|clone|flatten|unbind|getitem|select|index|cast|identity|copy|alias|to|_to_copy|shuffle|"
    r"constant|unflatten|window|slice_scatter|as_strided|contiguous)",
    re.I,
)

# Generated kernels are named by the first letters of their steps: __myl_MoveTranMulAdd, __myl_CasMeaSubMul.
_GENERATED = re.compile(r"__myl_(?:bb\d+_\d+_)?([A-Z][A-Za-z]+)")
_STEP = re.compile(r"[A-Z][a-z]*")
# A mean and what deviates from it, the root below a fraction, or a group normalisation.
_NORMALISING = re.compile("MeaSub|SubMulMea|SqrDiv|Gno")
_SOFTMAX_STEPS = re.compile("MaxSubExpSum|SubExpSumDiv")
_MOVING_STEPS = (
    "Mov",
    "Tra",
    "Res",
    "Sli",
    "Con",
    "Cas",
    "Rep",
    "Gat",
    "Sca",
    "Squ",
    "Uns",
    "Bro",
    "Pad",
    "Cop",
    "Spl",
)


def classify(
    name: str,
    layer_type: str,
    tactic: str = "",
    nodes: Sequence[str] = (),
    attributes: Mapping[str, Any] | None = None,
) -> str:
    """Tells the kind of a layer.

    Args:
        name, layer_type, tactic: as TensorRT's inspector writes them; "" where it tells names only.
        nodes: names of the model's nodes in it.
        attributes: all else that the inspector says of it.

    Returns:
        One of `KINDS`.
    """
    kind, kernel = layer_type.lower(), f"{tactic} {name}"
    operators = origin_of(nodes).operators
    if kind.startswith("plugin"):
        words = " ".join((name, tactic, *nodes, *(str(value) for value in (attributes or {}).values())))
        return next((kind for kind, pattern in _PLUGINS.items() if pattern.search(words)), OTHER)
    if kind in _IDLE_TYPES:
        return OTHER
    if _FUSED_ATTENTION.search(kernel):
        return ATTENTION
    # A product that something is fused with has a generated kernel's name, but a product's tactic.
    if kind in _PRODUCT_TYPES or (not _GENERATED.search(tactic) and _PRODUCT_KERNEL.search(tactic)):
        return GEMM
    generated = _GENERATED.search(name) or _GENERATED.search(tactic)
    steps = generated.group(1) if generated else ""
    if steps.startswith("Fc"):
        return GEMM
    if kind in _SORT_TYPES or steps.startswith(("Top", "Sor")) or any(map(_SORTS.search, operators)):
        return SORT
    if steps and all(step.startswith(_MOVING_STEPS) for step in _STEP.findall(steps)):
        return MOVEMENT
    if kind.startswith("norm") or _NORMALISING.search(steps) or any(map(_NORMALISATIONS.search, operators)):
        return NORMALISATION
    if kind == "softmax" or _SOFTMAX_STEPS.search(steps) or any(map(_SOFTMAX.search, operators)):
        return ATTENTION
    if steps:
        return OTHER
    if kind in _MOVEMENT_TYPES:
        return MOVEMENT
    return MOVEMENT if operators and all(map(_MOVEMENTS.search, operators)) else OTHER
