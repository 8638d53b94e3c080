"""Batches for tests of the losses: random ones, and upstream's with its results."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from torch import nn

import codetr
from codetr.model import TrainingOutputs
from codetr.training.criterion import total
from codetr.training.denoising import Denoising
from codetr.training.targets import Targets

GOLDEN = Path(__file__).parents[1] / "golden" / "losses.safetensors"


CUDA = pytest.param("cuda", marks=pytest.mark.gpu)


def make_denoising(num_classes: int = 5, num_queries: int = 12, **noise) -> Denoising:
    config = codetr.load_config("co_dino_r50")
    return Denoising(
        dataclasses.replace(config, num_classes=num_classes, num_queries=num_queries, max_per_img=1), **noise
    )


def random_boxes(generator: torch.Generator, *shape: int) -> torch.Tensor:
    """Boxes inside the unit square, with sides of 0.05..0.45: [*shape, 4]."""
    sides = 0.05 + 0.4 * torch.rand((*shape, 2), generator=generator)
    return torch.cat(
        (0.5 * sides + torch.rand((*shape, 2), generator=generator) * (1 - sides), sides), dim=-1
    )


def random_targets(counts, num_classes: int = 5, seed: int = 0) -> Targets:
    generator = torch.Generator().manual_seed(seed)
    return Targets(
        tuple(random_boxes(generator, count) for count in counts),
        tuple(torch.randint(num_classes, (count,), generator=generator) for count in counts),
        torch.randint(64, 640, (len(counts), 2), generator=generator),
    )


def random_outputs(
    images: int, denoising: int = 0, queries: int = 12, num_classes: int = 5, layers: int = 2, seed: int = 1
) -> TrainingOutputs:
    generator = torch.Generator().manual_seed(seed)
    tensors = (
        torch.randn(images, queries, num_classes, generator=generator) - 1.0,
        random_boxes(generator, images, queries),
        torch.randn(layers, images, denoising + queries, num_classes, generator=generator) - 1.0,
        random_boxes(generator, layers, images, denoising + queries),
    )
    return TrainingOutputs(*(tensor.requires_grad_() for tensor in tensors))


def gradients(outputs: TrainingOutputs, losses: dict[str, torch.Tensor]) -> tuple[torch.Tensor, ...]:
    return torch.autograd.grad(total(losses), outputs)


def to(outputs, device: str):
    return type(outputs)(*(tensor.detach().to(device).requires_grad_() for tensor in outputs))


class Golden:
    """Upstream's results. The file's metadata says how they were made."""

    def __init__(self) -> None:
        with safe_open(GOLDEN, "pt") as file:
            self.tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            self.num_pairs = int(file.metadata()["num_pairs"])
        counts = self["targets.counts"].tolist()
        self.targets = Targets(
            self["targets.boxes_cxcywh"].split(counts),
            self["targets.labels"].split(counts),
            self["targets.image_shapes"],
        )

    def __getitem__(self, name: str) -> torch.Tensor:
        return self.tensors[name]

    def part(self, prefix: str) -> dict[str, torch.Tensor]:
        return {
            name.removeprefix(prefix): tensor
            for name, tensor in self.tensors.items()
            if name.startswith(prefix)
        }

    def outputs(self) -> TrainingOutputs:
        return TrainingOutputs(**{k: v.clone().requires_grad_() for k, v in self.part("outputs.").items()})

    def denoising(self) -> Denoising:
        denoising = make_denoising(num_pairs=self.num_pairs)
        denoising.label_embedding = nn.Embedding.from_pretrained(self["denoising.embedding"])
        return denoising
