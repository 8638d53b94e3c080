"""Configurations of the detector: frozen dataclasses, loaded by name or from a JSON file. Imports no Torch.

A JSON file holds the fields below, nested as the dataclasses are; `backbone.type` picks the backbone. Omitted
fields have upstream's defaults (MMDetection, projects/CO-DETR). A wrong file is a ValueError that names the
field.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Literal

from pydantic import ConfigDict, Field, FiniteFloat, PositiveInt, TypeAdapter, ValidationError

from codetr.coco_classes import class_names_for
from trt_plugin.schema_errors import first_problem

CONFIG_FOLDER = Path(__file__).parent / "configs"
RUN_CONFIG = "model.json"
"""Name of the configuration in the folder of a training run; the weights beside it end in .safetensors."""

PositiveInts = Annotated[tuple[PositiveInt, ...], Field(min_length=1)]
_Positive = Annotated[FiniteFloat, Field(gt=0)]
_Share = Annotated[float, Field(ge=0, le=1)]
_ONLY_FIELDS = ConfigDict(extra="forbid")


@dataclass(frozen=True)
class SwinConfig:
    """Swin Transformer (arXiv 2103.14030); the defaults are Swin-L."""

    __pydantic_config__ = _ONLY_FIELDS
    type: Literal["SwinTransformer"]
    embed_dims: PositiveInt = 192
    depths: PositiveInts = (2, 2, 18, 2)
    num_heads: PositiveInts = (6, 12, 24, 48)
    window_size: PositiveInt = 12
    patch_size: PositiveInt = 4
    mlp_ratio: PositiveInt = 4
    qkv_bias: bool = True
    patch_norm: bool = True
    # In training, the share of images that skip the last block. It falls to 0 at the first.
    drop_path_rate: float = 0.3

    def __post_init__(self) -> None:
        if not 0.0 <= self.drop_path_rate < 1.0:
            raise ValueError(
                f"backbone.drop_path_rate: expected at least 0 and less than 1, got {self.drop_path_rate}"
            )
        channels = self.out_channels
        if len(channels) != len(self.num_heads) or any(c % n for c, n in zip(channels, self.num_heads)):
            raise ValueError(
                f"backbone.num_heads: expected a divisor of each stage's channels {channels}, "
                f"got {self.num_heads}"
            )

    @property
    def out_channels(self) -> tuple[int, ...]:
        return tuple(self.embed_dims << stage for stage in range(len(self.depths)))


@dataclass(frozen=True)
class ResNetConfig:
    """ResNet (arXiv 1512.03385). Up to depth 34 a block has two 3x3 convolutions, else it is a bottleneck
    with the stride in the 3x3 convolution.
    """

    __pydantic_config__ = _ONLY_FIELDS
    type: Literal["ResNet"]
    depth: Literal[18, 34, 50, 101, 152] = 50
    base_channels: PositiveInt = 64

    @property
    def depths(self) -> tuple[int, ...]:
        """Number of blocks in each stage."""
        if self.depth == 18:
            return 2, 2, 2, 2
        return 3, *{34: (4, 6), 50: (4, 6), 101: (4, 23), 152: (8, 36)}[self.depth], 3

    @property
    def expansion(self) -> int:
        """Ratio of a block's output channels to its inner channels."""
        return 1 if self.depth < 50 else 4

    @property
    def out_channels(self) -> tuple[int, ...]:
        return tuple(self.base_channels * self.expansion << stage for stage in range(4))


@dataclass(frozen=True)
class NeckConfig:
    """Maps of the backbone to `out_channels`; strided convolutions add further levels up to `num_outs`."""

    __pydantic_config__ = _ONLY_FIELDS
    in_channels: PositiveInts
    out_channels: PositiveInt = 256
    num_outs: PositiveInt = 5
    gn_groups: PositiveInt = 32


@dataclass(frozen=True)
class PositionalEncodingConfig:
    """Sine encoding of the encoder's cells with `num_feats` channels per axis."""

    __pydantic_config__ = _ONLY_FIELDS
    num_feats: PositiveInt = 128
    temperature: _Positive = 20
    normalize: Literal[True] = True


@dataclass(frozen=True)
class NmsConfig:
    """Defaults of non-maximum suppression, see `codetr.apply_nms`."""

    __pydantic_config__ = _ONLY_FIELDS
    method: Literal["soft", "hard", "none"] = "soft"
    iou_threshold: _Share = 0.8
    min_score: _Share = 1e-3
    decay: Literal["linear", "gaussian"] = "linear"
    sigma: _Positive = 0.5


