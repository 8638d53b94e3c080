"""Replaces linear layers of 8-bit numbers by nodes `QuantizedLinear`, where the plugin's kernels are fast.

A layer of a quantised file is

    x -> QuantizeLinear -> DequantizeLinear -> MatMul or Gemm
      -> Add bias -> Gelu or Relu -> Add residual -> Mul mask

with the weights behind a DequantizeLinear of their own. Each step behind the product is optional. The result
has 8 bits if every reader reads it through the same QuantizeLinear, which the node replaces. The pass knows
the nodes by what they compute, not by names. Needs no GPU.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from onnx_path.nodes.domain import DOMAIN, PLUGIN_ATTRIBUTES
from onnx_path.nodes.linear import ACTIVATIONS
from onnx_path.nodes.quantized_linear import pack_weights
from onnx_path.opset import opset_of
from onnx_path.quantization.qdq_nodes import EIGHT_BITS, SIXTEEN_BITS, scale_of, zero_type
from onnx_path.surgery.graph.traversal import add_constant, attribute, constant, is_op
from onnx_path.tensorrt.fused_quantized_feed_forwards import fuse_quantized_feed_forwards
from onnx_path.tensorrt.fused_quantized_layer_norms import fuse_layer_norms
from onnx_path.tensorrt.fused_quantized_values import fuse_values
from onnx_path.tensorrt.fused_quantized_windows import fuse_windows
from trt_plugin.library import QUANTIZED_LINEAR


@dataclass(frozen=True, eq=False)
class QuantizedLayer:
    """A linear layer of 8-bit numbers, and the nodes that it replaces.

    Attributes:
        product: the MatMul or Gemm.
        output: the result.
        x: [..., K] in 8 bits, the result of a QuantizeLinear or of another such layer.
        weight: [N, K] in the type of x.
        scale, bias: [N] float32.
        dtype: 16-bit type of residual, mask and an output that is not quantised.
        activation: one of `ACTIVATIONS`.
        residual, mask: [..., N] and [..., 1].
        output_scale: scale of an output in 8 bits; None if it has 16.
    """

    product: ir.Node
    output: ir.Value
    x: ir.Value
    weight: np.ndarray
    scale: np.ndarray
    bias: np.ndarray
    dtype: ir.DataType
    activation: str = "none"
    residual: ir.Value | None = None
    mask: ir.Value | None = None
    output_scale: float | None = None

    @property
    def eight_bits(self) -> ir.DataType:
        """The type of x and weight."""
        return ir.DataType.from_numpy(self.weight.dtype)


def fuse_quantized_linears(model: ir.Model) -> int:
    """Replaces the layers of a model that a kernel runs fast on the current GPU, in place.

    The normalisations before them follow, see `onnx_path.tensorrt.fused_quantized_layer_norms`, the window
    attention before them, see `onnx_path.tensorrt.fused_quantized_windows`, blocks of two layers, see
    `onnx_path.tensorrt.fused_quantized_feed_forwards`, and the values of MSDA, see
    `onnx_path.tensorrt.fused_quantized_values`.

    Args:
        model: in the types that TensorRT gets.

    Returns:
        The number of layers and values.
    """
    if not any(is_op(node, "DequantizeLinear") for node in model.graph):
        return 0
    count = fuse_layers(model, _is_fast)
    if count:
        fuse_quantized_feed_forwards(model.graph, _is_fast_block)
    count += fuse_values(model.graph, opset_of(model))
    if count:
        ir.passes.common.RemoveUnusedNodesPass()(model)
    return count


def fuse_layers(model: ir.Model, is_fast: Callable[[QuantizedLayer], bool]) -> int:
    """Replaces the layers of a main graph, and what is before them, in place; returns their number.

    Normalisations and window attention before the layers get results in 8 bits.

    Args:
        model: a layer becomes a node with as many of its steps as `is_fast` accepts.
        is_fast: tells whether a kernel runs a layer fast.
    """
    ir.passes.common.ShapeInferencePass()(model)  # of sums, and of casts that a conversion has added
    count = 0
    for node in list(model.graph):
        fast = [layer for layer in find_forms(node) if is_fast(layer)]
        if fast:
            _replace(fast[-1])
            count += 1
    if count:
        ir.passes.common.RemoveUnusedNodesPass()(model)
        fuse_layer_norms(model.graph)
        fuse_windows(model.graph)
        model.opset_imports[DOMAIN] = 1
    return count


def _is_fast(layer: QuantizedLayer) -> bool:
    """Returns whether the plugin has a fast kernel for a layer on the current GPU."""
    from trt_plugin import library
    from trt_plugin.engine_error import EngineError

    outputs, inputs = layer.weight.shape
    switches = layer.residual is not None, layer.mask is not None, layer.output_scale is not None
    try:
        return library.has_fast_quantized_linear(inputs, outputs, *switches, EIGHT_BITS[layer.eight_bits])
    except EngineError:
        return False  # no TensorRT, so no build follows


def _is_fast_block(rows: int, channels: int, hidden: int) -> bool:
    from trt_plugin import library

    return library.has_fast_quantized_feed_forward(rows, channels, hidden)


def find_forms(node: ir.Node) -> Iterator[QuantizedLayer]:
    """Yields the layer of a MatMul or Gemm, each time with one step more of those behind it."""
    layer = _product(node)
    if layer is None:
        return
    yield layer
    for step in (_with_bias, _with_activation, _with_residual, _with_mask, _with_scale):
        longer = step(layer)
        if longer is not None:
            layer = longer
            yield layer


def _product(node: ir.Node) -> QuantizedLayer | None:
    """Returns a product of 8-bit numbers in a 16-bit type, with the bias of a Gemm."""
    if not is_op(node, "MatMul", "Gemm") or len(node.inputs) < 2:
        return None
    left, right = (_Scaled.behind(value) for value in node.inputs[:2])
    if left is None or right is None or left.scale.ndim or left.transposed:
        return None
    stored = constant(right.value)
    if stored is None or stored.ndim != 2 or left.type != right.type or left.dtype not in SIXTEEN_BITS:
        return None
    by_rows = right.transposed
    bias = None
    if is_op(node, "Gemm"):
        factors = attribute(node, "alpha", 1.0), attribute(node, "beta", 1.0)
        if factors != (1.0, 1.0) or attribute(node, "transA", 0):
            return None
        by_rows ^= bool(attribute(node, "transB", 0))
        bias = node.inputs[2] if len(node.inputs) > 2 else None
    weight = stored if by_rows else stored.T
    outputs, inputs = weight.shape
    output_axis = 0 if by_rows else 1
    if inputs % 4 or (right.scale.ndim and (right.axis % 2 != output_axis or right.scale.size != outputs)):
        return None
    scale = np.broadcast_to(right.scale * left.scale, outputs)
    layer = QuantizedLayer(
        node,
        node.outputs[0],
        left.value,
        weight,
        scale.astype(np.float32),
        np.zeros(outputs, np.float32),
        left.dtype,
    )
    if bias is None:
        return layer
    numbers = _row(bias, outputs)
    return None if numbers is None else replace(layer, bias=numbers)


@dataclass(frozen=True)
class _Scaled:
    """A tensor behind a DequantizeLinear without a zero point, and perhaps a transposition of a matrix."""

    value: ir.Value
    scale: np.ndarray  # float32, a scalar or [sizes of an axis]
    axis: int
    type: ir.DataType
    dtype: ir.DataType
    transposed: bool

    @classmethod
    def behind(cls, value: ir.Value | None) -> _Scaled | None:
        node = None if value is None else value.producer()
        transposed = is_op(node, "Transpose") and list(attribute(node, "perm", [1, 0])) == [1, 0]
        if transposed:
            node = node.inputs[0].producer()
        if not is_op(node, "DequantizeLinear"):
            return None
        source = node.inputs[0]
        scale, kind = scale_of(node), _type_of(source)
        if scale is None or kind not in EIGHT_BITS or zero_type(node) not in (None, kind):
            return None
        dtype = ir.DataType.from_numpy(constant(node.inputs[1]).dtype)
        return cls(source, scale, attribute(node, "axis", 1), kind, dtype, transposed)


def _type_of(value: ir.Value) -> ir.DataType | None:
    """Returns the type of a quantised tensor: a constant, or a QuantizeLinear's or fused layer's result."""
    array = constant(value)
    if array is not None:
        return ir.DataType.from_numpy(array.dtype)
    node = value.producer()
    if node is not None and (node.domain, node.op_type) == (DOMAIN, QUANTIZED_LINEAR):
        return value.dtype
    return zero_type(node) if is_op(node, "QuantizeLinear") else None


def _row(value: ir.Value, size: int) -> np.ndarray | None:
    """Returns a constant that is a number for each of the last axis's elements, as float32 [size]."""
    array = constant(value)
    if array is None or array.size != size or array.shape[-1:] != (size,):
        return None
    return array.reshape(size).astype(np.float32)


