"""Tells the kind of a layer from TensorRT's type, the kernel's name and the model's nodes in the layer."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from trt_plugin.inspection.module_names import origin_of

MSDA = "MSDA"
WINDOW_ATTENTION = "window attention"
ATTENTION = "attention"
GEMM = "GEMM, convolution"
NORMALISATION = "normalisation"
MOVEMENT = "data movement"
SORT = "top-k, sort"
OTHER = "elementwise, other"

KIND_COLOURS = {
    MSDA: "#c44e52",
    WINDOW_ATTENTION: "#da8bc3",
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

IDLE_TYPES = ("signal", "wait", "shape_call", "noop", "constant", "shape", "assertion", "condition")
"""Types of layers that do no work, in lower case."""

_PLUGINS = {
    MSDA: r"multi_?scale_?deformable_?att|\bfused_attention|\bms_?deform",
    WINDOW_ATTENTION: r"window_?attention",
    GEMM: r"\b(quantized)?(linear(_?max|ofsum)?|feedforward)\b",  # also that of a module such as attn/qkv
    ATTENTION: r"qkv|attention|fmha",
    NORMALISATION: r"norm",
    SORT: r"nms|top_?k|sort",
}

_RULES = (
    (OTHER, "type", rf"^({'|'.join(IDLE_TYPES)})$|^(cask)?pooling"),
    (ATTENTION, "name", r"_mha_|mha_v\d|fmha|flash_?att|fused_?attention"),
    (GEMM, "type", r"^(cask)?(gemm|(de)?conv(olution|$)|fusedconv|matrixmultiply|fullyconnected|einsum)"),
    (GEMM, "kernel", r"xmma|implicit_?gemm|cutlass|cublas|gemm|gemv|fprop|wgrad|dgrad|\bconv"),
    (GEMM, "steps", r"^Fc"),
    (SORT, "type", r"^(topk|sort|nms|nonzero|unique)$"),
    (SORT, "steps", r"^(Top|Sor)"),
    (SORT, "operator", r"^(top_?k|sort|argsort|nonmaxsuppression|nms)"),
    (MOVEMENT, "steps", r"^((Mov|Tra|Res|Sli|Con|Cas|Rep|Gat|Sca|Squ|Uns|Bro|Pad|Cop|Spl)[a-z]*)+$"),
    (NORMALISATION, "type", r"^norm"),
    # A mean and the difference to it, a square root below a fraction, or a group normalisation.
    (NORMALISATION, "steps", r"MeaSub|SubMulMea|SqrDiv|Gno"),
    (NORMALISATION, "operator", r"(layer|group|instance|batch|rms)_?norm"),
    (ATTENTION, "type", r"^softmax$"),
    (ATTENTION, "steps", r"MaxSubExpSum|SubExpSumDiv"),
    (ATTENTION, "operator", r"^_?(log_?)?softmax|scaled_dot_product"),
    (OTHER, "steps", r"."),
    (MOVEMENT, "type", r"^(reformat|shuffle|slice|concat|copy|gather|scatter|pad|resize|fill|mem|cast)"),
)
"""Kinds in order. The pattern is of TensorRT's type, of the layer's or kernel's name, of the name of a kernel
that is not generated, of a generated kernel's steps, or of an operator of the model."""

# Operators of ONNX and of Torch.
_MOVEMENTS = (
    r"^(reshape|transpose|permute|slice|split|concat|cat|stack|unsqueeze|squeeze|gather|scatter|expand|tile|repeat|pad"
    r"|roll|view|_?unsafe_view|clone|flatten|unbind|getitem|select|index|cast|identity|copy|alias|to|_to_copy|shuffle"
    r"|constant|unflatten|window|slice_scatter|as_strided|contiguous)"
)

# Myelin names a generated kernel by the first letters of its steps: __myl_MoveTranMulAdd, __myl_CasMeaSubMul.
_GENERATED = re.compile(r"__myl_(?:bb\d+_\d+_)?([A-Z][A-Za-z]+)")


def classify(
    name: str,
    layer_type: str,
    tactic: str = "",
    nodes: Sequence[str] = (),
    attributes: Mapping[str, Any] | None = None,
) -> str:
    """Returns the kind of a layer, one of `LAYER_KINDS`.

    Args:
        name, layer_type, tactic: as TensorRT's inspector writes them, "" where it tells names only.
        nodes: names of the model's nodes in the layer.
        attributes: the inspector's other entries for the layer.
    """
    if layer_type.lower().startswith("plugin"):
        words = " ".join((name, tactic, *nodes, *map(str, (attributes or {}).values())))
        return next((kind for kind, pattern in _PLUGINS.items() if re.search(pattern, words, re.I)), OTHER)
    operators = origin_of(nodes).operators
    generated = _GENERATED.search(name) or _GENERATED.search(tactic)
    words = {
        "type": (layer_type,),
        "name": (name, tactic),
        # A product that other steps are fused into has a generated kernel's name, but a product's tactic.
        "kernel": () if _GENERATED.search(tactic) else (tactic,),
        "steps": generated.groups() if generated else (),
        "operator": operators,
    }
    for kind, source, pattern in _RULES:
        flags = re.I if source != "steps" else 0  # capitals begin a step
        if any(re.search(pattern, word, flags) for word in words[source]):
            return kind
    moves = operators and all(re.search(_MOVEMENTS, operator, re.I) for operator in operators)
    return MOVEMENT if moves else OTHER
