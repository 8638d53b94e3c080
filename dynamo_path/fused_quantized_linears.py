"""Merges linear layers of 8-bit numbers with what follows them, for the plugin `QuantizedLinear`.

`quantize_layers` has put calls of quantize and dequantize before the layers. A layer takes the place of the
dequantize calls before it, of activation, residual and mask behind it, and of the quantize call behind these
if nothing else reads its result. `onnx_path.tensorrt.fused_quantized_linears` does the same in the ONNX path.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import unset_fake_temporarily

import msda
from dynamo_path.packed_projections import LINEAR
from dynamo_path.quantized_layers import dequantize, quantize
from msda.checks import SIXTEEN_BIT_TYPES
from trt_plugin import library

_ACTIVATIONS = {torch.ops.aten.gelu.default: "gelu", torch.ops.aten.relu.default: "relu"}


def quantized_linear(
    x: Tensor,
    packed_weight: Tensor,
    scale: Tensor,
    bias: Tensor,
    residual: Tensor | None,
    mask: Tensor | None,
    activation: str,
    output_scale: float | None,
    dtype: torch.dtype,
) -> Tensor:
    """Runs `msda.quantized_linear` with weights as the plugin reads them.

    Args:
        packed_weight: [N, K / 4] int32, four numbers of a row of weights in each.
        x, scale, bias, residual, mask, activation, output_scale, dtype: as for `msda.quantized_linear`.
    """
    weight = packed_weight.view(x.dtype)
    return msda.quantized_linear(x, weight, scale, bias, residual, activation, mask, output_scale, dtype)


@dataclass(frozen=True)
class _Layer:
    """A linear layer, the last of the nodes that it replaces, and the arguments of `quantized_linear`."""

    product: torch.fx.Node
    last: torch.fx.Node
    dtype: torch.dtype
    activation: str = "none"
    residual: torch.fx.Node | None = None
    mask: torch.fx.Node | None = None
    output_scale: float | None = None


def fuse_quantized_linears(module: torch.fx.GraphModule, precision: str) -> int:
    """Replaces the layers that a kernel runs fast on the current GPU, in place; returns their number.

    Args:
        module: a graph behind `quantize_layers`.
        precision: "int8" or "fp8".
    """
    count = 0
    for node in list(module.graph.nodes):
        fast = [layer for layer in _forms(module, node) if _is_fast(layer, precision)]
        if fast:
            _replace(module, fast[-1], f"quantized_linear_{count}")
            count += 1
    module.graph.eliminate_dead_code()
    module.graph.lint()
    module.recompile()
    return count


def _is_fast(layer: _Layer, precision: str) -> bool:
    """Returns whether the plugin has a fast kernel for a layer on the current GPU."""
    inputs, outputs = (node.meta["val"].shape[-1] for node in (layer.product.args[0], layer.product))
    switches = layer.residual is not None, layer.mask is not None, layer.output_scale is not None
    return library.has_fast_quantized_linear(inputs, outputs, *switches, precision)


def _forms(module: torch.fx.GraphModule, node: torch.fx.Node) -> Iterator[_Layer]:
    """Yields the layer of a product, each time with one step more of those behind it."""
    if node.target is not LINEAR or any(x.target is not dequantize for x in node.args[:2]):
        return
    dtype = node.meta["val"].dtype
    bias = node.args[2] if len(node.args) > 2 else None
    if dtype not in SIXTEEN_BIT_TYPES or node.args[0].meta["val"].shape[-1] % 4:
        return
    if bias is not None and bias.op != "get_attr":
        return
    layer = _Layer(node, node, dtype)
    yield layer
    for step in (_with_activation, _with_residual, _with_mask):
        longer = step(layer)
        if longer is not None:
            layer = longer
            yield layer
    reader = _reader(layer, quantize)
    if reader is not None and reader.args[2] == node.args[0].args[0].meta["val"].dtype:
        yield replace(layer, last=reader, output_scale=float(value_of(module, reader.args[1])))


def _reader(layer: _Layer, *targets: Callable) -> torch.fx.Node | None:
    """Returns the only reader of a layer's result, if it calls one of these functions."""
    readers = list(layer.last.users)
    return readers[0] if len(readers) == 1 and readers[0].target in targets else None


def _with_activation(layer: _Layer) -> _Layer | None:
    reader = _reader(layer, *_ACTIVATIONS)
    if reader is None or reader.kwargs.get("approximate", "none") != "none":
        return None
    return replace(layer, last=reader, activation=_ACTIVATIONS[reader.target])


def _other(layer: _Layer, target: Callable) -> tuple[torch.fx.Node, torch.fx.Node] | None:
    """Returns the only reader of a layer's result, if it calls this function, and its other argument."""
    reader = _reader(layer, target)
    if reader is None or reader.kwargs or len(reader.args) != 2:
        return None
    others = [x for x in reader.args if x is not layer.last]
    same_type = others and isinstance(others[0], torch.fx.Node) and others[0].meta["val"].dtype == layer.dtype
    return (reader, others[0]) if same_type else None


def _with_residual(layer: _Layer) -> _Layer | None:
    found = _other(layer, torch.ops.aten.add.Tensor)
    if found is None or found[1].meta["val"].shape != layer.last.meta["val"].shape:
        return None
    return replace(layer, last=found[0], residual=found[1])


def _with_mask(layer: _Layer) -> _Layer | None:
    found = _other(layer, torch.ops.aten.mul.Tensor)
    if found is None or found[1].meta["val"].shape != (*layer.last.meta["val"].shape[:-1], 1):
        return None
    return replace(layer, last=found[0], mask=found[1])


def value_of(module: torch.fx.GraphModule, node: torch.fx.Node) -> Tensor:
    """Returns the tensor of a get_attr node."""
    with unset_fake_temporarily():
        return operator.attrgetter(node.target)(module).detach()


def _replace(module: torch.fx.GraphModule, layer: _Layer, name: str) -> None:
    source, weights = layer.product.args[:2]
    bias = layer.product.args[2] if len(layer.product.args) > 2 else None
    with torch.no_grad(), unset_fake_temporarily():
        narrow, weight_scale, _ = weights.args[0].args
        weight = quantize(value_of(module, narrow), value_of(module, weight_scale), weights.args[0].args[2])
        outputs = len(weight)
        scale = (value_of(module, source.args[1]) * value_of(module, weight_scale)).float()
        constants = {
            "weight": weight.contiguous().view(torch.int32),
            "scale": scale.expand(outputs).contiguous(),
            "bias": torch.zeros(outputs, device=weight.device)
            if bias is None
            else value_of(module, bias).float(),
        }
    with module.graph.inserting_before(layer.last):
        nodes = []
        for key, tensor in constants.items():
            module.register_buffer(f"{name}_{key}", tensor)
            nodes.append(module.graph.get_attr(f"{name}_{key}"))
            nodes[-1].meta["val"] = tensor
        rest = layer.residual, layer.mask, layer.activation, layer.output_scale, layer.dtype
        made = module.graph.call_function(quantized_linear, (source.args[0], *nodes, *rest))
    made.meta = {**layer.product.meta, "val": layer.last.meta["val"]}
    layer.last.replace_all_uses_with(made)
