"""Configurations of the detector: frozen dataclasses, loaded by name or from a JSON file. No Torch.

A JSON file holds the fields below, nested as the dataclasses are; `backbone.type` picks the backbone. What it
omits has upstream's default (MMDetection, projects/CO-DETR). A wrong file is a ValueError that names the
field.
"""

from __future__ import annotations

import dataclasses
import json
import os
import types
import typing
from dataclasses import dataclass, field
from pathlib import Path

from codetr.coco_classes import class_names_for

CONFIG_FOLDER = Path(__file__).parent / "configs"
RUN_CONFIG = "model.json"
"""The configuration's name in the folder of a training run; the weights beside it end in .safetensors."""


@dataclass(frozen=True)
class SwinConfig:
    """Swin Transformer (arXiv 2103.14030); the defaults are Swin-L.

    Attributes:
        drop_path_rate: share of the images that skip a block while training; of the last block, less before.
    """

    type: typing.Literal["SwinTransformer"]
    embed_dims: int = 192
    depths: tuple[int, ...] = (2, 2, 18, 2)
    num_heads: tuple[int, ...] = (6, 12, 24, 48)
    window_size: int = 12
    patch_size: int = 4
    mlp_ratio: int = 4
    qkv_bias: bool = True
    patch_norm: bool = True
    drop_path_rate: float = 0.3

    def __post_init__(self) -> None:
        if not 0.0 <= self.drop_path_rate < 1.0:
            raise ValueError(
                f"backbone.drop_path_rate: expected at least 0 and less than 1, got {self.drop_path_rate}"
            )
        if len(self.depths) != len(self.num_heads):
            raise ValueError(
                f"backbone.num_heads: expected one per stage ({len(self.depths)}), got {self.num_heads}"
            )
        for channels, heads in zip(self.out_channels, self.num_heads, strict=True):
            if channels % heads:
                raise ValueError(
                    f"backbone.num_heads: {heads} heads do not divide the stage's {channels} channels"
                )

    @property
    def out_channels(self) -> tuple[int, ...]:
        return tuple(self.embed_dims << stage for stage in range(len(self.depths)))


@dataclass(frozen=True)
class ResNetConfig:
    """ResNet (arXiv 1512.03385): blocks of two 3x3 convolutions up to depth 34, else bottlenecks with the
    stride in the 3x3 convolution.
    """

    type: typing.Literal["ResNet"]
    depth: int = 50
    base_channels: int = 64

    STAGE_DEPTHS: typing.ClassVar[dict[int, tuple[int, ...]]] = {
        18: (2, 2, 2, 2),
        34: (3, 4, 6, 3),
        50: (3, 4, 6, 3),
        101: (3, 4, 23, 3),
        152: (3, 8, 36, 3),
    }

    def __post_init__(self) -> None:
        if self.depth not in self.STAGE_DEPTHS:
            raise ValueError(f"backbone.depth: expected one of {sorted(self.STAGE_DEPTHS)}, got {self.depth}")

    @property
    def depths(self) -> tuple[int, ...]:
        return self.STAGE_DEPTHS[self.depth]

    @property
    def expansion(self) -> int:
        """Channels of a block's output by those inside."""
        return 1 if self.depth < 50 else 4

    @property
    def out_channels(self) -> tuple[int, ...]:
        return tuple(self.base_channels * self.expansion << stage for stage in range(4))


@dataclass(frozen=True)
class NeckConfig:
    """Backbone levels to `out_channels`; levels beyond the backbone's come from strided convolutions."""

    in_channels: tuple[int, ...]
    out_channels: int = 256
    num_outs: int = 5
    gn_groups: int = 32

    def __post_init__(self) -> None:
        if self.out_channels % self.gn_groups:
            raise ValueError(
                f"neck.gn_groups: {self.gn_groups} groups do not divide out_channels {self.out_channels}"
            )


@dataclass(frozen=True)
class PositionalEncodingConfig:
    """Sine encoding of the encoder's cells; `num_feats` per axis."""

    num_feats: int = 128
    temperature: float = 20
    normalize: bool = True


