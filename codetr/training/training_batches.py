"""Batches for training: their pictures and order, reading, augmentation and padding.

Everything drawn at random is a function of the seed, the epoch and the place in it. A resumed run therefore
sees the same samples, with any number of workers or processes.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from codetr.dataset.coco_files import CocoDataset, CocoPicture, DatasetError, read_picture
from codetr.training.augment import Augmentation, augment

PAD_DIVISOR = 32
"""Height and width of a batch are multiples of this number of pixels. Few shapes let Torch reuse memory."""

_ORDER, _SCALE, _SAMPLE, _REPLACEMENT = range(4)  # purposes of random generators
_ATTEMPTS = 20  # replacements for one unreadable picture; if all are unreadable, the disk may have failed

Unreadable = tuple[int, DatasetError]
"""Index of a picture that could not be read, and its error. Workers return errors, which Torch would wrap."""


class Request(NamedTuple):
    """One sample to make."""

    index: int  # of the picture
    draw: tuple[int, ...]  # seed of its augmentation
    scale: tuple[int, int]  # (long, short) sides in pixels to fit it into


class Sample(NamedTuple):
    """A picture for the network, before normalisation.

    `unreadable` has the pictures that this sample replaces, found while it was made.
    """

    pixels: np.ndarray  # uint8 [h, w, 3], RGB
    boxes_cxcywh: np.ndarray  # float32 [n, 4], in units of the picture
    labels: np.ndarray  # int64 [n]
    unreadable: tuple[Unreadable, ...] = ()


class HostBatch(NamedTuple):
    """N samples, each in the upper left of its row of `pixels`.

    `unreadable` has the pictures that the samples replace.
    """

    pixels: Tensor  # uint8 [N, H, W, 3], zero in the padding
    image_shapes: Tensor  # int64 [N, 2], (h, w)
    boxes_cxcywh: Tensor  # float32 [sum of n, 4], those of the first sample first
    labels: Tensor  # int64 [sum of n]
    counts: list[int]  # n of each sample
    unreadable: tuple[Unreadable, ...] = ()

    def map(self, function: Callable[[Any], Any]) -> HostBatch:
        """Returns the batch with a function applied to each tensor."""
        return HostBatch(*map(function, self[:4]), *self[4:])

    def to(self, device: torch.device) -> HostBatch:
        """Copies the tensors to a device. Copies from pinned memory do not wait for it."""
        return self.map(lambda tensor: tensor.to(device, non_blocking=True))


class BatchOrder:
    """The pictures of each step's batch, over all processes.

    An epoch holds every picture once. Wide pictures and high pictures have batches of their own, which saves
    padding. The last batch of either kind repeats pictures from its beginning.

    Args:
        batch: samples of a step, of all processes together.
        scales: (long, short) sides in pixels; a step has one of them, drawn at random.
        seed: of the order and of all random numbers.
    """

    def __init__(
        self, pictures: Sequence[CocoPicture], batch: int, scales: Sequence[tuple[int, int]], seed: int
    ) -> None:
        wide = np.array([picture.wide for picture in pictures])
        self.kinds = [kind for kind in (np.flatnonzero(wide), np.flatnonzero(~wide)) if len(kind)]
        self.batch, self.scales, self.seed = batch, tuple(scales), seed
        self.batches_per_epoch = sum(-(-len(kind) // batch) for kind in self.kinds)
        self._epoch: tuple[int, np.ndarray] | None = None

    def requests(self, step: int) -> list[Request]:
        """Returns the samples of a step, counted from 0 over all epochs."""
        epoch, index = divmod(step, self.batches_per_epoch)
        if self._epoch is None or self._epoch[0] != epoch:
            self._epoch = epoch, self._shuffled(epoch)
        draws = np.random.default_rng((self.seed, _SCALE, epoch, index))
        scale = self.scales[draws.integers(len(self.scales))]
        first = index * self.batch
        return [
            Request(int(picture), (self.seed, _SAMPLE, epoch, first + place), scale)
            for place, picture in enumerate(self._epoch[1][index])
        ]

    def steps(self, first: int = 0, rank: int = 0, world: int = 1) -> Iterator[list[Request]]:
        """Yields the samples of one of `world` processes for each step from `first` on, without end."""
        share = self.batch // world
        for step in itertools.count(first):
            yield self.requests(step)[rank * share : (rank + 1) * share]

    def _shuffled(self, epoch: int) -> np.ndarray:
        """Returns [batches, batch] indices of pictures."""
        draws = np.random.default_rng((self.seed, _ORDER, epoch))
        rows = [
            np.resize(draws.permutation(kind), (-(-len(kind) // self.batch), self.batch))
            for kind in self.kinds
        ]
        return draws.permutation(np.concatenate(rows))


class TrainingSet(Dataset):
    """Reads and augments pictures.

    Another picture of the same kind, wide or high, replaces an unreadable one. The choice is a function of
    the request and of the readable pictures, so that a resumed run sees the same.

    Args:
        bad: indices of pictures that are known to be unreadable; they are not tried.
    """

    def __init__(self, data: CocoDataset, augmentation: Augmentation, bad: Collection[int] = ()) -> None:
        self.pictures = data.pictures
        self.augmentation = augmentation
        self.bad = frozenset(bad)
        self.wide = np.array([picture.wide for picture in data.pictures])

    def __getitem__(self, request: Request) -> Sample | DatasetError:
        """Returns the sample, or an error if neither the picture nor its replacements can be read."""
        unreadable = []
        for index in self._candidates(request):
            try:
                pixels = read_picture(self.pictures[index])
            except DatasetError as error:
                unreadable.append((index, error))
                continue
            return self._sample(self.pictures[index], pixels, request)._replace(unreadable=tuple(unreadable))
        others = len(unreadable) - 1
        return DatasetError(f"{unreadable[0][1]}; {others} replacements cannot be read either")

    def _candidates(self, request: Request) -> Iterator[int]:
        """Yields the requested picture, then others of its kind, then those of the other kind."""
        if request.index not in self.bad:
            yield request.index
        draws = np.random.default_rng((*request.draw, _REPLACEMENT))
        alike = self.wide == self.wide[request.index]
        # Known or not, a bad picture keeps its place in the order, and so do all others.
        order = itertools.chain(
            *(draws.permutation(np.flatnonzero(kind)).tolist() for kind in (alike, ~alike))
        )
        others = (index for index in order if index not in self.bad and index != request.index)
        yield from itertools.islice(others, _ATTEMPTS)

    def _sample(self, picture: CocoPicture, pixels: np.ndarray, request: Request) -> Sample:
        # A crowd is many objects in one box, which no single query can find.
        boxes, labels = picture.boxes_xyxy_px[~picture.crowd], picture.labels[~picture.crowd]
        draws = np.random.default_rng(request.draw)
        long, short = max(request.scale), min(request.scale)
        limits = (short, long) if picture.wide else (long, short)
        return Sample(*augment(pixels, boxes, labels, limits, self.augmentation, draws))


def collate(samples: Sequence[Sample | DatasetError]) -> HostBatch | DatasetError:
    """Pads samples into a batch. Returns the first error among them instead, if there is one."""
    error = next((sample for sample in samples if isinstance(sample, DatasetError)), None)
    if error is not None:
        return error
    sizes = [sample.pixels.shape[:2] for sample in samples]
    height, width = (-(-max(side) // PAD_DIVISOR) * PAD_DIVISOR for side in zip(*sizes))
    pixels = torch.zeros((len(samples), height, width, 3), dtype=torch.uint8)
    for target, sample in zip(pixels.numpy(), samples):
        h, w = sample.pixels.shape[:2]
        target[:h, :w] = sample.pixels
    return HostBatch(
        pixels,
        torch.tensor(sizes, dtype=torch.int64),
        torch.from_numpy(np.concatenate([sample.boxes_cxcywh for sample in samples])),
        torch.from_numpy(np.concatenate([sample.labels for sample in samples])),
        [len(sample.labels) for sample in samples],
        tuple(itertools.chain.from_iterable(sample.unreadable for sample in samples)),
    )
