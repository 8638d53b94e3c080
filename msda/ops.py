"""The operators: the public functions, which check their arguments and call what is registered."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from msda import checks, library, registrations  # noqa: F401  (registrations has effects)
from msda.group_norm_reference import cells_of

_BUILD = library.load()


def attention(
    value: Tensor,
    spatial_shapes: Tensor,
    level_start_index: Tensor,
    sampling_locations: Tensor,
    attention_weights: Tensor,
    points_per_level: Sequence[int] | None = None,
) -> Tensor:
    """Samples multi-scale features at given locations and returns their weighted sum.

    Letters: N batch, S cells of all levels, M heads, D channels of a head, Q queries, L levels, P points.
    `spatial_shapes` is (H, W); locations are (x, y).

    Args:
        value: [N, S, M, D] float32, float16, bfloat16 or float64; levels flattened row by row and
            concatenated, S = sum of H_l * W_l.
        spatial_shapes: [L, 2] = (H, W) in cells, int32 or int64, on value's device.
        level_start_index: [L], the first cell of each level in S, in spatial_shapes' type.
        sampling_locations: [N, Q, M, L, P, 2] = (x, y), 0 to 1 from edge to edge of the level, in value's
            type or float32. Location x has the pixel coordinate x * W - 0.5. Cells outside the level count
            zero, and so does a sample whose location is not finite.
        attention_weights: [N, Q, M, L, P] in value's type or float32; the operator does not normalise them.
        points_per_level: P_l of each level, if they differ. Then sampling_locations is
            [N, Q, M, sum P_l, 2] and attention_weights [N, Q, M, sum P_l].

    Returns:
        [N, Q, M * D] in value's type. The operator computes coordinates and sums over samples in float32
        (float64 for float64). On CUDA it blends the four corners of a 16-bit sample in that type, with
        weights relative to the largest of the query and head. Autocast casts only the value (not float64);
        locations and weights keep their precision.

        Differentiable in value, sampling_locations and attention_weights, any number of times and in both
        modes, with `torch.func` and under `torch.vmap`. Kernels compute the result and the gradient.
        PyTorch operations compute forward-mode derivatives and derivatives of the gradient. They are exact
        and slower, and hold several arrays of [N, M, Q, K, D] in memory, with K points of all levels.

        On CUDA, atomics sum the gradient of value, so two runs differ by rounding; the other gradients are
        always the same. With `torch.use_deterministic_algorithms(True)` the kernel sums in fixed point, and
        the gradient is the same to the last bit. This is slower, and needs 8 more bytes (float64: 16) for
        each element of value during the call.

    Raises:
        ValueError, TypeError: naming the argument, what it should be and what it was. The operator does not
            read the numbers in spatial_shapes and level_start_index on a GPU: a level outside of value
            counts zero. Both must be the same for all samples of `torch.vmap`.
        RuntimeError: if the environment variable MSDA_FORWARD or MSDA_BACKWARD names no kernel, or a kernel
            that cannot run the problem.

    Source: Deformable DETR, arXiv:2010.04159, eq. 3.

    Example:
        >>> value = torch.rand(1, 4 * 6 + 2 * 3, 8, 32)
        >>> shapes, starts = torch.tensor([[4, 6], [2, 3]]), torch.tensor([0, 24])
        >>> locations, weights = torch.rand(1, 5, 8, 2, 4, 2), torch.rand(1, 5, 8, 2, 4)
        >>> attention(value, shapes, starts, locations, weights).shape
        torch.Size([1, 5, 256])
    """
    sizes = checks.check_attention(
        value, spatial_shapes, level_start_index, sampling_locations, attention_weights, points_per_level
    )
    _check_built_for(value)
    return torch.ops.msda.attention(
        value,
        spatial_shapes,
        level_start_index,
        sampling_locations,
        attention_weights,
        None if points_per_level is None else sizes,
    )


def fused_attention(
    value: Tensor,
    spatial_shapes: Tensor,
    level_start_index: Tensor,
    reference_points: Tensor,
    sampling_offsets: Tensor,
    attention_logits: Tensor,
    points_per_level: Sequence[int] | None = None,
) -> Tensor:
    """Computes weights by a softmax and locations from offsets, then samples like `attention`.

    The weights are the softmax of the logits over all levels and points. The location of a point is

    - for reference_points [N, Q, L, 2] = (x, y): reference + offset / (W, H);
    - for reference_points [N, Q, L, 4] = (cx, cy, w, h): (cx, cy) + offset / P * (w, h) * 0.5.

    Args:
        value: as for `attention`.
        spatial_shapes: as for `attention`.
        level_start_index: as for `attention`.
        reference_points: as above, 0 to 1 over the level; float32 (float64 with a float64 value).
        sampling_offsets: [N, Q, M, L, P, 2] = (x, y) in value's type or float32.
        attention_logits: [N, Q, M, L * P] in value's type or float32. Offsets and logits may be columns of
            one tensor, for example the output of one linear layer: the forward reads them without a copy.
        points_per_level: P_l of each level, if they differ. Then sampling_offsets is
            [N, Q, M, sum P_l, 2] and attention_logits [N, Q, M, sum P_l].

    Returns:
        [N, Q, M * D] in value's type. Differentiable in value, reference_points, sampling_offsets and
        attention_logits, as `attention`.

    Raises:
        ValueError, TypeError: as `attention`.

    Source: Deformable DETR, arXiv:2010.04159, section 4.1 (points) and appendix A.4 (boxes).

    Example:
        >>> value = torch.rand(1, 4 * 6 + 2 * 3, 8, 32)
        >>> shapes, starts = torch.tensor([[4, 6], [2, 3]]), torch.tensor([0, 24])
        >>> reference = torch.rand(1, 5, 2, 2)
        >>> offsets, logits = torch.randn(1, 5, 8, 2, 4, 2), torch.randn(1, 5, 8, 8)
        >>> fused_attention(value, shapes, starts, reference, offsets, logits).shape
        torch.Size([1, 5, 256])
    """
    sizes = checks.check_fused_attention(
        value,
        spatial_shapes,
        level_start_index,
        reference_points,
        sampling_offsets,
        attention_logits,
        points_per_level,
    )
    _check_built_for(value)
    return torch.ops.msda.fused_attention(
        value,
        spatial_shapes,
        level_start_index,
        reference_points,
        sampling_offsets,
        attention_logits,
        None if points_per_level is None else sizes,
    )


def quantized_fused_attention(
    value: Tensor,
    spatial_shapes: Tensor,
    level_start_index: Tensor,
    reference_points: Tensor,
    sampling_offsets: Tensor,
    attention_logits: Tensor,
    value_scale: float,
    points_per_level: Sequence[int] | None = None,
) -> Tensor:
    """Computes `fused_attention` of values in int8: number * value_scale.

    Args:
        value: [N, S, M, D] int8.
        spatial_shapes, level_start_index: as for `attention`.
        reference_points: [N, Q, L, 2] or [N, Q, L, 4] float32, as for `fused_attention`.
        sampling_offsets: as for `fused_attention`, float16 or bfloat16.
        attention_logits: as for `fused_attention`, in sampling_offsets' type, finite or -infinity.
        value_scale: quantisation scale of value, above 0.
        points_per_level: as for `fused_attention`.

    Returns:
        [N, Q, M * D] in sampling_offsets' type. The result is the same in every run.

        On CUDA, fast kernels run 8 heads of 32 channels with 3 to 5 levels of 4 points. They round weights
        to 2^-15, and their sums are exact. A slower kernel runs other sizes.

        Not differentiable.

    Raises:
        ValueError, TypeError: as `attention`.
        RuntimeError: as `attention`.

    Source: Deformable DETR, arXiv:2010.04159, section 4.1 and appendix A.4.

    Example:
        >>> value = torch.randint(-128, 128, (1, 4 * 6 + 2 * 3, 8, 32), dtype=torch.int8)
        >>> shapes, starts = torch.tensor([[4, 6], [2, 3]]), torch.tensor([0, 24])
        >>> reference = torch.rand(1, 5, 2, 2)
        >>> offsets, logits = torch.randn(1, 5, 8, 2, 4, 2).half(), torch.randn(1, 5, 8, 8).half()
        >>> quantized_fused_attention(value, shapes, starts, reference, offsets, logits, 0.02).shape
        torch.Size([1, 5, 256])
    """
    sizes = checks.check_quantized_fused_attention(
        value,
        spatial_shapes,
        level_start_index,
        reference_points,
        sampling_offsets,
        attention_logits,
        value_scale,
        points_per_level,
    )
    _check_built_for(value)
    return torch.ops.msda.quantized_fused_attention(
        value,
        spatial_shapes,
        level_start_index,
        reference_points,
        sampling_offsets,
        attention_logits,
        value_scale,
        None if points_per_level is None else sizes,
    )


def window_attention(
    qkv: Tensor,
    bias: Tensor,
    padding: Tensor | None,
    window_size: int,
    shift: int,
    output_scale: float | None = None,
) -> Tensor:
    """Computes the self-attention of Swin's blocks inside windows of a map's cells.

    The operator cuts a map into windows of window_size * window_size cells. It pads the map at the bottom and
    right, and rolls it by (-shift, -shift) first. In each window and head the result is

        softmax(q k^T / sqrt(d) + bias + mask) v

    and it goes back to the place of its query. With a shift, the mask is -100 between cells of a window that
    only the roll made neighbours. Padded cells have keys and values, and other cells attend to them, as in
    Swin. No padded, rolled or cut copy of the map exists in memory.

    Letters: N images, H and W rows and columns of their map, C = heads * d channels, L = window_size**2.

    Args:
        qkv: [N, H, W, 3 * C] float32, float16, bfloat16 or float64, the output of the linear layer that makes
            queries, keys and values. The last axis is (3, heads, d).
        bias: [heads, L, L] in qkv's type, added to the logits of (query, key): the relative position bias.
        padding: [3 * C] in qkv's type, the qkv of padded cells. In Swin these cells are zero before the
            linear layer, so it is the layer's bias. None: zeros.
        window_size: side of a window in cells, 1 or more.
        shift: 0 to window_size - 1; Swin shifts every second block by window_size // 2. The operator does not
            change it for maps that one window covers.
        output_scale: quantisation scale of the result, above 0. None: the result is not quantised.

    Returns:
        [N, H, W, C]; the last axis is (heads, d): the result in qkv's type; or, with output_scale,
        result / output_scale in int8, rounded half to even and saturated, as by ONNX's QuantizeLinear. The
        operator multiplies by the float32 reciprocal of output_scale, and NaN gives 0.

        Logits, softmax and sums are float32 (float64 for float64). The result is the same in every run. In 16
        bits the CUDA kernel rounds the softmax's weights to that type before the product with the values.
        Autocast casts qkv, bias and padding.

        Differentiable in qkv, bias and padding, any number of times and in both modes, with `torch.func` and
        under `torch.vmap`. A kernel computes the result. PyTorch operations compute the derivatives, and hold
        the logits of all windows in memory. With output_scale, not differentiable.

    Raises:
        ValueError, TypeError: naming the argument, what it should be and what it was.
        RuntimeError: if the environment variable MSDA_WINDOW names no kernel, or a kernel that cannot run the
            problem.

    Source: Swin Transformer, arXiv:2103.14030, section 3.2.

    Example:
        >>> qkv, bias = torch.rand(1, 10, 15, 3 * 64), torch.rand(2, 49, 49)  # 2 heads of 32 channels
        >>> window_attention(qkv, bias, padding=torch.rand(3 * 64), window_size=7, shift=3).shape
        torch.Size([1, 10, 15, 64])
    """
    checks.check_window_attention(qkv, bias, padding, window_size, shift, output_scale)
    _check_built_for(qkv, "qkv")
    return torch.ops.msda.window_attention(qkv, bias, padding, window_size, shift, output_scale)


def group_norm(x: Tensor, weight: Tensor, bias: Tensor, num_groups: int, eps: float = 1e-5) -> Tensor:
    """Normalises the channel groups of a map with channels innermost, as `torch.nn.GroupNorm`.

    Each of num_groups groups of neighbouring channels of an image gets

        (x - mean) / sqrt(variance + eps) * weight + bias

    with its own mean and variance over all cells of the image.

    Letters: N images, H and W rows and columns of their map, S cells of an image, C channels.

    Args:
        x: [N, H, W, C] or [N, S, C] float32, float16, bfloat16 or float64.
        weight: [C] in x's type.
        bias: [C] in x's type.
        num_groups: number of groups, a divisor of C.
        eps: added to the variance, above 0.

    Returns:
        x's shape and type. Statistics and arithmetic are float32 (float64 for float64). The variance is a
        mean of squared differences, so equal numbers give bias. The result is the same in every run on
        one GPU. Autocast casts x, weight and bias.

        Differentiable in x, weight and bias, any number of times and in both modes, with `torch.func` and
        under `torch.vmap`. A kernel computes the result, and PyTorch operations the derivatives.

    Raises:
        ValueError, TypeError: naming the argument, what it should be and what it was.
        RuntimeError: if the environment variable MSDA_GROUP_NORM names no kernel, or a kernel that cannot run
            the problem.

    Source: Group Normalization, arXiv:1803.08494, section 3.1.

    Example:
        >>> x, weight, bias = torch.rand(1, 10, 15, 64), torch.rand(64), torch.rand(64)
        >>> group_norm(x, weight, bias, num_groups=8).shape
        torch.Size([1, 10, 15, 64])
    """
    checks.check_group_norm(x, weight, bias, num_groups, eps)
    _check_built_for(x, "x")
    return torch.ops.msda.group_norm(x, weight, bias, num_groups, eps)


def group_norm_levels(
    levels: Sequence[Tensor],
    weights: Sequence[Tensor],
    biases: Sequence[Tensor],
    num_groups: int,
    eps: float = 1e-5,
    next_scale: float | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Normalises the levels of a pyramid, each as `group_norm`, and joins their cells.

    A detector's encoder reads the cells of all levels in one tensor. One call of this operator takes the
    place of a normalisation for each level and of the copies that join them.

    Letters: N images, S cells of a level of an image, H and W rows and columns of its map, C channels.

    Args:
        levels: 1 to 8 tensors in float32, float16, bfloat16 or float64: cells [N, S, C], or a map
            [N, C, H, W]. N and C are the same for all. The operator copies a map unless it is in
            `torch.channels_last`.
        weights: [C] for each level, in its type.
        biases: [C] for each level, in its type.
        num_groups: number of groups, a divisor of C.
        eps: added to the variance, above 0.
        next_scale: quantisation scale of the result, above 0; or None.

    Returns:
        The cells of all levels in the order of `levels`, [N, sum of S, C] in their type. Arithmetic and
        rounding are those of `group_norm`.

        With next_scale, a tuple of the result and of result / next_scale in int8, rounded half to even and
        saturated, of the rounded result. The operator multiplies by the float32 reciprocal of next_scale.

        Not differentiable.

    Raises:
        ValueError, TypeError: naming the argument, what it should be and what it was.
        RuntimeError: if the environment variable MSDA_GROUP_NORM names no kernel, or a kernel that cannot run
            the problem.

    Source: Group Normalization, arXiv:1803.08494, section 3.1.

    Example:
        >>> levels, weight = [torch.rand(1, 150, 64), torch.rand(1, 64, 5, 8)], torch.rand(64)
        >>> group_norm_levels(levels, [weight, weight], [weight, weight], num_groups=8).shape
        torch.Size([1, 190, 64])
    """
    checks.check_group_norm_levels(levels, weights, biases, num_groups, eps, next_scale)
    _check_built_for(levels[0], "levels[0]")
    cells = [cells_of(level) for level in levels]
    results = torch.ops.msda.group_norm_levels(cells, weights, biases, num_groups, eps, next_scale)
    return results[0] if next_scale is None else tuple(results)


def linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    activation: str = "none",
    mask: Tensor | None = None,
    norm_weight: Tensor | None = None,
    norm_bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Computes a linear layer with its activation, residual and mask, or with its residual and LayerNorm:

        y = (activation(x weight^T + bias) + residual) * mask
        (y - mean) / sqrt(variance + eps) * norm_weight + norm_bias

    The second line needs norm_weight, and uses the mean and variance of each row of y. It allows no
    activation and no mask.

    Letters: K inputs and N outputs of the layer.

    Args:
        x: [..., K] float32, float16, bfloat16 or float64.
        weight: [N, K] in x's type.
        bias: [N] in x's type. None: zeros.
        residual: [..., N] in x's type, with x's sizes before the last. None: zeros.
        activation: "none", "gelu" (x * (1 + erf(x / sqrt(2))) / 2) or "relu".
        mask: [..., 1] in x's type, with x's sizes before the last: 0 for padded cells of a map, else 1. None:
            ones.
        norm_weight: [N] in x's type, the weight of the normalisation. None: no normalisation.
        norm_bias: [N] in x's type, with norm_weight.
        eps: added to the variance, above 0.

    Returns:
        [..., N] in x's type. Sums and statistics are float32 (float64 for float64). Autocast casts all
        tensors.

        On a GPU of compute capability 9.0, a kernel of CUTLASS computes float16 and bfloat16 if K and N are
        multiples of 8. It has one of activation, residual and mask. With a normalisation, N is 192 or 256.
        Its GELU is a polynomial with an absolute error of at most 4.3e-5. In all other cases PyTorch's
        operations compute the result in x's type.

        Differentiable in all tensors, any number of times and in both modes, with
        `torch.func` and under `torch.vmap`. PyTorch operations compute the derivatives.

    Raises:
        ValueError, TypeError: naming the argument, what it should be and what it was.
        RuntimeError: if the environment variable MSDA_LINEAR names no kernel, or a kernel that cannot run the
            problem.

    Source: Gaussian Error Linear Units, arXiv:1606.08415.

    Example:
        >>> x, weight, bias = torch.rand(1, 150, 64), torch.rand(256, 64), torch.rand(256)
        >>> linear(x, weight, bias, activation="gelu").shape
        torch.Size([1, 150, 256])
    """
    checks.check_linear(x, weight, bias, residual, activation, mask, norm_weight, norm_bias, eps)
    _check_built_for(x, "x")
    return torch.ops.msda.linear(x, weight, bias, residual, mask, norm_weight, norm_bias, activation, eps)


def quantized_linear(
    x: Tensor,
    weight: Tensor,
    scale: Tensor,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    activation: str = "none",
    mask: Tensor | None = None,
    output_scale: float | None = None,
    dtype: torch.dtype = torch.float16,
) -> Tensor:
    """Computes a linear layer of 8-bit numbers with what follows it, and quantises its result on request:

        y = (activation(x weight^T * scale + bias) + residual) * mask

    Letters: K inputs and N outputs of the layer.

    Args:
        x: [..., K] int8 or float8_e4m3fn, K below 2**17.
        weight: [N, K] in x's type.
        scale: [N] float32, the quantisation scale of x times that of each row of weight.
        bias: [N] float32. None: zeros.
        residual: [..., N] in the type dtype, with x's sizes before the last. None: zeros.
        activation: "none", "gelu" or "relu", as for `linear`.
        mask: [..., 1] in the type dtype, with x's sizes before the last, as for `linear`. None: ones.
        output_scale: quantisation scale of the result, above 0. None: the result is not quantised.
        dtype: torch.float16 or torch.bfloat16, the type of residual, mask and a result without a scale.

    Returns:
        [..., N]: y in the type dtype; or, with output_scale, y / output_scale in x's type, rounded half to
        even and saturated, as by ONNX's QuantizeLinear. The operator multiplies by the float32 reciprocal of
        output_scale. The result is the same in every run.

        Sums are exact for int8 (int32). For float8_e4m3fn they are float32. What follows them is float32.
        Without GELU, the int8 kernels give the bits of `quantized_linear_reference`, which rounds
        sum * scale + bias once from float64.

        On a GPU of compute capability 9.0, a kernel of CUTLASS runs if K is a multiple of 16 and N one of 8
        (of 16 with output_scale), with at most one of residual, mask and output_scale. The GELU of these
        kernels is a polynomial with an absolute error of at most 4.3e-5. On other GPUs, and for other layers,
        a plain kernel runs, which is slow.

        Not differentiable.

    Raises:
        ValueError, TypeError: naming the argument, what it should be and what it was.
        RuntimeError: if the environment variable MSDA_QUANTIZED_LINEAR names no kernel, or a kernel that
            cannot run the problem.

    Source: Integer quantization for deep learning inference, arXiv:2004.09602, section 3; FP8 formats,
    arXiv:2209.05433.

    Example:
        >>> x, weight = torch.randint(-127, 128, (2, 150, 64), dtype=torch.int8), torch.ones(256, 64).char()
        >>> scale, bias = torch.full((256,), 1e-3), torch.rand(256)
        >>> quantized_linear(x, weight, scale, bias, activation="gelu", output_scale=0.02).dtype
        torch.int8
    """
    checks.check_quantized_linear(x, weight, scale, bias, residual, activation, mask, output_scale, dtype)
    _check_built_for(x, "x")
    return torch.ops.msda.quantized_linear(
        x, weight, scale, bias, residual, mask, activation, output_scale, dtype
    )


def quantized_layer_norm(
    x: Tensor, weight: Tensor, bias: Tensor, eps: float, scale: float, dtype: torch.dtype
) -> Tensor:
    """Normalises rows as `torch.nn.LayerNorm` and quantises the result, which `quantized_linear` reads:

        y = (x - mean) / sqrt(variance + eps) * weight + bias

    with the mean and variance of each row.

    Args:
        x: [..., C] float32, float16 or bfloat16.
        weight: [C] in x's type.
        bias: [C] in x's type.
        eps: added to the variance, above 0.
        scale: quantisation scale of the result, above 0.
        dtype: torch.int8 or torch.float8_e4m3fn.

    Returns:
        [..., C]: y / scale in the type dtype, rounded half to even and saturated as by `quantized_linear`.
        Arithmetic is float32, and y is not rounded to x's type. The result is the same in every run.

        On CUDA a kernel that reads vectors runs 16-bit rows with C a multiple of 8, up to 4096. A slower
        kernel runs the others.

        Not differentiable.

    Raises:
        ValueError, TypeError: naming the argument, what it should be and what it was.
        RuntimeError: if the environment variable MSDA_QUANTIZED_LAYER_NORM names no kernel, or a kernel that
            cannot run the problem.

    Source: Layer Normalization, arXiv:1607.06450, eq. 3 and 4.

    Example:
        >>> x, weight, bias = torch.rand(2, 150, 64), torch.rand(64), torch.rand(64)
        >>> quantized_layer_norm(x, weight, bias, eps=1e-5, scale=0.02, dtype=torch.int8).dtype
        torch.int8
    """
    checks.check_quantized_layer_norm(x, weight, bias, eps, scale, dtype)
    _check_built_for(x, "x")
    return torch.ops.msda.quantized_layer_norm(x, weight, bias, eps, scale, dtype)


def feed_forward(
    x: Tensor,
    weight1: Tensor,
    bias1: Tensor,
    weight2: Tensor,
    bias2: Tensor,
    norm_weight: Tensor,
    norm_bias: Tensor,
    eps: float = 1e-5,
) -> Tensor:
    """Computes the feed-forward block of a post-norm transformer, such as DETR's encoders:

        hidden = relu(x weight1^T + bias1)
        y = layer_norm(x + hidden weight2^T + bias2)

    The hidden numbers are rounded to x's type.

    Args:
        x: [..., C] float32, float16 or bfloat16, with C up to 1024.
        weight1: [H, C] in x's type, with H up to 8192.
        bias1: [H] in x's type.
        weight2: [C, H] in x's type.
        bias2: [C] in x's type.
        norm_weight: [C] in x's type.
        norm_bias: [C] in x's type.
        eps: added to the variance of the normalisation, above 0.

    Returns:
        y, [..., C] in x's type. Sums and statistics are float32, and y is rounded once. The result is the
        same in every run on one device. Autocast casts all tensors.

        On CUDA a kernel for compute capability 9.0 runs float16 and bfloat16 with C = 256 and H a multiple of
        64 up to 2048. A plain kernel, which is slow, runs the other blocks.

        Differentiable in all tensors, any number of times and in both modes, with `torch.func`. PyTorch
        operations compute the derivatives.

    Raises:
        ValueError, TypeError: naming the argument, what it should be and what it was.
        RuntimeError: if the environment variable MSDA_FEED_FORWARD names no kernel, or a kernel that cannot
            run the problem.

    Source: Attention Is All You Need, arXiv:1706.03762, sections 3.1 and 3.3.

    Example:
        >>> x, bias1, bias2, norm = torch.rand(2, 150, 8), torch.ones(16), torch.ones(8), torch.ones(8)
        >>> feed_forward(x, torch.rand(16, 8), bias1, torch.rand(8, 16), bias2, norm, norm).shape
        torch.Size([2, 150, 8])
    """
    arguments = x, weight1, bias1, weight2, bias2, norm_weight, norm_bias, eps
    checks.check_feed_forward(*arguments)
    _check_built_for(x, "x")
    return torch.ops.msda.feed_forward(*arguments)


def quantized_feed_forward(
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
    next_scale: float | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Computes the block of `feed_forward` in int8:

        hidden = quantise(relu(quantise(x / x_scale) weight1^T * scale1 + bias1) / hidden_scale)
        y = layer_norm(x + hidden weight2^T * scale2 + bias2)

    where quantise rounds half to even, and saturates. An encoder's next layer reads y in int8 too. The
    operator gives both where the caller asks for it, which saves a pass over y.

    Args:
        x: [..., C] float16 or bfloat16, with C up to 1024.
        weight1: [H, C] int8, with H up to 8192.
        scale1: [H] float32: x_scale times the scale of each row of weight1.
        bias1: [H] float32.
        weight2: [C, H] int8.
        scale2: [C] float32: hidden_scale times the scale of each row of weight2.
        bias2: [C] float32.
        norm_weight: [C] in x's type.
        norm_bias: [C] in x's type.
        x_scale: quantisation scale of x, above 0.
        hidden_scale: quantisation scale of the hidden numbers, above 0.
        eps: added to the variance of the normalisation, above 0.
        next_scale: quantisation scale of y, above 0; or None.

    Returns:
        y, [..., C] in x's type. Sums of products are exact, the other arithmetic is float32, and y is rounded
        once. The result is the same in every run.

        With next_scale, a tuple of y and quantise(y / next_scale), [..., C] int8, of the rounded y.

        On CUDA a kernel for compute capability 9.0 runs blocks with C = 256 and H a multiple of 64 up to
        2048. It keeps the hidden numbers in registers. A slower kernel runs the others.

        Not differentiable.

    Raises:
        ValueError, TypeError: naming the argument, what it should be and what it was.
        RuntimeError: if the environment variable MSDA_QUANTIZED_FEED_FORWARD names no kernel, or a kernel
            that cannot run the problem.

    Source: Attention Is All You Need, arXiv:1706.03762, sections 3.1 and 3.3.

    Example:
        >>> x, norm = torch.rand(2, 150, 8).half(), torch.ones(8).half()
        >>> weight1, weight2 = torch.ones(16, 8).to(torch.int8), torch.ones(8, 16).to(torch.int8)
        >>> first, second = torch.ones(16), torch.ones(8)
        >>> quantized_feed_forward(
        ...     x, weight1, first, first, weight2, second, second, norm, norm, 0.02, 0.05, eps=1e-5
        ... ).shape
        torch.Size([2, 150, 8])
    """
    arguments = (
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
        next_scale,
    )
    checks.check_quantized_feed_forward(*arguments)
    _check_built_for(x, "x")
    results = torch.ops.msda.quantized_feed_forward(*arguments)
    return results[0] if next_scale is None else tuple(results)


