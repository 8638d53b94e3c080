"""The CUDA kernels on the CPU: the real sources, compiled for the emulator of tests/matrix/cuda_emulator.

    forward(inputs)                    # as msda.attention(*inputs) on a GPU
    forward(inputs, order=3)           # threads and blocks in another order
    backward(inputs, grad_output)      # the gradients by the inputs' names

MSDA_FORWARD and MSDA_BACKWARD force a kernel. A kernel that does what a GPU would not forgive raises
`EmulatorError`: reads and writes outside of the tensors, misaligned addresses, shuffles and barriers that a
thread does not reach. What the compiler for the GPU makes of the sources is tested on a GPU alone.
"""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from benchmarks.problems import AttentionInputs, FusedInputs
from msda.checks import ACTIVATIONS, EIGHT_BIT_TYPES, MAX_LEVELS, MAX_NORM_LEVELS
from tests.matrix.against_reference import floats
from tests.matrix.cuda_emulator import compile_for_cpu
from trt_plugin.image_input import ImageInputProblem

CACHE = Path(__file__).resolve().parents[2] / ".pytest_cache" / "d" / "cuda_emulator"

NOT_SUPPORTED = 801
"""cudaErrorNotSupported: the forced kernel cannot run the problem."""

TYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
"""In the order of msda::DataType."""

GIVEN, REFERENCE_POINTS, REFERENCE_BOXES = range(3)
"""msda::Locations."""

INPUTS = (
    "value",
    "spatial_shapes",
    "level_start_index",
    "reference_points",
    "sampling_locations",
    "attention_weights",
)
STRIDED = INPUTS[4:]
"""The tensors whose queries may lie apart in the forward."""
GRADIENTS = tuple(f"grad_{name}" for name in ("value", *STRIDED, "reference_points"))
TENSORS = (*INPUTS, "output", "grad_output", *GRADIENTS)
"""In the order of msda::ForwardArguments and msda::BackwardArguments."""


class EmulatorError(RuntimeError):
    """A launch failed; the message says which kernel, block, thread and line, and why."""


class NotSupported(Exception):
    """The forced kernel cannot run the problem."""


class _Problem(ctypes.Structure):
    """msda::Problem of kernels/include/msda/params.h."""

    _fields_ = (
        ("sizes", ctypes.c_int64 * 7),
        ("points_per_level", ctypes.c_int32 * MAX_LEVELS),
        ("locations", ctypes.c_int32),
        ("types", ctypes.c_int32 * 3),
        ("int64_shapes", ctypes.c_bool),
        ("strides", ctypes.c_int64 * 2),
        ("int8_value", ctypes.c_bool),
        ("value_scale", ctypes.c_float),
    )


class _WindowProblem(ctypes.Structure):
    """msda::WindowProblem of kernels/include/msda/window_params.h."""

    _fields_ = (
        ("sizes", ctypes.c_int64 * 7),
        ("type", ctypes.c_int32),
        ("output_scale", ctypes.c_float),
    )


class _GroupNormProblem(ctypes.Structure):
    """msda::GroupNormProblem of kernels/include/msda/group_norm_params.h."""

    _fields_ = (
        ("batch_size", ctypes.c_int64),
        ("num_levels", ctypes.c_int64),
        ("cells", ctypes.c_int64 * MAX_NORM_LEVELS),
        ("channels", ctypes.c_int64),
        ("num_groups", ctypes.c_int64),
        ("eps", ctypes.c_double),
        ("type", ctypes.c_int32),
        ("next_scale", ctypes.c_float),
    )


class _LinearProblem(ctypes.Structure):
    """msda::LinearProblem of kernels/include/msda/linear_params.h."""

    _fields_ = (
        ("sizes", ctypes.c_int64 * 3),
        ("activation", ctypes.c_int32),
        ("residual", ctypes.c_bool),
        ("masked", ctypes.c_bool),
        ("normed", ctypes.c_bool),
        ("type", ctypes.c_int32),
        ("eps", ctypes.c_double),
    )


class _LinearMaxProblem(ctypes.Structure):
    """msda::LinearMaxProblem of kernels/include/msda/linear_max_params.h."""

    _fields_ = (("sizes", ctypes.c_int64 * 3), ("type", ctypes.c_int32))


