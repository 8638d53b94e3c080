"""What `codetr train` was told, checked and completed, before anything is written."""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from codetr.cli.command import UsageError, check_writable, model_config
from codetr.config import Config
from codetr.dataset.bad_pictures import LeftOut
from codetr.dataset.coco_files import CocoDataset, DatasetError, load_coco, split_file
from codetr.detector.preprocess import fit_size
from codetr.training.augment import Augmentation
from codetr.training.data import PAD_DIVISOR, BatchOrder
from codetr.training.processes import launched
from codetr.training.schedule import Schedule
from codetr.training.start import FROM_SCRATCH, config_for, initial_source
from codetr.training.state import find_states
from codetr.training.trainer import Interval, Settings

DEFAULT_EPOCHS = 12
SCALES = 5
"""Sizes that --multi-scale draws from."""


@dataclass(frozen=True)
class Plan:
    """A run that has been checked.

    Attributes:
        config: with the classes of the data.
        known_names: the classes that the model had before.
        source: of the initial weights.
        thawed: whether batch norms learn.
        device: "cpu" or "cuda".
        threads: of Torch's own on the CPU; None leaves them as they are.
        fingerprint: what the result depends on, by the option's name.
        state: from which to go on.
        left_out: the pictures of `data` that cannot be used; they keep their places in it.
        validation_left_out: likewise.
    """

    config: Config
    known_names: tuple[str, ...]
    source: str
    thawed: bool
    data: CocoDataset
    validation_data: CocoDataset | None
    settings: Settings
    device: str
    threads: int | None
    fingerprint: dict[str, Any]
    state: Path | None
    left_out: LeftOut
    validation_left_out: LeftOut | None


def make_plan(options: argparse.Namespace) -> Plan:
    """Checks the options, the data and the model; nothing is written.

    Raises:
        UsageError: naming the option.
        DatasetError: naming the file.
    """
    rank, local_rank, world = launched()
    device = _device(options.device, local_rank)
    published = model_config(options.model)
    source = initial_source(options.model, published, options.init)
    state = _newest_state(options.out, options.resume)
    data, validation_data = _load(options)
    config = config_for(published, data, options.size)
    settings = _settings(options, config, data, source == FROM_SCRATCH, device, world)
    _check_cells(config, data, settings)
    thawed = (options.batch_norm or ("train" if source == FROM_SCRATCH else "frozen")) == "train"
    fingerprint = _fingerprint(config, source, thawed, options.denoising, data, settings, world)
    left_outs = [
        LeftOut(dataset, strict=options.strict, shown=rank == 0)
        for dataset in (data, validation_data)
        if dataset is not None
    ]
    _check_pictures(left_outs)
    return Plan(
        config=config,
        known_names=published.label_names,
        source=source,
        thawed=thawed,
        data=data,
        validation_data=validation_data,
        settings=settings,
        device=device,
        threads=_threads(device, settings.workers),
        fingerprint=fingerprint,
        state=state,
        left_out=left_outs[0],
        validation_left_out=left_outs[1] if validation_data is not None else None,
    )


def _check_pictures(left_outs: Sequence[LeftOut]) -> None:
    """Names all pictures that cannot be used, then raises what `LeftOut.check` does."""
    left_outs[0].tell_supercategories()
    errors = []
    for left_out in left_outs:
        try:
            left_out.check()
        except DatasetError as error:
            errors.append(error)
    if errors:
        raise errors[0]


def _device(device: str, local_rank: int) -> str:
    gpus = torch.cuda.device_count()
    if device == "cuda" and not gpus:
        raise UsageError("--device cuda: there is no NVIDIA GPU that this PyTorch can use")
    if device == "cpu" or not gpus:
        return "cpu"
    if local_rank >= gpus:
        raise UsageError(f"torchrun --nproc-per-node: more processes than GPUs, of which there are {gpus}")
    return "cuda"


def _newest_state(folder: Path, resume: bool) -> Path | None:
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"--out {folder}: is a file, not a folder")
    check_writable("--out", folder / "training.json")
    states = find_states(folder)
    if resume and not states:
        raise UsageError(f"--resume: there is no state in {folder}; leave --resume out to begin")
    if states and not resume:
        raise UsageError(
            f"--out {folder}: holds a run ({states[-1].name}); add --resume to go on with it, or choose "
            "another folder"
        )
    return states[-1] if resume else None


def _load(options: argparse.Namespace) -> tuple[CocoDataset, CocoDataset | None]:
    """The data to train on and to validate on, with the same classes."""
    data = load_coco(options.data, options.train_split)
    validation_data = _load_validation(options, data)
    if validation_data is not None and set(validation_data.class_names) & set(data.supercategories):
        # Only there are such objects annotated.
        data = load_coco(options.data, options.train_split, keep=validation_data.class_names)
    if validation_data is not None and validation_data.class_names != data.class_names:
        different = set(validation_data.class_names) ^ set(data.class_names)
        example = f", {sorted(different)[0]!r} for one" if different else ": their order differs"
        raise DatasetError(
            f"{validation_data.annotation_file}: the categories are not those of {data.annotation_file}"
            f"{example}"
        )
    return data, validation_data


