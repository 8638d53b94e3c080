"""The golden models for tests: loaded, as checkpoints, and as command lines."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

import codetr

GOLDEN = Path(__file__).parent / "golden"
MODELS = {"codino_swin_tiny": 2 + 3, "codino_resnet_tiny": 1 + 2}  # encoder + decoder layers


def load_golden(name: str) -> tuple[codetr.CoDino, dict[str, torch.Tensor]]:
    """Returns a golden model with its weights, and all tensors of its file."""
    tensors = load_file(GOLDEN / f"{name}.safetensors")
    model = codetr.CoDino(codetr.load_config(GOLDEN / f"{name}.json"))
    codetr.load_checkpoint(model, parameters_of(tensors))
    return model, tensors


def parameters_of(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Returns the weights among a golden file's tensors, by upstream's names."""
    return {name[6:]: tensor for name, tensor in tensors.items() if name.startswith("param/")}


def save_weights(folder: Path) -> dict[str, Path]:
    """Writes every golden model's weights as a checkpoint."""
    paths = {name: folder / f"{name}.safetensors" for name in MODELS}
    for name, path in paths.items():
        save_file(parameters_of(load_file(GOLDEN / f"{name}.safetensors")), path)
    return paths


def arguments(
    weights: dict[str, Path], folder: Path, name: str = "codino_resnet_tiny", /, **options: object
) -> list[str]:
    """Returns an export command's arguments for a golden model; `options` extend or replace them."""
    given = {"model": GOLDEN / f"{name}.json", "weights": weights[name], "out": folder}
    given |= {"height": 128, "width": 96}
    return [text for key, value in (given | options).items() for text in (f"--{key}", str(value))]


def without(given: list[str], *options: str) -> list[str]:
    """Returns a command line without some options and their values."""
    for option in options:
        index = given.index(option)
        given = given[:index] + given[index + 2 :]
    return given