class _TopKProblem(ctypes.Structure):
    """msda::TopKProblem of kernels/include/msda/top_k_params.h."""

    _fields_ = (("sizes", ctypes.c_int64 * 3),)


class _QuantizedLinearProblem(ctypes.Structure):
    """msda::QuantizedLinearProblem of kernels/include/msda/quantized_linear_params.h."""

    _fields_ = (
        ("sizes", ctypes.c_int64 * 3),
        ("activation", ctypes.c_int32),
        ("switches", ctypes.c_bool * 3),
        ("input_type", ctypes.c_int32),
        ("type", ctypes.c_int32),
        ("output_scale", ctypes.c_float),
    )


class _QuantizedLayerNormProblem(ctypes.Structure):
    """msda::QuantizedLayerNormProblem of kernels/include/msda/quantized_layer_norm_params.h."""

    _fields_ = (
        ("sizes", ctypes.c_int64 * 2),
        ("eps", ctypes.c_double),
        ("type", ctypes.c_int32),
        ("output_type", ctypes.c_int32),
        ("scale", ctypes.c_float),
    )


class _LinearOfSumProblem(ctypes.Structure):
    """msda::LinearOfSumProblem of kernels/include/msda/linear_of_sum_params.h."""

    _fields_ = (("sizes", ctypes.c_int64 * 3), ("type", ctypes.c_int32))


class _FeedForwardProblem(ctypes.Structure):
    """msda::FeedForwardProblem of kernels/include/msda/feed_forward_params.h."""

    _fields_ = (("sizes", ctypes.c_int64 * 3), ("eps", ctypes.c_double), ("type", ctypes.c_int32))


class _QuantizedFeedForwardProblem(ctypes.Structure):
    """msda::QuantizedFeedForwardProblem of kernels/include/msda/quantized_feed_forward_params.h."""

    _fields_ = (
        ("sizes", ctypes.c_int64 * 3),
        ("eps", ctypes.c_double),
        ("type", ctypes.c_int32),
        ("x_scale", ctypes.c_float),
        ("hidden_scale", ctypes.c_float),
        ("next_scale", ctypes.c_float),
    )


class _Tensor(ctypes.Structure):
    _fields_ = (("name", ctypes.c_char_p), ("data", ctypes.c_void_p), ("bytes", ctypes.c_int64))


@functools.cache
def library(*sources: Path) -> ctypes.CDLL:
    """Sources compiled for the emulator, by default those of the operators."""
    if not sources:
        source = compile_for_cpu.KERNELS / "src"
        others = (source / "sm90" / f"{name}.cu" for name in ("quantized_linear_rows", "linear_of_sum"))
        hopper = (*source.glob("sm90/*feed_forward.cu"), *others)
        kernels = *sorted(source.glob("*.cu")), *sorted(hopper)
        sources = (*kernels, compile_for_cpu.HERE / "operators.cpp")
    compiled = ctypes.CDLL(str(compile_for_cpu.build(sources, CACHE)))
    compiled.emulated_message.restype = ctypes.c_char_p
    return compiled


def forward(
    inputs: AttentionInputs | FusedInputs, order: int = 0, value_scale: float | None = None
) -> torch.Tensor:
    """The operator of the inputs.

    Args:
        inputs: on the CPU, in any layout.
        order: of threads and blocks; 0 is ascending, other numbers draw one.
        value_scale: of an int8 value.

    Returns:
        [N, Q, M * D] in the type of locations or offsets where the value is int8, else in value's; NaN where
        the kernel wrote nothing.

    Raises:
        EmulatorError: where a GPU would fail, hang, or read or write what it should not.
        NotSupported: when the forced kernel cannot run the problem.
    """
    batch, _, num_heads, head_dim = inputs.value.shape
    shape = (batch, inputs[-2].shape[1], num_heads * head_dim)
    dtype = inputs.value.dtype if value_scale is None else inputs[-2].dtype
    output = torch.full(shape, torch.nan, dtype=dtype)
    tensors = _tensors(inputs, output=output)
    tensors |= {name: _queries(tensor) for name, tensor in zip(STRIDED, inputs[-3:-1], strict=True)}
    _call("emulated_forward", inputs, tensors, ctypes.c_uint64(order), value_scale=value_scale)
    return output