@dataclass(frozen=True)
class NmsConfig:
    """Default post-processing; see `codetr.detector.postprocess.apply_nms`."""

    method: typing.Literal["soft", "hard", "none"] = "soft"
    iou_threshold: float = 0.8
    min_score: float = 1e-3
    decay: typing.Literal["linear", "gaussian"] = "linear"
    sigma: float = 0.5


@dataclass(frozen=True)
class Config:
    """A Co-DINO detector and how upstream feeds it.

    Attributes:
        resize_scale: (long, short) sides in pixels that a photo is resized into, its ratio kept.
        mean, std: of RGB, 0..255; pixel' = (pixel - mean) / std.
        max_per_img: detections per image.
        class_names: one for each label; None means COCO's 80, or numbered ones for other counts.
        input_hw, image_shapes_hw: sizes of a sample input, when the file carries one; the model does not use
            them.
    """

    backbone: SwinConfig | ResNetConfig
    neck: NeckConfig
    name: str = ""
    num_classes: int = 80
    class_names: tuple[str, ...] | None = None
    num_queries: int = 900
    embed_dims: int = 256
    num_heads: int = 8
    num_levels: int = 5
    num_points: int = 4
    encoder_layers: int = 6
    decoder_layers: int = 6
    feedforward_channels: int = 2048
    positional_encoding: PositionalEncodingConfig = field(default_factory=PositionalEncodingConfig)
    max_per_img: int = 300
    nms: NmsConfig = field(default_factory=NmsConfig)
    resize_scale: tuple[int, int] = (1333, 800)
    mean: tuple[float, float, float] = (123.675, 116.28, 103.53)
    std: tuple[float, float, float] = (58.395, 57.12, 57.375)
    input_hw: tuple[int, int] | None = None
    image_shapes_hw: tuple[tuple[int, int], ...] | None = None

    def __post_init__(self) -> None:
        def require(name: str, expected: object, got: object) -> None:
            if expected != got:
                raise ValueError(f"{name}: expected {expected}, got {got}")

        require("neck.in_channels", self.backbone.out_channels, self.neck.in_channels)
        require("neck.out_channels", self.embed_dims, self.neck.out_channels)
        require("neck.num_outs", self.num_levels, self.neck.num_outs)
        require("positional_encoding.num_feats", self.embed_dims / 2, self.positional_encoding.num_feats)
        require("positional_encoding.normalize", True, self.positional_encoding.normalize)
        if self.class_names is not None:
            require("class_names: number of names", self.num_classes, len(self.class_names))
            if len(set(self.class_names)) < self.num_classes:
                twice = next(name for name in self.class_names if self.class_names.count(name) > 1)
                raise ValueError(f"class_names: expected different names, got {twice!r} twice")
        if self.embed_dims % 4:  # sine and cosine, on two axes
            raise ValueError(f"embed_dims: expected a multiple of 4, got {self.embed_dims}")
        if self.embed_dims % self.num_heads:
            raise ValueError(f"num_heads: {self.num_heads} heads do not divide embed_dims {self.embed_dims}")
        if self.num_levels < len(self.neck.in_channels):
            raise ValueError(
                f"num_levels: expected at least {len(self.neck.in_channels)}, got {self.num_levels}"
            )
        if self.max_per_img > self.num_queries * self.num_classes:
            raise ValueError(
                f"max_per_img: expected at most num_queries * num_classes, got {self.max_per_img}"
            )

    @property
    def label_names(self) -> tuple[str, ...]:
        """A name for each label: `class_names`, else COCO's, else "class 0", "class 1", …"""
        return self.class_names or class_names_for(self.num_classes)


