"""Linear layers with 8-bit inputs as ONNX: name, attributes, packed weights, body in standard operators.

A node `QuantizedLinear` of domain `msda` has the tensors x, weight, scale, bias, residual and mask of
`msda.quantized_linear` as inputs. x is the result of a QuantizeLinear. The weights are packed: TensorRT lets
8-bit constants reach no node but DequantizeLinear. A node without a bias has zeros. A node without a residual
or mask names the bias again, as a node `Linear`. `output_type` is the result's type by its number in ONNX,
and `output_scale` the quantisation scale of a result in 8 bits.

No file has these nodes. Builds make them of Q/DQ nodes, see `onnx_path.tensorrt.fused_quantized_linears`. The
body lets onnxruntime run what TensorRT gets, and fixes no size.
"""

from __future__ import annotations

import numpy as np
import onnx
import onnxscript
from onnxscript import opset20 as op

from onnx_path.nodes.domain import msda_op

_FLOAT = onnx.TensorProto.FLOAT
_INT64 = onnx.TensorProto.INT64


def pack_weights(weight: np.ndarray) -> np.ndarray:
    """Returns weights [N, K] of 8 bits as int32 [N, K / 4], four of a row in a number, lowest byte first."""
    return np.ascontiguousarray(weight).view("<i4")


@onnxscript.script(msda_op, default_opset=op)
def QuantizedLinear(
    x,
    weight,
    scale,
    bias,
    residual,
    mask,
    activation: int,
    add_residual: int,
    multiply_mask: int,
    output_type: int,
    output_scale: float,
):
    """msda.quantized_linear: (activation(x weight^T * scale + bias) + residual) * mask, in output_type."""
    unsigned = op.Mod(op.Cast(weight, to=_INT64), 4294967296)
    places = op.Constant(value_ints=[1, 256, 65536, 16777216])
    bytes = op.Mod(op.Unsqueeze(unsigned, [-1]) / places, 256)
    codes = op.Reshape(bytes, op.Concat(op.Shape(weight, start=0, end=1), [-1], axis=0))
    integers = op.Cast(codes - op.Where(codes > 127, 256, 0), to=_FLOAT)
    # E4M3: a sign, four bits of exponent and three of fraction.
    magnitude = op.Mod(codes, 128)
    exponent = magnitude / 8
    fraction = op.Cast(op.Mod(magnitude, 8), to=_FLOAT)
    normal = (fraction + 8.0) * op.Pow(2.0, op.Cast(exponent, to=_FLOAT) - 10.0)
    absolute = op.Where(exponent == 0, fraction * 0.001953125, normal)
    floats = op.Where(codes > 127, op.Neg(absolute), absolute)
    # Integers have no halves.
    is_integer = op.Cast(op.CastLike(0.5, x), to=_FLOAT) == 0.0
    numbers = op.Where(is_integer, integers, floats)  # [N, K]

    sums = op.MatMul(op.Cast(x, to=_FLOAT), op.Transpose(numbers, perm=[1, 0]))
    product = sums * scale + bias
    kind = op.Constant(value_int=activation)
    gelu = product * (op.Erf(product / 1.4142135623730951) + 1.0) * 0.5
    activated = op.Where(kind == 1, gelu, op.Where(kind == 2, op.Relu(product), product))
    added = activated + op.Cast(residual, to=_FLOAT)
    summed = op.Where(op.Constant(value_int=add_residual) == 1, added, activated)
    masked = summed * op.Cast(mask, to=_FLOAT)
    result = op.Where(op.Constant(value_int=multiply_mask) == 1, masked, summed)
    scaled = result / op.Constant(value_float=output_scale)
    rounded = op.Clip(op.Round(scaled), -128.0, 127.0)
    to_type = op.Constant(value_int=output_type)
    # Casts to E4M3 round and saturate by themselves.
    quantized = op.Where(to_type == 3, rounded, op.Where(to_type == 17, scaled, result))
    return op.Cast(quantized, to=output_type)
