"""Finds `libmsda_trt_plugin.so` and registers its plugins with TensorRT.

The library comes with the package when it was installed on a machine that has TensorRT and a CUDA compiler.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Sequence
from pathlib import Path

from trt_plugin.engine_error import EngineError, import_tensorrt

NAMESPACE = "msda"
PLUGIN_VERSION = "1"
OPERATORS = ("MultiScaleDeformableAttention", "FusedMultiScaleDeformableAttention")

FILE_NAME = "libmsda_trt_plugin.so"
ENVIRONMENT_VARIABLE = "MSDA_TRT_PLUGIN"

_lock = threading.Lock()


def library_path() -> Path:
    """Path of the plugin library: $MSDA_TRT_PLUGIN if set, else beside this package.

    Raises:
        EngineError: the file does not exist.
    """
    chosen = os.environ.get(ENVIRONMENT_VARIABLE)
    path = Path(chosen) if chosen else Path(__file__).with_name(FILE_NAME)
    if path.is_file():
        return path
    if chosen:
        raise EngineError(
            f"the TensorRT plugin library {path}, named by ${ENVIRONMENT_VARIABLE}, does not exist"
        )
    raise EngineError(
        f"the TensorRT plugin library {path} does not exist; install the package again where TensorRT's "
        "headers and a CUDA compiler are (TENSORRT_ROOT=... pip install .), or set "
        f"${ENVIRONMENT_VARIABLE} to the library"
    )


def load() -> Path:
    """Registers the plugins with TensorRT; calling it again does nothing.

    Needs no GPU. Plugins that another loader (such as `polygraphy --plugins`) has registered are kept.

    Returns:
        Path of the library.

    Raises:
        EngineError: TensorRT or the library is missing, or the library cannot be loaded.
    """
    path = library_path()
    trt = import_tensorrt()  # first: it brings libnvinfer, which the library is linked to
    registry = trt.get_plugin_registry()
    with _lock:
        if _registered(registry):
            return path
        try:
            ctypes.CDLL(str(path))
        except OSError as error:
            raise EngineError(f"the TensorRT plugin library {path} cannot be loaded: {error}") from error
        # Opening it may have registered the plugins already. This hands them TensorRT's logger as well.
        registry.load_library(str(path))
        if not _registered(registry):
            raise EngineError(f"{path} is not this project's plugin library: it registers no {OPERATORS[0]}")
    return path


def load_others(paths: Sequence[Path]) -> None:
    """Registers the plugins of other libraries with TensorRT.

    Raises:
        EngineError: TensorRT is missing, or a library cannot be loaded.
    """
    registry = import_tensorrt().get_plugin_registry()
    for path in paths:
        before = len(registry.all_creators)
        try:
            ctypes.CDLL(str(path.absolute()))
        except OSError as error:
            raise EngineError(f"--plugins {path}: cannot be loaded ({error})") from error
        if len(registry.all_creators) == before:  # it does not register itself when it is opened
            registry.load_library(str(path.absolute()))


def _registered(registry: object) -> bool:
    return all(registry.get_creator(name, PLUGIN_VERSION, NAMESPACE) is not None for name in OPERATORS)
