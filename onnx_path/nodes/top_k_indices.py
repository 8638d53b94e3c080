"""The indices of the largest numbers as ONNX: name, attribute, translation from Torch, body.

A node `TopKIndices` of domain `msda` has the tensor of `msda.top_k_indices` as its input, and `count` as an
attribute. TensorRT's parser ignores domains, so the node has another name than ONNX's TopK.
`onnx_path.nodes.attention` says how TensorRT and other runtimes run such nodes. The body fixes no size.
"""

from __future__ import annotations

from collections.abc import Callable

import onnx
import onnxscript
from onnxscript import opset20 as op

from onnx_path.nodes.domain import PLUGIN_ATTRIBUTES, msda_op, plugin_node
from trt_plugin.library import TOP_K_INDICES

_INT32 = onnx.TensorProto.INT32


def translation() -> Callable:
    """Returns the function by which `torch.onnx.export` writes a call of the operator as a node."""
    attributes = {"count": onnx.defs.OpSchema.AttrType.INT}
    node = plugin_node(TOP_K_INDICES, {"x": "tensor(float)"}, ("indices", "tensor(int32)"), attributes, {})

    def top_k_indices(x, count):
        return node(x, count=count, **PLUGIN_ATTRIBUTES)

    return top_k_indices


@onnxscript.script(msda_op, default_opset=op)
def TopKIndices(x, count: int):
    """msda.top_k_indices: the indices of the largest numbers of each row [N, S], as int32."""
    numbers = op.Unsqueeze(op.Constant(value_int=count), [0])
    _, indices = op.TopK(x, numbers, axis=1, largest=1, sorted=1)
    return op.Cast(indices, to=_INT32)
