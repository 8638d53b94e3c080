"""The arguments of `codetr train`. No Torch."""

from __future__ import annotations

import argparse
import functools
import math
import os
import re
from collections.abc import Callable
from typing import Any

from codetr.cli.command import positive, to_path, whole
from codetr.dataset.coco_files import LAYOUTS


def add_train(commands: Any, run: Callable[[argparse.Namespace], int]) -> None:
    """Adds `train` to the commands of a parser; `run` is what its result's `run` becomes."""
    train = commands.add_parser(
        "train",
        help="train a model on your own COCO-format data",
        description="Trains a model on data in COCO's format: from published weights, from your own, or from "
        "scratch. One GPU, or several with torchrun.",
        epilog=f"""examples:
  codetr train --data fruit/ --model co_dino_r50 --epochs 12 --out runs/fruit
  torchrun --nproc-per-node 4 -m codetr train --data fruit/ --model my.json --init none \\
      --minutes 60 --batch 16 --out runs/scratch
  codetr detect apple.jpg --model runs/fruit

{LAYOUTS}
The split val is found likewise and validated on, if there is one. A category without annotations that is only
the supercategory of others, as category 0 of Roboflow's, is no class.

Pictures that are missing, damaged, or of another size than the annotation file says are named, counted and
left out; training sees another picture in the place of each.

RUN gets model.safetensors and model.json (for codetr detect), training.json, log.csv, validation.csv,
curves.png, and state-*.pt, from which --resume goes on.

exit status: 0 done, or stopped by --time-limit; 1 a failure; 2 wrong arguments or data; 130 and 143 stopped
by Ctrl-C or SIGTERM. The state is saved in each case, from the first step on""",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    train.set_defaults(run=functools.partial(_run_without_spinning, run))
    _add_data(train)
    _add_model(train)
    _add_length(train)
    _add_optimisation(train)
    _add_augmentation(train)
    _add_running(train)


def _run_without_spinning(run: Callable[[argparse.Namespace], int], options: argparse.Namespace) -> int:
    """Runs the command with OpenMP threads that sleep while they wait.

    Spinning threads take the cores from the worker processes, and from other programs. OpenMP reads the
    variable when Torch is loaded, so this comes before.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    return run(options)


def _add_data(train: argparse.ArgumentParser) -> None:
    add = train.add_argument_group("data and results").add_argument
    add("--data", type=to_path, required=True, metavar="DIR", help="folder of the data set, see below")
    add("--train-split", default="train", metavar="NAME", help="split to train on; default: train")
    add(
        "--val-split",
        default=None,
        metavar="NAME",
        help="split to validate on; default: val if there is one; 'none' does without",
    )
    add("--strict", action="store_true", help="end with status 2 where a picture cannot be used")
    add("--out", type=to_path, required=True, metavar="RUN", help="folder for the results; made if missing")
    add("--resume", action="store_true", help="go on from the newest state in RUN, with the same options")


def _add_model(train: argparse.ArgumentParser) -> None:
    add = train.add_argument_group("model").add_argument
    add(
        "--model",
        required=True,
        metavar="NAME",
        help="name of a configuration, folder of a run, or configuration JSON; its classes become those of "
        "the data",
    )
    add(
        "--init",
        metavar="W",
        help="weights to start from: file, URL or known name, or 'none' to train from scratch; default: "
        "beside the configuration, or as published",
    )
    add(
        "--batch-norm",
        choices=("train", "frozen"),
        help="of a ResNet; default: frozen, but train from scratch",
    )
    add(
        "--denoising",
        type=whole,
        default=100,
        metavar="N",
        help="pairs of contrastive denoising queries an image; 0 trains without; default: 100",
    )


def _add_length(train: argparse.ArgumentParser) -> None:
    group = train.add_argument_group("length of the run")
    one = group.add_mutually_exclusive_group().add_argument
    one("--steps", type=positive, metavar="N", help="optimiser steps")
    one("--epochs", type=_positive_number, metavar="N", help="times that every picture is seen; default: 12")
    one(
        "--minutes",
        type=_positive_number,
        metavar="M",
        help="training time; the learning rate falls with the clock, which --resume continues",
    )
    group.add_argument(
        "--time-limit",
        type=_positive_number,
        metavar="M",
        help="minutes after which to save the state and stop, wherever the run is; --resume goes on",
    )


def _add_optimisation(train: argparse.ArgumentParser) -> None:
    add = train.add_argument_group(
        "optimisation (AdamW, the learning rate falls along a cosine)"
    ).add_argument
    add("--batch", type=positive, default=2, metavar="N", help="pictures a step and GPU; default: 2")
    add("--lr", type=_positive_number, default=1e-4, metavar="R", help="learning rate; default: 1e-4")
    add(
        "--backbone-lr-factor",
        type=_number(0.0, 1.0),
        metavar="F",
        help="the backbone's share of the learning rate; default: 0.1, but 1 from scratch",
    )
    add(
        "--final-lr-factor",
        type=_number(0.0, 1.0),
        default=0.01,
        metavar="F",
        help="share of the learning rate that is left at the end; default: 0.01",
    )
    add(
        "--warmup",
        type=whole,
        metavar="N",
        help="steps over which the learning rate rises; default: 200, but 1000 from scratch, "
        "and at most a twentieth of the steps",
    )
    add(
        "--weight-decay",
        type=_number(0.0, math.inf),
        default=1e-4,
        metavar="D",
        help="of all weights, norms and biases included, as upstream; default: 1e-4",
    )
    add(
        "--clip",
        type=_number(0.0, math.inf),
        default=0.1,
        metavar="G",
        help="largest norm of the gradients; 0 does not clip; default: 0.1",
    )
    add(
        "--ema",
        type=_number(0.0, 1.0, below=True),
        default=0.9998,
        metavar="D",
        help="decay of the weights' moving average, which is what is saved; it grows to this value over the "
        "first steps; 0 saves the newest weights; default: 0.9998",
    )
    add(
        "--precision",
        choices=("bf16", "fp32"),
        help="bf16: products and convolutions in bfloat16 (autocast), weights fp32; default: bf16 on a GPU",
    )


def _add_augmentation(train: argparse.ArgumentParser) -> None:
    add = train.add_argument_group("pictures").add_argument
    add(
        "--size",
        type=_size,
        metavar="LONGxSHORT",
        help="pixels that pictures are fitted into, their ratio kept; becomes the model's own size for "
        "detection; default: the configuration's",
    )
    add(
        "--multi-scale",
        type=_number(0.0, 1.0, above=True),
        default=0.6,
        metavar="F",
        help="steps have sizes from this share of --size up to all of it; 1 has one size; default: 0.6",
    )
    add(
        "--crop",
        type=_number(0.0, 1.0),
        default=0.5,
        metavar="P",
        help="probability of cutting out a part, which then fills the picture's place; default: 0.5",
    )
    add(
        "--crop-least",
        type=_number(0.0, 1.0, above=True),
        default=0.5,
        metavar="F",
        help="least side of such a part, as a share of the picture's; default: 0.5",
    )
    add(
        "--flip",
        type=_number(0.0, 1.0),
        default=0.5,
        metavar="P",
        help="probability of mirroring left to right; 0 where that changes the class (letters); default: 0.5",
    )
    add(
        "--colour",
        type=_number(0.0, 1.0),
        default=0.2,
        metavar="S",
        help="strength of changes in brightness, contrast, saturation and hue; default: 0.2",
    )


def _add_running(train: argparse.ArgumentParser) -> None:
    add = train.add_argument_group("running").add_argument
    add(
        "--device",
        choices=("auto", "cpu", "cuda"),
        default="auto",
        help="auto: the GPU if there is one; default: auto",
    )
    add(
        "--workers",
        type=whole,
        metavar="N",
        help="processes that read pictures, for each GPU; default: the cores that this process may use, "
        "shared out, up to 16; on the CPU a quarter of them, as Torch's threads have the others",
    )
    add("--seed", type=whole, default=0, metavar="N", help="of everything drawn at random; default: 0")
    add(
        "--save-every",
        type=_interval,
        default=_interval("10m"),
        metavar="N",
        help="save the state every N steps, or every N minutes with an m behind (10m); default: 10m",
    )
    add(
        "--log-every",
        type=positive,
        default=50,
        metavar="N",
        help="steps between two rows of log.csv; default: 50",
    )
    add(
        "--evaluate-every",
        type=whole,
        metavar="N",
        help="steps between two validations; 0 does without; default: ten in the run",
    )
    add(
        "--save-precision",
        choices=("fp32", "fp16"),
        default="fp32",
        help="of model.safetensors; default: fp32",
    )


# Types of arguments.


def _positive_number(text: str) -> float:
    return _number(0.0, math.inf, above=True)(text)


def _number(low: float, high: float, above: bool = False, below: bool = False) -> Callable[[str], float]:
    """A finite number from `low` to `high`; above and below: without the limit itself."""

    def parse(text: str) -> float:
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        outside = not low <= number <= high or (above and number == low) or (below and number == high)
        if outside or not math.isfinite(number):
            start = f"above {low:g}" if above else f"from {low:g}"
            end = "" if math.isinf(high) else f" to below {high:g}" if below else f" to {high:g}"
            raise argparse.ArgumentTypeError(f"expected a number {start}{end}, got {text!r}")
        return number

    return parse


def _size(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"([1-9]\d{0,4})x([1-9]\d{0,4})", text)
    if not match:
        raise argparse.ArgumentTypeError(f"expected LONGxSHORT in pixels, as 1333x800, got {text!r}")
    sides = int(match[1]), int(match[2])
    return max(sides), min(sides)


def _interval(text: str) -> tuple[int | None, float | None]:
    """(steps, minutes), one of them None."""
    if text.endswith("m"):
        return None, _positive_number(text[:-1])
    return positive(text), None