def linear_max(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Computes the largest output of a linear layer for each row, such as the best class logit of a cell:

        max over n of (x weight^T + bias)[n]

    Letters: K inputs and N outputs of the layer.

    Args:
        x: [..., K] float32, float16, bfloat16 or float64.
        weight: [N, K] float32 (float64 with a float64 x), N of 1 or more.
        bias: [N] in weight's type.

    Returns:
        [...] in weight's type, with the accuracy of float32 (float64) sums. It has no derivatives.

        On CUDA a kernel on tensor cores computes 16-bit problems of `has_fast_linear_max`: each weight is
        the sum of two or three 16-bit numbers. A slow kernel computes the others. Rows with numbers that are
        not finite give infinity or NaN.

    Raises:
        ValueError, TypeError: naming the argument, what it should be and what it was.
        RuntimeError: if the environment variable MSDA_LINEAR_MAX names no kernel, or a kernel that cannot
            run the problem.

    Example:
        >>> linear_max(torch.rand(2, 150, 64), torch.rand(80, 64), torch.rand(80)).shape
        torch.Size([2, 150])
    """
    checks.check_linear_max(x, weight, bias)
    _check_built_for(x, "x")
    return torch.ops.msda.linear_max(x, weight, bias)


def has_fast_linear_max(inputs: int, outputs: int) -> bool:
    """Returns whether `linear_max` has a fast kernel for a 16-bit x [..., inputs] and N = outputs.

    It has one for 64, 192 or 256 inputs and up to 80 outputs (linear_max_choice.h).
    """
    return inputs in (64, 192, 256) and outputs <= 80


def linear_of_sum(x: Tensor, addend: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Computes a linear layer of the sum of two tensors, such as features and their positions:

        (x + addend) weight^T + bias

    The sum is rounded to x's type. No kernel writes it.

    Letters: K inputs and N outputs of the layer.

    Args:
        x: [..., K] float32, float16 or bfloat16.
        addend: in x's shape and type.
        weight: [N, K] in x's type.
        bias: [N] in x's type.

    Returns:
        [..., N] in x's type, rounded once. Sums of products are float32. The result is the same in every run
        on one device. Autocast casts all tensors.

        On CUDA a kernel for compute capability 9.0 runs float16 and bfloat16 with K a multiple of 8 up to 256
        and N a multiple of 32 up to 512. A plain kernel, which is slow, runs the other layers.

        Differentiable in all tensors, any number of times and in both modes, with `torch.func`. PyTorch
        operations compute the derivatives.

    Raises:
        ValueError, TypeError: naming the argument, what it should be and what it was.
        RuntimeError: if the environment variable MSDA_LINEAR_OF_SUM names no kernel, or a kernel that cannot
            run the problem.

    Source: the offsets and weights of Deformable DETR, arXiv:2010.04159, section 4.1: linear layers of query
        features with their positional embeddings.

    Example:
        >>> x, positions = torch.rand(2, 150, 64), torch.rand(2, 150, 64)
        >>> linear_of_sum(x, positions, torch.rand(96, 64), torch.rand(96)).shape
        torch.Size([2, 150, 96])
    """
    checks.check_linear_of_sum(x, addend, weight, bias)
    _check_built_for(x, "x")
    return torch.ops.msda.linear_of_sum(x, addend, weight, bias)


def top_k_indices(x: Tensor, count: int) -> Tensor:
    """Returns the indices of the largest numbers of each row, largest first.

    Of equal numbers the first comes first, as in ONNX's TopK. `torch.topk` leaves their order open. NaN is
    the largest number.

    Letters: N rows of S numbers, K = count.

    Args:
        x: [N, S] float32.
        count: 0 to S.

    Returns:
        [N, K] int32, the same in every run. It has no derivatives.

        The CUDA kernel holds rows in registers, see `longest_top_k_row`. A slow kernel runs other sizes.

    Raises:
        ValueError, TypeError: naming the argument, what it should be and what it was.
        RuntimeError: if the environment variable MSDA_TOP_K names no kernel, or a kernel that cannot run the
            problem.

    Example:
        >>> top_k_indices(torch.tensor([[1.0, 3.0, 2.0, 3.0]]), count=3)
        tensor([[1, 3, 2]], dtype=torch.int32)
    """
    checks.check_top_k_indices(x, count)
    _check_built_for(x, "x")
    return torch.ops.msda.top_k_indices(x, count)


def longest_top_k_row(count: int) -> int:
    """Returns the largest S for which a kernel of `top_k_indices` is fast, 0 for a count above 1024.

    A block of the kernel holds 16,384 numbers: those of a part of a row, or what all parts have found.

    Example:
        >>> longest_top_k_row(900)
        294912
    """
    block = 16_384  # kTopKThreads * kTopKItems of kernels/include/msda/top_k_params.h
    return 0 if count > 1024 else block * (block // max(count, 1))


def image_input(
    image: Tensor,
    target: Tensor,
    size: tuple[int, int],
    mean: Sequence[float],
    std: Sequence[float],
    bgr: bool = False,
) -> None:
    """Writes a decoded image into its place in a network's input: resized, normalised and padded.

    The upper left corner of the target gets (resized image - mean) / std, the rest gets zeros. The operator
    resizes as OpenCV's INTER_LINEAR does for 8 bits, to the last bit. That is bilinear without antialiasing.

    Args:
        image: uint8 [H, W, 3].
        target: contiguous float32, float16 or bfloat16 [3, H', W'] on image's device, for example one image
            of a batch. The operator overwrites all of it; its channels are red, green, blue.
        size: (h, w) of the resized image, at most (H', W').
        mean: three numbers, of red, green and blue, 0 to 255.
        std: three numbers above 0, likewise.
        bgr: the image's channels are blue, green, red, as OpenCV's; else red, green, blue.

    The normalisation is float32. It has no derivatives.

    Raises:
        ValueError, TypeError: naming the argument, what it should be and what it was.

    Source: cv::resize of OpenCV.

    Example:
        >>> image = torch.randint(256, (100, 200, 3), dtype=torch.uint8)
        >>> batch = torch.empty(4, 3, 64, 96)
        >>> image_input(image, batch[0], (48, 96), mean=(123.7, 116.3, 103.5), std=(58.4, 57.1, 57.4))
        >>> batch[0, :, 48:].any()
        tensor(False)
    """
    checks.check_image_input(image, target, size, mean, std, bgr)
    _check_built_for(image, "image")
    torch.ops.msda.image_input(image, target, *size, mean, std, bgr)


def _check_built_for(value: Tensor, name: str = "value") -> None:
    if value.is_cuda and not _BUILD.has_cuda:
        raise RuntimeError(
            f"{name}: is on {value.device}, but msda was built without CUDA; install a CUDA compiler "
            f"(pip install 'codetr-tensorrt[nvcc]') and build again with {library.BUILD_COMMAND}"
        )
