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

NvtxRange = Callable[[str], AbstractContextManager]
"""Names a block of code in Nsight Systems' timeline."""


class LayerTimes:
    """Collects the times that the profiler reports.

    Attributes:
        profiler: the profiler, to be set as an execution context's.
        runs: for each run, milliseconds by the layer's name.
    """

    def __init__(self) -> None:
        trt = import_tensorrt()
        self.runs: list[dict[str, float]] = []
        collected = self

        class Profiler(trt.IProfiler):
            def __init__(self) -> None:
                trt.IProfiler.__init__(self)

            def report_layer_time(self, layer_name: str, ms: float) -> None:
                run = collected.runs[-1]
                run[layer_name] = run.get(layer_name, 0.0) + ms

        self.profiler: trt.IProfiler = Profiler()

    def begin_run(self) -> None:
        """Assigns all further reports to a new run."""
        self.runs.append({})


def nvtx_ranges(wanted: bool) -> NvtxRange:
    """Returns a function that makes ranges. If they are not wanted, its ranges do nothing.

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
