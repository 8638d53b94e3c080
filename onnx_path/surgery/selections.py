"""What a model selects: read from a run of one model, and told to another.

Detectors take the best of thousands of cells (TopK), or those on one side of a threshold (Less and the like:
Mask2Former's masked attention). Some scores are equal, to each other or to the threshold, but for their last
digits. Two right attentions round otherwise, so such cells are selected otherwise, and what follows differs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import onnx
import onnx_ir as ir

from onnx_path.surgery.graph import STANDARD_DOMAINS, static_values
from onnx_path.surgery.protos import copied, replace_nodes

THRESHOLDS = ("Less", "LessOrEqual", "Greater", "GreaterOrEqual")
_PREFIX = "selection/"


def of(model: onnx.ModelProto) -> list[str]:
    """The selections of a main graph, by their nodes' first outputs; none that sizes alone decide."""
    static = {value.name for value in static_values(ir.from_proto(model).graph)}
    return [node.output[0] for node in _nodes(model) if not static.issuperset(node.input)]


def common(before: onnx.ModelProto, after: onnx.ModelProto) -> list[str]:
    """The selections of both main graphs."""
    there = {node.output[0] for node in _nodes(after)}
    return [name for name in of(before) if name in there]


def choice_name(selection: str) -> str:
    """What is selected, as an output of `telling` and an input of `told`: TopK's indices; for a threshold,
    on which side of it each number is."""
    return f"{_PREFIX}{selection}/choice"


def scores_name(selection: str) -> str:
    """What a selection is made from, as an output of both; for a threshold, distances from it."""
    return f"{_PREFIX}{selection}/scores"


def telling(model: onnx.ModelProto, selections: Sequence[str]) -> onnx.ModelProto:
    """A copy with two more outputs for each selection: all scores first, then all choices.

    Scores are float32, choices int64 (TopK) or bool.
    """
    copy = copied(model)
    nodes = {node.output[0]: node for node in _nodes(copy)}
    for node in nodes.values():
        if node.op_type == "TopK":
            node.output.extend([""] * (2 - len(node.output)))
            node.output[1] = node.output[1] or f"{_PREFIX}{node.output[0]}/own"
    own = len(copy.graph.output)
    for name in selections:
        _add_scores(copy.graph, nodes[name])
    for name in selections:
        choice = _choice_info(nodes[name])
        copy.graph.node.append(_cast(nodes[name].output[-1], choice))
        copy.graph.output.append(choice)
    _add_shapes(copy, own)
    return copy


def told(model: onnx.ModelProto, selections: Sequence[str]) -> onnx.ModelProto:
    """A copy that selects as inputs say, with one more output for each selection: the scores."""
    copy = copied(model)
    nodes = []
    replaced = {}
    for node in model.graph.node:
        if node.output[0] in selections:
            replaced[node.output[0]] = node
            nodes += _by_choice(node)
        else:
            nodes.append(node)
    replace_nodes(copy.graph, nodes)
    for name in selections:
        copy.graph.input.append(_choice_info(replaced[name]))
        _add_scores(copy.graph, replaced[name])
    return copy


def _nodes(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    for node in model.graph.node:
        if node.op_type in ("TopK", *THRESHOLDS) and node.domain in STANDARD_DOMAINS:
            yield node


def _by_choice(node: onnx.NodeProto) -> list[onnx.NodeProto]:
    """Nodes that give what a selection gives, for the choice that is an input."""
    name, *others = node.output
    choice = choice_name(name)
    make = onnx.helper.make_node
    if node.op_type != "TopK":
        return [make("Identity", [choice], [name])]
    axis = next((attribute.i for attribute in node.attribute if attribute.name == "axis"), -1)
    values = make("GatherElements", [node.input[0], choice], [name], axis=axis)
    return [values, *(make("Identity", [choice], [other]) for other in others if other)]


def _choice_info(node: onnx.NodeProto) -> onnx.ValueInfoProto:
    dtype = onnx.TensorProto.INT64 if node.op_type == "TopK" else onnx.TensorProto.BOOL
    return onnx.helper.make_tensor_value_info(choice_name(node.output[0]), dtype, None)


def _add_scores(graph: onnx.GraphProto, node: onnx.NodeProto) -> None:
    name, given = scores_name(node.output[0]), node.input[0]
    if node.op_type != "TopK":
        given = f"{name}/own"
        graph.node.append(onnx.helper.make_node("Sub", node.input, [given]))
    scores = onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None)
    graph.node.append(_cast(given, scores))
    graph.output.append(scores)


def _add_shapes(model: onnx.ModelProto, first: int) -> None:
    """Writes the shapes of outputs from `first` on, which a valid file has, as far as ONNX can tell them."""
    inferred = onnx.shape_inference.infer_shapes(model)
    for output, known in zip(model.graph.output[first:], inferred.graph.output[first:], strict=True):
        output.CopyFrom(known)


def _cast(tensor: str, output: onnx.ValueInfoProto) -> onnx.NodeProto:
    """A tensor under another name, for it may be an output already, and TensorRT gives an Identity none."""
    return onnx.helper.make_node("Cast", [tensor], [output.name], to=output.type.tensor_type.elem_type)
