"""The checks of the operators' arguments, for the reference, the compiled operators and the module.

Every error names the argument, what it should be and what it was. Shapes, types and devices are always
checked. The numbers in `spatial_shapes` and `level_start_index` are checked on the CPU and outside tracing,
where reading them does not wait for a GPU.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence

import torch
from torch import Tensor

MAX_LEVELS = 32  # kMaxLevels of kernels/include/msda/params.h
MAX_NORM_LEVELS = 8  # kMostNormLevels of kernels/include/msda/group_norm_params.h
MAX_EPS = 1e30  # the largest eps of normalisations, as in kernels/include/msda/group_norm_params.h
MAX_IMAGE_SIDE = 1 << 17  # pixels, as in kernels/include/msda/image_input_params.h
ACTIVATIONS = ("none", "gelu", "relu")  # in the order of msda::Activation
VALUE_TYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
SIXTEEN_BIT_TYPES = (torch.float16, torch.bfloat16)
EIGHT_BIT_TYPES = (torch.int8, torch.float8_e4m3fn)  # in the order of msda::EightBits
MAX_QUANTIZED_INPUTS = 2**17 - 1  # as in kernels/include/msda/quantized_linear_params.h
MAX_FEED_FORWARD_CHANNELS, MAX_FEED_FORWARD_HIDDEN = 1024, 8192
"""C and H of feed-forward blocks: a block of the plain kernel keeps a row in shared memory."""


def check_attention(
    value: Tensor,
    spatial_shapes: Tensor,
    level_start_index: Tensor,
    sampling_locations: Tensor,
    attention_weights: Tensor,
    points_per_level: Sequence[int] | None,
) -> list[int]:
    """Checks the arguments of :func:`msda.attention`; returns the number of points of each level."""
    _check_type("value", value)
    num_levels = _check_value_and_levels(value, spatial_shapes, level_start_index)
    _check_float("attention_weights", attention_weights, value)
    _check_float("sampling_locations", sampling_locations, value)
    sizes = _check_points("sampling_locations", sampling_locations, value, num_levels, points_per_level)
    letters = "L, P" if points_per_level is None else "sum(points_per_level)"
    _check_shape(
        "attention_weights", attention_weights, f"[N, Q, M, {letters}]", sampling_locations.shape[:-1]
    )
    return sizes


def check_fused_attention(
    value: Tensor,
    spatial_shapes: Tensor,
    level_start_index: Tensor,
    reference_points: Tensor,
    sampling_offsets: Tensor,
    attention_logits: Tensor,
    points_per_level: Sequence[int] | None,
) -> list[int]:
    """Checks the arguments of :func:`msda.fused_attention`; returns the number of points of each level."""
    _check_type("value", value)
    for name, tensor in (("attention_logits", attention_logits), ("sampling_offsets", sampling_offsets)):
        _check_float(name, tensor, value)
    levels = spatial_shapes, level_start_index, reference_points
    return _check_fused(value, *levels, sampling_offsets, attention_logits, points_per_level)


def check_quantized_fused_attention(
    value: Tensor,
    spatial_shapes: Tensor,
    level_start_index: Tensor,
    reference_points: Tensor,
    sampling_offsets: Tensor,
    attention_logits: Tensor,
    value_scale: float,
    points_per_level: Sequence[int] | None,
) -> list[int]:
    """Checks the arguments of :func:`msda.quantized_fused_attention`; returns the points of each level."""
    _check_scale("value_scale", value_scale, "a float")
    _check_tensor("value", value, None)
    if value.dtype != torch.int8:
        raise TypeError(f"value: expected torch.int8, got {value.dtype}")
    _check_tensor("sampling_offsets", sampling_offsets, value)
    if sampling_offsets.dtype not in SIXTEEN_BIT_TYPES:
        raise TypeError(f"sampling_offsets: expected float16 or bfloat16, got {sampling_offsets.dtype}")
    _check_tensor("attention_logits", attention_logits, value)
    if attention_logits.dtype != sampling_offsets.dtype:
        raise TypeError(
            f"attention_logits: expected {sampling_offsets.dtype} as sampling_offsets, "
            f"got {attention_logits.dtype}"
        )
    levels = spatial_shapes, level_start_index, reference_points
    return _check_fused(value, *levels, sampling_offsets, attention_logits, points_per_level)


def _check_fused(
    value: Tensor,
    spatial_shapes: Tensor,
    level_start_index: Tensor,
    reference_points: Tensor,
    sampling_offsets: Tensor,
    attention_logits: Tensor,
    points_per_level: Sequence[int] | None,
) -> list[int]:
    """Checks a fused operator's levels and shapes; returns the number of points of each level."""
    num_levels = _check_value_and_levels(value, spatial_shapes, level_start_index)
    _check_tensor("reference_points", reference_points, value)
    wide = torch.promote_types(value.dtype, torch.float32)
    if reference_points.dtype != wide and not _autocasts(reference_points, value):
        raise TypeError(
            f"reference_points: expected {wide} with a value of {value.dtype}, got {reference_points.dtype}"
        )
    sizes = _check_points("sampling_offsets", sampling_offsets, value, num_levels, points_per_level)
    batch, queries, heads = sampling_offsets.shape[:3]
    letters = "L * P" if points_per_level is None else "sum(points_per_level)"
    shape = (batch, queries, heads, sum(sizes))
    _check_shape("attention_logits", attention_logits, f"[N, Q, M, {letters}]", shape)
    last = reference_points.shape[-1] if reference_points.dim() else 0
    _check_shape(
        "reference_points",
        reference_points,
        "[N, Q, L, 2] or [N, Q, L, 4]",
        (batch, queries, num_levels, last if last in (2, 4) else 2),
    )
    return sizes


