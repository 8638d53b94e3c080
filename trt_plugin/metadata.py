"""The metadata beside an engine, <engine>.json: all that a program needs to run it."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic
from pydantic import ConfigDict, Field, NonNegativeFloat, PositiveFloat, PositiveInt
from typing_extensions import NotRequired, TypedDict

from trt_plugin.atomic_files import write_json
from trt_plugin.engine_error import EngineError
from trt_plugin.engine_tensors import TensorInfo, format_shape
from trt_plugin.schema_errors import first_problem

FORMAT = 1

Precision = Literal["fp32", "tf32", "fp16", "bf16"]
"""Precision of a network. tf32 is fp32 with matrix products of 10 mantissa bits."""
EightBits = Literal["int8", "fp8"]
"""8-bit type of most linear layers and convolutions; fp8 is E4M3. The rest of the network is float16."""
AnyPrecision = Literal["fp32", "tf32", "fp16", "bf16", "int8", "fp8"]


class TensorEntry(TypedDict):
    """An input or output. A size of -1 is decided at run time."""

    __pydantic_config__ = ConfigDict(extra="forbid")
    name: str
    shape: Sequence[Annotated[int, Field(ge=-1)]]
    dtype: str


class ResizeEntry(TypedDict):
    """The rule that resizes an image to the input's size, see `ArtifactMetadata`."""

    height: PositiveInt
    width: PositiveInt
    mode: Literal["fit_pad"]
    scale: NotRequired[Annotated[list[PositiveInt], Field(min_length=2, max_length=2)]]


class ProfileEntry(TypedDict):
    """The smallest, usual and largest shape of an input."""

    __pydantic_config__ = ConfigDict(extra="forbid")
    min: list[PositiveInt]
    opt: list[PositiveInt]
    max: list[PositiveInt]


@pydantic.dataclasses.dataclass(frozen=True, config=ConfigDict(strict=True, extra="forbid"))
class ArtifactMetadata:
    """Inputs, outputs and origin of an engine of the detector.

    Attributes:
        model: the configuration's name.
        inputs, outputs: {"name", "shape", "dtype"} of each tensor; -1 for a size decided at run time.
        class_names: name of each label, from 0.
        mean, std: of R, G, B in 0..255. An image is normalised as (image - mean) / std.
        resize: {"height", "width", "mode", "scale"}, the rule that resizes an image to the input's size. Mode
            "fit_pad": the largest size of the same aspect ratio that fits; then, after normalising, zeros to
            the right and below. "scale", [long, short] in pixels, also limits the image's longer and shorter
            side. Engines whose images fill the input, and older files, have no "scale".
        max_per_img: K, the number of boxes of each image before non-maximum suppression.
        nms: parameters of non-maximum suppression, as in `codetr.detector.postprocess.apply_nms`: of the
            suppression in the graph, or of the default post-processing if the graph has none.
        nms_in_graph: whether the graph applies non-maximum suppression. The outputs are then the final
            detections, padded with boxes 0, scores 0, labels -1. False in older files, which lack the field.
        precision: "fp32", "tf32" (float32, multiplied with 10 bits of mantissa), "fp16", "bf16", or
            the 8-bit type of most layers, "int8" or "fp8".
        batch: N of the inputs; for a dynamic N, the usual one.
        tensorrt_version, plugin_version, torch_version: versions that built the engine.
        gpu: name of the GPU that built it.
        source_weights: name, file or URL of the weights.
        build_seconds: time of TensorRT's build; None if unknown.
        profiles: {"min", "opt", "max"}, the smallest, usual and largest shape of each input with a dynamic
            size. Empty in older files, which lack the field. Dynamic heights and widths are multiples of 32.
            `resize` and `batch` hold the usual sizes, for programs that know no profiles.
        refittable: whether the engine's weights can be replaced, as by `dynamo_path.refit`.

    Raises:
        pydantic.ValidationError: a ValueError that names the fields, what was expected and what was given.
    """

    model: str
    inputs: Annotated[list[TensorEntry], Field(min_length=1)]
    outputs: Annotated[list[TensorEntry], Field(min_length=1)]
    class_names: list[str]
    mean: Annotated[list[float], Field(min_length=3, max_length=3)]
    std: Annotated[list[PositiveFloat], Field(min_length=3, max_length=3)]
    resize: ResizeEntry
    max_per_img: PositiveInt
    nms: dict[str, Any]
    precision: AnyPrecision
    batch: PositiveInt
    tensorrt_version: str
    plugin_version: str
    gpu: str
    torch_version: str
    source_weights: str
    nms_in_graph: bool = False
    build_seconds: NonNegativeFloat | None = None
    profiles: dict[str, ProfileEntry] = dataclasses.field(default_factory=dict)
    refittable: bool = False

    def save(self, path: str | os.PathLike) -> None:
        """Writes the file, whole or not at all."""
        write_json(path, {"format": FORMAT, **dataclasses.asdict(self)}, indent=2)

    def check_engine(
        self,
        path: Path,
        inputs: Mapping[str, TensorInfo],
        outputs: Mapping[str, TensorInfo],
        profiles: Mapping[str, Mapping[str, Sequence[int]]],
    ) -> None:
        """Checks that this is the metadata of an engine, by its tensors' names, shapes and profiles.

        Args:
            path: the metadata's file, for the message.
            inputs, outputs: of the engine, by name; -1 for a size decided at run time.
            profiles: of its inputs with such sizes, as in the metadata.

        Raises:
            EngineError: naming the tensor that differs.
        """
        said = {tensor["name"]: tuple(tensor["shape"]) for tensor in (*self.inputs, *self.outputs)}
        found = {name: tensor.shape for name, tensor in {**inputs, **outputs}.items()}
        pairs = [(name, said.get(name), found.get(name)) for name in {**said, **found}]
        for name, profile in self.profiles.items():
            for which, shape in profile.items():
                other = profiles[name][which] if name in profiles else None
                pairs.append((f'"{which}" of the profile of {name}', shape, other))
        for name, one, other in pairs:
            if not _same_shape(one, other):
                here, there = ("missing" if shape is None else format_shape(shape) for shape in (one, other))
                raise EngineError(
                    f"the metadata {path} is that of another engine: {name} is {here} in it and {there} in "
                    "the engine; it must be the file that was exported with the engine"
                )

    @classmethod
    def load(cls, path: str | os.PathLike) -> ArtifactMetadata:
        """Reads and checks the file.

        Raises:
            EngineError: it does not exist or is not what `save` writes; the message names file and field.
        """
        path = Path(path)
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise EngineError(f"the metadata {path} cannot be read: {error}") from error
        if not isinstance(content, dict) or content.pop("format", None) != FORMAT:
            raise EngineError(f'the metadata {path}: expected an object with "format": {FORMAT}')
        try:
            return cls(**content)
        except pydantic.ValidationError as error:
            raise EngineError(f"the metadata {path} is wrong: {first_problem(error)}") from error


def _same_shape(one: Sequence[int] | None, other: Sequence[int] | None) -> bool:
    if one is None or other is None or len(one) != len(other):
        return False
    return all(first == second or -1 in (first, second) for first, second in zip(one, other))