def config_file(source: str | os.PathLike) -> Path:
    """Finds the file of a configuration; arguments and errors as `load_config`."""
    path = Path(source)
    known = {file.stem: file for file in sorted(CONFIG_FOLDER.glob("*.json"))}
    if str(source) in known:
        return known[str(source)]
    if path.is_dir():
        path = path / RUN_CONFIG
        if not path.is_file():
            raise ValueError(f"model {str(source)!r}: the folder holds no {RUN_CONFIG}, as a run's does")
    if not path.is_file():
        raise ValueError(
            f"model {str(source)!r}: expected one of {', '.join(known)}, the path of a JSON file, or the "
            "folder of a run"
        )
    return path


def load_config(source: str | os.PathLike) -> Config:
    """Loads a configuration.

    Args:
        source: the name of a configuration that ships with the package, the path of a JSON file, or the
            folder of a training run.

    Raises:
        ValueError: unknown name, no such file, not JSON, or a field that is unknown, missing or of a wrong
            type.
    """
    path = config_file(source)
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: not a JSON file ({error})") from None
    if isinstance(data, dict):
        data = {"name": path.stem, **data}
    try:
        return _parse(Config, data, "")
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _parse(expected: object, value: object, where: str) -> object:
    """Checks parsed JSON against a type hint; lists become tuples, and objects dataclasses."""
    origin, arguments = typing.get_origin(expected), typing.get_args(expected)
    if dataclasses.is_dataclass(expected):
        return _parse_dataclass(expected, value, where)
    if origin in (types.UnionType, typing.Union):
        if type(None) in arguments:
            return None if value is None else _parse(arguments[0], value, where)
        return _parse_by_type_field(arguments, value, where)
    if origin is typing.Literal:
        if value not in arguments:
            raise ValueError(f"{where}: expected one of {', '.join(map(repr, arguments))}, got {value!r}")
        return value
    if origin is tuple:
        if not isinstance(value, (list, tuple)):
            raise ValueError(f"{where}: expected a list, got {value!r}")
        if arguments[-1] is Ellipsis:
            arguments = (arguments[0],) * len(value)
        if not value or len(value) != len(arguments):
            raise ValueError(f"{where}: expected a list of {len(arguments) or 'some'} items, got {value!r}")
        return tuple(
            _parse(hint, item, f"{where}[{i}]") for i, (hint, item) in enumerate(zip(arguments, value))
        )
    # JSON's numbers: an int is a fine float; a bool is an int only to Python. All our integers count
    # something.
    accepted = (int, float) if expected is float else expected
    if not isinstance(value, accepted) or (isinstance(value, bool) and expected is not bool):
        raise ValueError(f"{where}: expected {expected.__name__}, got {value!r}")
    if expected is int and value < 1:
        raise ValueError(f"{where}: expected a positive integer, got {value!r}")
    return value


def _parse_dataclass(cls: type, value: object, where: str) -> object:
    if not isinstance(value, dict):
        raise ValueError(f"{where or 'configuration'}: expected an object, got {value!r}")
    hints = typing.get_type_hints(cls)
    fields = {item.name: item for item in dataclasses.fields(cls)}
    prefix = f"{where}." if where else ""
    for name in value:
        if name not in fields:
            raise ValueError(f"{prefix}{name}: unknown field, expected one of {', '.join(fields)}")
    for name, item in fields.items():
        required = item.default is dataclasses.MISSING and item.default_factory is dataclasses.MISSING
        if required and name not in value:
            raise ValueError(f"{prefix}{name}: missing")
    return cls(**{name: _parse(hints[name], item, f"{prefix}{name}") for name, item in value.items()})


def _parse_by_type_field(classes: tuple[type, ...], value: object, where: str) -> object:
    """Picks the dataclass whose `type` field has the value's type."""
    if not isinstance(value, dict):
        raise ValueError(f"{where}: expected an object, got {value!r}")
    if "type" not in value:
        raise ValueError(f"{where}.type: missing")
    by_type = {typing.get_args(typing.get_type_hints(cls)["type"])[0]: cls for cls in classes}
    if value["type"] not in by_type:
        raise ValueError(f"{where}.type: expected one of {', '.join(by_type)}, got {value['type']!r}")
    return _parse_dataclass(by_type[value["type"]], value, where)
