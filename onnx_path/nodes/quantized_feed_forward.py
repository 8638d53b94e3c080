"""Feed-forward blocks in int8 as ONNX: name, packed weights, body in standard operators.

A node `QuantizedFeedForward` of domain `msda` has the tensors of `msda.quantized_feed_forward` as inputs, in
the same order, and its numbers as attributes; a `next_scale` of 0 stands for none. The weights are packed as
those of `onnx_path.nodes.quantized_linear`. The outputs are those of the operator.

No file has these nodes. Builds make them of nodes `QuantizedLinear` and a LayerNormalization, see
`onnx_path.tensorrt.fused_quantized_feed_forwards`. The body lets onnxruntime run what TensorRT gets, and
fixes no size.
"""

from __future__ import annotations

import onnx
import onnxscript
from onnxscript import opset20 as op

from onnx_path.nodes.domain import msda_op

_FLOAT = onnx.TensorProto.FLOAT
_INT8 = onnx.TensorProto.INT8
_INT64 = onnx.TensorProto.INT64


@onnxscript.script(msda_op, default_opset=op)
def QuantizedFeedForward(
    x,
    weight1,
    scale1,
    bias1,
    weight2,
    scale2,
    bias2,
    norm_weight,
    norm_bias,
    x_scale: float,
    hidden_scale: float,
    eps: float,
    next_scale: float,
):
    """msda.quantized_feed_forward: y = layer_norm(x + the block's numbers), and y in int8."""
    places = op.Constant(value_ints=[1, 256, 65536, 16777216])
    unsigned1 = op.Mod(op.Cast(weight1, to=_INT64), 4294967296)
    bytes1 = op.Mod(op.Unsqueeze(unsigned1, [-1]) / places, 256)
    codes1 = op.Reshape(bytes1, op.Concat(op.Shape(weight1, start=0, end=1), [-1], axis=0))
    numbers1 = op.Cast(codes1 - op.Where(codes1 > 127, 256, 0), to=_FLOAT)  # [H, C]
    unsigned2 = op.Mod(op.Cast(weight2, to=_INT64), 4294967296)
    bytes2 = op.Mod(op.Unsqueeze(unsigned2, [-1]) / places, 256)
    codes2 = op.Reshape(bytes2, op.Concat(op.Shape(weight2, start=0, end=1), [-1], axis=0))
    numbers2 = op.Cast(codes2 - op.Where(codes2 > 127, 256, 0), to=_FLOAT)  # [C, H]

    wide = op.Cast(x, to=_FLOAT)
    narrow = op.Clip(op.Round(wide / op.Constant(value_float=x_scale)), -128.0, 127.0)
    product1 = op.MatMul(narrow, op.Transpose(numbers1, perm=[1, 0])) * scale1 + bias1
    scaled = op.Relu(product1) / op.Constant(value_float=hidden_scale)
    hidden = op.Clip(op.Round(scaled), -128.0, 127.0)
    product2 = op.MatMul(hidden, op.Transpose(numbers2, perm=[1, 0])) * scale2 + bias2
    y = wide + product2

    numbers = op.Cast(op.Shape(x, start=-1), to=_FLOAT)
    # ReduceMean has its axes as an attribute up to opset 17, as an input later.
    mean = op.ReduceSum(y, [-1], keepdims=1) / numbers
    differences = y - mean
    variance = op.ReduceSum(differences * differences, [-1], keepdims=1) / numbers
    normalised = differences / op.Sqrt(variance + op.Constant(value_float=eps))
    result = op.CastLike(normalised * op.Cast(norm_weight, to=_FLOAT) + op.Cast(norm_bias, to=_FLOAT), x)

    scaled = op.Cast(result, to=_FLOAT) / op.Constant(value_float=next_scale)
    quantized = op.Cast(op.Clip(op.Round(scaled), -128.0, 127.0), to=_INT8)
    return result, quantized
