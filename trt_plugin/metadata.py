"""The metadata beside an engine, <engine>.json: all that a program needs to run it."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trt_plugin.atomic_files import atomic_write
from trt_plugin.engine_error import EngineError
from trt_plugin.engine_tensors import TensorInfo, format_shape

FORMAT = 1


@dataclasses.dataclass(frozen=True)
class ArtifactMetadata:
    """Inputs, outputs and origin of an engine of the detector.

    Attributes:
        model: the configuration's name.
        inputs, outputs: {"name", "shape", "dtype"} of each tensor; -1 for a size decided at run time.
        class_names: name of each label, from 0.
        mean, std: of R, G, B in 0..255; an image is normalised as (image - mean) / std.
        resize: {"height", "width", "mode", "scale"}: how an image is brought to the input's size. Mode
            "fit_pad": the largest size of the same aspect ratio that fits, then zeros right and below, after
            normalising. "scale", [long, short] in pixels, also limits the image's longer and shorter side;
            files that a picture is to fill, and older ones, lack it.
        max_per_img: K, the number of boxes of each image before non-maximum suppression.
        nms: parameters of non-maximum suppression, as `codetr.detector.postprocess.apply_nms` has
            them: of that in the graph, or of the default post-processing if there is none in it.
        nms_in_graph: whether the outputs are final detections, so that none is to be applied to them. Each
            image's are followed by padding then: boxes 0, scores 0, labels -1. False where older files lack
            the field.
        precision: "fp32", "tf32" (float32 that is multiplied with 10 bits of mantissa), "fp16" or "bf16".
        batch: N of the inputs; where it is decided at run time, the one that the engine is tuned for.
        tensorrt_version, plugin_version, torch_version: that the engine was built with.
        gpu: name of the GPU that it was built on.
        source_weights: name, file or URL of the weights.
        build_seconds: what TensorRT took to build the engine; None where nobody noted it.
        profiles: {"min", "opt", "max"}: smallest, usual and largest shape of each input, by its name; empty
            if all sizes are fixed, as they are where older files lack the field. Dynamic heights and widths
            are multiples of 32. `resize` and `batch` then say the usual ones, which whoever knows no profiles
            can use as the only ones.
        refittable: whether the engine's weights can be exchanged, as `dynamo_path.refit` does.

    Raises:
        ValueError: naming the field, what it was and what it should be.
    """

    model: str
    inputs: list[dict[str, Any]]
    outputs: list[dict[str, Any]]
    class_names: list[str]
    mean: list[float]
    std: list[float]
    resize: dict[str, Any]
    max_per_img: int
    nms: dict[str, Any]
    precision: str
    batch: int
    tensorrt_version: str
    plugin_version: str
    gpu: str
    torch_version: str
    source_weights: str
    nms_in_graph: bool = False
    build_seconds: float | None = None
    profiles: dict[str, dict[str, list[int]]] = dataclasses.field(default_factory=dict)
    refittable: bool = False

    def __post_init__(self) -> None:
        for name in ("model", "tensorrt_version", "plugin_version", "gpu", "torch_version", "source_weights"):
            _require(isinstance(getattr(self, name), str), name, "a string", getattr(self, name))
        for name in ("batch", "max_per_img"):
            value = getattr(self, name)
            _require(_is_size(value) and value > 0, name, "a positive integer", value)
        for name in ("inputs", "outputs"):
            _check_tensors(name, getattr(self, name))
        names = self.class_names
        _require(_is_list(names, str), "class_names", "a list of strings", names)
        for name in ("mean", "std"):
            value = getattr(self, name)
            fine = _is_list(value, (int, float)) and len(value) == 3
            _require(fine, name, "three numbers (R, G, B)", value)
        _require(min(self.std) > 0, "std", "three positive numbers", self.std)
        precision = self.precision
        known = ("fp32", "tf32", "fp16", "bf16")
        _require(precision in known, "precision", "fp32, tf32, fp16 or bf16", precision)
        _require(isinstance(self.nms, dict), "nms", "an object", self.nms)
        _require(isinstance(self.nms_in_graph, bool), "nms_in_graph", "true or false", self.nms_in_graph)
        described = not self.nms_in_graph or {"method", "iou_threshold"} <= self.nms.keys()
        _require(described, "nms", 'an object with "method" and "iou_threshold"', self.nms)
        seconds = self.build_seconds
        fine = seconds is None or (isinstance(seconds, (int, float)) and not isinstance(seconds, bool))
        _require(fine and not (seconds or 0) < 0, "build_seconds", "seconds, or null", seconds)
        _require(isinstance(self.refittable, bool), "refittable", "true or false", self.refittable)
        _check_profiles(self.profiles, self.inputs)
        resize = self.resize
        _require(
            isinstance(resize, dict)
            and resize.get("mode") == "fit_pad"
            and all(_is_size(resize.get(side)) and resize[side] > 0 for side in ("height", "width")),
            "resize",
            '{"height": H, "width": W, "mode": "fit_pad"}',
            resize,
        )
        scale = resize.get("scale", [1, 1])
        fine = _is_list(scale, int) and len(scale) == 2 and scale[0] >= scale[1] > 0
        _require(fine, 'resize["scale"]', "[long, short], two positive integers", scale)

    def save(self, path: str | os.PathLike) -> None:
        """Writes the file, whole or not at all."""
        text = json.dumps({"format": FORMAT, **dataclasses.asdict(self)}, indent=2, ensure_ascii=False) + "\n"
        with atomic_write(path) as temporary:
            temporary.write_text(text, encoding="utf-8")

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


def _require(fine: bool, field: str, expected: str, got: object) -> None:
    if not fine:
        raise ValueError(f"{field}: expected {expected}, got {got!r}")


def _same_shape(one: tuple[int, ...] | None, other: tuple[int, ...] | None) -> bool:
    if one is None or other is None or len(one) != len(other):
        return False
    return all(first == second or -1 in (first, second) for first, second in zip(one, other))


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_list(value: object, kind: type | tuple[type, ...]) -> bool:
    if not isinstance(value, list):
        return False
    return all(isinstance(item, kind) and not isinstance(item, bool) for item in value)


def _check_tensors(field: str, tensors: object) -> None:
    expected = 'a list of {"name", "shape", "dtype"} with different names'
    _require(isinstance(tensors, list) and len(tensors) > 0, field, expected, tensors)
    for tensor in tensors:
        _require(
            isinstance(tensor, dict)
            and tensor.keys() == {"name", "shape", "dtype"}
            and isinstance(tensor["name"], str)
            and isinstance(tensor["dtype"], str)
            and isinstance(tensor["shape"], list | tuple)
            and all(_is_size(size) and size >= -1 for size in tensor["shape"]),
            field,
            expected,
            tensor,
        )
    _require(len({tensor["name"] for tensor in tensors}) == len(tensors), field, expected, tensors)


def _check_profiles(profiles: object, inputs: list[dict[str, Any]]) -> None:
    """Each input with a dynamic size has three shapes, which agree with its fixed sizes and are in order."""
    expected = 'for every input with a size of -1, and no other, {"min", "opt", "max"}, shapes in this order'
    _require(isinstance(profiles, dict), "profiles", "an object", profiles)
    shapes = {tensor["name"]: list(tensor["shape"]) for tensor in inputs}
    dynamic = {name for name, shape in shapes.items() if -1 in shape}
    _require(profiles.keys() == dynamic, "profiles", expected, profiles)
    for name, profile in profiles.items():
        _require(isinstance(profile, dict), "profiles", expected, profiles)
        _require(profile.keys() == {"min", "opt", "max"}, "profiles", expected, profiles)
        three = [profile["min"], profile["opt"], profile["max"]]
        fine = all(_is_list(shape, int) and len(shape) == len(shapes[name]) for shape in three)
        _require(fine, "profiles", expected, profiles)
        for size, low, usual, high in zip(shapes[name], *three):
            fine = 1 <= low <= usual <= high and (size == -1 or low == high == size)
            _require(fine, "profiles", expected, profiles)
