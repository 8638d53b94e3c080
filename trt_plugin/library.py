"""Finds `libmsda_trt_plugin.so` and registers its plugins with TensorRT.

Installing the package builds the library where TensorRT and a CUDA compiler are.
"""

from __future__ import annotations

import ctypes
import math
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trt_plugin.engine_error import EngineError, import_tensorrt

NAMESPACE = "msda"
PLUGIN_VERSION = "1"
ATTENTION = "MultiScaleDeformableAttention"
FUSED_ATTENTION = "FusedMultiScaleDeformableAttention"
WINDOW_ATTENTION = "WindowAttention"
GROUP_NORM = "GroupNorm"
GROUP_NORM_LEVELS = "GroupNormLevels"
LINEAR = "Linear"
QUANTIZED_LINEAR = "QuantizedLinear"
QUANTIZED_LAYER_NORM = "QuantizedLayerNorm"
FEED_FORWARD = "FeedForward"
QUANTIZED_FEED_FORWARD = "QuantizedFeedForward"
LINEAR_MAX = "LinearMax"
LINEAR_OF_SUM = "LinearOfSum"
TOP_K_INDICES = "TopKIndices"
OPERATORS = (
    ATTENTION,
    FUSED_ATTENTION,
    WINDOW_ATTENTION,
    GROUP_NORM,
    GROUP_NORM_LEVELS,
    LINEAR,
    QUANTIZED_LINEAR,
    QUANTIZED_LAYER_NORM,
    FEED_FORWARD,
    QUANTIZED_FEED_FORWARD,
    LINEAR_MAX,
    LINEAR_OF_SUM,
    TOP_K_INDICES,
)
LINEAR_TYPES = ("float32", "float16", "bfloat16")
"""Types of linear layers, in the order of msda::DataType."""
EIGHT_BIT_TYPES = ("int8", "fp8")
"""Types of inputs of linear layers, in the order of msda::EightBits."""

_MANY_ROWS = 2**15
FILE_NAME = "libmsda_trt_plugin.so"
ENVIRONMENT_VARIABLE = "MSDA_TRT_PLUGIN"

_lock = threading.Lock()


def library_path() -> Path:
    """Returns the path of the plugin library: $MSDA_TRT_PLUGIN if set, else beside this package.

    Raises:
        EngineError: the file does not exist.
    """
    path = Path(os.environ.get(ENVIRONMENT_VARIABLE) or Path(__file__).with_name(FILE_NAME))
    if not path.is_file():
        raise EngineError(
            f"the TensorRT plugin library {path} does not exist; install the package again where TensorRT's "
            "headers and a CUDA compiler are (TENSORRT_ROOT=... pip install .), or name the library in "
            f"${ENVIRONMENT_VARIABLE}"
        )
    return path


def load() -> Path:
    """Registers the plugins with TensorRT. Further calls do nothing.

    Needs no GPU. Keeps plugins that another loader, such as `polygraphy --plugins`, has registered.

    Returns:
        Path of the library.

    Raises:
        EngineError: TensorRT or the library is missing, or the library cannot be loaded.
    """
    path = library_path()
    trt = import_tensorrt()  # first: it loads libnvinfer, whose registry the library looks for
    registry = trt.get_plugin_registry()
    with _lock:
        if not _missing(registry):
            return path
        _open(path)
        # Opening the library may have registered the plugins. This also gives them TensorRT's logger.
        registry.load_library(str(path))
        if missing := _missing(registry):
            raise EngineError(f"{path} is not this version's plugin library: it registers no {missing[0]}")
    return path


def load_others(paths: Sequence[Path]) -> None:
    """Registers the plugins of other libraries with TensorRT.

    Raises:
        EngineError: TensorRT is missing, or a library cannot be loaded.
    """
    registry = import_tensorrt().get_plugin_registry()
    for path in paths:
        before = len(registry.all_creators)
        _open(path.absolute())
        if len(registry.all_creators) == before:  # opening it has registered nothing
            registry.load_library(str(path.absolute()))


