"""Linear layers as ONNX: name, attributes, translation from Torch, body in standard operators.

A node `Linear` of domain `msda` has the seven tensors of `msda.linear` as inputs. A function of ONNX reads
all of its inputs. A node without a bias therefore has zeros. A node without a residual has `add_residual` 0,
one without a mask `multiply_mask` 0, and one without a normalisation `normalise` 0. All of them name the bias
again in place of what they lack. `onnx_path.nodes.attention` says how TensorRT and other runtimes run such
nodes. `onnx_path.tensorrt.written_out_linears` replaces them by standard operators. The body fixes no size.
"""

from __future__ import annotations

from collections.abc import Callable

import onnx
import onnxscript
from onnxscript import opset20 as op

from onnx_path.nodes.domain import PLUGIN_ATTRIBUTES, msda_op, one_type_node
from trt_plugin.library import LINEAR

ACTIVATIONS = ("none", "gelu", "relu")
"""Activations by the numbers of the attribute `activation`."""
EPS = 1e-5
"""The attribute `eps` of nodes without a normalisation."""

_FLOAT = onnx.TensorProto.FLOAT


def translation() -> Callable:
    """Returns the function by which `torch.onnx.export` writes a call of the operator as a node."""
    kinds = onnx.defs.OpSchema.AttrType
    attributes = dict.fromkeys(("activation", "add_residual", "multiply_mask", "normalise"), kinds.INT)
    inputs = "x", "weight", "bias", "residual", "mask", "norm_weight", "norm_bias"
    node = one_type_node(LINEAR, inputs, attributes | {"eps": kinds.FLOAT})

    def linear(x, weight, bias, residual, mask, norm_weight, norm_bias, activation, eps):
        if bias is None:
            bias = op.Expand(op.CastLike(0.0, weight), op.Shape(weight, start=0, end=1))
        numbers = {
            "activation": ACTIVATIONS.index(activation),
            "add_residual": int(residual is not None),
            "multiply_mask": int(mask is not None),
            "normalise": int(norm_weight is not None),
            "eps": eps,
        }
        optional = (residual, mask, norm_weight, norm_bias)
        optional = (bias if tensor is None else tensor for tensor in optional)
        return node(x, weight, bias, *optional, **numbers, **PLUGIN_ATTRIBUTES)

    return linear


@onnxscript.script(msda_op, default_opset=op)
def Linear(
    x,
    weight,
    bias,
    residual,
    mask,
    norm_weight,
    norm_bias,
    activation: int,
    add_residual: int,
    multiply_mask: int,
    normalise: int,
    eps: float,
):
    """msda.linear: (activation(x weight^T + bias) + residual) * mask, or its LayerNorm, in x's type."""
    transposed = op.Transpose(op.Cast(weight, to=_FLOAT), perm=[1, 0])
    product = op.MatMul(op.Cast(x, to=_FLOAT), transposed) + op.Cast(bias, to=_FLOAT)
    # Branches, because Where would compute all of its inputs. They pass a value through by a Cast, because
    # IdentityEliminationPass of onnx_ir breaks a branch whose result is an Identity of a value outside of it.
    kind = op.Constant(value_int=activation)
    if kind == 1:
        result = product * (op.Erf(product / 1.4142135623730951) + 1.0) * 0.5
    elif kind == 2:
        result = op.Relu(product)
    else:
        result = op.Cast(product, to=_FLOAT)
    if op.Constant(value_int=add_residual) == 1:
        result = result + op.Cast(residual, to=_FLOAT)
    else:
        result = op.Cast(result, to=_FLOAT)
    if op.Constant(value_int=multiply_mask) == 1:
        result = result * op.Cast(mask, to=_FLOAT)
    else:
        result = op.Cast(result, to=_FLOAT)
    smallest = op.Constant(value_float=eps)
    if op.Constant(value_int=normalise) == 1:
        # Without opset 18, ReduceMean has no axes as an input.
        columns = op.Cast(op.Shape(result, start=-1), to=_FLOAT)
        differences = result - op.ReduceSum(result, [-1], keepdims=1) / columns
        variance = op.ReduceSum(differences * differences, [-1], keepdims=1) / columns
        normalised = differences / op.Sqrt(variance + smallest)
        result = normalised * op.Cast(norm_weight, to=_FLOAT) + op.Cast(norm_bias, to=_FLOAT)
    else:
        result = op.Cast(result, to=_FLOAT)
    return op.CastLike(result, x)