def quantized_fused_attention(
    value: torch.Tensor,
    spatial_shapes: torch.Tensor,
    level_start_index: torch.Tensor,
    reference_points: torch.Tensor,
    sampling_offsets: torch.Tensor,
    attention_logits: torch.Tensor,
    value_scale: float,
    points_per_level: list[int] | None,
    order: int = 0,
) -> torch.Tensor:
    """`msda.quantized_fused_attention`; MSDA_FORWARD forces a kernel. See `forward`."""
    levels = spatial_shapes, level_start_index, reference_points
    inputs = FusedInputs(value, *levels, sampling_offsets, attention_logits, points_per_level)
    return forward(inputs, order, value_scale)


def backward(
    inputs: AttentionInputs | FusedInputs,
    grad_output: torch.Tensor,
    order: int = 0,
    deterministic: bool = False,
) -> dict[str, torch.Tensor]:
    """The gradients of the inputs' operator by the inputs' names, in their types.

    Args:
        inputs: as for `forward`.
        grad_output: [N, Q, M * D] in value's type.
        order: as for `forward`.
        deterministic: whether value's gradient has to be the same in every order.

    Raises:
        EmulatorError, NotSupported: as `forward`.
    """
    sums = torch.float64 if inputs.value.dtype == torch.float64 else torch.float32
    written = {name: torch.full(x.shape, torch.nan, dtype=x.dtype) for name, x in floats(inputs).items()}
    written["value"] = torch.zeros(inputs.value.shape, dtype=sums)
    gradients = {f"grad_{_names(inputs)[name]}": tensor for name, tensor in written.items()}
    tensors = _tensors(inputs, grad_output=grad_output, **gradients)
    _call("emulated_backward", inputs, tensors, ctypes.c_uint64(order), ctypes.c_int(deterministic))
    return written | {"value": written["value"].to(inputs.value.dtype)}