def check_window_attention(
    qkv: Tensor,
    bias: Tensor,
    padding: Tensor | None,
    window_size: int,
    shift: int,
    output_scale: float | None,
) -> None:
    """Checks the arguments of :func:`msda.window_attention`."""
    for name, number in (("window_size", window_size), ("shift", shift)):
        if not isinstance(number, int) or isinstance(number, bool):
            raise TypeError(f"{name}: expected an int, got {number!r}")
    if window_size < 1:
        raise ValueError(f"window_size: expected 1 or more, got {window_size}")
    if not 0 <= shift < window_size:
        raise ValueError(f"shift: expected 0 to window_size - 1 = {window_size - 1}, got {shift}")
    if output_scale is not None:
        _check_scale("output_scale", output_scale, "a float or None")
    _check_type("qkv", qkv)
    if qkv.dim() != 4:
        raise ValueError(f"qkv: expected [N, H, W, 3 * C], got {list(qkv.shape)}")
    _check_like("bias", bias, qkv, "qkv")
    if padding is not None:
        _check_like("padding", padding, qkv, "qkv")
    cells = window_size**2
    heads = bias.shape[0] if bias.dim() else 0
    _check_shape("bias", bias, "[heads, L, L] with L = window_size**2", (heads, cells, cells))
    if heads < 1 or qkv.shape[3] % (3 * heads):
        raise ValueError(
            f"qkv: expected [N, H, W, 3 * C] with C a multiple of the {heads} heads of bias, "
            f"got {list(qkv.shape)}"
        )
    if padding is not None:
        _check_shape("padding", padding, "[3 * C]", (qkv.shape[3],))


