"""Layer normalisation with a result in 8 bits as ONNX: name, body in standard operators.

A node `QuantizedLayerNorm` of domain `msda` has the tensors of `msda.quantized_layer_norm` as inputs, in the
same order, and `eps` and `scale` as attributes. `output_type` is the result's type by its number in ONNX.

No file has these nodes. Builds make them of a LayerNormalization and a QuantizeLinear, see
`onnx_path.tensorrt.fused_quantized_layer_norms`. The body lets onnxruntime run what TensorRT gets, and fixes
no size.
"""

from __future__ import annotations

import onnx
import onnxscript
from onnxscript import opset20 as op

from onnx_path.nodes.domain import msda_op

_FLOAT = onnx.TensorProto.FLOAT


@onnxscript.script(msda_op, default_opset=op)
def QuantizedLayerNorm(x, weight, bias, eps: float, output_type: int, scale: float):
    """msda.quantized_layer_norm: rows normalised in float32, divided by scale, in output_type."""
    wide = op.Cast(x, to=_FLOAT)
    numbers = op.Cast(op.Shape(x, start=-1), to=_FLOAT)
    # ReduceMean has its axes as an attribute up to opset 17, as an input later.
    mean = op.ReduceSum(wide, [-1], keepdims=1) / numbers
    differences = wide - mean
    variance = op.ReduceSum(differences * differences, [-1], keepdims=1) / numbers
    normalised = differences / op.Sqrt(variance + op.Constant(value_float=eps))
    result = normalised * op.Cast(weight, to=_FLOAT) + op.Cast(bias, to=_FLOAT)
    scaled = result / op.Constant(value_float=scale)
    rounded = op.Clip(op.Round(scaled), -128.0, 127.0)
    # Casts to E4M3 round and saturate by themselves.
    is_int8 = op.Constant(value_int=output_type) == 3
    return op.Cast(op.Where(is_int8, rounded, scaled), to=output_type)