def window_attention(
    qkv: torch.Tensor,
    bias: torch.Tensor,
    padding: torch.Tensor | None,
    window_size: int,
    shift: int,
    output_scale: float | None = None,
    order: int = 0,
) -> torch.Tensor:
    """`msda.window_attention` of valid contiguous tensors; MSDA_WINDOW forces a kernel.

    Returns:
        [N, H, W, C] in qkv's type, or in int8 with output_scale. NaN, or -128 in int8, where the kernel wrote
        nothing.

    Raises:
        EmulatorError, NotSupported: as `forward`.
    """
    num_heads, channels = bias.shape[0], qkv.shape[-1] // 3
    output = _unwritten((*qkv.shape[:3], channels), qkv.dtype if output_scale is None else torch.int8)
    sizes = (*qkv.shape[:3], num_heads, channels // num_heads, window_size, shift)
    problem = _WindowProblem(sizes, TYPES.index(qkv.dtype), output_scale or 0)
    tensors = {"qkv": qkv, "bias": bias, "padding": padding, "output": output}
    _launch("emulated_window_attention", problem, tensors, ctypes.c_uint64(order))
    return output


def group_norm(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, num_groups: int, eps: float, order: int = 0
) -> torch.Tensor:
    """`msda.group_norm` of valid contiguous tensors; MSDA_GROUP_NORM forces a kernel.

    Returns:
        x's shape and type; NaN where the kernel wrote nothing.

    Raises:
        EmulatorError, NotSupported: as `forward`.
    """
    cells = x.flatten(1, -2)
    return group_norm_levels([cells], [weight], [bias], num_groups, eps, order=order).view(x.shape)


def group_norm_levels(
    levels: Sequence[torch.Tensor],
    weights: Sequence[torch.Tensor],
    biases: Sequence[torch.Tensor],
    num_groups: int,
    eps: float,
    next_scale: float | None = None,
    order: int = 0,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """`msda.group_norm_levels` of valid contiguous cells; MSDA_GROUP_NORM forces a kernel.

    Returns:
        Its results; NaN, or -128 in int8, where the kernel wrote nothing.

    Raises:
        EmulatorError, NotSupported: as `forward`.
    """
    images, _, channels = levels[0].shape
    cells = [level.shape[1] for level in levels]
    output = _unwritten((images, sum(cells), channels), levels[0].dtype)
    quantized = None if next_scale is None else _unwritten(output.shape, torch.int8)
    all_cells = (ctypes.c_int64 * MAX_NORM_LEVELS)(*cells)
    sizes = images, len(levels), all_cells, channels, num_groups
    problem = _GroupNormProblem(*sizes, eps, TYPES.index(output.dtype), next_scale or 0.0)
    tensors = {
        f"{name}{i}": tensor
        for i, level in enumerate(zip(levels, weights, biases, strict=True))
        for name, tensor in zip(("x", "weight", "bias"), level, strict=True)
    }
    tensors |= {"output": output, "quantized": quantized}
    _launch("emulated_group_norm", problem, tensors, ctypes.c_uint64(order))
    return output if quantized is None else (output, quantized)


def linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    residual: torch.Tensor | None,
    activation: str,
    mask: torch.Tensor | None = None,
    norm_weight: torch.Tensor | None = None,
    norm_bias: torch.Tensor | None = None,
    eps: float = 1e-5,
    order: int = 0,
) -> torch.Tensor:
    """`msda.linear` of valid contiguous tensors; MSDA_LINEAR forces a kernel.

    Returns:
        [..., N] in x's type; NaN where the kernel wrote nothing.

    Raises:
        EmulatorError, NotSupported: as `forward`.
    """
    output = torch.full((*x.shape[:-1], len(weight)), torch.nan, dtype=x.dtype)
    sizes = math.prod(x.shape[:-1]), x.shape[-1], len(weight)
    switches = residual is not None, mask is not None, norm_weight is not None
    problem = _linear_problem(sizes, (activation, *switches), x.dtype, eps)
    tensors = {"x": x, "weight": weight, "bias": bias, "residual": residual, "mask": mask}
    tensors |= {"norm_weight": norm_weight, "norm_bias": norm_bias, "output": output}
    _launch("emulated_linear", problem, tensors, ctypes.c_uint64(order))
    return output


def linear_max(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, order: int = 0) -> torch.Tensor:
    """`msda.linear_max` of valid contiguous tensors; MSDA_LINEAR_MAX forces a kernel.

    Returns:
        [...] in weight's type; NaN where the kernel wrote nothing.

    Raises:
        EmulatorError, NotSupported: as `forward`.
    """
    output = torch.full(x.shape[:-1], torch.nan, dtype=weight.dtype)
    sizes = output.numel(), x.shape[-1], len(weight)
    problem = _LinearMaxProblem(sizes, TYPES.index(x.dtype))
    tensors = {"x": x, "weight": weight, "bias": bias, "output": output}
    _launch("emulated_linear_max", problem, tensors, ctypes.c_uint64(order))
    return output


def top_k_indices(x: torch.Tensor, count: int, order: int = 0) -> torch.Tensor:
    """`msda.top_k_indices` of a valid contiguous tensor; MSDA_TOP_K forces a kernel.

    Returns:
        [N, K] int32; -1 where the kernel wrote nothing.

    Raises:
        EmulatorError, NotSupported: as `forward`.
    """
    indices = torch.full((len(x), count), -1, dtype=torch.int32)
    problem = _TopKProblem((*x.shape, count))
    _launch("emulated_top_k", problem, {"x": x, "indices": indices}, ctypes.c_uint64(order))
    return indices


def image_input(
    image: torch.Tensor,
    target: torch.Tensor,
    size: tuple[int, int],
    mean: Sequence[float],
    std: Sequence[float],
    bgr: bool = False,
    order: int = 0,
) -> None:
    """`msda.image_input` of valid tensors; the rows of the image may lie apart.

    Raises:
        EmulatorError: as `forward`.
    """
    sizes = *image.shape[:2], image.stride(0), *size, *target.shape[1:]
    problem = ImageInputProblem(*sizes, tuple(mean), tuple(std), bgr, TYPES.index(target.dtype))
    _launch("emulated_image_input", problem, {"image": image, "target": target}, ctypes.c_uint64(order))


def has_fast_linear_max(inputs: int, outputs: int, dtype: torch.dtype) -> bool:
    """Whether the launcher of `linear_max` has a fast kernel on the emulated GPU."""
    problem = _LinearMaxProblem((1, inputs, outputs), TYPES.index(dtype))
    library().has_fast_linear_max.restype = ctypes.c_bool
    return library().has_fast_linear_max(ctypes.byref(problem))


def fastest_linear(
    rows: int, inputs: int, outputs: int, activation: str, residual: bool, masked: bool, normed: bool
) -> str:
    """The name of the kernel that the library chooses for a linear layer on an H200, in float16."""
    form = activation, residual, masked, normed
    problem = _linear_problem((rows, inputs, outputs), form, torch.float16)
    library().fastest_linear.restype = ctypes.c_char_p
    return library().fastest_linear(ctypes.byref(problem)).decode()


def runs_top_k_parts(size: int, count: int) -> bool:
    """Whether the fast kernel of `top_k_indices` can search rows of a length, by top_k_choice.h."""
    library().runs_top_k_parts.restype = ctypes.c_bool
    return library().runs_top_k_parts(ctypes.c_int64(size), ctypes.c_int64(count))


def quantized_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    scale: torch.Tensor,
    bias: torch.Tensor | None,
    residual: torch.Tensor | None,
    activation: str,
    mask: torch.Tensor | None,
    output_scale: float | None,
    dtype: torch.dtype,
    order: int = 0,
) -> torch.Tensor:
    """`msda.quantized_linear` of valid contiguous tensors; MSDA_QUANTIZED_LINEAR forces a kernel.

    Returns:
        [..., N]; NaN, or -128 in int8, where the kernel wrote nothing.

    Raises:
        EmulatorError, NotSupported: as `forward`.
    """
    shape = (*x.shape[:-1], len(weight))
    output = _unwritten(shape, dtype if output_scale is None else x.dtype)
    sizes = math.prod(x.shape[:-1]), x.shape[-1], len(weight)
    form = activation, residual is not None, mask is not None
    problem = _quantized_linear_problem(sizes, form, x.dtype, dtype, output_scale)
    tensors = {"x": x, "weight": weight, "scale": scale, "bias": bias, "residual": residual, "mask": mask}
    tensors["output"] = output
    _launch("emulated_quantized_linear", problem, tensors, ctypes.c_uint64(order))
    return output


