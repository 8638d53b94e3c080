"""Reads the layers of an engine from the JSON of TensorRT's inspector or of trtexec --exportLayerInfo."""

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
_FLOATS = ("bf16", "fp16", "fp32")  # narrowest first

# Entries of the inspector with an attribute of `Layer`. The others are in `Layer.attributes`.
_KNOWN = {"Name", "LayerType", "Inputs", "Outputs", "Metadata", "TacticName", "TacticValue"}


@dataclass(frozen=True)
class LayerTensor:
    """An input or output of a layer.

    Attributes:
        name: TensorRT's name.
        shape: -1 for a size decided at run time.
        dtype: "fp16", …; "" if the inspector does not tell it.
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
        """Size of all elements; 0 if a size or the type is unknown."""
        count = _BYTES.get(self.dtype, 0)
        for size in self.shape:
            count *= max(size, 0)
        return count


@dataclass(frozen=True)
class Layer:
    """A layer of an engine: a step that TensorRT runs, often many nodes of the model.

    Attributes:
        name: TensorRT's name, unique in an engine.
        type: TensorRT's word, such as "PluginV3", "gemm" or "kgen" (a generated kernel).
        inputs, outputs: tensors.
        tactic: the kernel that the builder chose; "" without one.
        nodes: names of the model's nodes in it.
        weights_bytes: size of its constants and of the weights that the inspector lists with it.
        attributes: the inspector's other entries.
        time_ms: GPU time in milliseconds; None if it was not measured.
        constants: inputs that no layer computes, such as weights.
        index: its position in execution order.
    """

    name: str
    type: str = ""
    inputs: tuple[LayerTensor, ...] = ()
    outputs: tuple[LayerTensor, ...] = ()
    tactic: str = ""
    nodes: tuple[str, ...] = ()
    weights_bytes: int = 0
    attributes: Mapping[str, Any] = field(default_factory=dict)
    time_ms: float | None = None
    constants: tuple[LayerTensor, ...] = ()
    index: int = 0

    @cached_property
    def kind(self) -> str:
        """One of `layer_kinds.LAYER_KINDS`."""
        return layer_kinds.classify(self.name, self.type, self.tactic, self.nodes, self.attributes)

    @cached_property
    def origin(self) -> module_names.Origin:
        """The module of the model that it comes from, and its operators."""
        return module_names.origin_of(self.nodes or (module_names.layer_as_node(self.name),))

    @property
    def title(self) -> str:
        """Its first operators, or TensorRT's type."""
        if self.kind == layer_kinds.MSDA:
            return layer_kinds.MSDA
        shown, more = self.origin.operators[:3], len(self.origin.operators) - 3
        return " ".join(shown) + (f" +{more}" if more > 0 else "") if shown else self.type

    @property
    def is_plugin(self) -> bool:
        """Whether a plugin runs it."""
        return self.type.startswith("Plugin")


def total_ms(layers: Sequence[Layer]) -> float | None:
    """Returns the sum of the layers' times in milliseconds, None if no layer was timed."""
    times = [layer.time_ms for layer in layers if layer.time_ms is not None]
    return sum(times) if times else None


def layers_by_kind(layers: Sequence[Layer]) -> dict[str, list[Layer]]:
    """Returns the layers of each kind that occurs, in the order of `layer_kinds.LAYER_KINDS`."""
    found = {kind: [layer for layer in layers if layer.kind == kind] for kind in layer_kinds.LAYER_KINDS}
    return {kind: members for kind, members in found.items() if members}


