"""Tells from the names of a layer's nodes the module of the model that it comes from.

Both paths name nodes by the model's modules: /backbone/stages.2/blocks.5/attn/qkv/MatMul. This module also
reads names of PyTorch's older exporter and of Torch-TensorRT:
[MATRIX_MULTIPLY]-[aten_ops.linear]-[encoder.layers.0.fc1/linear_3].
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

ModulePath = tuple[str, ...]
"""("backbone", "stages", "2", "blocks", "5", "attn", "qkv")."""

_ENTRY = re.compile(r"\[(?:ONNX Layer|Torch Node): ")
_TORCH_TENSORRT = re.compile(r"\]?-\[([^\[\]]*)\]$")
# Myelin, TensorRT's compiler of subgraphs, writes dots as underscores. The modules are then unknown.
_TORCH_TENSORRT_SPOILT = re.compile(r"\]_\[(?:.*/)?([^/\]]*)\]$")
# Suffixes that Myelin appends to names, and that the exporter appends to make them unique.
_SUFFIX = re.compile(r"_myl\d+_\d+$")
_NUMBER = re.compile(r"_\d+(?=_|$)")

QDQ_NODE = re.compile(r"(?:quantize(?:d|linear)?(?:_\d+)?|/(?:int8|fp8)_*)$|quantize-\[", re.I)
"""Name of a node that quantises or dequantises. It is that of a tensor, not of a module."""


@dataclass(frozen=True)
class Origin:
    """Module and operators of a layer.

    Attributes:
        path: the module of most of its nodes; among equals, the innermost.
        operators: the operators of its nodes in order, without the numbers that make names unique.
    """

    path: ModulePath
    operators: tuple[str, ...]


def node_name(scopes: Sequence[str], operator: str) -> str:
    """Returns the name of a node: /encoder/layers.0/Add for ["encoder", "encoder.layers.0"] and "Add"."""
    steps, around = [], ""
    for scope in filter(None, scopes):
        inside = around and scope.startswith(f"{around}.")
        steps.append(scope[len(around) + 1 :] if inside else scope)
        around = scope
    return "/".join(["", *steps, operator])


def node_names(metadata: str) -> tuple[str, ...]:
    """Returns the names in a layer's metadata "[ONNX Layer: a][ONNX Layer: b]".

    Some versions of TensorRT write a control character between the entries.
    """
    names = (name.rstrip(" \x1d\x1e\x1f\t\n").removesuffix("]") for name in _ENTRY.split(metadata)[1:])
    return tuple(dict.fromkeys(names))


def layer_as_node(name: str) -> str:
    """Returns a layer's name as the name of a node, without TensorRT's prefix and suffix."""
    if name.startswith("Reformatting CopyNode"):
        return "reformat"
    return _SUFFIX.sub("", name).removeprefix("__myl_")


def split(name: str) -> tuple[ModulePath, str]:
    """Returns module and operator of a node: (("encoder", "layers", "0", "norm1"), "LayerNormalization")."""
    if found := _TORCH_TENSORRT_SPOILT.search(name) or _TORCH_TENSORRT.search(name):
        name = found.group(1)
    name = name.split(" [")[0]
    *path, operator = name.strip("/").split("/")
    operator = _NUMBER.sub("", operator).removeprefix("node_").rstrip("_")
    return tuple(atom for part in path for atom in part.split(".") if atom), operator


def origin_of(nodes: Sequence[str]) -> Origin:
    """Returns the origin of a layer from the names of its nodes."""
    # TensorRT joins names of fused nodes by " + " where there is no metadata.
    names = [part for node in nodes for part in node.split(" + ")]
    parts = [split(name) for name in [x for x in names if not QDQ_NODE.search(x)] or names]
    counts = Counter(path for path, _ in parts)
    best = max(counts, key=lambda path: (counts[path], len(path)), default=())
    return Origin(best, tuple(dict.fromkeys(operator for _, operator in parts)))


def block_of(path: ModulePath) -> ModulePath:
    """Returns the innermost numbered module, ("encoder", "layers", "0"), or the first part of the path."""
    for length in range(len(path), 0, -1):
        if path[length - 1].isdecimal():
            return path[:length]
    return path[:1]


def path_text(path: ModulePath) -> str:
    """backbone.stages.2 for ("backbone", "stages", "2")."""
    return ".".join(path) or "(top)"
