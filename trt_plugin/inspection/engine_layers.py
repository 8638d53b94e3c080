"""Layers of an engine, read from the JSON of TensorRT's inspector (or of trtexec --exportLayerInfo)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from trt_plugin.engine_error import EngineError
from trt_plugin.inspection import layer_kinds, module_names

# TensorRT's words for types, in "Row major linear FP16 format" as in "Half", and ours.
_DTYPES = {
    "fp8": "FP8|FLOAT8|FP8E4M3",
    "bf16": "BF16|BFLOAT16",
    "fp16": "FP16|HALF",
    "fp32": "FP32|FLOAT",
    "int64": "INT64",
    "int32": "INT32",
    "uint8": "UINT8",
    "int8": "INT8",
    "int4": "INT4",
    "bool": "BOOL",
}
_BYTES = {"fp8": 1, "bf16": 2, "fp16": 2, "fp32": 4, "int64": 8, "int32": 4, "uint8": 1, "int8": 1, "bool": 1}
FLOATS = ("bf16", "fp16", "fp32")
"""Narrowest first: the precision of an engine is the first of them that one of its layers has."""

# What a layer is described by otherwise.
_KNOWN = {"Name", "LayerType", "Inputs", "Outputs", "Metadata", "TacticName", "TacticValue", "StreamId"}


@dataclass(frozen=True)
class LayerTensor:
    """An input or output of a layer.

    Attributes:
        name: TensorRT's.
        shape: -1 for a size decided at run time.
        dtype: "fp16", …; "" if the inspector does not say it.
        layout: "linear", or TensorRT's words for another order of the elements; "" if unknown.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    layout: str = ""

    def __str__(self) -> str:
        size = "x".join("?" if size < 0 else str(size) for size in self.shape)
        layout = self.layout if self.layout != "linear" else ""
        return " ".join(filter(None, (size or "scalar", self.dtype, layout)))

    @property
    def num_bytes(self) -> int:
        """Of all elements; 0 where a size or the type is unknown."""
        count = _BYTES.get(self.dtype, 0)
        for size in self.shape:
            count *= max(size, 0)
        return count


@dataclass(frozen=True)
class Layer:
    """A layer of an engine: what TensorRT runs as one step, often many nodes of the model.

    Attributes:
        name: TensorRT's, unique in an engine.
        type: TensorRT's word, such as "PluginV3", "gemm" or "kgen" (a generated kernel).
        inputs, outputs: tensors.
        constants: inputs that no layer computes, weights above all.
        tactic: the kernel that the builder chose, "" if it has none.
        nodes: names of the model's nodes in it.
        weights_bytes: of its constants, and of the weights that the inspector lists with it.
        stream: number of the stream that it runs on.
        attributes: all else that the inspector says.
        time_ms: GPU time of a run, None if it was not measured.
        index: its place among the layers.
    """

    name: str
    type: str = ""
    inputs: tuple[LayerTensor, ...] = ()
    outputs: tuple[LayerTensor, ...] = ()
    tactic: str = ""
    nodes: tuple[str, ...] = ()
    weights_bytes: int = 0
    stream: int = 0
    attributes: Mapping[str, Any] = field(default_factory=dict)
    time_ms: float | None = None
    constants: tuple[LayerTensor, ...] = ()
    index: int = 0

    @cached_property
    def kind(self) -> str:
        """One of `layer_kinds.KINDS`."""
        return layer_kinds.classify(self.name, self.type, self.tactic, self.nodes, self.attributes)

    @cached_property
    def origin(self) -> module_names.Origin:
        """Where in the model it comes from."""
        return module_names.origin_of(self.nodes or (module_names.layer_as_node(self.name),))

    @property
    def title(self) -> str:
        """What it computes, in a few words: the first operators, or TensorRT's type."""
        if self.kind == layer_kinds.MSDA:
            return layer_kinds.MSDA
        shown, more = self.origin.operators[:3], len(self.origin.operators) - 3
        return " ".join(shown) + (f" +{more}" if more > 0 else "") if shown else self.type

    @property
    def is_plugin(self) -> bool:
        """Whether its kernel comes from a plugin."""
        return self.type.startswith("Plugin")

    @property
    def dtype(self) -> str:
        """Type of its first output, "" if unknown."""
        return next((tensor.dtype for tensor in self.outputs), "")