def check_group_norm(x: Tensor, weight: Tensor, bias: Tensor, num_groups: int, eps: float) -> None:
    """Checks the arguments of :func:`msda.group_norm`."""
    _check_num_groups(num_groups)
    _check_eps(eps)
    _check_type("x", x)
    if x.dim() not in (3, 4):
        raise ValueError(f"x: expected [N, H, W, C] or [N, S, C], got {list(x.shape)}")
    for name, tensor in (("weight", weight), ("bias", bias)):
        _check_like(name, tensor, x, "x")
        _check_shape(name, tensor, "[C]", (x.shape[-1],))
    if x.shape[-1] % num_groups:
        letters = "[N, H, W, C]" if x.dim() == 4 else "[N, S, C]"
        raise ValueError(
            f"x: expected {letters} with C a multiple of num_groups = {num_groups}, got {list(x.shape)}"
        )


def check_group_norm_levels(
    levels: Sequence[Tensor],
    weights: Sequence[Tensor],
    biases: Sequence[Tensor],
    num_groups: int,
    eps: float,
    next_scale: float | None,
) -> None:
    """Checks the arguments of :func:`msda.group_norm_levels`."""
    _check_num_groups(num_groups)
    _check_eps(eps)
    if next_scale is not None:
        _check_scale("next_scale", next_scale, "a float or None")
    for name, tensors in (("levels", levels), ("weights", weights), ("biases", biases)):
        if not isinstance(tensors, list | tuple):
            raise TypeError(f"{name}: expected a list of tensors, got {type(tensors).__name__}")
    if not 1 <= len(levels) <= MAX_NORM_LEVELS:
        raise ValueError(f"levels: expected 1 to {MAX_NORM_LEVELS} tensors, got {len(levels)}")
    for name, tensors in (("weights", weights), ("biases", biases)):
        if len(tensors) != len(levels):
            raise ValueError(f"{name}: expected {len(levels)} tensors as levels, got {len(tensors)}")
    for index, level in enumerate(levels):
        name, first = f"levels[{index}]", levels[0]
        if index:
            _check_like(name, level, first, "levels[0]")
        else:
            _check_type(name, level)
        if level.dim() not in (3, 4):
            raise ValueError(f"{name}: expected [N, S, C] or [N, C, H, W], got {list(level.shape)}")
        images, channels = len(level), level.shape[2 if level.dim() == 3 else 1]
        if index == 0:
            common = images, channels
        elif (images, channels) != common:
            raise ValueError(
                f"{name}: expected N and C of levels[0], {common[0]} and {common[1]}, got {list(level.shape)}"
            )
        for parameter, tensors in (("weights", weights), ("biases", biases)):
            _check_like(f"{parameter}[{index}]", tensors[index], level, name)
            _check_shape(f"{parameter}[{index}]", tensors[index], "[C]", (channels,))
    if common[1] % num_groups:
        raise ValueError(
            f"levels: expected C to be a multiple of num_groups = {num_groups}, got {common[1]} channels"
        )


def _check_num_groups(num_groups: int) -> None:
    if not isinstance(num_groups, int) or isinstance(num_groups, bool):
        raise TypeError(f"num_groups: expected an int, got {num_groups!r}")
    if num_groups < 1:
        raise ValueError(f"num_groups: expected 1 or more, got {num_groups}")


def check_linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    residual: Tensor | None,
    activation: str,
    mask: Tensor | None,
    norm_weight: Tensor | None,
    norm_bias: Tensor | None,
    eps: float,
) -> None:
    """Checks the arguments of :func:`msda.linear`."""
    _check_activation(activation)
    _check_eps(eps)
    _check_type("x", x)
    norm = {"norm_weight": norm_weight, "norm_bias": norm_bias}
    optional = {"bias": bias, "residual": residual, "mask": mask, **norm}
    given = {name: tensor for name, tensor in optional.items() if tensor is not None}
    for name, tensor in {"weight": weight, **given}.items():
        _check_like(name, tensor, x, "x")
    _check_layer(x, weight, bias, residual, mask)
    if norm_weight is None and norm_bias is None:
        return
    if norm_weight is None:
        raise ValueError("norm_weight: expected a tensor with norm_bias, got None")
    if norm_bias is None:
        raise ValueError("norm_bias: expected a tensor with norm_weight, got None")
    if activation != "none":
        raise ValueError(f"activation: expected none with norm_weight, got {activation!r}")
    if mask is not None:
        raise ValueError(f"mask: expected None with norm_weight, got {list(mask.shape)}")
    for name, tensor in norm.items():
        _check_shape(name, tensor, "[N]", (weight.shape[0],))