def _load_validation(options: argparse.Namespace, data: CocoDataset) -> CocoDataset | None:
    folder, split = options.data, options.val_split
    if split == "none" or options.evaluate_every == 0:
        return None
    if split is None:
        split = "val"
        if split_file(folder, split) is None:
            if options.evaluate_every:
                raise UsageError(f"--evaluate-every: {folder} has no annotations of a split val")
            return None
    validation_data = load_coco(folder, split, keep=data.class_names)
    if validation_data.annotation_file == data.annotation_file:
        raise UsageError(f"--val-split {split}: {data.annotation_file} is what is trained on")
    return validation_data


def _settings(
    options: argparse.Namespace, config: Config, data: CocoDataset, scratch: bool, device: str, world: int
) -> Settings:
    scales = make_scales(config.resize_scale, options.multi_scale)
    steps = options.steps
    if steps is None and options.minutes is None:
        order = BatchOrder(data.pictures, options.batch * world, scales, options.seed)
        steps = math.ceil((options.epochs or DEFAULT_EPOCHS) * order.batches_per_epoch)
    warmup = options.warmup
    if warmup is None:
        warmup = 1000 if scratch else 200
        warmup = warmup if steps is None else min(warmup, steps // 20)
    factor = options.backbone_lr_factor
    workers = options.workers
    if workers is None:
        # On the CPU a step takes far longer than reading its pictures.
        workers = min(16, _cores() if device == "cuda" else _cores() // 4)
    return Settings(
        batch=options.batch,
        schedule=Schedule(steps, options.minutes, warmup, options.final_lr_factor),
        scales=scales,
        augmentation=Augmentation(options.flip, options.crop, options.crop_least, options.colour),
        learning_rate=options.lr,
        backbone_factor=(1.0 if scratch else 0.1) if factor is None else factor,
        weight_decay=options.weight_decay,
        clip=options.clip,
        ema=options.ema,
        bf16=(options.precision or ("bf16" if device == "cuda" else "fp32")) == "bf16",
        workers=workers,
        seed=options.seed,
        save_every=Interval(*options.save_every),
        log_every=options.log_every,
        evaluate_every=options.evaluate_every,
        time_limit=options.time_limit,
    )


def _cores() -> int:
    """This process's share of the cores that it may use; at least 1."""
    usable = getattr(os, "sched_getaffinity", None)
    cores = len(usable(0)) if usable else os.cpu_count() or 1
    return max(1, cores // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))


def _threads(device: str, workers: int) -> int | None:
    """Threads that share the cores with the workers; None where the user has chosen, or a GPU computes."""
    if device == "cuda" or "OMP_NUM_THREADS" in os.environ:
        return None
    return max(1, _cores() - workers)


def make_scales(size: tuple[int, int], least: float) -> tuple[tuple[int, int], ...]:
    """Sizes from a share of one up to all of it, ascending; the smaller ones in whole tens of pixels."""
    if least == 1.0:
        return (size,)
    shares = np.linspace(least, 1.0, SCALES)[:-1]
    smaller = [tuple(max(PAD_DIVISOR, round(side * share)) for side in size) for share in shares]
    return (*smaller, size)


def _check_cells(config: Config, data: CocoDataset, settings: Settings) -> None:
    """Refuses sizes at which a picture has fewer cells than the model has queries."""
    long, short = max(settings.scales[0]), min(settings.scales[0])
    for height, width in {(picture.height, picture.width) for picture in data.pictures}:
        limits = (short, long) if width >= height else (long, short)
        sides = [-(-side // PAD_DIVISOR) * PAD_DIVISOR for side in fit_size(height, width, *limits)]
        strides = [4 << level for level in range(config.num_levels)]
        cells = sum(math.prod(-(-side // stride) for side in sides) for stride in strides)
        if cells < config.num_queries:
            raise UsageError(
                f"--size, --multi-scale: a picture of {width}x{height} has {cells} cells when it is fitted "
                f"into {long}x{short}, fewer than the model's {config.num_queries} queries; use larger sizes"
            )


def _fingerprint(
    config: Config,
    source: str,
    thawed: bool,
    pairs: int,
    data: CocoDataset,
    settings: Settings,
    world: int,
) -> dict[str, Any]:
    described = json.dumps(dataclasses.asdict(config))
    augmentation, schedule = settings.augmentation, settings.schedule
    return {
        "--model": f"{config.name} ({_digest(described.encode())})",
        "--data": f"{len(data)} pictures ({_digest(data.annotation_file.read_bytes())})",
        "--init": source,
        "--batch-norm": "train" if thawed else "frozen",
        "--denoising": pairs,
        "--batch times processes": settings.batch * world,
        "--steps or --epochs": schedule.steps,
        "--minutes": schedule.minutes,
        "--warmup": schedule.warmup,
        "--lr": settings.learning_rate,
        "--final-lr-factor": schedule.floor,
        "--backbone-lr-factor": settings.backbone_factor,
        "--weight-decay": settings.weight_decay,
        "--clip": settings.clip,
        "--ema": settings.ema,
        "--precision": "bf16" if settings.bf16 else "fp32",
        "--size, --multi-scale": str(settings.scales),
        "--crop": augmentation.crop,
        "--crop-least": augmentation.least_side,
        "--flip": augmentation.flip,
        "--colour": augmentation.colour,
        "--seed": settings.seed,
    }


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:12]
