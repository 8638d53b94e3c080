"""Checks the options of `codetr train` and loads the dataset, before a run writes anything."""

from __future__ import annotations

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

from codetr.config import Config
from codetr.dataset.bad_pictures import BadPictures
from codetr.dataset.coco_files import CocoDataset, DatasetError, load_coco, split_file
from codetr.detector.preprocess import rescale_size
from codetr.errors import ArgumentError
from codetr.training.run_state import newest_state
from codetr.training.run_weights import FROM_SCRATCH, config_for, initial_source
from codetr.training.torchrun_processes import Processes
from codetr.training.train_options import DEFAULT_EPOCHS, Size, TrainOptions, usual_warmup
from codetr.training.training_batches import PAD_DIVISOR, BatchOrder
from codetr.usable_cores import usable_cores
from codetr.weights import model_config

SCALES = 5
"""Sizes that --multi-scale draws from."""

_RESULT_OPTIONS = (
    *("init", "batch_norm", "denoising", "steps", "minutes", "warmup", "lr", "final_lr_factor"),
    *("backbone_lr_factor", "weight_decay", "clip", "ema", "precision", "size", "multi_scale", "crop"),
    *("crop_least", "flip", "colour", "seed"),
)


@dataclass(frozen=True)
class TrainingPlan:
    """A checked run."""

    options: TrainOptions  # every default is filled in. `steps` or `minutes` gives the length
    config: Config  # the model with the classes of the dataset
    known_names: tuple[str, ...]  # classes of the model before training
    data: BadPictures
    validation_data: BadPictures | None  # None skips validation
    order: BatchOrder  # pictures and size of each step
    threads: int | None  # of Torch on the CPU; None leaves them as they are
    fingerprint: dict[str, Any]  # everything that the result depends on, by name
    state: Path | None  # file of the state to continue from


def make_plan(options: TrainOptions, processes: Processes) -> TrainingPlan:
    """Checks the options, the dataset and the model. It writes no file.

    Raises:
        ArgumentError: an option has a wrong value.
        DatasetError: the dataset cannot be used.
    """
    given = [name for name in ("steps", "epochs", "minutes") if getattr(options, name) is not None]
    if len(given) > 1:
        raise ArgumentError(given[1], f"expected no --{given[0]} with it, got both")
    if options.model is None:
        raise ArgumentError("model", "expected a configuration such as co_dino_r50, got none")
    options = options.with_defaults(batch=2, lr=1e-4)  # a classifier has others
    published = model_config(options.model)
    source = initial_source(options.model, published, options.init)
    state = newest_state(options.out, options.resume)
    data, validation_data = _load(options)
    config = config_for(published, data, options.size)
    scales = make_scales(config.resize_scale, options.multi_scale)
    order = BatchOrder(data.pictures, options.batch * processes.world, scales, options.seed)
    options = _with_defaults(options, source, order, processes)
    _check_cells(config, data, scales)
    pictures = [
        BadPictures(dataset, strict=options.strict, shown=processes.first)
        for dataset in (data, validation_data)
        if dataset is not None
    ]
    for bad in pictures:
        bad.check()
    return TrainingPlan(
        options=options,
        config=config,
        known_names=published.label_names,
        data=pictures[0],
        validation_data=None if validation_data is None else pictures[1],
        order=order,
        threads=_threads(options),
        fingerprint=_fingerprint(options, config, data, scales, processes.world),
        state=state,
    )


