"""What a model selects by TopK: read from a run of one model, and told to another.

Detectors select the best of thousands of cells, and some scores are equal but for their last digits. Two
right attentions round otherwise, so the order of such cells differs, and with it everything that follows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import onnx

from onnx_path.surgery.graph import STANDARD_DOMAINS
from onnx_path.surgery.protos import copied, replace_nodes

_PREFIX = "selection/"


def common(before: onnx.ModelProto, after: onnx.ModelProto) -> list[str]:
    """The TopK nodes that both main graphs have, by the names of what they select."""
    there = {node.output[0] for node in _nodes(after)}
    return [node.output[0] for node in _nodes(before) if node.output[0] in there]


def indices_name(selection: str) -> str:
    """The indices of a selection, as an output of `telling` and an input of `told`."""
    return f"{_PREFIX}{selection}/indices"


def scores_name(selection: str) -> str:
    """What a selection is made from, as an output of both."""
    return f"{_PREFIX}{selection}/scores"


def telling(model: onnx.ModelProto, selections: Sequence[str]) -> onnx.ModelProto:
    """A copy with two more outputs for each selection: all scores first, then all indices."""
    copy = copied(model)
    nodes = {node.output[0]: node for node in _nodes(copy)}
    for node in nodes.values():
        node.output.extend([""] * (2 - len(node.output)))
        node.output[1] = node.output[1] or f"{_PREFIX}{node.output[0]}/own"
    for name in selections:
        _add_output(copy.graph, nodes[name].input[0], scores_name(name))
    for name in selections:
        _add_output(copy.graph, nodes[name].output[1], indices_name(name))
    return copy


def told(model: onnx.ModelProto, selections: Sequence[str]) -> onnx.ModelProto:
    """A copy that selects by indices which are inputs, with one more output for each: the scores."""
    copy = copied(model)
    make = onnx.helper.make_node
    nodes = []
    scores = {}
    for node in model.graph.node:
        if node.output[0] not in selections:
            nodes.append(node)
            continue
        name, *others = node.output
        scores[name], indices = node.input[0], indices_name(name)
        axis = next((attribute.i for attribute in node.attribute if attribute.name == "axis"), -1)
        nodes.append(make("GatherElements", [node.input[0], indices], [name], axis=axis))
        nodes += [make("Identity", [indices], [other]) for other in others if other]
    replace_nodes(copy.graph, nodes)
    for name in selections:
        whole_numbers = onnx.helper.make_tensor_value_info(indices_name(name), onnx.TensorProto.INT64, None)
        copy.graph.input.append(whole_numbers)
        _add_output(copy.graph, scores[name], scores_name(name))
    return copy


def _nodes(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    return (node for node in model.graph.node if node.op_type == "TopK" and node.domain in STANDARD_DOMAINS)


def _add_output(graph: onnx.GraphProto, tensor: str, name: str) -> None:
    """Another name, for the tensor may be an output already."""
    graph.node.append(onnx.helper.make_node("Identity", [tensor], [name]))
    graph.output.append(onnx.ValueInfoProto(name=name))
