"""Selections of a model: TopK, our TopKIndices and thresholds, read from one run and given to another.

Detectors take the best of thousands of cells (TopK), or those on one side of a threshold (Less and others, as
in Mask2Former's masked attention). Some scores equal each other, or the threshold, but for their last digits.
Two correct attentions round differently there, select different cells, and everything behind differs.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy

import onnx
import onnx_ir as ir

from onnx_path.nodes.domain import DOMAIN
from onnx_path.nodes.top_k_indices import TOP_K_INDICES
from onnx_path.surgery.graph.protobuf import replace_nodes
from onnx_path.surgery.graph.traversal import STANDARD_DOMAINS, static_values

THRESHOLDS = ("Less", "LessOrEqual", "Greater", "GreaterOrEqual")
_PREFIX = "selection/"


def of(model: onnx.ModelProto) -> list[str]:
    """Returns the first outputs of a main graph's selections, without those that sizes alone decide."""
    static = {value.name for value in static_values(ir.from_proto(model).graph)}
    return [name for name, node in _nodes(model).items() if not static.issuperset(node.input)]


def common(before: onnx.ModelProto, after: onnx.ModelProto) -> list[str]:
    """Returns the selections of both main graphs."""
    there = _nodes(after)
    return [name for name in of(before) if name in there]


def choice_name(selection: str) -> str:
    """Returns the name of a selection's choice, an output of `telling` and an input of `told`.

    The choice is TopK's indices, or the side of the threshold on which each number lies.
    """
    return f"{_PREFIX}{selection}/choice"


def scores_name(selection: str) -> str:
    """Returns the name of a selection's scores, an output of both: for a threshold, the distances from it."""
    return f"{_PREFIX}{selection}/scores"


def telling(model: onnx.ModelProto, selections: Sequence[str]) -> onnx.ModelProto:
    """Returns a copy with two more outputs for each selection: all scores first, then all choices.

    Scores are float32, choices int64 (TopK) or bool.
    """
    copy = deepcopy(model)
    nodes = _nodes(copy)
    for name in selections:
        _add_scores(copy.graph, nodes[name])
    for name in selections:
        node = nodes[name]
        if node.op_type == "TopK":
            node.output.extend([""] * (2 - len(node.output)))
            node.output[1] = node.output[1] or f"{_PREFIX}{name}/own"
        _add_output(copy.graph, node.output[-1], _choice_info(node))
    return copy


def told(model: onnx.ModelProto, selections: Sequence[str]) -> onnx.ModelProto:
    """Returns a copy that selects as additional inputs say, with the scores as additional outputs."""
    copy = deepcopy(model)
    nodes = []
    for node in model.graph.node:
        nodes += _by_choice(node) if node.output[0] in selections else [node]
    replace_nodes(copy.graph, nodes)
    selecting = _nodes(model)
    for name in selections:
        copy.graph.input.append(_choice_info(selecting[name]))
        _add_scores(copy.graph, selecting[name])
    return copy


def _nodes(model: onnx.ModelProto) -> dict[str, onnx.NodeProto]:
    """Returns the nodes of a main graph that select, by their first outputs."""
    return {
        node.output[0]: node
        for node in model.graph.node
        if (node.op_type in ("TopK", *THRESHOLDS) and node.domain in STANDARD_DOMAINS) or _gives_indices(node)
    }


def _gives_indices(node: onnx.NodeProto) -> bool:
    """Returns whether a node is a `TopKIndices`, with int32 indices as its only output."""
    return (node.domain, node.op_type) == (DOMAIN, TOP_K_INDICES)


def _is_threshold(node: onnx.NodeProto) -> bool:
    return node.op_type in THRESHOLDS


def _by_choice(node: onnx.NodeProto) -> list[onnx.NodeProto]:
    """Returns nodes with the outputs of a selection, for a choice that is an input."""
    name, *others = node.output
    choice = choice_name(name)
    make = onnx.helper.make_node
    if _gives_indices(node):
        return [make("Cast", [choice], [name], to=onnx.TensorProto.INT32)]
    if _is_threshold(node):
        return [make("Identity", [choice], [name])]
    axis = next((attribute.i for attribute in node.attribute if attribute.name == "axis"), -1)
    values = make("GatherElements", [node.input[0], choice], [name], axis=axis)
    return [values, *(make("Identity", [choice], [other]) for other in others if other)]


def _choice_info(node: onnx.NodeProto) -> onnx.ValueInfoProto:
    dtype = onnx.TensorProto.BOOL if _is_threshold(node) else onnx.TensorProto.INT64
    return onnx.helper.make_tensor_value_info(choice_name(node.output[0]), dtype, None)


def _add_scores(graph: onnx.GraphProto, node: onnx.NodeProto) -> None:
    name, given = scores_name(node.output[0]), node.input[0]
    if _is_threshold(node):
        given = f"{name}/own"
        graph.node.append(onnx.helper.make_node("Sub", node.input, [given]))
    _add_output(graph, given, onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None))


def _add_output(graph: onnx.GraphProto, tensor: str, output: onnx.ValueInfoProto) -> None:
    """Adds an output by a Cast: the tensor may be an output already, and TensorRT merges an Identity."""
    dtype = output.type.tensor_type.elem_type
    graph.node.append(onnx.helper.make_node("Cast", [tensor], [output.name], to=dtype))
    graph.output.append(output)