def _reader(layer: QuantizedLayer, *types: str) -> tuple[ir.Node, ir.Value | None] | None:
    """Returns the only reader of a layer's result, if it has one of these types, and its other input."""
    uses = list(layer.output.uses())
    if len(uses) != 1 or layer.output.is_graph_output() or not is_op(uses[0].node, *types):
        return None
    node = uses[0].node
    others = [value for index, value in enumerate(node.inputs) if index != uses[0].idx]
    return node, others[0] if others else None


def _with_bias(layer: QuantizedLayer) -> QuantizedLayer | None:
    reader = _reader(layer, "Add")
    numbers = reader and _row(reader[1], len(layer.bias))
    if numbers is None:
        return None
    return replace(layer, output=reader[0].outputs[0], bias=layer.bias + numbers)


def _with_activation(layer: QuantizedLayer) -> QuantizedLayer | None:
    reader = _reader(layer, "Gelu", "Relu")
    if reader is None or attribute(reader[0], "approximate", "none") != "none":
        return None
    return replace(layer, output=reader[0].outputs[0], activation=reader[0].op_type.lower())


def _with_residual(layer: QuantizedLayer) -> QuantizedLayer | None:
    reader = _reader(layer, "Add")
    shape = layer.output.shape
    if reader is None or shape is None or reader[1].shape != shape or constant(reader[1]) is not None:
        return None
    return replace(layer, output=reader[0].outputs[0], residual=reader[1])


