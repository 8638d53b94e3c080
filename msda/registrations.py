"""Registers the operators in Python: fake tensors, most implementations for the CPU, and autocast.

`csrc/binding.cpp` registers the schemas and the implementations in C++, `msda.autograd` the derivatives.
Operators other than MSDA run as their references on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from msda import (
    autograd,
    feed_forward_reference,
    group_norm_reference,
    image_input_reference,
    library,
    linear_max_reference,
    linear_of_sum_reference,
    linear_reference,
    quantized_feed_forward_reference,
    quantized_layer_norm_reference,
    quantized_linear_reference,
    reference,
    top_k_reference,
    window_reference,
)

_BUILD = library.load()

# Fake implementations have shapes and types without numbers.


@torch.library.register_fake("msda::attention")
def _attention_fake(value, spatial_shapes, level_start_index, locations, weights, points_per_level=None):
    return value.new_empty(value.shape[0], locations.shape[1], value.shape[2] * value.shape[3])


@torch.library.register_fake("msda::fused_attention")
def _fused_attention_fake(
    value, spatial_shapes, level_start_index, reference_points, offsets, logits, points_per_level=None
):
    return value.new_empty(value.shape[0], offsets.shape[1], value.shape[2] * value.shape[3])


@torch.library.register_fake("msda::attention_backward")
def _attention_backward_fake(
    grad_output,
    value,
    spatial_shapes,
    level_start_index,
    locations,
    weights,
    points_per_level=None,
    deterministic=False,
):
    return _contiguous(value), _contiguous(locations), _contiguous(weights)


@torch.library.register_fake("msda::fused_attention_backward")
def _fused_attention_backward_fake(
    grad_output,
    value,
    spatial_shapes,
    level_start_index,
    reference_points,
    offsets,
    logits,
    points_per_level=None,
    reference_gradient=True,
    deterministic=False,
):
    reference = _contiguous(reference_points) if reference_gradient else reference_points.new_empty(0)
    return _contiguous(value), reference, _contiguous(offsets), _contiguous(logits)


@torch.library.register_fake("msda::window_attention")
def _window_attention_fake(qkv, bias, padding, window_size, shift, output_scale=None):
    dtype = qkv.dtype if output_scale is None else torch.int8
    return qkv.new_empty(*qkv.shape[:3], qkv.shape[3] // 3, dtype=dtype)


@torch.library.register_fake("msda::window_attention_backward")
def _window_attention_backward_fake(grad_output, qkv, bias, padding, window_size, shift):
    grad_padding = qkv.new_empty(0) if padding is None else _contiguous(padding)
    return _contiguous(qkv), _contiguous(bias), grad_padding


@torch.library.register_fake("msda::group_norm")
def _group_norm_fake(x, weight, bias, num_groups, eps):
    return _contiguous(x)


@torch.library.register_fake("msda::group_norm_levels")
def _group_norm_levels_fake(levels, weights, biases, num_groups, eps, next_scale=None):
    cells = sum(level.shape[1] for level in levels)
    result = levels[0].new_empty(levels[0].shape[0], cells, levels[0].shape[2])
    return [result] if next_scale is None else [result, result.new_empty(result.shape, dtype=torch.int8)]


@torch.library.register_fake("msda::linear")
def _linear_fake(x, weight, bias, residual, mask, norm_weight, norm_bias, activation, eps):
    return x.new_empty(*x.shape[:-1], weight.shape[0])


@torch.library.register_fake("msda::linear_max")
def _linear_max_fake(x, weight, bias):
    return weight.new_empty(x.shape[:-1])


@torch.library.register_fake("msda::linear_of_sum")
def _linear_of_sum_fake(x, addend, weight, bias):
    return x.new_empty(*x.shape[:-1], weight.shape[0])


@torch.library.register_fake("msda::top_k_indices")
def _top_k_indices_fake(x, count):
    return x.new_empty(x.shape[0], count, dtype=torch.int32)


@torch.library.register_fake("msda::quantized_linear")
def _quantized_linear_fake(x, weight, scale, bias, residual, mask, activation, output_scale, dtype):
    dtype = dtype if output_scale is None else x.dtype
    return x.new_empty(*x.shape[:-1], weight.shape[0], dtype=dtype)


@torch.library.register_fake("msda::quantized_layer_norm")
def _quantized_layer_norm_fake(x, weight, bias, eps, scale, dtype):
    return x.new_empty(x.shape, dtype=dtype)


@torch.library.register_fake("msda::feed_forward")
def _feed_forward_fake(x, weight1, bias1, weight2, bias2, norm_weight, norm_bias, eps):
    return _contiguous(x)


@torch.library.register_fake("msda::quantized_feed_forward")
def _quantized_feed_forward_fake(
    x,
    weight1,
    scale1,
    bias1,
    weight2,
    scale2,
    bias2,
    norm_weight,
    norm_bias,
    x_scale,
    hidden_scale,
    eps,
    next_scale=None,
):
    types = [x.dtype] if next_scale is None else [x.dtype, torch.int8]
    return [x.new_empty(x.shape, dtype=dtype) for dtype in types]


@torch.library.register_fake("msda::quantized_fused_attention")
def _quantized_fused_attention_fake(
    value, spatial_shapes, level_start_index, reference_points, offsets, logits, scale, points_per_level=None
):
    sizes = value.shape[0], offsets.shape[1], value.shape[2] * value.shape[3]
    return value.new_empty(sizes, dtype=offsets.dtype)


@torch.library.register_fake("msda::image_input")
def _image_input_fake(image, target, height, width, mean, std, bgr):
    return None


def _contiguous(tensor: Tensor) -> Tensor:
    return torch.empty_like(tensor, memory_format=torch.contiguous_format)


torch.library.impl("msda::window_attention", "CPU", window_reference.window_attention)
torch.library.impl("msda::group_norm", "CPU", group_norm_reference.group_norm)
torch.library.impl("msda::feed_forward", "CPU", feed_forward_reference.feed_forward)
torch.library.impl("msda::linear_max", "CPU", linear_max_reference.linear_max)
torch.library.impl("msda::linear_of_sum", "CPU", linear_of_sum_reference.linear_of_sum)
torch.library.impl("msda::top_k_indices", "CPU", top_k_reference.top_k_indices)
torch.library.impl("msda::quantized_layer_norm", "CPU", quantized_layer_norm_reference.quantized_layer_norm)
torch.library.impl("msda::quantized_fused_attention", "CPU", reference.quantized_fused_attention)
for _key in ("CPU", "CUDA"):
    torch.library.impl("msda::window_attention_backward", _key, window_reference.window_attention_backward)


@torch.library.impl("msda::linear", "CPU")
def _linear_cpu(x, weight, bias, residual, mask, norm_weight, norm_bias, activation, eps):
    return linear_reference.linear(x, weight, bias, residual, activation, mask, norm_weight, norm_bias, eps)


@torch.library.impl("msda::quantized_linear", "CPU")
def _quantized_linear_cpu(x, weight, scale, bias, residual, mask, activation, output_scale, dtype):
    return quantized_linear_reference.quantized_linear(
        x, weight, scale, bias, residual, activation, mask, output_scale, dtype
    )


@torch.library.impl("msda::quantized_feed_forward", "CPU")
def _quantized_feed_forward_cpu(*arguments):
    return _as_list(quantized_feed_forward_reference.quantized_feed_forward(*arguments))


@torch.library.impl("msda::group_norm_levels", "CPU")
def _group_norm_levels_cpu(*arguments):
    return _as_list(group_norm_reference.group_norm_levels(*arguments))


def _as_list(results):
    return [results] if isinstance(results, Tensor) else list(results)


@torch.library.impl("msda::image_input", "CPU")
def _image_input_cpu(image, target, height, width, mean, std, bgr):
    image_input_reference.image_input(image, target, (height, width), mean, std, bgr)


if _BUILD.has_cuda:

    @torch.library.impl("msda::linear", "CUDA")
    def _linear_cuda(x, weight, bias, residual, mask, norm_weight, norm_bias, activation, eps):
        """Runs a kernel where one is as fast as PyTorch's operations, or where MSDA_LINEAR forces one."""
        tensors = (x, weight, bias, residual, mask, norm_weight, norm_bias)
        tensors = [None if tensor is None else tensor.contiguous() for tensor in tensors]
        if torch.ops.msda.has_fast_linear(*tensors, activation, eps):
            return torch.ops.msda.linear_kernel(*tensors, activation, eps)
        *layer, residual, mask, norm_weight, norm_bias = tensors
        return linear_reference.finish(
            F.linear(*layer), residual, activation, mask, norm_weight, norm_bias, eps
        )


