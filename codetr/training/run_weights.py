"""The weights of a run: loaded from a checkpoint or initialised, and saved as a checkpoint."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from codetr.checkpoint import (
    UPSTREAM_LABEL_EMBEDDING,
    MisfitError,
    load_checkpoint,
    read_checkpoint,
    upstream_name,
)
from codetr.config import Config
from codetr.dataset.coco_files import CocoDataset
from codetr.errors import ArgumentError, one_line
from codetr.model import CoDino
from codetr.model.layers import thaw_batch_norms
from codetr.training.denoising import Denoising
from codetr.training.initialise import initialise
from codetr.training.training_network import TrainingNetwork
from codetr.weights import KNOWN_WEIGHTS, choose_weights
from trt_plugin.atomic_files import atomic_write, write_json

FROM_SCRATCH = "none"


def config_for(config: Config, data: CocoDataset, size: tuple[int, int] | None) -> Config:
    """Returns a configuration with the classes of a dataset, under another name than published weights.

    Args:
        size: (long, short) sides that pictures are fitted into. None keeps the configuration's.
    """
    classes = len(data.class_names)
    return dataclasses.replace(
        config,
        name=f"{config.name}_trained" if config.name in KNOWN_WEIGHTS else config.name,
        num_classes=classes,
        class_names=data.class_names,
        max_per_img=min(config.max_per_img, config.num_queries * classes),
        resize_scale=size or config.resize_scale,
    )


def initial_source(model: str, config: Config, init: str | None) -> str:
    """Resolves --init: `FROM_SCRATCH`, or as `codetr.weights.choose_weights` does, with its errors."""
    if init == FROM_SCRATCH:
        return init
    try:
        return choose_weights(model, config, init)
    except ArgumentError as error:
        raise ArgumentError("init", f"{error.problem}; {FROM_SCRATCH!r} trains from scratch") from error


def make_network(
    config: Config, source: str, known_names: Sequence[str], *, pairs: int, thawed: bool, seed: int
) -> tuple[TrainingNetwork, str]:
    """Makes the network that a run starts with.

    Args:
        source: see `initial_source`.
        known_names: classes of the model that the source belongs to, in the order of its labels.
        pairs: pairs of denoising queries; 0 makes none.
        thawed: whether batch norms learn.

    Returns:
        The network, and the origin of its weights in words.

    Raises:
        ArgumentError: the weights do not fit the model.
    """
    torch.manual_seed(seed)
    model = initialise(CoDino(config), seed)
    network = TrainingNetwork(model, Denoising(config, pairs) if pairs else None)
    words = "initialised weights"
    if source != FROM_SCRATCH:
        words = _load(network, source, known_names)
    if thawed:
        thaw_batch_norms(model)
    return network, words


def _load(network: TrainingNetwork, source: str, known_names: Sequence[str]) -> str:
    """Loads a checkpoint. Classes that it does not know keep the weights of the network."""
    try:
        _, tensors = read_checkpoint(source)
    except ValueError as error:
        raise ArgumentError("init", one_line(error)) from error
    config = network.model.config
    names = {name: label for label, name in enumerate(known_names)}
    pairs = [(label, names[name]) for label, name in enumerate(config.class_names) if name in names]
    for name, fresh in network.model.state_dict().items():
        if "class_branch" in name:
            name = upstream_name(name, config.decoder_layers)
            if name in tensors:
                tensors[name] = _with_known_classes(fresh, tensors[name], len(known_names), pairs)
    try:
        load_checkpoint(network.model, tensors)
    except MisfitError as error:
        raise ArgumentError("init", f"{source}: {error.summary.removeprefix('checkpoint: ')}") from error
    embedding = tensors.get(UPSTREAM_LABEL_EMBEDDING)
    if network.denoising is not None and embedding is not None:
        weight = network.denoising.label_embedding.weight
        with torch.no_grad():
            weight.copy_(_with_known_classes(weight, embedding, len(known_names), pairs))
    return f"weights of {source}, which knows {len(pairs)} of the {config.num_classes} classes"


def _with_known_classes(
    fresh: Tensor, loaded: Tensor, known: int, pairs: Sequence[tuple[int, int]]
) -> Tensor:
    """Returns the rows of a class branch: loaded rows for known classes, fresh rows for the others.

    Args:
        fresh: [classes, ...].
        loaded: [known, ...]. With another number of rows it belongs to another model, and none is used.
        pairs: (label, label in `loaded`).
    """
    if loaded.shape[1:] != fresh.shape[1:]:
        return loaded  # `load_checkpoint` reports the shape
    rows = fresh.detach().clone()
    for label, label_there in pairs if len(loaded) == known else ():
        rows[label] = loaded[label_there]
    return rows


def save_weights(path: Path, network: TrainingNetwork, precision: str) -> None:
    """Writes a network under upstream's names, for `codetr.load_checkpoint`. `precision` is fp32 or fp16."""
    layers = network.model.config.decoder_layers
    tensors = {
        upstream_name(name, layers): tensor
        for name, tensor in network.model.state_dict().items()
        if not name.endswith("num_batches_tracked")  # only a batch norm without momentum uses it
    }
    if network.denoising is not None:
        tensors[UPSTREAM_LABEL_EMBEDDING] = network.denoising.label_embedding.weight
    dtype = {"fp32": torch.float32, "fp16": torch.float16}[precision]
    tensors = {name: tensor.detach().to("cpu", dtype).contiguous() for name, tensor in tensors.items()}
    with atomic_write(path) as temporary:
        save_file(tensors, temporary, {"format": "pt"})


def save_config(path: Path, config: Config) -> None:
    """Writes a configuration for `codetr.load_config`."""
    fields = {name: value for name, value in dataclasses.asdict(config).items() if value is not None}
    write_json(path, fields)
