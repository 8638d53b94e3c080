"""Measures an engine's layers with TensorRT's profiler, and names steps for Nsight Systems."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from trt_plugin.engine_error import EngineError, import_tensorrt

if TYPE_CHECKING:
    import tensorrt as trt


def layer_profiler(runs: list[dict[str, float]]) -> trt.IProfiler:
    """Returns a profiler that adds the layers' milliseconds to the last of some runs, by the layer's name."""
    trt = import_tensorrt()

    class Profiler(trt.IProfiler):
        def __init__(self) -> None:
            trt.IProfiler.__init__(self)

        def report_layer_time(self, layer_name: str, ms: float) -> None:
            runs[-1][layer_name] = runs[-1].get(layer_name, 0.0) + ms

    return Profiler()


def nvtx_ranges(wanted: bool) -> Callable[[str], AbstractContextManager]:
    """Returns a function that names a block of code in Nsight Systems' timeline, if names are wanted.

    Raises:
        EngineError: the package nvtx is missing.
    """
    if not wanted:
        return lambda name: contextlib.nullcontext()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import nvtx
    except ImportError as error:
        raise EngineError(
            f"NVTX ranges need the package nvtx ({error}): pip install 'codetr-tensorrt[profile]'"
        ) from error
    return lambda name: nvtx.annotate(name, domain="trt_plugin")
