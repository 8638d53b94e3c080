"""The metadata beside an engine, <engine>.json: all that a program needs to run it."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

from pydantic import (
    ConfigDict,
    Field,
    NonNegativeFloat,
    PositiveFloat,
    PositiveInt,
    TypeAdapter,
    ValidationError,
)
from typing_extensions import NotRequired, TypedDict

from trt_plugin.atomic_files import write_json
from trt_plugin.engine_error import EngineError
from trt_plugin.engine_tensors import TensorInfo, format_shape

FORMAT = 1

Precision = Literal["fp32", "tf32", "fp16", "bf16"]
"""Precision of a network. tf32 is fp32 with matrix products of 10 mantissa bits."""


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


@dataclasses.dataclass(frozen=True)
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
        precision: "fp32", "tf32" (float32, multiplied with 10 bits of mantissa), "fp16" or "bf16".
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
        ValueError: naming the field, the value that was expected and the one that was given.
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
    precision: Precision
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

    def __post_init__(self) -> None:
        for name, adapter in _adapters().items():
            try:
                adapter.validate_python(getattr(self, name), strict=True)
            except ValidationError as error:
                first = error.errors()[0]
                where = "".join(f" in {part}" for part in reversed(first["loc"]))
                problem = first["msg"].replace("Input should be", "expected")
                raise ValueError(f"{name}: {problem}{where}, got {getattr(self, name)!r}") from None
        for name in ("inputs", "outputs"):
            names = [tensor["name"] for tensor in getattr(self, name)]
            _require(len(set(names)) == len(names), name, "tensors with different names", names)
        described = not self.nms_in_graph or {"method", "iou_threshold"} <= self.nms.keys()
        _require(described, "nms", 'an object with "method" and "iou_threshold"', self.nms)
        long, short = self.resize.get("scale", [1, 1])
        _require(long >= short, 'resize["scale"]', "[long, short], two positive integers", [long, short])
        _check_profiles(self.profiles, self.inputs)

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
            inputs: of the engine, by name; -1 for a size decided at run time.
            outputs: likewise.
            profiles: of its inputs with such sizes, as in the metadata.

        Raises:
            EngineError: naming the tensor that differs.
        """
        another = f"the metadata {path} is that of another engine: "
        advice = "in the engine; it must be the file that was exported with the engine"
        for described, tensors in ((self.inputs, inputs), (self.outputs, outputs)):
            said = {tensor["name"]: tuple(tensor["shape"]) for tensor in described}
            found = {name: tensor.shape for name, tensor in tensors.items()}
            for name in {**said, **found}:
                if not _same_shape(said.get(name), found.get(name)):
                    here, there = (
                        format_shape(shapes[name]) if name in shapes else "missing"
                        for shapes in (said, found)
                    )
                    raise EngineError(f"{another}{name} is {here} in it and {there} {advice}")
        for name, profile in self.profiles.items():
            here, there = (
                ", ".join(format_shape(shapes[which]) for which in ("min", "opt", "max"))
                if shapes
                else "missing"
                for shapes in (profile, profiles.get(name))
            )
            if here != there:
                raise EngineError(
                    f"{another}the profile of {name} (smallest, usual, largest) is {here} in it and {there} "
                    f"{advice}"
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
        except FileNotFoundError:
            raise EngineError(f"the metadata {path} does not exist") from None
        except (OSError, ValueError, RecursionError) as error:
            raise EngineError(f"the metadata {path} cannot be read: {error}") from error
        if not isinstance(content, dict) or content.pop("format", None) != FORMAT:
            raise EngineError(f'the metadata {path}: expected an object with "format": {FORMAT}')
        missing = dataclasses.MISSING
        fields = {
            field.name: field.default is missing and field.default_factory is missing
            for field in dataclasses.fields(cls)
        }
        missing = sorted(name for name, required in fields.items() if required and name not in content)
        unknown = sorted(content.keys() - fields)
        if missing or unknown:
            raise EngineError(f"the metadata {path} has wrong fields: missing {missing}, unknown {unknown}")
        try:
            return cls(**content)
        except ValueError as error:
            raise EngineError(f"the metadata {path} is wrong: {error}") from error


@functools.cache
def _adapters() -> dict[str, TypeAdapter]:
    """Checks of the fields' types."""
    hints = get_type_hints(ArtifactMetadata, include_extras=True)
    return {field.name: TypeAdapter(hints[field.name]) for field in dataclasses.fields(ArtifactMetadata)}


def _require(fine: bool, field: str, expected: str, got: object) -> None:
    if not fine:
        raise ValueError(f"{field}: expected {expected}, got {got!r}")


def _same_shape(one: tuple[int, ...] | None, other: tuple[int, ...] | None) -> bool:
    if one is None or other is None or len(one) != len(other):
        return False
    return all(first == second or -1 in (first, second) for first, second in zip(one, other))


def _check_profiles(profiles: Mapping[str, ProfileEntry], inputs: Sequence[TensorEntry]) -> None:
    """Each input with a dynamic size has three shapes, which agree with its fixed sizes and are in order."""
    expected = 'for every input with a size of -1, and no other, {"min", "opt", "max"}, shapes in this order'
    shapes = {tensor["name"]: tensor["shape"] for tensor in inputs if -1 in tensor["shape"]}
    _require(profiles.keys() == shapes.keys(), "profiles", expected, profiles)
    for name, shape in shapes.items():
        three = [profiles[name][which] for which in ("min", "opt", "max")]
        _require({len(shape)} == set(map(len, three)), "profiles", expected, profiles)
        for size, low, usual, high in zip(shape, *three):
            fine = low <= usual <= high and (size == -1 or low == high == size)
            _require(fine, "profiles", expected, profiles)
