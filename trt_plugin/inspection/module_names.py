"""Where in the model a layer comes from, by the names of the nodes in it.

Both paths name nodes by the model's modules: /backbone/stages.2/blocks.5/attn/qkv/MatMul. Names of PyTorch's
older exporter and Torch-TensorRT's own ([MATRIX_MULTIPLY]-[aten_ops.linear]-[encoder.layers.0.fc1/linear_3])
are read as well.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

Path = tuple[str, ...]
"""("backbone", "stages", "2", "blocks", "5", "attn", "qkv")."""

_ENTRY = re.compile(r"\[(?:ONNX Layer|Torch Node): ")
_TORCH_TENSORRT = re.compile(r"\]?-\[([^\[\]]*)\]$")
# TensorRT's compiler of subgraphs writes dots as underscores: then the modules cannot be told apart.
_TORCH_TENSORRT_SPOILT = re.compile(r"\]_\[(?:.*/)?([^/\]]*)\]$")
# What TensorRT appends to names inside of Myelin, and the exporter to make them unique.
_SUFFIX = re.compile(r"_myl\d+_\d+$")
_NUMBER = re.compile(r"_\d+(?=_|$)")


@dataclass(frozen=True)
class Origin:
    """Attributes:
    path: the module that holds most nodes of a layer, the innermost one.
    operators: what the nodes compute, in order, without the numbers that make names unique.
    """

    path: Path
    operators: tuple[str, ...]


def node_name(scopes: Sequence[str], operator: str) -> str:
    """The name of a node.

    Args:
        scopes: modules around it by their full names, outermost first: "encoder", "encoder.layers.0".
        operator: what it computes, with or without a number.

    Returns:
        Each module by its name inside of the one around it: /encoder/layers.0/Add.
    """
    steps, around = [], ""
    for scope in filter(None, scopes):
        inside = around and scope.startswith(f"{around}.")
        steps.append(scope[len(around) + 1 :] if inside else scope)
        around = scope
    return "/".join(["", *steps, operator])


def node_names(metadata: str) -> tuple[str, ...]:
    """Names in a layer's metadata: "[ONNX Layer: a]", several with or without a control character between."""
    starts = [found.end() for found in _ENTRY.finditer(metadata)]
    ends = [*[found.start() for found in _ENTRY.finditer(metadata)][1:], len(metadata)]
    names = (metadata[start:end].rstrip(" \x1d\x1e\x1f\t\n") for start, end in zip(starts, ends))
    return tuple(dict.fromkeys(name.removesuffix("]") for name in names))


def layer_as_node(name: str) -> str:
    """What a layer's own name says as if it were a node's: without what TensorRT put around it."""
    if name.startswith("Reformatting CopyNode"):
        return "reformat"
    return _SUFFIX.sub("", name).removeprefix("__myl_")


def split(name: str) -> tuple[Path, str]:
    """Module and operator of a node: (("encoder", "layers", "0", "norm1"), "LayerNormalization")."""
    if found := _TORCH_TENSORRT_SPOILT.search(name) or _TORCH_TENSORRT.search(name):
        name = found.group(1)
    name = name.split(" [")[0]
    *path, operator = name.strip("/").split("/")
    operator = _NUMBER.sub("", operator).removeprefix("node_").rstrip("_")
    return tuple(atom for part in path for atom in part.split(".") if atom), operator


def origin_of(nodes: Sequence[str]) -> Origin:
    """Where nodes that became one layer come from."""
    # TensorRT joins names of fused nodes by " + " where there is no metadata.
    parts = [split(part) for node in nodes for part in node.split(" + ")]
    counts = Counter(path for path, _ in parts)
    best = max(counts, key=lambda path: (counts[path], len(path)), default=())
    return Origin(best, tuple(dict.fromkeys(operator for _, operator in parts)))


def block_of(path: Path) -> Path:
    """The innermost numbered module around, ("encoder", "layers", "0"), or the first part of the path."""
    for length in range(len(path), 0, -1):
        if path[length - 1].isdecimal():
            return path[:length]
    return path[:1]


def family_of(block: Path) -> Path:
    """A numbered module's path with * for its last number, the same for all of a list."""
    if block and block[-1].isdecimal():
        return (*block[:-1], "*")
    return block


def path_text(path: Path) -> str:
    """backbone.stages.2 for its parts."""
    return ".".join(path) or "(top)"