def check_quantized_linear(
    x: Tensor,
    weight: Tensor,
    scale: Tensor,
    bias: Tensor | None,
    residual: Tensor | None,
    activation: str,
    mask: Tensor | None,
    output_scale: float | None,
    dtype: torch.dtype,
) -> None:
    """Checks the arguments of :func:`msda.quantized_linear`."""
    _check_activation(activation)
    if dtype not in SIXTEEN_BIT_TYPES:
        raise TypeError(f"dtype: expected torch.float16 or torch.bfloat16, got {dtype!r}")
    if output_scale is not None:
        _check_scale("output_scale", output_scale, "a float or None")
    _check_tensor("x", x, None)
    if x.dtype not in EIGHT_BIT_TYPES:
        raise TypeError(f"x: expected int8 or float8_e4m3fn, got {x.dtype}")
    _check_tensor("weight", weight, x, "x")
    if weight.dtype != x.dtype:
        raise TypeError(f"weight: expected {x.dtype} as x, got {weight.dtype}")
    types = {"scale": torch.float32, "bias": torch.float32, "residual": dtype, "mask": dtype}
    for name, tensor in {"scale": scale, "bias": bias, "residual": residual, "mask": mask}.items():
        if tensor is None and name != "scale":
            continue
        _check_tensor(name, tensor, x, "x")
        if tensor.dtype != types[name]:
            raise TypeError(f"{name}: expected {types[name]}, got {tensor.dtype}")
    _check_layer(x, weight, bias, residual, mask)
    _check_shape("scale", scale, "[N]", (weight.shape[0],))
    if x.shape[-1] > MAX_QUANTIZED_INPUTS:
        raise ValueError(f"x: expected [..., K] with K up to {MAX_QUANTIZED_INPUTS}, got {list(x.shape)}")


def check_quantized_layer_norm(
    x: Tensor, weight: Tensor, bias: Tensor, eps: float, scale: float, dtype: torch.dtype
) -> None:
    """Checks the arguments of :func:`msda.quantized_layer_norm`."""
    _check_eps(eps)
    _check_scale("scale", scale, "a float")
    if dtype not in EIGHT_BIT_TYPES:
        raise TypeError(f"dtype: expected torch.int8 or torch.float8_e4m3fn, got {dtype!r}")
    _check_tensor("x", x, None)
    _check_single_or_half("x", x)
    if not x.dim():
        raise ValueError("x: expected [..., C], got a tensor without dimensions")
    for name, tensor in (("weight", weight), ("bias", bias)):
        _check_tensor(name, tensor, x, "x")
        if tensor.dtype != x.dtype:
            raise TypeError(f"{name}: expected {x.dtype} as x, got {tensor.dtype}")
        _check_shape(name, tensor, "[C]", (x.shape[-1],))


def check_feed_forward(
    x: Tensor,
    weight1: Tensor,
    bias1: Tensor,
    weight2: Tensor,
    bias2: Tensor,
    norm_weight: Tensor,
    norm_bias: Tensor,
    eps: float,
) -> None:
    """Checks the arguments of :func:`msda.feed_forward`."""
    _check_eps(eps)
    _check_tensor("x", x, None)
    _check_single_or_half("x", x)
    channels, hidden = _check_block(x, weight1)
    for name, tensor, letters, shape in (
        ("weight1", weight1, "[H, C]", (hidden, channels)),
        ("bias1", bias1, "[H]", (hidden,)),
        ("weight2", weight2, "[C, H]", (channels, hidden)),
        ("bias2", bias2, "[C]", (channels,)),
        ("norm_weight", norm_weight, "[C]", (channels,)),
        ("norm_bias", norm_bias, "[C]", (channels,)),
    ):
        _check_like(name, tensor, x, "x")
        _check_shape(name, tensor, letters, shape)


