"""Linear layers of a sum as ONNX: name, translation from Torch, body in standard operators.

A node `LinearOfSum` of domain `msda` has the tensors of `msda.linear_of_sum` as inputs, in the same order.
`onnx_path.nodes.attention` says how TensorRT and other runtimes run such nodes. The body fixes no size.
"""

from __future__ import annotations

from collections.abc import Callable

import onnx
import onnxscript
from onnxscript import opset20 as op

from onnx_path.nodes.domain import PLUGIN_ATTRIBUTES, msda_op, one_type_node
from trt_plugin.library import LINEAR_OF_SUM

INPUTS = ("x", "addend", "weight", "bias")

_FLOAT = onnx.TensorProto.FLOAT


def translation() -> Callable:
    """Returns the function by which `torch.onnx.export` writes a call of the operator as a node."""
    node = one_type_node(LINEAR_OF_SUM, INPUTS, {})

    def linear_of_sum(x, addend, weight, bias):
        return node(x, addend, weight, bias, **PLUGIN_ATTRIBUTES)

    return linear_of_sum


@onnxscript.script(msda_op, default_opset=op)
def LinearOfSum(x, addend, weight, bias):
    """msda.linear_of_sum: (x + addend) weight^T + bias, in x's type."""
    inputs = op.Cast(x + addend, to=_FLOAT)  # the sum is rounded to x's type
    product = op.MatMul(inputs, op.Transpose(op.Cast(weight, to=_FLOAT), perm=[1, 0]))
    return op.CastLike(product + op.Cast(bias, to=_FLOAT), x)
