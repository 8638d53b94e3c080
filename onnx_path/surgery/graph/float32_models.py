"""Models with other float types than onnxruntime's CPU provider computes in, made float32."""

from __future__ import annotations

import onnx

from onnx_path.surgery.graph.protobuf import copied, replace_nodes
from onnx_path.surgery.graph.traversal import STANDARD_DOMAINS

_NARROW = (onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16)
_WIDE = onnx.TensorProto.FLOAT


def in_float32(model: onnx.ModelProto) -> onnx.ModelProto:
    """Returns a model with float32 in place of all 16-bit floats; the model itself if it has none.

    Onnxruntime's CPU provider lacks operators in 16 bits, and 16-bit rounding would hide differences.
    Weights outside the model stay 16-bit and get a Cast.
    """
    if not _has_narrow(model):
        return model
    wide = copied(model)
    del wide.graph.value_info[:]
    casts = _widen_graph(wide.graph)
    replace_nodes(wide.graph, [*casts, *wide.graph.node])
    return wide


def samples_in_float32(model: onnx.ModelProto) -> onnx.ModelProto:
    """Returns a copy whose GridSample nodes compute in float32 and keep the type of their results."""
    copy = copied(model)
    nodes = []
    for node in copy.graph.node:
        if node.op_type != "GridSample" or node.domain not in STANDARD_DOMAINS:
            nodes.append(node)
            continue
        image, (result,) = node.input[0], node.output
        for i, name in enumerate(node.input):
            node.input[i] = f"{result}/float32/{i}"
            nodes.append(onnx.helper.make_node("Cast", [name], [node.input[i]], to=_WIDE))
        node.output[0] = f"{result}/float32"
        nodes += [node, onnx.helper.make_node("CastLike", [node.output[0], image], [result])]
    replace_nodes(copy.graph, nodes)
    return copy


def _has_narrow(model: onnx.ModelProto) -> bool:
    graph = model.graph
    types = [x.type.tensor_type.elem_type for x in (*graph.input, *graph.output, *graph.value_info)]
    types += [tensor.data_type for tensor in graph.initializer]
    types += [a.i for node in graph.node if node.op_type == "Cast" for a in node.attribute if a.name == "to"]
    types += [a.t.data_type for node in graph.node for a in node.attribute if a.HasField("t")]
    return any(kind in _NARROW for kind in types)


def _widen_graph(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    """Widens a graph in place and returns the casts that its external weights need."""
    casts = []
    for value in (*graph.input, *graph.output, *graph.value_info):
        if value.type.tensor_type.elem_type in _NARROW:
            value.type.tensor_type.elem_type = _WIDE
    for tensor in graph.initializer:
        if tensor.data_type in _NARROW and tensor.data_location == onnx.TensorProto.EXTERNAL:
            name, tensor.name = tensor.name, f"{tensor.name}/narrow"
            casts.append(onnx.helper.make_node("Cast", [tensor.name], [name], to=_WIDE))
        else:
            _widen(tensor)
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                _widen(attribute.t)
            elif attribute.name in ("to", "dtype") and attribute.i in _NARROW:
                attribute.i = _WIDE
            elif attribute.HasField("g"):
                casts += _widen_graph(attribute.g)
    return casts


def _widen(tensor: onnx.TensorProto) -> None:
    if tensor.data_type in _NARROW:
        array = onnx.numpy_helper.to_array(tensor).astype("float32")
        tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
