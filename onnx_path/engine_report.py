"""What an engine turned out to be: size, layers, plugins, memory, inputs and outputs. Needs a GPU.

`python -m trt_plugin.inspect` tells more.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from trt_plugin.inspection.engine_summary import TensorReport
from trt_plugin.inspection.text_report import format_bytes

__all__ = ["EngineReport", "TensorReport", "format_bytes", "read_engine"]


@dataclass(frozen=True)
class EngineReport:
    """An engine that was loaded.

    Attributes:
        engine_bytes: size of its file.
        device_memory_bytes: what a context needs for intermediate results, at the largest shapes.
        layers: their number.
        plugin_layers: names of those that are plugins.
        inputs, outputs: in the engine's order.
        tensorrt_version, gpu: that loaded it.
        precision: of `trt_plugin.inspection.engine_layers.LayerList`.
    """

    engine_bytes: int
    device_memory_bytes: int
    layers: int
    plugin_layers: tuple[str, ...]
    inputs: tuple[TensorReport, ...]
    outputs: tuple[TensorReport, ...]
    tensorrt_version: str
    gpu: str
    precision: str | None = None

    def rows(self) -> list[tuple[str, str]]:
        """Name and value of each thing, for a table."""
        return [
            ("engine", format_bytes(self.engine_bytes)),
            ("device memory", format_bytes(self.device_memory_bytes)),
            ("layers", f"{self.layers}, {len(self.plugin_layers)} of plugins"),
            *((f"input {tensor.name}", str(tensor)) for tensor in self.inputs),
            *((f"output {tensor.name}", str(tensor)) for tensor in self.outputs),
            ("TensorRT", self.tensorrt_version),
            ("GPU", self.gpu),
        ]


def read_engine(path: Path) -> EngineReport:
    """Loads an engine and reports on it.

    Raises:
        trt_plugin.EngineError: it cannot be loaded.
    """
    from trt_plugin.inspection import engine_summary

    summary, layers, _ = engine_summary.read_engine(path)
    return EngineReport(
        engine_bytes=summary.engine_bytes,
        device_memory_bytes=summary.device_memory_bytes,
        layers=summary.layers,
        plugin_layers=tuple(layer.name for layer in layers.plugins) if layers else (),
        inputs=summary.inputs,
        outputs=summary.outputs,
        tensorrt_version=summary.tensorrt_version,
        gpu=summary.gpu,
        precision=layers.precision if layers else None,
    )