@dataclass(frozen=True)
class Config:
    """A Co-DINO detector and its preprocessing."""

    __pydantic_config__ = _ONLY_FIELDS
    backbone: Annotated[SwinConfig | ResNetConfig, Field(discriminator="type")]
    neck: NeckConfig
    name: str = ""
    num_classes: PositiveInt = 80
    # One for each label; None for COCO's 80, or numbered names for other counts.
    class_names: Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    num_queries: PositiveInt = 900
    embed_dims: PositiveInt = 256
    num_heads: PositiveInt = 8
    num_levels: PositiveInt = 5
    num_points: PositiveInt = 4
    encoder_layers: PositiveInt = 6
    decoder_layers: PositiveInt = 6
    feedforward_channels: PositiveInt = 2048
    positional_encoding: PositionalEncodingConfig = field(default_factory=PositionalEncodingConfig)
    max_per_img: PositiveInt = 300  # detections per image
    nms: NmsConfig = field(default_factory=NmsConfig)
    # Limits (long, short) in pixels for the sides of a resized photo, which keeps its ratio.
    resize_scale: tuple[PositiveInt, PositiveInt] = (1333, 800)
    mean: tuple[FiniteFloat, FiniteFloat, FiniteFloat] = (123.675, 116.28, 103.53)
    # of RGB, 0..255; pixel' = (pixel - mean) / std
    std: tuple[_Positive, _Positive, _Positive] = (58.395, 57.12, 57.375)
    # Sizes of a sample input. The model does not use them.
    input_hw: tuple[PositiveInt, PositiveInt] | None = None
    image_shapes_hw: tuple[tuple[PositiveInt, PositiveInt], ...] | None = None

    def __post_init__(self) -> None:
        def require(name: str, expected: object, got: object) -> None:
            if expected != got:
                raise ValueError(f"{name}: expected {expected}, got {got}")

        require("neck.in_channels", self.backbone.out_channels, self.neck.in_channels)
        require("neck.out_channels", self.embed_dims, self.neck.out_channels)
        require("neck.num_outs", self.num_levels, self.neck.num_outs)
        require("positional_encoding.num_feats", self.embed_dims / 2, self.positional_encoding.num_feats)
        for name, parts in (("num_heads", self.num_heads), ("neck.gn_groups", self.neck.gn_groups)):
            if self.embed_dims % parts:
                raise ValueError(f"{name}: expected a divisor of embed_dims {self.embed_dims}, got {parts}")
        if self.class_names is not None:
            require("class_names: number of names", self.num_classes, len(self.class_names))
            for name in self.class_names:
                if self.class_names.count(name) > 1:
                    raise ValueError(f"class_names: expected different names, got {name!r} twice")
        if self.num_levels < len(self.neck.in_channels):
            least = len(self.neck.in_channels)
            raise ValueError(f"num_levels: expected at least {least}, got {self.num_levels}")
        most = self.num_queries * self.num_classes
        if self.max_per_img > most:
            raise ValueError(f"max_per_img: expected at most {most}, got {self.max_per_img}")

    @property
    def label_names(self) -> tuple[str, ...]:
        """Name of each label: `class_names`, else COCO's, else "class 0", "class 1", …"""
        return self.class_names or class_names_for(self.num_classes)


def config_file(source: str | os.PathLike) -> Path:
    """Returns the file of a configuration; arguments and errors as `load_config`."""
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
        source: the name of a configuration in the package, the path of a JSON file, or the folder of a
            training run.

    Raises:
        ValueError: unknown name, no such file, not JSON, or a field that is unknown, missing or of a wrong
            type.
    """
    path = config_file(source)
    try:
        config = _schema().validate_json(path.read_bytes(), strict=True)
    except ValidationError as error:
        raise ValueError(f"{path}: {_describe(error)}") from None
    return config if config.name else replace(config, name=path.stem)


@cache
def _schema() -> TypeAdapter:
    return TypeAdapter(Config)


def _describe(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    if first["type"] == "json_invalid":
        return f"not a JSON file ({first['ctx']['error']})"
    if first["type"] == "value_error":  # of a __post_init__, which names the field
        return str(first["ctx"]["error"])
    return first_problem(error, "configuration", {"SwinTransformer", "ResNet"})
