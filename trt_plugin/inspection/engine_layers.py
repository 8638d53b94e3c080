"""Reads the layers of an engine from the JSON of TensorRT's inspector or of trtexec --exportLayerInfo."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, get_args

from trt_plugin.engine_error import EngineError
from trt_plugin.inspection import layer_kinds, module_names
from trt_plugin.metadata import EightBits

EIGHT_BITS = get_args(EightBits)

# TensorRT's words for types, in "Row major linear FP16 format" as in "Half", and bytes of an element.
_DTYPES = {
    "fp8": ("FP8|FLOAT8|FP8E4M3", 1),
    "bf16": ("BF16|BFLOAT16", 2),
    "fp16": ("FP16|HALF", 2),
    "fp32": ("FP32|FLOAT", 4),
    "int64": ("INT64", 8),
    "int32": ("INT32", 4),
    "uint8": ("UINT8", 1),
    "int8": ("INT8", 1),
    "int4": ("INT4", 0.5),
    "bool": ("BOOL", 1),
}
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
        return _num_bytes(self.dtype, math.prod(max(size, 0) for size in self.shape))


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
        time_ms: GPU time in milliseconds; 0 if it was not measured.
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
    time_ms: float = 0.0
    constants: tuple[LayerTensor, ...] = ()
    index: int = 0

    @cached_property
    def kind(self) -> str:
        """One of `layer_kinds.LAYER_KINDS`."""
        return layer_kinds.classify(self.name, self.type, self.tactic, self.nodes, self.attributes)

    @property
    def eight_bits(self) -> str:
        """The 8-bit type of the numbers that a matrix product or convolution multiplies; "" without one."""
        narrow = (tensor.dtype for tensor in self.inputs if tensor.dtype in EIGHT_BITS)
        return next(narrow, "") if self.kind == layer_kinds.GEMM else ""

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
    def place(self) -> str:
        """Its module and first operators."""
        return f"{module_names.path_text(self.origin.path)}: {self.title}"


def total_ms(layers: Sequence[Layer]) -> float:
    """Returns the sum of the layers' times in milliseconds."""
    return sum(layer.time_ms for layer in layers)


def layers_by_kind(layers: Sequence[Layer]) -> dict[str, list[Layer]]:
    """Returns the layers of each kind that occurs, in the order of `layer_kinds.LAYER_KINDS`."""
    found = {kind: [layer for layer in layers if layer.kind == kind] for kind in layer_kinds.LAYER_KINDS}
    return {kind: members for kind, members in found.items() if members}


@dataclass(frozen=True)
class LayerList:
    """The layers of an engine.

    Attributes:
        layers: in execution order.
        detailed: whether the engine was built with detailed profiling verbosity; else it tells names only.
    """

    layers: tuple[Layer, ...]
    detailed: bool = True

    @property
    def plugins(self) -> tuple[Layer, ...]:
        """The layers that plugins run."""
        return tuple(layer for layer in self.layers if layer.type.startswith("Plugin"))

    @property
    def precision(self) -> str | None:
        """The 8-bit type of products, else the narrowest type of a tensor or weight; None if unknown."""
        return next(iter(self.precisions), None)

    @property
    def precisions(self) -> tuple[str, ...]:
        """The 8-bit types of products, then the narrowest floating-point type of a tensor or a weight."""
        products = {layer.eight_bits for layer in self.layers}
        tensors = (x for layer in self.layers for x in (*layer.inputs, *layer.constants, *layer.outputs))
        found = {tensor.dtype for tensor in tensors}
        found |= {dtype for layer in self.layers for dtype, _ in _weights(layer.attributes)}
        floats = [name for name in _FLOATS if name in found][:1]
        return (*(name for name in EIGHT_BITS if name in products), *floats)

    @property
    def time_ms(self) -> float:
        """Sum of the layers' times in milliseconds; 0 if they were not measured."""
        return total_ms(self.layers)

    def slowest(self, most: int) -> list[Layer]:
        """Returns the layers that take longest, the slowest first."""
        return sorted(self.layers, key=lambda layer: -layer.time_ms)[:most]

    def with_times(self, times: Mapping[str, float]) -> LayerList:
        """Returns the layers with times, milliseconds by the layer's name.

        Raises:
            EngineError: the times belong to another engine.
        """
        unknown = times.keys() - {layer.name for layer in self.layers}
        if not times or len(unknown) > len(times) / 2:  # many engines share the names of generated layers
            raise EngineError(
                f"the times belong to another engine: it has no layers of {len(unknown)} of {len(times)} "
                f"names{f', such as {min(unknown)}' if unknown else ''}"
            )
        return replace(self, layers=tuple(replace(x, time_ms=times.get(x.name, 0.0)) for x in self.layers))


