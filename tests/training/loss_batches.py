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
from codetr.training.targets import Targets, make_targets

GOLDEN = Path(__file__).parents[1] / "golden" / "losses.safetensors"


CUDA = pytest.param("cuda", marks=pytest.mark.gpu)


def make_denoising(num_pairs: int = 100) -> Denoising:
    config = codetr.load_config("co_dino_r50")
    return Denoising(dataclasses.replace(config, num_classes=5, num_queries=12, max_per_img=1), num_pairs)


def random_boxes(generator: torch.Generator, *shape: int) -> torch.Tensor:
    """Boxes inside the unit square, with sides of 0.05..0.45: [*shape, 4]."""
    sides = 0.05 + 0.4 * torch.rand((*shape, 2), generator=generator)
    return torch.cat(
        (0.5 * sides + torch.rand((*shape, 2), generator=generator) * (1 - sides), sides), dim=-1
    )


def random_targets(counts, seed: int = 0) -> Targets:
    generator = torch.Generator().manual_seed(seed)
    boxes = torch.cat([random_boxes(generator, count) for count in counts])
    labels = torch.cat([torch.randint(5, (count,), generator=generator) for count in counts])
    return make_targets(boxes, labels, torch.randint(64, 640, (len(counts), 2), generator=generator), counts)


def random_outputs(images: int, denoising: int = 0) -> TrainingOutputs:
    """Outputs of two decoder layers, with 12 queries beside the denoising ones, for five classes."""
    generator = torch.Generator().manual_seed(1)
    tensors = (
        torch.randn(images, 12, 5, generator=generator) - 1.0,
        random_boxes(generator, images, 12),
        torch.randn(2, images, denoising + 12, 5, generator=generator) - 1.0,
        random_boxes(generator, 2, images, denoising + 12),
    )
    return TrainingOutputs(*(tensor.requires_grad_() for tensor in tensors))


def gradients(outputs: TrainingOutputs, losses: dict[str, torch.Tensor]) -> tuple[torch.Tensor, ...]:
    return torch.autograd.grad(total(losses), outputs)


def to(device: str, outputs: TrainingOutputs, targets: Targets) -> tuple[TrainingOutputs, Targets]:
    moved = TrainingOutputs(*(tensor.detach().to(device).requires_grad_() for tensor in outputs))
    return moved, Targets(*(tensor.to(device) for tensor in targets[:-1]), targets.counts)


class Golden:
    """Upstream's results. The file's metadata says how they were made."""

    def __init__(self) -> None:
        with safe_open(GOLDEN, "pt") as file:
            self.tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            self.num_pairs = int(file.metadata()["num_pairs"])
        names = ("boxes_cxcywh", "labels", "image_shapes")
        self.targets = make_targets(
            *(self[f"targets.{name}"] for name in names), self["targets.counts"].tolist()
        )

    def __getitem__(self, name: str) -> torch.Tensor:
        return self.tensors[name]

    def part(self, prefix: str) -> dict[str, torch.Tensor]:
        names = [name for name in self.tensors if name.startswith(prefix)]
        return {name.removeprefix(prefix): self[name] for name in names}

    def outputs(self) -> TrainingOutputs:
        return TrainingOutputs(**{k: v.clone().requires_grad_() for k, v in self.part("outputs.").items()})

    def denoising(self) -> Denoising:
        denoising = make_denoising(self.num_pairs)
        denoising.label_embedding = nn.Embedding.from_pretrained(self["denoising.embedding"])
        return denoising
