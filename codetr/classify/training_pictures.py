"""Batches of changed pictures for the training of a classifier, the same for any number of processes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler
from torchvision.transforms import v2

from codetr.classify.class_folders import ClassFolders, read_class_picture
from codetr.classify.pictures import ClassifierPreprocessing
from codetr.dataset.coco_files import DatasetError


class TrainingBatch(NamedTuple):
    """The pictures of a step that could be read, and the errors of the others."""

    images: Tensor  # float32 [N, 3, H, W]; N may be 0
    labels: Tensor  # int64 [N]
    unreadable: list[tuple[int, str]]  # index in the dataset and message


def training_batches(
    dataset: ClassFolders,
    preprocessing: ClassifierPreprocessing,
    *,
    batch: int,
    seed: int,
    crop_least: float,
    flip: float,
    colour: float,
    workers: int,
    pinned: bool,
) -> tuple[DataLoader, EpochOrder]:
    """Makes the loader of `TrainingBatch`es and its order, whose attribute `epoch` is set before each pass.

    A picture is cropped at random, resized, flipped with the probability `flip`, and changed in its colours.

    Args:
        crop_least: least side of a crop, as a share of the picture's.
        colour: strength of changes in brightness, contrast and saturation, a quarter of it in hue.
        workers: processes that read pictures; 0 reads in this one.
        pinned: whether to copy batches to page-locked memory.
    """
    change = v2.Compose(
        [
            v2.RandomResizedCrop(
                preprocessing.crop,
                scale=(crop_least**2, 1.0),
                interpolation=v2.InterpolationMode(preprocessing.interpolation),
                antialias=True,
            ),
            v2.RandomHorizontalFlip(flip),
            v2.ColorJitter(colour, colour, colour, min(0.25 * colour, 0.5)),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(preprocessing.mean, preprocessing.std),
        ]
    )
    order = EpochOrder(len(dataset), batch, seed)
    loader = DataLoader(
        _Pictures(dataset, change, seed),
        batch_sampler=order,
        num_workers=workers,
        collate_fn=_collate,
        pin_memory=pinned,
        persistent_workers=workers > 0,
    )
    return loader, order


class EpochOrder(Sampler):
    """Shuffles the pictures of each epoch. It drops an incomplete last batch, unless that is the only one."""

    def __init__(self, pictures: int, batch: int, seed: int) -> None:
        self.pictures, self.batch, self.seed, self.epoch = pictures, batch, seed, 0

    def __len__(self) -> int:
        return max(1, self.pictures // self.batch)

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        order = np.random.default_rng([self.seed, self.epoch]).permutation(self.pictures).tolist()
        for start in range(0, len(self) * self.batch, self.batch):
            yield [(self.epoch, index) for index in order[start : start + self.batch]]


class _Pictures(Dataset):
    def __init__(self, dataset: ClassFolders, change: v2.Transform, seed: int) -> None:
        self.dataset, self.change, self.seed = dataset, change, seed

    def __getitem__(self, place: tuple[int, int]) -> tuple[int, int, Tensor | str]:
        epoch, index = place
        picture = self.dataset.pictures[index]
        try:
            pixels = torch.from_numpy(read_class_picture(picture)).permute(2, 0, 1)
        except DatasetError as error:
            return index, picture.label, str(error)
        seed = np.random.SeedSequence([self.seed, epoch, index]).generate_state(1, np.uint64)
        with torch.random.fork_rng(devices=[]):  # the transforms draw from the global generator
            torch.manual_seed(int(seed[0]))
            return index, picture.label, self.change(pixels)


def _collate(samples: list[tuple[int, int, Tensor | str]]) -> TrainingBatch:
    good = [(label, image) for _, label, image in samples if isinstance(image, Tensor)]
    images = torch.stack([image for _, image in good]) if good else torch.zeros(0, 3, 1, 1)
    unreadable = [(index, error) for index, _, error in samples if isinstance(error, str)]
    return TrainingBatch(images, torch.tensor([label for label, _ in good], dtype=torch.int64), unreadable)