def check_quantized_feed_forward(
    x: Tensor,
    weight1: Tensor,
    scale1: Tensor,
    bias1: Tensor,
    weight2: Tensor,
    scale2: Tensor,
    bias2: Tensor,
    norm_weight: Tensor,
    norm_bias: Tensor,
    x_scale: float,
    hidden_scale: float,
    eps: float,
    next_scale: float | None,
) -> None:
    """Checks the arguments of :func:`msda.quantized_feed_forward`."""
    _check_eps(eps)
    _check_scale("x_scale", x_scale, "a float")
    _check_scale("hidden_scale", hidden_scale, "a float")
    _check_tensor("x", x, None)
    if x.dtype not in SIXTEEN_BIT_TYPES:
        raise TypeError(f"x: expected float16 or bfloat16, got {x.dtype}")
    channels, hidden = _check_block(x, weight1)
    of_hidden, of_channels = (torch.float32, "[H]", (hidden,)), (torch.float32, "[C]", (channels,))
    of_norm = x.dtype, "[C]", (channels,)
    for name, tensor, (dtype, letters, shape) in (
        ("weight1", weight1, (torch.int8, "[H, C]", (hidden, channels))),
        ("scale1", scale1, of_hidden),
        ("bias1", bias1, of_hidden),
        ("weight2", weight2, (torch.int8, "[C, H]", (channels, hidden))),
        ("scale2", scale2, of_channels),
        ("bias2", bias2, of_channels),
        ("norm_weight", norm_weight, of_norm),
        ("norm_bias", norm_bias, of_norm),
    ):
        _check_tensor(name, tensor, x, "x")
        if tensor.dtype != dtype:
            like = " as x" if dtype == x.dtype else ""
            raise TypeError(f"{name}: expected {dtype}{like}, got {tensor.dtype}")
        _check_shape(name, tensor, letters, shape)
    if next_scale is not None:
        _check_scale("next_scale", next_scale, "a float or None")


def _check_block(x: Tensor, weight1: Tensor) -> tuple[int, int]:
    """Checks the sizes of a feed-forward block; returns C and H."""
    if not x.dim():
        raise ValueError("x: expected [..., C], got a tensor without dimensions")
    channels = x.shape[-1]
    if not 1 <= channels <= MAX_FEED_FORWARD_CHANNELS:
        most = MAX_FEED_FORWARD_CHANNELS
        raise ValueError(f"x: expected [..., C] with C of 1 to {most}, got {list(x.shape)}")
    _check_tensor("weight1", weight1, x, "x")
    hidden = weight1.shape[0] if weight1.dim() else 0
    if not 1 <= hidden <= MAX_FEED_FORWARD_HIDDEN:
        most = MAX_FEED_FORWARD_HIDDEN
        raise ValueError(f"weight1: expected [H, C] with H of 1 to {most}, got {list(weight1.shape)}")
    return channels, hidden


def _check_eps(eps: float) -> None:
    if not isinstance(eps, float):
        raise TypeError(f"eps: expected a float, got {eps!r}")
    if not 0 < eps <= MAX_EPS:
        raise ValueError(f"eps: expected a finite number above 0, got {eps}")


def _check_scale(name: str, scale: float, expected: str) -> None:
    if not isinstance(scale, float):
        raise TypeError(f"{name}: expected {expected}, got {scale!r}")
    # The kernels multiply by the reciprocal in float32.
    largest = torch.finfo(torch.float32).max
    if not 1 / largest <= scale <= largest:
        raise ValueError(f"{name}: expected a number above 0 that is finite, as its reciprocal, got {scale}")


