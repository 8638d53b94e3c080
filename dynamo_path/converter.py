"""Converters for Torch-TensorRT: the operators of `torch.ops.msda`, packed_attention, group_norm_levels and
quantized_feed_forward become plugin layers, quantize and dequantize Q/DQ layers.

`add_plugin_layer` needs only TensorRT, `register` needs Torch-TensorRT.
"""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

import msda
import trt_plugin
from dynamo_path.fused_quantized_feed_forwards import quantized_feed_forward
from dynamo_path.fused_quantized_linears import quantized_linear
from dynamo_path.packed_projections import packed_attention
from dynamo_path.quantized_layers import dequantize, quantize
from msda.checks import ACTIVATIONS
from trt_plugin.library import (
    ATTENTION,
    FEED_FORWARD,
    FUSED_ATTENTION,
    GROUP_NORM,
    GROUP_NORM_LEVELS,
    LINEAR,
    LINEAR_MAX,
    LINEAR_OF_SUM,
    QUANTIZED_FEED_FORWARD,
    QUANTIZED_LAYER_NORM,
    QUANTIZED_LINEAR,
    TOP_K_INDICES,
    WINDOW_ATTENTION,
)

TARGETS = {
    torch.ops.msda.attention.default: ATTENTION,
    torch.ops.msda.fused_attention.default: FUSED_ATTENTION,
    torch.ops.msda.quantized_fused_attention.default: FUSED_ATTENTION,
    packed_attention: FUSED_ATTENTION,
    torch.ops.msda.window_attention.default: WINDOW_ATTENTION,
    torch.ops.msda.group_norm.default: GROUP_NORM,
    torch.ops.msda.linear.default: LINEAR,
    torch.ops.msda.feed_forward.default: FEED_FORWARD,
    torch.ops.msda.linear_max.default: LINEAR_MAX,
    torch.ops.msda.linear_of_sum.default: LINEAR_OF_SUM,
    torch.ops.msda.top_k_indices.default: TOP_K_INDICES,
    torch.ops.msda.quantized_layer_norm.default: QUANTIZED_LAYER_NORM,
    quantized_feed_forward: QUANTIZED_FEED_FORWARD,
}
ONE_TYPE = (WINDOW_ATTENTION, GROUP_NORM, LINEAR, LINEAR_OF_SUM, FEED_FORWARD, QUANTIZED_LAYER_NORM)
"""Plugins whose inputs have one type."""
FIELDS = (
    "points_per_level",
    "window_size",
    "shift",
    "num_groups",
    "eps",
    "activation",
    "count",
    "scale",
    "x_scale",
    "hidden_scale",
    "next_scale",
    "value_scale",
    "output_scale",
)
"""Arguments that are fields of the plugins."""
FLOAT_TYPES = {"FLOAT": torch.float32, "HALF": torch.float16, "BF16": torch.bfloat16}
"""Floating types by their names in tensorrt.DataType."""
OUTPUT_TYPES = {torch.int8: 3, torch.float16: 10, torch.bfloat16: 16, torch.float8_e4m3fn: 17}
"""Values of the field `output_type`: ONNX's numbers."""


@functools.cache
def register() -> None:
    """Registers the converters, for static and dynamic shapes. A second call does nothing.

    Raises:
        ImportError: Torch-TensorRT cannot be imported. The message has the command that installs it.
    """
    try:
        # Python 3.12 warns about strings in TensorRT's bindings.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from torch_tensorrt.dynamo.conversion import dynamo_tensorrt_converter
            from torch_tensorrt.dynamo.conversion._ConverterRegistry import ConverterPriority
    except ImportError as error:
        raise ImportError(
            f"Torch-TensorRT cannot be imported ({error}): pip install 'codetr-tensorrt[dynamo]'"
        ) from error
    for target in TARGETS:
        dynamo_tensorrt_converter(target, supports_dynamic_shapes=True)(convert)
    for target in (quantize, dequantize):
        dynamo_tensorrt_converter(target, supports_dynamic_shapes=True)(convert_scaling)
    dynamo_tensorrt_converter(quantized_linear, supports_dynamic_shapes=True)(convert_quantized_linear)
    dynamo_tensorrt_converter(msda.group_norm_levels, supports_dynamic_shapes=True)(convert_group_norm_levels)
    dynamo_tensorrt_converter(
        torch.ops.aten.where.self,
        capability_validator=is_bfloat16,
        priority=ConverterPriority.HIGH,
        supports_dynamic_shapes=True,
    )(convert_where)


def is_bfloat16(node: torch.fx.Node, settings: Any = None) -> bool:
    """Returns whether the result of a call is bfloat16."""
    value = node.meta.get("val")
    return getattr(value, "dtype", None) == torch.bfloat16


