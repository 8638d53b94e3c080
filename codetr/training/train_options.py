"""The options of `codetr train`. Imports no Torch."""

from __future__ import annotations

import dataclasses
import math
import re
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from cyclopts import Group, types
from cyclopts.validators import Number

from codetr.cli.argument_types import Folder, InputFolder, Parameter, parsed_by
from codetr.errors import ArgumentError

_DATA = Parameter(group=Group("Dataset and results", sort_key=1))
_MODEL = Parameter(group=Group("Model", sort_key=2))
_LENGTH = Parameter(group=Group("Length of the run", sort_key=3))
_OPTIMISATION = Parameter(
    group=Group("Optimisation (AdamW, the learning rate falls along a cosine)", sort_key=4)
)
_PICTURES = Parameter(group=Group("Pictures", sort_key=5))
_RUNNING = Parameter(group=Group("Running", sort_key=6))
_CLASSIFIER = Parameter(group=Group("Classifiers (--task classify: SGD, cosine schedule)", sort_key=7))

Share = Annotated[float, Parameter(validator=Number(gt=0, lte=1))]
Positive = Annotated[float, Parameter(validator=Number(gt=0, lt=math.inf))]
Size = tuple[int, int]
"""(long, short) sides in pixels."""
DEFAULT_EPOCHS = 12
LONGEST_WARMUP = 1 / 20
"""Share of a run that the warm-up takes at most by default."""


def usual_warmup(scratch: bool, steps: int | None) -> int:
    """Returns the default of --warmup for a run of some steps; None for a run of some minutes."""
    usual = 1000 if scratch else 200
    return usual if steps is None else min(usual, int(LONGEST_WARMUP * steps))


@dataclass(frozen=True)
class Interval:
    """The distance between two events of a run: a number of steps, or of minutes."""

    steps: int | None = None
    minutes: float | None = None

    @classmethod
    def parse(cls, text: str) -> Interval:
        """Parses "500" (steps) or "10m" (minutes)."""
        if not re.fullmatch(r"(?=.*[1-9])(\d+|\d+(\.\d+)?m)", text, re.ASCII):
            raise ValueError(f"expected a number of steps (500) or of minutes (10m), got {text!r}")
        return cls(minutes=float(text[:-1])) if text.endswith("m") else cls(steps=int(text))

    def __str__(self) -> str:
        return f"{self.minutes:g}m" if self.steps is None else str(self.steps)

    def due(self, step: int, seconds: float, last_seconds: float) -> bool:
        """Returns whether the event is due.

        Args:
            step: steps taken.
            seconds: training time.
            last_seconds: training time of the event before.
        """
        if self.steps is not None:
            return step % self.steps == 0
        return seconds - last_seconds >= 60.0 * self.minutes


