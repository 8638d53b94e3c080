"""The largest output of a linear layer as ONNX: name, translation from Torch, body in standard operators.

A node `LinearMax` of domain `msda` has the tensors of `msda.linear_max` as inputs, in the same order. Its
weight and bias are float32. `onnx_path.operator` says how TensorRT and other runtimes run such nodes. The
body fixes no size.
"""

from __future__ import annotations

from collections.abc import Callable

import onnx
import onnxscript
from onnxscript import opset20 as op

from onnx_path.domain import DOMAIN, DOMAIN_VERSION, PLUGIN_ATTRIBUTES, msda_op

LINEAR_MAX = "LinearMax"

_FLOAT = onnx.TensorProto.FLOAT


def translation() -> Callable:
    """Returns the function by which `torch.onnx.export` writes a call of the operator as a node."""
    schema = onnx.defs.OpSchema
    description = schema(
        LINEAR_MAX,
        DOMAIN,
        DOMAIN_VERSION,
        inputs=[
            schema.FormalParameter("x", "T"),
            schema.FormalParameter("weight", "tensor(float)"),
            schema.FormalParameter("bias", "tensor(float)"),
        ],
        outputs=[schema.FormalParameter("output", "tensor(float)")],
        type_constraints=[("T", ["tensor(float)", "tensor(float16)", "tensor(bfloat16)"], "")],
        attributes=[schema.Attribute(key, schema.AttrType.STRING) for key in PLUGIN_ATTRIBUTES],
    )
    node = onnxscript.values.Op(msda_op, LINEAR_MAX, description)

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