@dataclass(frozen=True)
class LayerList:
    """The layers of an engine.

    Attributes:
        layers: in the order in which they run.
        bindings: names of the engine's inputs and outputs.
        detailed: whether the engine was built with detailed profiling verbosity; else there are names only.
    """

    layers: tuple[Layer, ...]
    bindings: tuple[str, ...] = ()
    detailed: bool = True

    @property
    def plugins(self) -> tuple[Layer, ...]:
        """Those that are plugins."""
        return tuple(layer for layer in self.layers if layer.is_plugin)

    @property
    def weights_bytes(self) -> int:
        """Of all weights and constants, each once."""
        constants = {tensor.name: tensor.num_bytes for layer in self.layers for tensor in layer.constants}
        listed = (layer.weights_bytes - sum(x.num_bytes for x in layer.constants) for layer in self.layers)
        return sum(constants.values()) + sum(listed)

    @property
    def precision(self) -> str | None:
        """The narrowest floating-point type of a tensor or a weight, None if none is said."""
        found = {tensor.dtype for layer in self.layers for tensor in _all_tensors(layer)}
        found |= {dtype for layer in self.layers for dtype, _ in _weights(layer.attributes)}
        return next((name for name in FLOATS if name in found), None)

    @property
    def time_ms(self) -> float | None:
        """The sum of the layers' times, None if none was measured."""
        times = [layer.time_ms for layer in self.layers if layer.time_ms is not None]
        return sum(times) if times else None

    def with_times(self, times: Mapping[str, float]) -> LayerList:
        """The same with times, milliseconds by the layer's name.

        Raises:
            EngineError: they are those of another engine.
        """
        names = {layer.name for layer in self.layers}
        unknown = [name for name in times if name not in names]
        if not times or len(unknown) > len(times) / 2:  # generated names are the same in many engines
            example = f", {unknown[0]} for one" if unknown else ""
            raise EngineError(
                f"the times are those of another engine: {len(unknown)} of {len(times)} names are no layer's "
                f"of this one{example}"
            )
        return replace(self, layers=tuple(replace(x, time_ms=times.get(x.name)) for x in self.layers))


def read_file(path: Path) -> LayerList:
    """Reads layers from a file.

    Raises:
        EngineError: it is not what the inspector writes.
    """
    return parse(_read(path), str(path))


def parse(text: str, source: str = "the inspector's answer") -> LayerList:
    """Reads what the inspector says of an engine.

    Args:
        text: JSON, {"Layers": [...], "Bindings": [...]}.
        source: for errors.

    Raises:
        EngineError: it is something else, or says nothing of layers.
    """
    content = _load(text, source)
    entries = content.get("Layers") if isinstance(content, dict) else None
    if not isinstance(entries, list) or not all(isinstance(entry, (str, dict)) for entry in entries):
        raise EngineError(
            f'{source}: expected {{"Layers": [...]}}, as TensorRT\'s inspector and trtexec --exportLayerInfo '
            "write it"
        )
    if not entries:
        raise EngineError(
            f"{source} lists no layers: the engine was built with profiling verbosity NONE; build it with "
            "DETAILED (trtexec --profilingVerbosity=detailed)"
        )
    try:
        layers = tuple(_layer(entry, index) for index, entry in enumerate(entries))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise EngineError(f"{source}: a layer is not as TensorRT writes it ({error!r})") from error
    bindings = content.get("Bindings")
    names = tuple(str(name) for name in bindings) if isinstance(bindings, list) else ()
    if names:
        layers = tuple(_constants_apart(layers, names))
    return LayerList(layers, names, detailed=any(isinstance(entry, dict) for entry in entries))