def _load(options: TrainOptions) -> tuple[CocoDataset, CocoDataset | None]:
    """Loads the datasets to train on and to validate on, with the same classes."""
    data = load_coco(options.data, options.train_split)
    split = options.val_split or "val"
    unwanted = split == "none" or options.evaluate_every == 0
    optional = options.val_split is None and options.evaluate_every is None
    if unwanted or (optional and split_file(options.data, split) is None):
        return data, None
    validation_data = load_coco(options.data, split, keep=data.class_names)
    if validation_data.annotation_file == data.annotation_file:
        text = f"expected another split than --train-split, got {split!r}, and {data.annotation_file} is both"
        raise ArgumentError("val_split", text)
    if set(validation_data.class_names) & set(data.supercategories):
        # Only the validation split has objects of this category.
        data = load_coco(options.data, options.train_split, keep=validation_data.class_names)
    if validation_data.class_names != data.class_names:
        example, *_ = sorted(set(validation_data.class_names) ^ set(data.class_names)) or ["the order"]
        words = f"the categories differ from {data.annotation_file}, such as {example!r}"
        raise DatasetError(f"{validation_data.annotation_file}: {words}")
    return data, validation_data


def _with_defaults(
    options: TrainOptions, source: str, order: BatchOrder, processes: Processes
) -> TrainOptions:
    """Fills in the defaults that depend on the weights, the dataset or the machine."""
    scratch, gpu = source == FROM_SCRATCH, processes.device.type == "cuda"
    steps = options.steps
    if steps is None and options.minutes is None:
        steps = math.ceil((options.epochs or DEFAULT_EPOCHS) * order.batches_per_epoch)
    options = options.with_defaults(
        init=source,
        batch_norm="train" if scratch else "frozen",
        backbone_lr_factor=1.0 if scratch else 0.1,
        warmup=usual_warmup(scratch, steps),
        precision="bf16" if gpu else "fp32",
        # On the CPU a step takes far longer than reading its pictures.
        workers=min(16, _cores() if gpu else _cores() // 4),
    )
    return dataclasses.replace(options, steps=steps, device=processes.device.type)


def _cores() -> int:
    """Returns this process's share of the cores that it may use, at least 1."""
    return max(1, usable_cores() // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))


def _threads(options: TrainOptions) -> int | None:
    """Returns the threads that share the cores with the workers; None if the user or a GPU decides."""
    if options.device == "cuda" or "OMP_NUM_THREADS" in os.environ:
        return None
    return max(1, _cores() - options.workers)


def make_scales(size: Size, least: float) -> tuple[Size, ...]:
    """Makes sizes from a share of `size` up to all of it, ascending."""
    if least == 1.0:
        return (size,)
    shares = np.linspace(least, 1.0, SCALES)[:-1]
    smaller = [tuple(max(PAD_DIVISOR, round(side * share)) for side in size) for share in shares]
    return (*smaller, size)


def _check_cells(config: Config, data: CocoDataset, scales: Sequence[Size]) -> None:
    """Refuses sizes at which a picture has fewer cells than the model has queries."""
    strides = [4 << level for level in range(config.num_levels)]
    for height, width in {(picture.height, picture.width) for picture in data.pictures}:
        sides = [-(-side // PAD_DIVISOR) * PAD_DIVISOR for side in rescale_size(height, width, scales[0])]
        cells = sum(math.prod(-(-side // stride) for side in sides) for stride in strides)
        if cells < config.num_queries:
            raise ArgumentError(
                "size",
                f"expected {config.num_queries} cells or more, one for each query, got {cells} for a picture "
                f"of {width}x{height} fitted into {'x'.join(map(str, scales[0]))}; use a larger --size or "
                "--multi-scale",
            )


def _fingerprint(
    options: TrainOptions, config: Config, data: CocoDataset, scales: Sequence[Size], world: int
) -> dict[str, Any]:
    model, file = json.dumps(dataclasses.asdict(config)).encode(), data.annotation_file.read_bytes()
    model_digest, file_digest = (hashlib.sha256(content).hexdigest()[:12] for content in (model, file))
    return {
        "--model": f"{config.name} ({model_digest})",
        "--data": f"{len(data)} pictures ({file_digest})",
        "--batch times processes": options.batch * world,
        **{f"--{name.replace('_', '-')}": getattr(options, name) for name in _RESULT_OPTIONS},
        "--size": str(scales),
    }
