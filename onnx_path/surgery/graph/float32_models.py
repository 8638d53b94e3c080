"""Models with other float types than onnxruntime's CPU provider computes in, made float32."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy

import onnx

from onnx_path.surgery.graph.protobuf import replace_nodes

NARROW = (onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16)
_FLOAT = onnx.TensorProto.FLOAT


def in_float32(model: onnx.ModelProto, kinds: Sequence[int] = NARROW) -> onnx.ModelProto:
    """Returns a model with float32 in place of other floats; the model itself if it has none of them.

    Onnxruntime's CPU provider lacks operators in 16 bits, and 16-bit rounding would hide differences. Weights
    outside the model keep their type and get a Cast.

    Args:
        model: the model.
        kinds: the element types to replace.
    """
    if not _has(model, kinds):
        return model
    copy = deepcopy(model)
    del copy.graph.value_info[:]
    casts = _convert_graph(copy.graph, kinds)
    replace_nodes(copy.graph, [*casts, *copy.graph.node])
    return copy


def _has(model: onnx.ModelProto, kinds: Sequence[int]) -> bool:
    graph = model.graph
    types = [x.type.tensor_type.elem_type for x in (*graph.input, *graph.output, *graph.value_info)]
    types += [tensor.data_type for tensor in graph.initializer]
    types += [a.i for node in graph.node if node.op_type == "Cast" for a in node.attribute if a.name == "to"]
    types += [a.t.data_type for node in graph.node for a in node.attribute if a.HasField("t")]
    return not set(kinds).isdisjoint(types)


def _convert_graph(graph: onnx.GraphProto, kinds: Sequence[int]) -> list[onnx.NodeProto]:
    """Converts a graph in place and returns the casts that its external weights need."""
    casts = []
    for value in (*graph.input, *graph.output, *graph.value_info):
        if value.type.tensor_type.elem_type in kinds:
            value.type.tensor_type.elem_type = _FLOAT
    for tensor in graph.initializer:
        if tensor.data_type in kinds and tensor.data_location == onnx.TensorProto.EXTERNAL:
            name, tensor.name = tensor.name, f"{tensor.name}/external"
            casts.append(onnx.helper.make_node("Cast", [tensor.name], [name], to=_FLOAT))
        else:
            _convert(tensor, kinds)
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                _convert(attribute.t, kinds)
            elif attribute.name in ("to", "dtype") and attribute.i in kinds:
                attribute.i = _FLOAT
            elif attribute.HasField("g"):
                casts += _convert_graph(attribute.g, kinds)
    return casts


def _convert(tensor: onnx.TensorProto, kinds: Sequence[int]) -> None:
    if tensor.data_type in kinds:
        array = onnx.numpy_helper.to_array(tensor).astype("float32")
        tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