def quantized_layer_norm(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    eps: float,
    scale: float,
    dtype: torch.dtype,
    order: int = 0,
) -> torch.Tensor:
    """`msda.quantized_layer_norm` of valid contiguous tensors; MSDA_QUANTIZED_LAYER_NORM forces a kernel.

    Returns:
        [..., C]; NaN, or -128 in int8, where the kernel wrote nothing.

    Raises:
        EmulatorError, NotSupported: as `forward`.
    """
    output = _unwritten(x.shape, dtype)
    sizes = math.prod(x.shape[:-1]), x.shape[-1]
    types = TYPES.index(x.dtype), EIGHT_BIT_TYPES.index(dtype)
    problem = _QuantizedLayerNormProblem(sizes, eps, *types, scale)
    tensors = {"x": x, "weight": weight, "bias": bias, "output": output}
    _launch("emulated_quantized_layer_norm", problem, tensors, ctypes.c_uint64(order))
    return output


def linear_of_sum(
    x: torch.Tensor, addend: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, order: int = 0
) -> torch.Tensor:
    """`msda.linear_of_sum` of valid contiguous tensors; MSDA_LINEAR_OF_SUM forces a kernel.

    Returns:
        [..., N] in x's type; NaN where the kernel wrote nothing.

    Raises:
        EmulatorError, NotSupported: as `forward`.
    """
    output = _unwritten((*x.shape[:-1], len(weight)), x.dtype)
    sizes = math.prod(x.shape[:-1]), x.shape[-1], len(weight)
    problem = _LinearOfSumProblem(sizes, TYPES.index(x.dtype))
    tensors = {"x": x, "addend": addend, "weight": weight, "bias": bias, "output": output}
    _launch("emulated_linear_of_sum", problem, tensors, ctypes.c_uint64(order))
    return output