def _check_activation(activation: str) -> None:
    if activation not in ACTIVATIONS:
        raise ValueError(f"activation: expected one of {', '.join(ACTIVATIONS)}, got {activation!r}")


def _check_layer(
    x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor | None, mask: Tensor | None
) -> None:
    """Checks the shapes of a linear layer's tensors."""
    if not x.dim():
        raise ValueError("x: expected [..., K], got a tensor without dimensions")
    outputs = weight.shape[0] if weight.dim() else 0
    _check_shape("weight", weight, "[N, K]", (outputs, x.shape[-1]))
    if bias is not None:
        _check_shape("bias", bias, "[N]", (outputs,))
    if residual is not None:
        _check_shape("residual", residual, "[..., N]", (*x.shape[:-1], outputs))
    if mask is not None:
        _check_shape("mask", mask, "[..., 1]", (*x.shape[:-1], 1))


def check_linear_max(x: Tensor, weight: Tensor, bias: Tensor) -> None:
    """Checks the arguments of :func:`msda.linear_max`."""
    _check_type("x", x)
    if not x.dim():
        raise ValueError("x: expected [..., K], got a tensor without dimensions")
    wide = torch.promote_types(x.dtype, torch.float32)
    for name, tensor in (("weight", weight), ("bias", bias)):
        _check_tensor(name, tensor, x, "x")
        if tensor.dtype != wide:
            raise TypeError(f"{name}: expected {wide} with x of {x.dtype}, got {tensor.dtype}")
    outputs = max(weight.shape[0], 1) if weight.dim() == 2 else 1
    _check_shape("weight", weight, "[N, K]", (outputs, x.shape[-1]))
    _check_shape("bias", bias, "[N]", (outputs,))


def check_linear_of_sum(x: Tensor, addend: Tensor, weight: Tensor, bias: Tensor) -> None:
    """Checks the arguments of :func:`msda.linear_of_sum`."""
    _check_tensor("x", x, None)
    _check_single_or_half("x", x)
    if not x.dim():
        raise ValueError("x: expected [..., K], got a tensor without dimensions")
    for name, tensor in (("addend", addend), ("weight", weight), ("bias", bias)):
        _check_like(name, tensor, x, "x")
    _check_shape("addend", addend, "[..., K]", tuple(x.shape))
    outputs = weight.shape[0] if weight.dim() == 2 else 1
    _check_shape("weight", weight, "[N, K]", (outputs, x.shape[-1]))
    _check_shape("bias", bias, "[N]", (outputs,))


def check_top_k_indices(x: Tensor, count: int) -> None:
    """Checks the arguments of :func:`msda.top_k_indices`."""
    _check_tensor("x", x, None)
    if x.dtype != torch.float32:
        raise TypeError(f"x: expected float32, got {x.dtype}")
    if x.dim() != 2:
        raise ValueError(f"x: expected [N, S], got {list(x.shape)}")
    if not isinstance(count, int) or isinstance(count, bool):
        raise TypeError(f"count: expected an int, got {count!r}")
    if not 0 <= count <= x.shape[1]:
        raise ValueError(f"count: expected 0 to S = {x.shape[1]}, got {count}")