def convert_where(ctx: Any, target: Any, args: Sequence[Any], kwargs: dict[str, Any], name: str) -> Any:
    """Converts `torch.where` in bfloat16, which includes masked_fill.

    The converter of Torch-TensorRT 2.11 takes two bfloat16 tensors for integers and casts both to int32.
    Arguments and result are those of `convert`.
    """
    from torch_tensorrt.dynamo.conversion.converter_utils import (
        cast_trt_tensor,
        get_trt_tensor,
        prepend_ones,
    )

    tensors = [get_trt_tensor(ctx, value, f"{name}_{index}") for index, value in enumerate(args)]
    rank = max(len(tensor.shape) for tensor in tensors)
    for index, (tensor, dtype) in enumerate(zip(tensors, ("BOOL", "BF16", "BF16"), strict=True)):
        if tensor.dtype.name != dtype:
            wanted = torch.bool if dtype == "BOOL" else torch.bfloat16
            tensor = cast_trt_tensor(ctx, tensor, wanted, f"{name}_{index}_cast")
        if len(tensor.shape) < rank:
            tensor = prepend_ones(ctx, tensor, f"{name}_{index}_rank", rank - len(tensor.shape))
        tensors[index] = tensor
    layer = ctx.net.add_select(*tensors)
    layer.name = f"where-[{name}]"
    return layer.get_output(0)


def convert_scaling(ctx: Any, target: Any, args: Sequence[Any], kwargs: dict[str, Any], name: str) -> Any:
    """Converts a call of `quantize` or `dequantize`. Arguments and result are those of `convert`."""
    import tensorrt as trt
    from torch_tensorrt.dynamo.conversion.converter_utils import get_trt_tensor

    value, scale, dtype = args
    types = {
        torch.int8: trt.int8,
        torch.float8_e4m3fn: trt.fp8,
        torch.float32: trt.float32,
        torch.float16: trt.float16,
        torch.bfloat16: trt.bfloat16,
    }
    tensor = get_trt_tensor(ctx, value, f"{name}_input")
    # TensorRT takes scales in the floating type of the pair.
    floating = tensor.dtype if target is quantize else types[dtype]
    wanted = next(torch_type for torch_type, kind in types.items() if kind == floating)
    scales = get_trt_tensor(ctx, torch.as_tensor(scale).to(wanted), f"{name}_scale")
    add = ctx.net.add_quantize if target is quantize else ctx.net.add_dequantize
    layer = add(tensor, scales, types[dtype])
    if len(scales.shape):
        layer.axis = 0
    layer.name = f"{target.__name__}-[{name}]"
    return layer.get_output(0)


def convert(ctx: Any, target: Any, args: Sequence[Any], kwargs: dict[str, Any], name: str) -> Any:
    """Converts a call of one of `TARGETS`, with the signature that Torch-TensorRT calls.

    The arguments are TensorRT's tensors or PyTorch's constants, the result is the plugin layer's tensor, or a
    tuple of several.
    """
    from torch_tensorrt.dynamo.conversion.converter_utils import cast_trt_tensor, get_trt_tensor

    if inspect.isfunction(target):
        names = list(inspect.signature(target).parameters)
    else:
        names = [argument.name for argument in target._schema.arguments]
    values = {key: value for key, value in (dict(zip(names, args)) | kwargs).items() if value is not None}
    fields = {key: values.pop(key) for key in FIELDS if key in values}
    if target is packed_attention:
        fields["packed"] = 1
    if TARGETS[target] == QUANTIZED_LAYER_NORM:
        fields["output_type"] = OUTPUT_TYPES[values.pop("dtype")]
    if TARGETS[target] == LINEAR:
        fields = {
            "activation": ACTIVATIONS.index(fields["activation"]),
            "add_residual": int("residual" in values),
            "multiply_mask": int("mask" in values),
            "normalise": int("norm_weight" in values),
            "eps": fields["eps"],
        }
        values = _inputs_of_linear(**values)
    if target is quantized_feed_forward:
        fields = {"next_scale": 0.0} | fields
    tensors = {
        argument: get_trt_tensor(ctx, value, f"{name}_{argument}") for argument, value in values.items()
    }
    # Another converter may have promoted a tensor, which then gets the last type that the plugin takes.
    operator, inputs = TARGETS[target], []
    # Values in int8 have offsets and logits of one floating type.
    first = "projection" if target is packed_attention else "sampling_offsets"
    own = (tensors[first] if "value_scale" in fields else next(iter(tensors.values()))).dtype.name
    for argument, tensor in tensors.items():
        accepted = [own] if operator in ONE_TYPE else [own, "FLOAT"]
        if argument == "reference_points" or (operator == LINEAR_MAX and argument != "x"):
            accepted = ["FLOAT"]
        if tensor.dtype.name in FLOAT_TYPES and tensor.dtype.name not in accepted:
            tensor = cast_trt_tensor(ctx, tensor, FLOAT_TYPES[accepted[-1]], f"{name}_{argument}_cast")
        inputs.append(tensor)
    return add_plugin_layer(ctx.net, operator, inputs, fields, f"{operator}-[{name}]")