def feed_forward(
    x: torch.Tensor,
    weight1: torch.Tensor,
    bias1: torch.Tensor,
    weight2: torch.Tensor,
    bias2: torch.Tensor,
    norm_weight: torch.Tensor,
    norm_bias: torch.Tensor,
    eps: float = 1e-5,
    order: int = 0,
) -> torch.Tensor:
    """`msda.feed_forward` of valid contiguous tensors; MSDA_FEED_FORWARD forces a kernel.

    Returns:
        [..., C] in x's type; NaN where the kernel wrote nothing.

    Raises:
        EmulatorError, NotSupported: as `forward`.
    """
    output = _unwritten(x.shape, x.dtype)
    sizes = math.prod(x.shape[:-1]), x.shape[-1], len(weight1)
    problem = _FeedForwardProblem(sizes, eps, TYPES.index(x.dtype))
    tensors = {"x": x, "weight1": weight1, "bias1": bias1, "weight2": weight2, "bias2": bias2}
    tensors |= {"norm_weight": norm_weight, "norm_bias": norm_bias, "output": output}
    _launch("emulated_feed_forward", problem, tensors, ctypes.c_uint64(order))
    return output


def quantized_feed_forward(
    x: torch.Tensor,
    weight1: torch.Tensor,
    scale1: torch.Tensor,
    bias1: torch.Tensor,
    weight2: torch.Tensor,
    scale2: torch.Tensor,
    bias2: torch.Tensor,
    norm_weight: torch.Tensor,
    norm_bias: torch.Tensor,
    x_scale: float,
    hidden_scale: float,
    eps: float,
    next_scale: float | None = None,
    order: int = 0,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """`msda.quantized_feed_forward` of valid contiguous tensors; MSDA_QUANTIZED_FEED_FORWARD forces a kernel.

    Returns:
        Its results; NaN, or -128 in int8, where the kernel wrote nothing.

    Raises:
        EmulatorError, NotSupported: as `forward`.
    """
    output = _unwritten(x.shape, x.dtype)
    quantized = None if next_scale is None else _unwritten(x.shape, torch.int8)
    sizes = math.prod(x.shape[:-1]), x.shape[-1], len(weight1)
    scales = x_scale, hidden_scale, 0.0 if next_scale is None else next_scale
    problem = _QuantizedFeedForwardProblem(sizes, eps, TYPES.index(x.dtype), *scales)
    tensors = {"x": x, "weight1": weight1, "scale1": scale1, "bias1": bias1}
    tensors |= {"weight2": weight2, "scale2": scale2, "bias2": bias2}
    tensors |= {"norm_weight": norm_weight, "norm_bias": norm_bias}
    tensors |= {"output": output, "quantized": quantized}
    _launch("emulated_quantized_feed_forward", problem, tensors, ctypes.c_uint64(order))
    return output if quantized is None else (output, quantized)


def _unwritten(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    return torch.full(shape, -128 if dtype == torch.int8 else torch.nan, dtype=dtype)


def fastest_quantized_linear(
    sizes: tuple[int, int, int], form: tuple[str, bool, bool, bool], eight_bits: torch.dtype
) -> str:
    """The name of the kernel that the library chooses for a layer of 8-bit inputs on an H200.

    Args:
        sizes: M, K, N.
        form: activation, whether there are residual and mask, and whether the result has 8 bits.
        eight_bits: type of the inputs.
    """
    *first, quantized = form
    problem = _quantized_linear_problem(sizes, first, eight_bits, torch.float16, 1.0 if quantized else None)
    library().fastest_quantized_linear.restype = ctypes.c_char_p
    return library().fastest_quantized_linear(ctypes.byref(problem)).decode()


def _quantized_linear_problem(
    sizes: tuple[int, int, int],
    form: Sequence[str | bool],
    eight_bits: torch.dtype,
    dtype: torch.dtype,
    output_scale: float | None,
) -> _QuantizedLinearProblem:
    activation, *switches = form
    return _QuantizedLinearProblem(
        sizes,
        ACTIVATIONS.index(activation),
        (*switches, output_scale is not None),
        EIGHT_BIT_TYPES.index(eight_bits),
        TYPES.index(dtype),
        1.0 if output_scale is None else output_scale,
    )


def _linear_problem(
    sizes: tuple[int, int, int], form: tuple[str, bool, bool, bool], dtype: torch.dtype, eps: float = 1e-5
) -> _LinearProblem:
    activation, *switches = form
    return _LinearProblem(sizes, ACTIVATIONS.index(activation), *switches, TYPES.index(dtype), eps)


def _names(inputs: AttentionInputs | FusedInputs) -> dict[str, str]:
    """The C name of each tensor of the inputs."""
    names = [name for name in INPUTS if isinstance(inputs, FusedInputs) or name != "reference_points"]
    return dict(zip(inputs._fields[:-1], names, strict=True))


def _tensors(inputs: AttentionInputs | FusedInputs, **others: torch.Tensor) -> dict[str, torch.Tensor]:
    """Every tensor of a call by its C name, contiguous."""
    tensors = {c_name: getattr(inputs, name) for name, c_name in _names(inputs).items()} | others
    return {name: tensor.detach().contiguous() for name, tensor in tensors.items()}


def _queries(tensor: torch.Tensor) -> torch.Tensor:
    """[N, Q, ...] as [N * Q, numbers]: without a copy where the kernels need none."""
    shape = (tensor.shape[0] * tensor.shape[1], math.prod(tensor.shape[2:]))
    try:
        queries = tensor.detach().view(shape)
    except RuntimeError:
        queries = tensor.detach().reshape(shape)
    return queries if queries.stride(1) == 1 and queries.stride(0) >= shape[1] else queries.contiguous()


def _stride(tensor: torch.Tensor) -> int:
    """Elements from a query to the next, of `_queries` or of a contiguous [N, Q, ...]."""
    queries = tensor if tensor.dim() == 2 else _queries(tensor)
    return queries.stride(0) if len(queries) > 1 else queries.shape[1]


def _bytes(tensor: torch.Tensor) -> int:
    """From the first element to the last."""
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (last + 1) * tensor.itemsize if tensor.numel() else 0


def _problem(
    inputs: AttentionInputs | FusedInputs, strides: Sequence[int], value_scale: float | None
) -> _Problem:
    """Sizes and types of valid inputs; strides of locations and weights as they are handed on."""
    value, shapes, _, *rest, points = inputs
    locations = GIVEN
    if isinstance(inputs, FusedInputs):
        locations = REFERENCE_POINTS if rest[0].shape[-1] == 2 else REFERENCE_BOXES
    num_levels = shapes.shape[0]
    counts = points if points is not None else [rest[-2].shape[4]] * num_levels
    return _Problem(
        (*value.shape, num_levels, rest[-2].shape[1], sum(counts)),
        tuple(counts),
        locations,
        tuple(TYPES.index(x.dtype) for x in (value if value_scale is None else rest[-2], *rest[-2:])),
        shapes.dtype == torch.int64,
        tuple(strides),
        value_scale is not None,
        1.0 if value_scale is None else value_scale,
    )


def _call(
    function: str,
    inputs: AttentionInputs | FusedInputs,
    tensors: dict[str, torch.Tensor],
    *options: ctypes._SimpleCData,
    value_scale: float | None = None,
) -> None:
    problem = _problem(inputs, [_stride(tensors[name]) for name in STRIDED], value_scale)
    _launch(function, problem, {name: tensors.get(name) for name in TENSORS}, *options)


def _launch(
    function: str,
    problem: ctypes.Structure,
    tensors: Mapping[str, torch.Tensor | None],
    *options: ctypes._SimpleCData,
) -> None:
    """Calls a function of the library with all of its tensors in their order; None is a null pointer."""
    array = (_Tensor * len(tensors))(
        *(
            _Tensor(name.encode()) if x is None else _Tensor(name.encode(), x.data_ptr(), _bytes(x))
            for name, x in tensors.items()
        )
    )
    status = getattr(library(), function)(ctypes.byref(problem), array, *options)
    message = library().emulated_message().decode()
    if status == NOT_SUPPORTED:
        raise NotSupported(message or f"{function}: cudaErrorNotSupported")
    if status:
        raise EmulatorError(message or f"{function}: cudaError_t {status}")
