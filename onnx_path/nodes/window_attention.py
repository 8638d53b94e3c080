"""Window attention as ONNX: name, attributes, translation from Torch, body in standard operators.

A node `WindowAttention` of domain `msda` has the tensors of `msda.window_attention` as inputs, in the same
order, and its integers as attributes. `onnx_path.nodes.attention` says how TensorRT and other runtimes run
such nodes. The body fixes no size: images, rows, columns, heads and channels may all be dynamic.

Builds give nodes `output_scale`, the quantisation scale of a result in int8, see
`onnx_path.tensorrt.fused_quantized_windows`. No file has such nodes. A body gives one type of result, so
onnxruntime runs them by another, `QuantizedWindowAttention`.
"""

from __future__ import annotations

from collections.abc import Callable

import onnx
import onnxscript
from onnxscript import opset20 as op

from onnx_path.nodes.domain import PLUGIN_ATTRIBUTES, msda_op, one_type_node
from trt_plugin.library import WINDOW_ATTENTION

OUTPUT_SCALE = "output_scale"

_FLOAT = onnx.TensorProto.FLOAT
_INT8 = onnx.TensorProto.INT8
_INT64 = onnx.TensorProto.INT64


def translation() -> Callable:
    """Returns the function by which `torch.onnx.export` writes a call of the operator as a node."""
    integer = onnx.defs.OpSchema.AttrType.INT
    attributes = {"window_size": integer, "shift": integer}
    node = one_type_node(WINDOW_ATTENTION, ("qkv", "bias", "padding"), attributes, optional="padding")

    def window_attention(qkv, bias, padding, window_size, shift, output_scale=None):
        if output_scale is not None:
            raise ValueError(f"output_scale: expected None in an export to ONNX, got {output_scale}")
        return node(qkv, bias, padding, window_size=window_size, shift=shift, **PLUGIN_ATTRIBUTES)

    return window_attention


# The body follows msda.reference. Letters: N images of H x W cells, C channels, L cells of a window, d
# channels of a head. Lengths are [1] int64.


@onnxscript.script(msda_op, default_opset=op)
def WindowAttention(qkv, bias, padding, window_size: int, shift: int):
    """msda.window_attention: attention inside the windows of a map, [N, H, W, C] of qkv's type."""
    images = op.Shape(qkv, start=0, end=1)
    height = op.Shape(qkv, start=1, end=2)
    width = op.Shape(qkv, start=2, end=3)
    columns = op.Shape(qkv, start=3, end=4)
    heads = op.Shape(bias, start=0, end=1)
    cells = op.Shape(bias, start=1, end=2)
    size = op.Unsqueeze(op.Constant(value_int=window_size), [0])
    step = op.Unsqueeze(op.Constant(value_int=shift), [0])
    down = (height + size - 1) / size
    across = (width + size - 1) / size
    rows = down * size
    row_length = across * size

    # Padding is optional, and so is the last input of Gemm: without it the product, zeros, remains.
    zero = op.CastLike([[0.0]], qkv)
    zeros = op.Expand(zero, op.Concat([1], columns, axis=0))
    outside = op.Unsqueeze(op.Cast(op.Gemm(zero, zeros, padding), to=_FLOAT), [0, 1])  # [1, 1, 1, 3 C]
    x = op.Cast(qkv, to=_FLOAT)
    right = op.Expand(outside, op.Concat(images, height, row_length - width, columns, axis=0))
    x = op.Concat(x, right, axis=2)
    bottom = op.Expand(outside, op.Concat(images, rows - height, row_length, columns, axis=0))
    x = op.Concat(x, bottom, axis=1)  # [N, rows, row_length, 3 C]
    x = op.Concat(op.Slice(x, step, rows, [1]), op.Slice(x, [0], step, [1]), axis=1)
    x = op.Concat(op.Slice(x, step, row_length, [2]), op.Slice(x, [0], step, [2]), axis=2)

    head_dim = columns / (heads * 3)
    cut = op.Concat(images, down, size, across, size, [3], heads, head_dim, axis=0)
    x = op.Transpose(op.Reshape(x, cut, allowzero=1), perm=[5, 0, 1, 3, 6, 2, 4, 7])
    windows = down * across
    x = op.Reshape(x, op.Concat([3], images, windows, heads, cells, head_dim, axis=0), allowzero=1)
    query = op.Gather(x, 0, axis=0) / op.Sqrt(op.Cast(head_dim, to=_FLOAT))  # [N, windows, heads, L, d]
    key = op.Transpose(op.Gather(x, 1, axis=0), perm=[0, 1, 2, 4, 3])
    logits = op.MatMul(query, key) + op.Cast(bias, to=_FLOAT)

    # Bands of the shifted map: all windows but the last, the last one's cells, those that wrapped around.
    # Without a shift, the cells of each window are of one band.
    row = op.Range(0, op.Squeeze(rows), 1)
    column = op.Range(0, op.Squeeze(row_length), 1)
    row_band = op.Cast(row >= rows - size, to=_INT64) + op.Cast(row >= rows - step, to=_INT64)
    column_band = op.Cast(column >= row_length - size, to=_INT64) + op.Cast(
        column >= row_length - step, to=_INT64
    )
    region = op.Unsqueeze(row_band, [1]) * 3 + op.Unsqueeze(column_band, [0])
    region = op.Reshape(region, op.Concat(down, size, across, size, axis=0), allowzero=1)
    region = op.Transpose(region, perm=[0, 2, 1, 3])
    region = op.Reshape(region, op.Concat(windows, [1], cells, axis=0), allowzero=1)
    alike = op.Equal(op.Unsqueeze(region, [2]), op.Unsqueeze(region, [3]))  # [windows, 1, L, L]
    logits = logits + op.Where(alike, 0.0, -100.0)

    out = op.MatMul(op.Softmax(logits, axis=-1), op.Gather(x, 2, axis=0))
    joined = op.Concat(images, down, across, heads, size, size, head_dim, axis=0)
    out = op.Transpose(op.Reshape(out, joined, allowzero=1), perm=[0, 1, 4, 2, 5, 3, 6])
    out = op.Reshape(out, op.Concat(images, rows, row_length, columns / 3, axis=0), allowzero=1)
    out = op.Concat(op.Slice(out, rows - step, rows, [1]), op.Slice(out, [0], rows - step, [1]), axis=1)
    out = op.Concat(
        op.Slice(out, row_length - step, row_length, [2]), op.Slice(out, [0], row_length - step, [2]), axis=2
    )
    out = op.Slice(out, [0, 0], op.Concat(height, width, axis=0), [1, 2])
    return op.CastLike(out, qkv)


@onnxscript.script(msda_op, default_opset=op)
def QuantizedWindowAttention(qkv, bias, padding, window_size: int, shift: int, output_scale: float):
    """msda.window_attention with output_scale: the result, rounded to qkv's type, in int8."""
    result = msda_op.WindowAttention(qkv, bias, padding, window_size=window_size, shift=shift)
    scaled = op.Cast(result, to=_FLOAT) / op.Constant(value_float=output_scale)
    return op.Cast(op.Clip(op.Round(scaled), -128.0, 127.0), to=_INT8)