autograd.register()


_autocast = torch.library.Library("msda", "FRAGMENT")


def _cast_attention(target, value, spatial_shapes, level_start_index, *others):
    """Casts the value. Locations and weights keep their type: casting would only lose precision."""
    kept = (target, torch.float32)
    others = [x.float() if isinstance(x, Tensor) and x.dtype not in kept else x for x in others]
    return value.to(target), spatial_shapes, level_start_index, *others


def _cast_fused_attention(target, value, spatial_shapes, level_start_index, reference_points, *others):
    """Casts as for attention. Reference points become float32."""
    references = reference_points.float()
    return _cast_attention(target, value, spatial_shapes, level_start_index, references, *others)


def _cast_all(target, *arguments):
    """Casts all tensors, which have one type."""
    return [x.to(target) if isinstance(x, Tensor) else x for x in arguments]


def _register_autocast(name: str, cast: Callable, device_type: str, key: str) -> None:
    operator = getattr(torch.ops.msda, name).default

    def cast_and_call(first, *others):
        arguments = (first, *others)
        if first.dtype != torch.float64:
            arguments = cast(torch.get_autocast_dtype(device_type), *arguments)
        with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key))):
            return operator(*arguments)

    _autocast.impl(name, cast_and_call, key)


for _name, _cast in (
    ("attention", _cast_attention),
    ("fused_attention", _cast_fused_attention),
    ("window_attention", _cast_all),
    ("group_norm", _cast_all),
    ("linear", _cast_all),
    ("linear_of_sum", _cast_all),
    ("feed_forward", _cast_all),
):
    _register_autocast(_name, _cast, "cuda", "AutocastCUDA")
    _register_autocast(_name, _cast, "cpu", "AutocastCPU")