def convert_quantized_linear(
    ctx: Any, target: Any, args: Sequence[Any], kwargs: dict[str, Any], name: str
) -> Any:
    """Converts a call of `quantized_linear`. Arguments and result are those of `convert`."""
    from torch_tensorrt.dynamo.conversion.converter_utils import cast_trt_tensor, get_trt_tensor

    x, weight, scale, bias, residual, mask, activation, output_scale, dtype = args
    eight_bits = torch.float8_e4m3fn if x.dtype.name == "FP8" else torch.int8
    fields = {
        "activation": ACTIVATIONS.index(activation),
        "add_residual": int(residual is not None),
        "multiply_mask": int(mask is not None),
        "output_type": OUTPUT_TYPES[dtype if output_scale is None else eight_bits],
        "output_scale": 1.0 if output_scale is None else output_scale,
    }
    constants = {"weight": weight, "scale": scale, "bias": bias}
    inputs = [get_trt_tensor(ctx, tensor, f"{name}_{key}") for key, tensor in constants.items()]
    for key, tensor in (("residual", residual), ("mask", mask)):
        # Another converter may have promoted it.
        if tensor is not None and FLOAT_TYPES.get(tensor.dtype.name) != dtype:
            tensor = cast_trt_tensor(ctx, tensor, dtype, f"{name}_{key}_cast")
        inputs.append(inputs[2] if tensor is None else tensor)
    return add_plugin_layer(ctx.net, QUANTIZED_LINEAR, [x, *inputs], fields, f"{QUANTIZED_LINEAR}-[{name}]")


def convert_group_norm_levels(
    ctx: Any, target: Any, args: Sequence[Any], kwargs: dict[str, Any], name: str
) -> Any:
    """Converts a call of `msda.group_norm_levels`. Arguments and result are those of `convert`."""
    from torch_tensorrt.dynamo.conversion.converter_utils import cast_trt_tensor, get_trt_tensor

    levels, weights, biases, num_groups, eps, next_scale = args
    inputs: list[Any] = []
    for index, level in enumerate(zip(levels, weights, biases, strict=True)):
        for key, value in zip(("level", "weight", "bias"), level, strict=True):
            tensor = get_trt_tensor(ctx, value, f"{name}_{key}_{index}")
            # Another converter may have promoted it.
            if inputs and tensor.dtype != inputs[0].dtype:
                wanted = FLOAT_TYPES[inputs[0].dtype.name]
                tensor = cast_trt_tensor(ctx, tensor, wanted, f"{name}_{key}_{index}_cast")
            inputs.append(tensor)
    numbers = {"num_levels": len(levels), "num_groups": num_groups}
    fields = numbers | {"eps": eps, "next_scale": 0.0 if next_scale is None else next_scale}
    return add_plugin_layer(ctx.net, GROUP_NORM_LEVELS, inputs, fields, f"{GROUP_NORM_LEVELS}-[{name}]")


def _inputs_of_linear(x: Any, weight: Any, bias: Any = None, **optional: Any) -> dict[str, Any]:
    """Returns all inputs of the plugin: zeros for a missing bias, and the bias for any other."""
    bias = torch.zeros(weight.shape[0]) if bias is None else bias
    missing = dict.fromkeys(("residual", "mask", "norm_weight", "norm_bias"), bias)
    return {"x": x, "weight": weight, "bias": bias} | missing | optional


def add_plugin_layer(
    network: Any,
    operator: str,
    inputs: Sequence[Any],
    fields: Mapping[str, int | Sequence[int] | float],
    name: str,
) -> Any:
    """Adds one plugin layer to a TensorRT network and returns its output tensor, or a tuple of several.

    Args:
        network: tensorrt.INetworkDefinition.
        operator: name of the plugin, one of `trt_plugin.OPERATORS`.
        inputs: the operator's tensors, in order.
        fields: numbers by the names of the plugin's fields.
        name: name of the layer.

    Raises:
        RuntimeError: TensorRT refused the plugin or the layer, and logged the reason.
    """
    import tensorrt as trt

    trt_plugin.load()
    creator = trt.get_plugin_registry().get_creator(operator, trt_plugin.PLUGIN_VERSION, trt_plugin.NAMESPACE)
    types = {np.int32: trt.PluginFieldType.INT32, np.float32: trt.PluginFieldType.FLOAT32}
    numbers = {
        key: np.atleast_1d(np.array(value, np.float32 if isinstance(value, float) else np.int32))
        for key, value in fields.items()
    }
    given = [trt.PluginField(key, array, types[array.dtype.type]) for key, array in numbers.items()]
    plugin = creator.create_plugin(name, trt.PluginFieldCollection(given), trt.TensorRTPhase.BUILD)
    if plugin is None:
        raise RuntimeError(f"{name}: TensorRT could not create the plugin {operator}")
    layer = network.add_plugin_v3(list(inputs), [], plugin)
    if layer is None:
        raise RuntimeError(f"{name}: TensorRT could not add the plugin {operator} to the network")
    layer.name = name
    outputs = tuple(layer.get_output(index) for index in range(layer.num_outputs))
    return outputs[0] if len(outputs) == 1 else outputs