def read_file(path: Path) -> LayerList:
    """Reads layers from a file of `trtexec --exportLayerInfo`, see `parse`."""
    return parse(path.read_text(encoding="utf-8", errors="replace"), str(path))


def parse(text: str, source: str = "the inspector's answer") -> LayerList:
    """Reads layers from the JSON of TensorRT's inspector, {"Layers": [...], "Bindings": [...]}.

    Raises:
        EngineError: the text has other content; the message names its source.
    """
    try:
        content = json.loads(text)
        entries, bindings = content["Layers"], tuple(content.get("Bindings") or ())
        detailed = [entry for entry in entries if not isinstance(entry, str)]
        outputs = (tensor for entry in detailed for tensor in entry.get("Outputs") or ())
        # Without the engine's inputs, a layer's constants look like them.
        computed = {*bindings, *(tensor.get("Name") for tensor in outputs)} if bindings else None
        layers = tuple(_layer(entry, index, computed) for index, entry in enumerate(entries))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise EngineError(
            f'{source}: expected {{"Layers": [...]}}, as TensorRT\'s inspector and trtexec --exportLayerInfo '
            f"write it, got {error!r}"
        ) from error
    return LayerList(layers, bool(detailed))


def read_times(path: Path) -> dict[str, float]:
    """Reads the layers' times from a file of `trtexec --exportProfile`.

    Returns:
        Milliseconds by the layer's name: the median, or the average of older versions.

    Raises:
        EngineError: the file has other content.
    """
    try:
        rows = [row for row in json.loads(path.read_bytes()) if row.get("name")]
        return {row["name"]: float(row.get("medianMs", row["averageMs"])) for row in rows}
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise EngineError(
            f'{path}: expected [{{"name": ..., "averageMs": ...}}, ...], as trtexec --exportProfile writes '
            f"it, got {error!r}"
        ) from error


def _layer(entry: str | dict, index: int, computed: set[str] | None) -> Layer:
    """Reads a layer. Inputs that are not among the computed tensors are its constants."""
    if isinstance(entry, str):
        return Layer(entry, index=index)
    attributes = {key: value for key, value in entry.items() if key not in _KNOWN}
    inputs = _tensors(entry.get("Inputs"))
    constants = tuple(tensor for tensor in inputs if computed is not None and tensor.name not in computed)
    sizes = [_num_bytes(dtype, count) for dtype, count in _weights(attributes)]
    return Layer(
        name=str(entry.get("Name", "")),
        type=str(entry.get("LayerType", "")),
        inputs=tuple(tensor for tensor in inputs if tensor not in constants),
        outputs=_tensors(entry.get("Outputs")),
        tactic=str(entry.get("TacticName") or ""),
        nodes=module_names.node_names(str(entry.get("Metadata") or "")),
        weights_bytes=sum(sizes) + sum(tensor.num_bytes for tensor in constants),
        attributes=attributes,
        constants=constants,
        index=index,
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
    found = (name for name, (pattern, _) in _DTYPES.items() if re.search(rf"\b({pattern})\b", words.upper()))
    return next(found, "")


def _num_bytes(dtype: str, count: int) -> int:
    return int(_DTYPES[dtype][1] * count) if dtype else 0


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