def read_times(path: Path) -> dict[str, float]:
    """Milliseconds of layers by name, from a file of trtexec --exportProfile.

    Raises:
        EngineError: it is something else.
    """
    content = _load(_read(path), str(path))
    try:
        rows = [row for row in content if "name" in row]
        times = {row["name"]: float(row.get("medianMs", row["averageMs"])) for row in rows}
    except (KeyError, TypeError, ValueError):
        times = {}
    if not times:
        raise EngineError(
            f'{path}: expected [{{"name": ..., "averageMs": ...}}, ...], as trtexec --exportProfile writes it'
        )
    return times


def _all_tensors(layer: Layer) -> tuple[LayerTensor, ...]:
    return (*layer.inputs, *layer.constants, *layer.outputs)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise EngineError(f"{path} cannot be read: {error.strerror or error}") from error


def _load(text: str, source: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise EngineError(f"{source} is not JSON: {error}") from error


def _layer(entry: str | dict, index: int) -> Layer:
    if isinstance(entry, str):
        return Layer(entry, index=index)
    attributes = {key: value for key, value in entry.items() if key not in _KNOWN}
    return Layer(
        name=str(entry.get("Name", "")),
        type=str(entry.get("LayerType", "")),
        inputs=_tensors(entry.get("Inputs")),
        outputs=_tensors(entry.get("Outputs")),
        tactic=str(entry.get("TacticName") or ""),
        nodes=module_names.node_names(str(entry.get("Metadata") or "")),
        weights_bytes=sum(_BYTES.get(dtype, 0) * count for dtype, count in _weights(attributes)),
        stream=int(entry.get("StreamId") or 0),
        attributes=attributes,
        index=index,
    )


def _constants_apart(layers: Sequence[Layer], bindings: Sequence[str]) -> Iterator[Layer]:
    """The layers with what no layer computes and nobody gives taken from their inputs."""
    computed = {tensor.name for layer in layers for tensor in layer.outputs}.union(bindings)
    for layer in layers:
        constants = tuple(tensor for tensor in layer.inputs if tensor.name not in computed)
        yield replace(
            layer,
            inputs=tuple(tensor for tensor in layer.inputs if tensor.name in computed),
            constants=constants,
            weights_bytes=layer.weights_bytes + sum(tensor.num_bytes for tensor in constants),
        )


def _tensors(entries: Sequence[dict] | None) -> tuple[LayerTensor, ...]:
    return tuple(
        LayerTensor(
            name=str(entry.get("Name", "")),
            shape=tuple(int(size) for size in entry.get("Dimensions") or ()),
            # Up to TensorRT 10 in one text, then in two.
            dtype=_dtype(_format(entry)),
            layout=_layout(_format(entry)),
        )
        for entry in entries or ()
    )


def _format(entry: dict) -> str:
    if "Format/Datatype" in entry:
        return str(entry["Format/Datatype"])
    return f"{entry.get('Datatype') or ''} {entry.get('Format') or ''}"


def _dtype(words: str) -> str:
    found = (name for name, pattern in _DTYPES.items() if re.search(rf"\b({pattern})\b", words.upper()))
    return next(found, "")


def _layout(words: str) -> str:
    """Channels last or vectorised orders in TensorRT's words, "linear" for row-major, else ""."""
    if "linear" in words.lower():
        return "linear"
    described = re.sub(
        r"\b(N/A|format|[A-Z]*(FP|INT|BF)\d+|Half|Float|BFloat16|Bool)\b", "", words, flags=re.I
    )
    return " ".join(described.split())


def _weights(attributes: Mapping[str, Any]) -> list[tuple[str, int]]:
    """Type and number of each array of weights: {"Weights": {"Type": "Half", "Count": 9408}}."""
    found = []
    for value in attributes.values():
        if isinstance(value, dict) and "Type" in value and isinstance(value.get("Count"), int):
            found.append((_dtype(str(value["Type"])), value["Count"]))
    return found