def check_image_input(
    image: Tensor,
    target: Tensor,
    size: tuple[int, int],
    mean: Sequence[float],
    std: Sequence[float],
    bgr: bool,
) -> None:
    """Checks the arguments of :func:`msda.image_input`."""
    _check_tensor("image", image, None)
    if image.dtype != torch.uint8:
        raise TypeError(f"image: expected uint8, got {image.dtype}")
    if image.dim() != 3 or image.shape[2] != 3 or 0 in image.shape:
        raise ValueError(f"image: expected [H, W, 3], got {list(image.shape)}")
    _check_tensor("target", target, image, "image")
    _check_single_or_half("target", target)
    if target.dim() != 3 or target.shape[0] != 3 or not target.is_contiguous():
        found = f"{list(target.shape)} with strides {list(target.stride())}"
        raise ValueError(f"target: expected a contiguous tensor [3, H, W], got {found}")
    if any(side > MAX_IMAGE_SIDE for side in (*image.shape, *target.shape)):
        sizes = f"{list(image.shape)} and {list(target.shape)}"
        raise ValueError(f"image and target: expected sides of at most {MAX_IMAGE_SIDE}, got {sizes}")
    if not (isinstance(size, tuple) and len(size) == 2 and all(isinstance(side, int) for side in size)):
        raise TypeError(f"size: expected two ints (h, w), got {size!r}")
    if not (1 <= size[0] <= target.shape[1] and 1 <= size[1] <= target.shape[2]):
        raise ValueError(f"size: expected to lie within the target {list(target.shape)}, got {size}")
    for name, numbers in (("mean", mean), ("std", std)):
        if len(numbers) != 3 or not all(math.isfinite(number) for number in numbers):
            raise ValueError(f"{name}: expected 3 finite numbers, got {numbers!r}")
    if min(std) <= 0:
        raise ValueError(f"std: expected numbers above 0, got {std!r}")
    if not isinstance(bgr, bool):
        raise TypeError(f"bgr: expected a bool, got {bgr!r}")


def _check_type(name: str, tensor: Tensor) -> None:
    """Checks that an argument is a tensor in one of the operators' types."""
    _check_tensor(name, tensor, None)
    if tensor.dtype not in VALUE_TYPES:
        raise TypeError(f"{name}: expected float32, float16, bfloat16 or float64, got {tensor.dtype}")


def _check_single_or_half(name: str, tensor: Tensor) -> None:
    if tensor.dtype not in VALUE_TYPES[:3]:
        raise TypeError(f"{name}: expected float32, float16 or bfloat16, got {tensor.dtype}")


def _check_like(name: str, tensor: Tensor, other: Tensor, other_name: str) -> None:
    """Checks that a tensor has another's device and type."""
    _check_tensor(name, tensor, other, other_name)
    if tensor.dtype != other.dtype and not _autocasts(tensor, other):
        raise TypeError(f"{name}: expected {other.dtype} as {other_name}, got {tensor.dtype}")


def _check_value_and_levels(value: Tensor, spatial_shapes: Tensor, level_start_index: Tensor) -> int:
    """Checks the levels of a value; returns their number."""
    if value.dim() != 4:
        raise ValueError(f"value: expected [N, S, M, D], got {list(value.shape)}")
    for name, tensor in (("spatial_shapes", spatial_shapes), ("level_start_index", level_start_index)):
        _check_tensor(name, tensor, value)
        if tensor.dtype not in (torch.int32, torch.int64):
            raise TypeError(f"{name}: expected int32 or int64, got {tensor.dtype}")
    if spatial_shapes.dim() != 2 or spatial_shapes.shape[1] != 2:
        raise ValueError(f"spatial_shapes: expected [L, 2] = (H, W), got {list(spatial_shapes.shape)}")
    num_levels = spatial_shapes.shape[0]
    if not 1 <= num_levels <= MAX_LEVELS:
        raise ValueError(f"spatial_shapes: expected 1 to {MAX_LEVELS} levels, got {num_levels}")
    _check_shape("level_start_index", level_start_index, "[L]", (num_levels,))
    if level_start_index.dtype != spatial_shapes.dtype:
        raise TypeError(
            f"level_start_index: expected {spatial_shapes.dtype} as spatial_shapes, "
            f"got {level_start_index.dtype}"
        )
    if _readable(spatial_shapes) and _readable(level_start_index):
        _check_levels(spatial_shapes.tolist(), level_start_index.tolist(), value.shape[1])
    return num_levels


