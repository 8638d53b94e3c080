"""Quantises linear layers and convolutions of a graph for TensorRT, by pairs of Q/DQ calls.

The ONNX path decides which layers become 8 bits, and measures the ranges of their inputs
(`onnx_path.quantization`). Both paths know a layer by its weights. PyTorch's own quantize_per_tensor is not
used: it rounds to whole numbers before it converts to FP8.
"""

from __future__ import annotations

import operator
from collections.abc import Container, Mapping

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import unset_fake_temporarily

from codetr.export.quantization_scales import LARGEST, scales_of
from codetr.export.weight_key import OUTPUT, number_keys, weight_key
from dynamo_path.packed_projections import LINEAR

LAYERS = (LINEAR, torch.ops.aten.convolution.default, torch.ops.aten.conv2d.default)
TYPES = {"int8": torch.int8, "fp8": torch.float8_e4m3fn}
_LARGEST = {TYPES[name]: number for name, number in LARGEST.items()}


def quantize(x: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """Rounds x / scale to an 8-bit type.

    Args:
        x: [N, ...], floating.
        scale: fp32, a scalar or [N].
        dtype: torch.int8 or torch.float8_e4m3fn.
    """
    largest = _LARGEST[dtype]
    scaled = (x.float() / _column(scale, x)).clamp(-largest, largest)
    return (scaled.round() if dtype == torch.int8 else scaled).to(dtype)


def dequantize(x: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """Returns x * scale in a floating type; `scale` as for `quantize`."""
    return (x.float() * _column(scale, x)).to(dtype)


def quantize_layers(module: torch.fx.GraphModule, ranges: Mapping[str, float], precision: str) -> int:
    """Inserts calls of `quantize` and `dequantize` before the inputs and weights of layers, in place.

    TensorRT folds the quantisation of weights when it builds.

    Args:
        module: graph with constant weights.
        ranges: largest magnitudes of tensors, see `Quantizer.ranges_by_weights`.
        precision: "int8" with a scale for each output channel of weights, or "fp8".

    Returns:
        The number of layers in 8 bits.

    Raises:
        RuntimeError: the graph lacks a layer of `ranges`.
    """
    weights = {
        node: operator.attrgetter(node.args[1].target)(module)
        for node in module.graph.nodes
        if node.target in LAYERS and node.args[1].op == "get_attr"
    }
    with unset_fake_temporarily():
        names = number_keys(weight_key(weight.detach().cpu().numpy()) for weight in weights.values())
    chosen = {node: name for node, name in zip(weights, names, strict=True) if name in ranges}
    sources: dict[torch.fx.Node, float] = {}
    values = []  # of MSDA
    for node, name in chosen.items():
        sources[node.args[0]] = ranges[name]
        if name + OUTPUT in ranges:
            output = node
            if node.target is LINEAR:
                output = _masked(node)
                values.append(output)
            sources[output] = ranges[name + OUTPUT]
    expected = sum(not name.endswith(OUTPUT) for name in ranges)
    if len(chosen) < expected:
        missing = expected - len(chosen)
        raise RuntimeError(f"expected {expected} layers in 8 bits, {missing} are not in the graph")
    dtype = TYPES[precision]
    inputs = {}
    for index, (source, largest) in enumerate(sources.items()):
        after = source.next
        scale = _add_scale(module, after, f"input_scale_{index}", torch.tensor(largest), precision)
        inputs[source] = _add_pair(module, after, source, scale, dtype, source)
    for value in values:
        value.replace_all_uses_with(inputs[value], delete_user_cb=lambda user: user.target is not quantize)
    for index, node in enumerate(chosen):
        with unset_fake_temporarily():
            axes = tuple(range(precision == "int8", weights[node].ndim))
            largest = weights[node].detach().float().abs().amax(axes)
        scale = _add_scale(module, node, f"weight_scale_{index}", largest, precision)
        pair = _add_pair(module, node, node.args[1], scale, dtype, node)
        node.args = (inputs[node.args[0]], pair, *node.args[2:])
    for node in module.graph.nodes:
        if node.target is torch.ops.aten.add.Tensor:
            node.args = _with_quantized_skip(node.args, inputs, chosen)
    module.graph.lint()
    module.recompile()
    return len(chosen)


def _masked(node: torch.fx.Node) -> torch.fx.Node:
    """Returns the result of a layer's product with a mask, that of a layer without a mask."""
    (reader,) = node.users
    return reader if reader.target is torch.ops.aten.mul.Tensor else node


def _with_quantized_skip(
    args: tuple, inputs: Mapping[torch.fx.Node, torch.fx.Node], chosen: Container[torch.fx.Node]
) -> tuple:
    """Returns the arguments of a sum, 8 bits for the skip connection of a convolutional block.

    TensorRT then adds it in the convolution's kernel, as in the ONNX path.
    """
    for one, other in (args, args[::-1]):
        if one in inputs and other in chosen and other.target is not LINEAR:
            return tuple(inputs[x] if x is one else x for x in args)
    return args


def _add_scale(
    module: torch.fx.GraphModule, before: torch.fx.Node, name: str, largest: Tensor, precision: str
) -> torch.fx.Node:
    """Adds scales as a constant."""
    with torch.no_grad(), unset_fake_temporarily():
        scales = torch.from_numpy(scales_of(largest.cpu().numpy(), precision))
        module.register_buffer(name, scales.to(largest.device))
    with module.graph.inserting_before(before):
        node = module.graph.get_attr(name)
    node.meta["val"] = getattr(module, name)
    return node


def _add_pair(
    module: torch.fx.GraphModule,
    before: torch.fx.Node,
    source: torch.fx.Node,
    scale: torch.fx.Node,
    dtype: torch.dtype,
    origin: torch.fx.Node,
) -> torch.fx.Node:
    """Adds the two calls for a tensor, in the module of `origin`; returns the second."""
    value = source.meta["val"]
    with module.graph.inserting_before(before):
        narrow = module.graph.call_function(quantize, (source, scale, dtype))
        wide = module.graph.call_function(dequantize, (narrow, scale, value.dtype))
    narrow.meta["val"], wide.meta["val"] = value.to(dtype), value
    for node in (narrow, wide):
        if "nn_module_stack" in origin.meta:
            node.meta["nn_module_stack"] = origin.meta["nn_module_stack"]
    return wide


def _column(scale: Tensor, x: Tensor) -> Tensor:
    return scale.reshape(-1, *[1] * (x.ndim - 1)) if scale.ndim else scale