def has_fast_linear(
    inputs: int, outputs: int, activation: int, residual: bool, masked: bool, normed: bool, dtype: str
) -> bool:
    """Returns whether the plugin `Linear` is as fast as TensorRT's own products on the current GPU.

    Args:
        inputs, outputs: K and N of the layer.
        activation, residual, masked, normed: fields of the plugin.
        dtype: one of `LINEAR_TYPES`.

    Raises:
        EngineError: as `load`.
    """
    function, sizes = ctypes.CDLL(str(load())).msda_has_fast_linear, (inputs, outputs)
    return _answer(function, sizes, activation, residual, masked, normed, LINEAR_TYPES.index(dtype))


def has_fast_linear_max(inputs: int, outputs: int, dtype: str) -> bool:
    """Returns whether the plugin `LinearMax` has a fast kernel for a layer on the current GPU.

    Args:
        inputs, outputs: K and N of the layer.
        dtype: x's type, one of `LINEAR_TYPES`.

    Raises:
        EngineError: as `load`.
    """
    function = ctypes.CDLL(str(load())).msda_has_fast_linear_max
    return _answer(function, (inputs, outputs), LINEAR_TYPES.index(dtype))


def has_fast_quantized_linear(
    inputs: int, outputs: int, residual: bool, masked: bool, quantized_output: bool, eight_bits: str
) -> bool:
    """Returns whether the plugin `QuantizedLinear` has a fast kernel for a layer on the current GPU.

    Args:
        inputs, outputs: K and N of the layer.
        residual, masked: fields of the plugin.
        quantized_output: whether the result has 8 bits.
        eight_bits: one of `EIGHT_BIT_TYPES`.

    Raises:
        EngineError: as `load`.
    """
    function, sizes = ctypes.CDLL(str(load())).msda_has_fast_quantized_linear, (inputs, outputs)
    return _answer(function, sizes, residual, masked, quantized_output, EIGHT_BIT_TYPES.index(eight_bits))


def rows_of_layer(sizes: Sequence[object]) -> int:
    """Returns the number of rows of a layer or block by which a build decides, where sizes may be dynamic.

    A dynamic batch counts as one image. A dynamic number of rows of an image counts as many. It is that of an
    encoder, whose rows are the cells of images; the queries of a decoder are fixed.

    Args:
        sizes: those of x [..., C] but the last. A size that is no int is dynamic.
    """
    if not all(isinstance(size, int) for size in sizes[1:]):
        return _MANY_ROWS
    return math.prod(size for size in sizes if isinstance(size, int))


def has_fast_linear_of_sum(rows: int, inputs: int, outputs: int) -> bool:
    """Returns whether the plugin `LinearOfSum` is faster than a sum and a layer on the current GPU.

    Args:
        rows, inputs, outputs: M, K and N of the layer, in 16 bits.

    Raises:
        EngineError: as `load`.
    """
    function = ctypes.CDLL(str(load())).msda_has_fast_linear_of_sum
    return _answer(function, (rows, inputs, outputs))


def has_fast_feed_forward(rows: int, channels: int, hidden: int) -> bool:
    """Returns whether the plugin `FeedForward` is faster than two layers in 16 bits on the current GPU.

    Args:
        rows, channels, hidden: M, C and H of the block.

    Raises:
        EngineError: as `load`.
    """
    function = ctypes.CDLL(str(load())).msda_has_fast_feed_forward
    return _answer(function, (rows, channels, hidden))


def has_fast_quantized_feed_forward(rows: int, channels: int, hidden: int) -> bool:
    """Returns whether the plugin `QuantizedFeedForward` is faster than two layers on the current GPU.

    Arguments and errors are those of `has_fast_feed_forward`.
    """
    function = ctypes.CDLL(str(load())).msda_has_fast_quantized_feed_forward
    return _answer(function, (rows, channels, hidden))


def _answer(function: Any, sizes: tuple[int, ...], *options: bool | int) -> bool:
    """Calls a function of C that takes sizes in 64 bits, then switches and numbers, and tells yes or no."""
    function.restype = ctypes.c_bool
    options = (ctypes.c_bool(x) if isinstance(x, bool) else x for x in options)
    return function(*map(ctypes.c_int64, sizes), *options)


def _open(path: Path) -> None:
    try:
        ctypes.CDLL(str(path))
    except OSError as error:
        raise EngineError(f"the plugin library {path} cannot be loaded: {error}") from error


def _missing(registry: object) -> list[str]:
    return [name for name in OPERATORS if registry.get_creator(name, PLUGIN_VERSION, NAMESPACE) is None]