@dataclass(frozen=True)
class LayerList:
    """The layers of an engine.

    Attributes:
        layers: in execution order.
        bindings: names of the engine's inputs and outputs.
        detailed: whether the engine was built with detailed profiling verbosity; else it tells names only.
    """

    layers: tuple[Layer, ...]
    bindings: tuple[str, ...] = ()
    detailed: bool = True

    @property
    def plugins(self) -> tuple[Layer, ...]:
        """The layers that plugins run."""
        return tuple(layer for layer in self.layers if layer.is_plugin)

    @property
    def precision(self) -> str | None:
        """The narrowest floating-point type of a tensor or a weight; None if the inspector tells none."""
        tensors = (x for layer in self.layers for x in (*layer.inputs, *layer.constants, *layer.outputs))
        found = {tensor.dtype for tensor in tensors}
        found |= {dtype for layer in self.layers for dtype, _ in _weights(layer.attributes)}
        return next((name for name in _FLOATS if name in found), None)

    @property
    def time_ms(self) -> float | None:
        """Sum of the layers' times in milliseconds, None if no layer was timed."""
        return total_ms(self.layers)

    def with_times(self, times: Mapping[str, float]) -> LayerList:
        """Returns the layers with times.

        Args:
            times: milliseconds by the layer's name.

        Raises:
            EngineError: the times belong to another engine.
        """
        names = {layer.name for layer in self.layers}
        unknown = [name for name in times if name not in names]
        if not times or len(unknown) > len(times) / 2:  # many engines share the names of generated layers
            example = f", such as {unknown[0]}" if unknown else ""
            raise EngineError(
                f"the times belong to another engine: it has no layers of {len(unknown)} of {len(times)} "
                f"names{example}"
            )
        return replace(self, layers=tuple(replace(x, time_ms=times.get(x.name)) for x in self.layers))


def read_file(path: Path) -> LayerList:
    """Reads layers from a file of `trtexec --exportLayerInfo`.

    Raises:
        EngineError: the file cannot be read, or has other content.
    """
    return parse(_read(path), str(path))


def parse(text: str, source: str = "the inspector's answer") -> LayerList:
    """Reads layers from the JSON of TensorRT's inspector.

    Args:
        text: JSON, {"Layers": [...], "Bindings": [...]}.
        source: name of the text in errors.

    Raises:
        EngineError: the text has other content, or lists no layers.
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
    names = tuple(map(str, bindings)) if isinstance(bindings, list) else ()
    if names:
        layers = tuple(_separate_constants(layers, names))
    return LayerList(layers, names, detailed=any(isinstance(entry, dict) for entry in entries))


def read_times(path: Path) -> dict[str, float]:
    """Reads the layers' times from a file of `trtexec --exportProfile`.

    Returns:
        Milliseconds by the layer's name: the median, or the average of older versions.

    Raises:
        EngineError: the file cannot be read, or has other content.
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
        attributes=attributes,
        index=index,
    )


def _separate_constants(layers: Sequence[Layer], bindings: Sequence[str]) -> Iterator[Layer]:
    """Moves the inputs that are no binding and that no layer computes to the constants."""
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
    found = []
    for entry in entries or ():
        # One text up to TensorRT 10, later two.
        words = str(entry.get("Format/Datatype") or "")
        words = words or f"{entry.get('Datatype') or ''} {entry.get('Format') or ''}"
        shape = tuple(int(size) for size in entry.get("Dimensions") or ())
        found.append(LayerTensor(str(entry.get("Name", "")), shape, _dtype(words), _layout(words)))
    return tuple(found)


def _dtype(words: str) -> str:
    found = (name for name, pattern in _DTYPES.items() if re.search(rf"\b({pattern})\b", words.upper()))
    return next(found, "")


def _layout(words: str) -> str:
    """Returns "linear" for row-major, TensorRT's words for channels last and vectorised orders, else ""."""
    if "linear" in words.lower():
        return "linear"
    types = r"\b(N/A|format|[A-Z]*(FP|INT|BF)\d+|Half|Float|BFloat16|Bool)\b"
    return " ".join(re.sub(types, "", words, flags=re.I).split())


def _weights(attributes: Mapping[str, Any]) -> list[tuple[str, int]]:
    """Returns type and number of elements of each array: {"Weights": {"Type": "Half", "Count": 9408}}."""
    return [
        (_dtype(str(value["Type"])), value["Count"])
        for value in attributes.values()
        if isinstance(value, dict) and "Type" in value and isinstance(value.get("Count"), int)
    ]