def parse_size(text: str) -> Size:
    """Parses LONGxSHORT."""
    match = re.fullmatch(r"([1-9]\d{0,4})x([1-9]\d{0,4})", text, re.ASCII)
    if not match:
        raise ValueError(f"expected LONGxSHORT in pixels, such as 1333x800, got {text!r}")
    sides = int(match[1]), int(match[2])
    return max(sides), min(sides)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """The options of `codetr train`.

    `codetr.training.training_plan.make_plan` fills in the defaults that depend on the dataset, the weights or
    the machine.
    """

    task: Annotated[Literal["detect", "classify"], _DATA] = "detect"
    """classify trains a classifier of torchvision on class folders."""
    data: Annotated[InputFolder, _DATA]
    """Folder of the dataset, see above."""
    train_split: Annotated[str, _DATA] = "train"
    """Split to train on."""
    val_split: Annotated[str | None, _DATA] = None
    """Split to validate on. Default: val. For detectors, none skips validation, as a dataset without val
    does."""
    strict: Annotated[bool, _DATA] = False
    """Exit with status 2 if a picture cannot be used."""
    out: Annotated[Folder, Parameter(metavar="RUN"), _DATA]
    """Folder for the results."""
    resume: Annotated[bool, _DATA] = False
    """Continue from the newest state in RUN, with the same options."""

    model: Annotated[str | None, Parameter(metavar="NAME|RUN|JSON"), _MODEL] = None
    """A published configuration, the folder of a run, or a configuration file; required for detectors. Its
    classes become those of the dataset."""
    init: Annotated[str | None, Parameter(metavar="NAME|FILE|URL|none"), _MODEL] = None
    """Initial weights; none trains from scratch. Default: the file beside the configuration, or the published
    weights."""
    batch_norm: Annotated[Literal["train", "frozen"] | None, _MODEL] = None
    """Batch norms of a ResNet. Default: frozen, from scratch train."""
    denoising: Annotated[types.NonNegativeInt, _MODEL] = 100
    """Pairs of contrastive denoising queries of an image; 0 trains without them."""

    steps: Annotated[types.PositiveInt | None, _LENGTH] = None
    """Optimiser steps."""
    epochs: Annotated[Positive | None, _LENGTH] = None
    """Passes over the dataset. Default: 12."""
    minutes: Annotated[Positive | None, _LENGTH] = None
    """Training time. The learning rate follows the clock, which --resume continues."""
    time_limit: Annotated[Positive | None, _LENGTH] = None
    """Minutes after which the run saves its state and stops. --resume continues it."""

    batch: Annotated[types.PositiveInt | None, _OPTIMISATION] = None
    """Pictures of a step and process. Default: 2, for classifiers 64."""
    lr: Annotated[Positive | None, _OPTIMISATION] = None
    """Learning rate. Default: 1e-4. For classifiers with --weights none 0.1 for 256 pictures a step and in
    proportion for others, else a fifth of it."""
    backbone_lr_factor: Annotated[types.NormFloat | None, _OPTIMISATION] = None
    """Learning rate of the backbone, as a share of --lr. Default: 0.1, from scratch 1."""
    final_lr_factor: Annotated[types.NormFloat, _OPTIMISATION] = 0.01
    """Learning rate at the end of the run, as a share of --lr."""
    warmup: Annotated[types.NonNegativeInt | None, _OPTIMISATION] = None
    """Steps over which the learning rate rises, with --minutes at most a twentieth of the time. Default: 200,
    from scratch 1000, at most a twentieth of the steps."""
    weight_decay: Annotated[types.NonNegativeFloat, _OPTIMISATION] = 1e-4
    """Weight decay of all weights, norms and biases included, as upstream."""
    clip: Annotated[types.NonNegativeFloat, _OPTIMISATION] = 0.1
    """Largest norm of the gradients; 0 does not clip."""
    ema: Annotated[float, Parameter(validator=Number(gte=0, lt=1)), _OPTIMISATION] = 0.9998
    """Decay of the weights' moving average, which the run saves. The decay grows to this value over the first
    steps; 0 saves the newest weights."""
    precision: Annotated[Literal["bf16", "fp32"] | None, _OPTIMISATION] = None
    """bf16 runs matrix products and convolutions in bfloat16 (autocast) and keeps the weights in fp32.
    Default: bf16 on a GPU, else fp32."""

    size: Annotated[Size | None, parsed_by(parse_size, "LONGxSHORT"), _PICTURES] = None
    """Pixels that pictures are fitted into, with their ratio kept. It becomes the model's own size for
    detection. Default: the configuration's."""
    multi_scale: Annotated[Share, _PICTURES] = 0.6
    """Steps have sizes from this share of --size up to all of it; 1 has one size."""
    crop: Annotated[types.NormFloat, _PICTURES] = 0.5
    """Probability of a crop, which then fills the picture's place."""
    crop_least: Annotated[Share, _PICTURES] = 0.5
    """Least side of a crop, as a share of the picture's."""
    flip: Annotated[types.NormFloat, _PICTURES] = 0.5
    """Probability of a horizontal flip. Choose 0 if a flip changes classes, such as letters."""
    colour: Annotated[types.NormFloat, _PICTURES] = 0.2
    """Strength of changes in brightness, contrast, saturation and hue."""

    device: Annotated[Literal["auto", "cpu", "cuda"], _RUNNING] = "auto"
    """auto takes the GPU if there is one."""
    workers: Annotated[types.NonNegativeInt | None, _RUNNING] = None
    """Processes that read pictures for each GPU. Default: the cores that this process may use, at most 16; on
    the CPU a quarter of them, for Torch's threads have the others."""
    seed: Annotated[types.NonNegativeInt, _RUNNING] = 0
    """Seed of everything drawn at random."""
    save_every: Annotated[Interval, parsed_by(Interval.parse, "N|Nm"), _RUNNING] = Interval(minutes=10.0)
    """Steps between two saved states, or minutes with an m behind the number."""
    log_every: Annotated[types.PositiveInt, _RUNNING] = 50
    """Steps between two rows of log.csv."""
    evaluate_every: Annotated[types.NonNegativeInt | None, _RUNNING] = None
    """Steps between two validations; 0 skips validation. Default: ten validations in a run."""
    save_precision: Annotated[Literal["fp32", "fp16"], _RUNNING] = "fp32"
    """Precision of model.safetensors."""

    network: Annotated[str | None, Parameter(metavar="NAME"), _CLASSIFIER] = None
    """A classifier of torchvision, such as resnet18; required for classifiers."""
    weights: Annotated[str, Parameter(metavar="pretrained|none|FILE"), _CLASSIFIER] = "pretrained"
    """Initial weights: torchvision's, random, or a file. Tensors of other shapes stay random."""
    image_size: Annotated[types.PositiveInt, Parameter(metavar="PX"), _CLASSIFIER] = 224
    """Side of the network's input. Validation resizes the shorter side to 256/224 of it, and crops."""
    label_smoothing: Annotated[float, Parameter(validator=Number(gte=0, lt=1)), _CLASSIFIER] = 0.1
    """Share of the label that is spread over all classes."""

    def __post_init__(self) -> None:
        classify = self.task == "classify"
        for field in dataclasses.fields(self):
            foreign = field.name not in _OF_CLASSIFIERS if classify else field.name in _ONLY_OF_CLASSIFIERS
            if foreign and getattr(self, field.name) != field.default:
                other = "detect" if classify else "classify"
                raise ArgumentError(field.name, f"expected it with --task {other} only")

    def with_defaults(self, **defaults: Any) -> TrainOptions:
        """Returns the options with these values in place of None."""
        missing = {name: value for name, value in defaults.items() if getattr(self, name) is None}
        return dataclasses.replace(self, **missing)


_ONLY_OF_CLASSIFIERS = ("network", "weights", "image_size", "label_smoothing")
_OF_CLASSIFIERS = (
    *("task", "data", "train_split", "val_split", "strict", "out", "resume", "epochs", "batch", "lr"),
    *("final_lr_factor", "warmup", "weight_decay", "precision", "crop_least", "flip", "colour", "device"),
    *("workers", "seed", *_ONLY_OF_CLASSIFIERS),
)