def _with_mask(layer: QuantizedLayer) -> QuantizedLayer | None:
    reader = _reader(layer, "Mul")
    shape = layer.output.shape
    if reader is None or shape is None or reader[1].shape != ir.Shape((*shape[:-1], 1)):
        return None
    return replace(layer, output=reader[0].outputs[0], mask=reader[1])


def _with_scale(layer: QuantizedLayer) -> QuantizedLayer | None:
    """Returns the layer with a result in 8 bits, if all of its readers are the same QuantizeLinear."""
    reader = _reader(layer, "QuantizeLinear")
    if reader is None or zero_type(reader[0]) != layer.eight_bits:
        return None
    scale = scale_of(reader[0])
    if scale is None or scale.ndim:
        return None
    return replace(layer, output=reader[0].outputs[0], output_scale=float(scale))


def _replace(layer: QuantizedLayer) -> None:
    last, (module, own_name) = layer.output.producer(), posixpath.split(layer.product.name or "")
    place = own_name.removeprefix(layer.product.op_type)  # such as "_1", of the second node of a module
    graph, name = last.graph, layer.output.name

    def own(suffix: str, array: np.ndarray) -> ir.Value:
        return add_constant(graph, f"{name}/{QUANTIZED_LINEAR}/{suffix}", array)

    bias = own("bias", layer.bias)
    quantized = layer.output_scale is not None
    output_type = layer.eight_bits if quantized else layer.dtype
    attributes = {
        "activation": ACTIVATIONS.index(layer.activation),
        "add_residual": int(layer.residual is not None),
        "multiply_mask": int(layer.mask is not None),
        "output_type": int(output_type),
        "output_scale": layer.output_scale if quantized else 1.0,
    }
    made = ir.node(
        QUANTIZED_LINEAR,
        [
            layer.x,
            own("weight", pack_weights(layer.weight)),
            own("scale", layer.scale),
            bias,
            bias if layer.residual is None else layer.residual,
            bias if layer.mask is None else layer.mask,
        ],
        attributes | PLUGIN_ATTRIBUTES,
        domain=DOMAIN,
        name=posixpath.join(module, QUANTIZED_LINEAR) + place,
    )
    result = made.outputs[0]
    result.type, result.shape = ir.TensorType(output_type), layer.output.shape
    graph.insert_before(last, made)
    ir.convenience.replace_all_uses_with(layer.output, result, replace_graph_outputs=True)
    layer.output.name, result.name = f"{name}/replaced", name
