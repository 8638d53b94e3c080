"""The largest output of a linear layer as ONNX: name, translation from Torch, body in standard operators.

A node `LinearMax` of domain `msda` has the tensors of `msda.linear_max` as inputs, in the same order. Its
weight and bias are float32. `onnx_path.nodes.attention` says how TensorRT and other runtimes run such nodes.
The body fixes no size.
"""

from __future__ import annotations

from collections.abc import Callable

import onnx
import onnxscript
from onnxscript import opset20 as op

from onnx_path.nodes.domain import PLUGIN_ATTRIBUTES, msda_op, plugin_node
from trt_plugin.library import LINEAR_MAX

_FLOAT = onnx.TensorProto.FLOAT


def translation() -> Callable:
    """Returns the function by which `torch.onnx.export` writes a call of the operator as a node."""
    inputs = {"x": "T", "weight": "tensor(float)", "bias": "tensor(float)"}
    types = {"T": ("tensor(float)", "tensor(float16)", "tensor(bfloat16)")}
    node = plugin_node(LINEAR_MAX, inputs, ("output", "tensor(float)"), {}, types)

    def linear_max(x, weight, bias):
        return node(x, weight, bias, **PLUGIN_ATTRIBUTES)

    return linear_max


@onnxscript.script(msda_op, default_opset=op)
def LinearMax(x, weight, bias):
    """msda.linear_max: the largest of x weight^T + bias for each row, in float32."""
    product = op.MatMul(op.Cast(x, to=_FLOAT), op.Transpose(weight, perm=[1, 0])) + bias
    # TopK has one form in all opsets. ReduceMax has its axes as an attribute up to opset 17.
    largest, _ = op.TopK(product, [1], axis=-1)
    return op.Squeeze(largest, [-1])
