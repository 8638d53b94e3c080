"""Feed-forward blocks as ONNX: name, attribute, translation from Torch, body in standard operators.

A node `FeedForward` of domain `msda` has the tensors of `msda.feed_forward` as inputs, in the same order, and
the attribute `eps`. `onnx_path.nodes.attention` says how TensorRT and other runtimes run such nodes. The body
fixes no size.
"""

from __future__ import annotations

from collections.abc import Callable

import onnx
import onnxscript
from onnxscript import opset20 as op

from onnx_path.nodes.domain import PLUGIN_ATTRIBUTES, msda_op, one_type_node
from trt_plugin.library import FEED_FORWARD

INPUTS = ("x", "weight1", "bias1", "weight2", "bias2", "norm_weight", "norm_bias")

_FLOAT = onnx.TensorProto.FLOAT


def translation() -> Callable:
    """Returns the function by which `torch.onnx.export` writes a call of the operator as a node."""
    node = one_type_node(FEED_FORWARD, INPUTS, {"eps": onnx.defs.OpSchema.AttrType.FLOAT})

    def feed_forward(x, weight1, bias1, weight2, bias2, norm_weight, norm_bias, eps):
        layers = weight1, bias1, weight2, bias2
        return node(x, *layers, norm_weight, norm_bias, eps=eps, **PLUGIN_ATTRIBUTES)

    return feed_forward


@onnxscript.script(msda_op, default_opset=op)
def FeedForward(x, weight1, bias1, weight2, bias2, norm_weight, norm_bias, eps: float):
    """msda.feed_forward: layer_norm(x + relu(x weight1^T + bias1) weight2^T + bias2), in x's type."""
    wide = op.Cast(x, to=_FLOAT)
    transposed1 = op.Transpose(op.Cast(weight1, to=_FLOAT), perm=[1, 0])
    product1 = op.MatMul(wide, transposed1) + op.Cast(bias1, to=_FLOAT)
    hidden = op.Cast(op.CastLike(op.Relu(product1), x), to=_FLOAT)  # rounded to x's type
    transposed2 = op.Transpose(op.Cast(weight2, to=_FLOAT), perm=[1, 0])
    y = wide + (op.MatMul(hidden, transposed2) + op.Cast(bias2, to=_FLOAT))

    # ReduceMean has its axes as an attribute up to opset 17, as an input later.
    columns = op.Cast(op.Shape(x, start=-1), to=_FLOAT)
    differences = y - op.ReduceSum(y, [-1], keepdims=1) / columns
    variance = op.ReduceSum(differences * differences, [-1], keepdims=1) / columns
    normalised = differences / op.Sqrt(variance + op.Constant(value_float=eps))
    return op.CastLike(normalised * op.Cast(norm_weight, to=_FLOAT) + op.Cast(norm_bias, to=_FLOAT), x)
