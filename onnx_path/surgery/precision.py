"""16-bit models in float32, so that numbers tell whether two of them compute the same."""

from __future__ import annotations

import onnx

from onnx_path.surgery.protos import copied, replace_nodes

_NARROW = (onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16)
_WIDE = onnx.TensorProto.FLOAT


def in_float32(model: onnx.ModelProto) -> onnx.ModelProto:
    """Returns a model with float32 for all its 16-bit tensors, itself if it has none.

    Onnxruntime's CPU provider has not every operator in 16 bits, and 16-bit rounding would hide differences.
    Weights outside of the model stay 16-bit and get a Cast.
    """
    if not _has_narrow(model):
        return model
    wide = copied(model)
    del wide.graph.value_info[:]
    casts = _widen_graph(wide.graph)
    replace_nodes(wide.graph, [*casts, *wide.graph.node])
    return wide


def _has_narrow(model: onnx.ModelProto) -> bool:
    graph = model.graph
    types = [x.type.tensor_type.elem_type for x in (*graph.input, *graph.output, *graph.value_info)]
    types += [tensor.data_type for tensor in graph.initializer]
    types += [a.i for node in graph.node if node.op_type == "Cast" for a in node.attribute if a.name == "to"]
    types += [a.t.data_type for node in graph.node for a in node.attribute if a.HasField("t")]
    return any(kind in _NARROW for kind in types)


def _widen_graph(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    casts = []
    for value in (*graph.input, *graph.output, *graph.value_info):
        if value.type.tensor_type.elem_type in _NARROW:
            value.type.tensor_type.elem_type = _WIDE
    for tensor in graph.initializer:
        if tensor.data_type not in _NARROW:
            continue
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            name = tensor.name
            tensor.name = f"{name}/narrow"
            casts.append(onnx.helper.make_node("Cast", [tensor.name], [name], to=_WIDE))
        else:
            _widen(tensor)
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t") and attribute.t.data_type in _NARROW:
                _widen(attribute.t)
            elif attribute.name in ("to", "dtype") and attribute.i in _NARROW:
                attribute.i = _WIDE
            elif attribute.HasField("g"):
                casts += _widen_graph(attribute.g)
    return casts


def _widen(tensor: onnx.TensorProto) -> None:
    array = onnx.numpy_helper.to_array(tensor).astype("float32")
    tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