def _readable(tensor: Tensor) -> bool:
    if torch.compiler.is_compiling() or tensor.device.type != "cpu":
        return False
    # Subclasses are fake tensors and tracing proxies, without numbers. A tensor of torch.vmap has several.
    plain = type(tensor) in (Tensor, torch.nn.Parameter, torch.nn.Buffer)
    return plain and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)


def _check_levels(shapes: list[list[int]], starts: list[int], num_cells: int) -> None:
    cells = 0
    for i, ((height, width), start) in enumerate(zip(shapes, starts)):
        if height < 1 or width < 1:
            raise ValueError(
                f"spatial_shapes: expected sizes of 1 or more, got (H, W) = ({height}, {width}) for level {i}"
            )
        if start < 0 or start + height * width > num_cells:
            raise ValueError(
                f"level_start_index: level {i} of {height} x {width} cells starts at {start}, "
                f"expected it to lie within the S = {num_cells} cells of value"
            )
        cells += height * width
    if cells != num_cells:
        raise ValueError(
            f"value: expected S = {cells} cells, the sum of H * W of spatial_shapes {shapes}, "
            f"got S = {num_cells}"
        )


def _check_points(
    name: str, tensor: Tensor, value: Tensor, num_levels: int, points_per_level: Sequence[int] | None
) -> list[int]:
    """Checks the shape of locations or offsets; returns the number of points of each level."""
    if points_per_level is None:
        letters = "L, P"
        if tensor.dim() != 6 or tensor.shape[4] < 1:
            raise ValueError(
                f"{name}: expected [N, Q, M, L, P, 2] with P of 1 or more, got {list(tensor.shape)}"
            )
        sizes = [tensor.shape[4]] * num_levels
        points = num_levels, sizes[0]
    else:
        letters = "sum(points_per_level)"
        try:
            sizes = [operator.index(size) for size in points_per_level]
        except TypeError:
            raise TypeError(
                f"points_per_level: expected a sequence of int or None, got {points_per_level!r}"
            ) from None
        if len(sizes) != num_levels or any(size < 0 for size in sizes) or sum(sizes) < 1:
            raise ValueError(
                f"points_per_level: expected {num_levels} numbers of 0 or more that are not all 0, "
                f"one for each level of spatial_shapes, got {sizes}"
            )
        points = (sum(sizes),)
    queries = tensor.shape[1] if tensor.dim() > 1 else 0
    expected = (value.shape[0], queries, value.shape[2], *points, 2)
    _check_shape(name, tensor, f"[N, Q, M, {letters}, 2]", expected)
    return sizes


def _check_tensor(name: str, tensor: Tensor, value: Tensor | None, value_name: str = "value") -> None:
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{name}: expected a torch.Tensor, got {type(tensor).__name__}")
    if value is not None and tensor.device != value.device:
        raise ValueError(
            f"{name}: expected a tensor on {value.device} as {value_name}, got one on {tensor.device}"
        )


def _check_float(name: str, tensor: Tensor, value: Tensor) -> None:
    _check_tensor(name, tensor, value)
    wide = torch.promote_types(value.dtype, torch.float32)
    if tensor.dtype not in (value.dtype, wide) and not _autocasts(tensor, value):
        expected = str(wide) if wide == value.dtype else f"{value.dtype} as value, or {wide}"
        raise TypeError(f"{name}: expected {expected}, got {tensor.dtype}")


def _autocasts(tensor: Tensor, value: Tensor) -> bool:
    """Whether autocast is on and casts these types to one."""
    types = VALUE_TYPES[:3]
    on = torch.is_autocast_enabled(value.device.type)
    return on and tensor.dtype in types and value.dtype in types


def _check_shape(name: str, tensor: Tensor, letters: str, expected: tuple[int, ...]) -> None:
    if tensor.dim() != len(expected) or any(a != b for a, b in zip(tensor.shape, expected)):
        raise ValueError(f"{name}: expected {letters} = {list(expected)}, got {list(tensor.shape)}")
