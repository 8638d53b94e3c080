"""What an engine turned out to be: size, layers, plugins, memory, inputs and outputs. Needs a GPU."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trt_plugin.tensors import DTYPE_NAMES, format_range, format_shape

if TYPE_CHECKING:
    import tensorrt as trt

# The inspector's words, as in "Row major linear FP16 format" and "Half".
_TYPE_WORDS = {"bf16": "BF16|BFloat16", "fp16": "FP16|Half", "fp32": "FP32|Float"}


@dataclass(frozen=True)
class TensorReport:
    """An input or output.

    Attributes:
        name: of it.
        shape: -1 where it is decided at run time.
        dtype: name of the type, as NumPy's or "bfloat16".
        min, opt, max: of a dynamic input's profile, else None.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    min: tuple[int, ...] | None = None
    opt: tuple[int, ...] | None = None
    max: tuple[int, ...] | None = None

    def __str__(self) -> str:
        if self.min is None or self.max is None:
            return f"{format_shape(self.shape)} {self.dtype}"
        return f"{format_range(self.min, self.max)} {self.dtype}, best at {format_shape(self.opt or ())}"


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
        precision: see `read_precision`.
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
    from trt_plugin.device import gpu_name
    from trt_plugin.engine import load_engine
    from trt_plugin.errors import import_tensorrt

    trt = import_tensorrt()
    runtime, engine = load_engine(path)
    inspector = engine.create_engine_inspector()
    information = inspector.get_engine_information(trt.LayerInformationFormat.JSON)
    layers, plugins = read_layers(information)
    names = [engine.get_tensor_name(i) for i in range(engine.num_io_tensors)]
    inputs = [name for name in names if engine.get_tensor_mode(name) == trt.TensorIOMode.INPUT]
    report = EngineReport(
        engine_bytes=path.stat().st_size,
        device_memory_bytes=int(engine.device_memory_size_v2),
        layers=layers,
        plugin_layers=tuple(plugins),
        inputs=tuple(_describe(engine, name, is_input=True) for name in inputs),
        outputs=tuple(_describe(engine, name, is_input=False) for name in names if name not in inputs),
        tensorrt_version=trt.__version__,
        gpu=gpu_name(),
        precision=read_precision(information),
    )
    del inspector, engine, runtime  # in this order
    return report


def read_layers(information: str) -> tuple[int, list[str]]:
    """Reads what TensorRT's inspector says of an engine as JSON.

    Returns:
        The number of layers, and the names of those that are plugins.
    """
    layers: list[Any] = json.loads(information).get("Layers", [])
    described = [layer for layer in layers if isinstance(layer, dict)]
    plugins = [layer["Name"] for layer in described if str(layer.get("LayerType", "")).startswith("Plugin")]
    return len(layers), plugins


def read_precision(information: str) -> str | None:
    """Reads the narrowest floating-point type of layers' tensors and weights from what the inspector says.

    Args:
        information: as `read_layers`'s; only engines of detailed profiling verbosity say types.

    Returns:
        "bf16", "fp16", "fp32" (TF32 too, which is no type of a tensor), or None if it says none of them.
    """
    types = " ".join(_types(json.loads(information).get("Layers", [])))
    return next((name for name, words in _TYPE_WORDS.items() if re.search(rf"\b({words})\b", types)), None)


def format_bytes(number: int) -> str:
    """1.5 MiB for 1572864."""
    size, unit = float(number), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if size < 1024:
            break
        size, unit = size / 1024, larger
    return f"{number} B" if unit == "B" else f"{size:.1f} {unit}"


def _types(part: Any) -> Iterator[str]:
    """The types and formats of all tensors and weights in a part of what the inspector says."""
    if isinstance(part, list):
        for item in part:
            yield from _types(item)
    elif isinstance(part, dict):
        for key, item in part.items():
            # Tensors have "Format/Datatype" up to TensorRT 10, "Datatype" later, and weights "Type".
            if key in ("Format/Datatype", "Datatype", "Type") and isinstance(item, str):
                yield item
            else:
                yield from _types(item)


def _describe(engine: trt.ICudaEngine, name: str, is_input: bool) -> TensorReport:
    shape = tuple(engine.get_tensor_shape(name))
    dtype = DTYPE_NAMES.get(engine.get_tensor_dtype(name).name, engine.get_tensor_dtype(name).name.lower())
    if not is_input or -1 not in shape:
        return TensorReport(name, shape, dtype)
    return TensorReport(name, shape, dtype, *(tuple(x) for x in engine.get_tensor_profile_shape(name, 0)))
