"""Batches for training: which pictures, in which order, read, augmented and padded.

Everything drawn at random is a function of the seed, the epoch and the place in it. A run that goes on after
a stop therefore sees what it would have seen, whatever the number of workers or processes.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, Sampler

from codetr.dataset.coco_files import CocoDataset, DatasetError, Picture, read_picture
from codetr.detector.preprocess import fit_size, resize
from codetr.training.augment import Augmentation, augment

PAD_DIVISOR = 32
"""Height and width of a batch are multiples of this many pixels: few shapes, so memory is found again."""

_ORDER, _SCALE, _SAMPLE, _REPLACEMENT = range(4)  # what a random generator is for
_ATTEMPTS = 20  # pictures that stand in for a bad one; when all are bad, the disk may be gone


class Request(NamedTuple):
    """One sample to make.

    Attributes:
        index: of the picture.
        draw: what seeds its augmentation.
        scale: (long, short) sides in pixels to fit it into.
    """

    index: int
    draw: tuple[int, ...]
    scale: tuple[int, int]


class Unreadable(NamedTuple):
    """A picture that could not be read.

    Attributes:
        index: of the picture.
        error: of `codetr.dataset.coco_files.read_picture`; a value, as a worker process would wrap what it raises into its
            traceback.
    """

    index: int
    error: DatasetError


class Sample(NamedTuple):
    """A picture as the network is to see it, before normalisation.

    Attributes:
        pixels: uint8 [h, w, 3], RGB.
        boxes_cxcywh: float32 [n, 4], in units of the picture.
        labels: int64 [n].
        unreadable: pictures in whose place this one stands, found while it was made.
    """

    pixels: np.ndarray
    boxes_cxcywh: np.ndarray
    labels: np.ndarray
    unreadable: tuple[Unreadable, ...] = ()


class HostBatch(NamedTuple):
    """N samples, each in the upper left of its row of `pixels`.

    Attributes:
        pixels: uint8 [N, H, W, 3], zero in the padding.
        image_shapes: int64 [N, 2], (h, w).
        boxes_cxcywh: float32 [sum of n, 4], those of the first sample first.
        labels: int64 [sum of n].
        counts: n of each sample.
        unreadable: pictures that should have been among the samples.
    """

    pixels: Tensor
    image_shapes: Tensor
    boxes_cxcywh: Tensor
    labels: Tensor
    counts: list[int]
    unreadable: tuple[Unreadable, ...] = ()

    def map(self, function: Callable[[Any], Any]) -> HostBatch:
        """The batch with a function of each tensor in the tensor's place."""
        return HostBatch(*map(function, self[:4]), *self[4:])

    def to(self, device: torch.device) -> HostBatch:
        """The tensors on a device; the copies run beside the host when they start from pinned memory."""
        return self.map(lambda tensor: tensor.to(device, non_blocking=True))


class BatchOrder:
    """Which pictures make up each step's batch, over all processes.

    An epoch holds every picture once. Pictures that are wide come in batches of their own, and those that are
    high, as padding one to the other would be waste; the last batch of either kind is filled up with pictures
    from the kind's beginning.

    Args:
        pictures: of the data set.
        batch: samples of a step, of all processes together.
        scales: (long, short) sides in pixels; a step has one of them, drawn at random.
        seed: of the order and of all that is drawn.
    """

    def __init__(
        self, pictures: Sequence[Picture], batch: int, scales: Sequence[tuple[int, int]], seed: int
    ) -> None:
        wide = np.array([picture.width >= picture.height for picture in pictures])
        self.kinds = [kind for kind in (np.flatnonzero(wide), np.flatnonzero(~wide)) if len(kind)]
        self.batch, self.scales, self.seed = batch, tuple(scales), seed
        self.batches_per_epoch = sum(-(-len(kind) // batch) for kind in self.kinds)
        self._epoch: tuple[int, np.ndarray] | None = None

    def requests(self, step: int) -> list[Request]:
        """The samples of a step, counted from 0 over all epochs."""
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

    def _shuffled(self, epoch: int) -> np.ndarray:
        """[batches, batch] indices of pictures."""
        draws = np.random.default_rng((self.seed, _ORDER, epoch))
        rows = [
            np.resize(draws.permutation(kind), (-(-len(kind) // self.batch), self.batch))
            for kind in self.kinds
        ]
        return draws.permutation(np.concatenate(rows))


class StepSampler(Sampler):
    """Yields the samples of one process, a list a step, from a step on and without end.

    Args:
        order: of all processes.
        first_step: where to begin.
        rank: this process, below `world`.
        world: number of processes; they divide the order's batch.
    """

    def __init__(self, order: BatchOrder, first_step: int = 0, rank: int = 0, world: int = 1) -> None:
        self.order, self.first_step, self.rank, self.world = order, first_step, rank, world

    def __iter__(self) -> Iterator[list[Request]]:
        share = self.order.batch // self.world
        step = self.first_step
        while True:
            yield self.order.requests(step)[self.rank * share : (self.rank + 1) * share]
            step += 1


class TrainingSet(Dataset):
    """Reads and augments pictures.

    In the place of a picture that cannot be read stands another of the same kind, wide or high. Which one is
    a function of the request and of the pictures that can be read, so that a resumed run sees the same.

    Args:
        data: the pictures.
        augmentation: what is done to them.
        bad: indices of pictures that are known to be bad; they are not tried.
    """

    def __init__(self, data: CocoDataset, augmentation: Augmentation, bad: Collection[int] = ()) -> None:
        self.pictures = data.pictures
        self.augmentation = augmentation
        self.bad = frozenset(bad)
        self.wide = np.array([picture.width >= picture.height for picture in data.pictures])

    def __getitem__(self, request: Request) -> Sample | DatasetError:
        """The sample; an error where neither the picture nor those in its place can be read."""
        unreadable = []
        for index in self._candidates(request):
            try:
                pixels = read_picture(self.pictures[index])
            except DatasetError as error:
                unreadable.append(Unreadable(index, error))
                continue
            return self._sample(self.pictures[index], pixels, request)._replace(unreadable=tuple(unreadable))
        others = len(unreadable) - 1
        return DatasetError(f"{unreadable[0].error}; {others} others in its place cannot be read either")

    def _candidates(self, request: Request) -> Iterator[int]:
        """The picture that is requested, then others of its kind, then those of the other kind."""
        if request.index not in self.bad:
            yield request.index
        draws = np.random.default_rng((*request.draw, _REPLACEMENT))
        alike = self.wide == self.wide[request.index]
        # Known or not, a bad picture has its place in the order: what comes before and after stays the same.
        order = itertools.chain(
            *(draws.permutation(np.flatnonzero(kind)).tolist() for kind in (alike, ~alike))
        )
        others = (index for index in order if index not in self.bad and index != request.index)
        yield from itertools.islice(others, _ATTEMPTS)

    def _sample(self, picture: Picture, pixels: np.ndarray, request: Request) -> Sample:
        # A crowd is many objects in one box: nothing that a single query could find.
        boxes, labels = picture.boxes_xyxy_px[~picture.crowd], picture.labels[~picture.crowd]
        draws = np.random.default_rng(request.draw)
        long, short = max(request.scale), min(request.scale)
        limits = (short, long) if picture.width >= picture.height else (long, short)
        return Sample(*augment(pixels, boxes, labels, limits, self.augmentation, draws))


class PlainSet(Dataset):
    """Reads pictures as `codetr.Detector` does, for validation. Index: of the picture."""

    def __init__(self, data: CocoDataset, scale: tuple[int, int]) -> None:
        self.pictures, self.scale = data.pictures, scale

    def __len__(self) -> int:
        return len(self.pictures)

    def __getitem__(self, index: int) -> Sample | Unreadable:
        picture = self.pictures[index]
        try:
            pixels = read_picture(picture)
        except DatasetError as error:
            return Unreadable(index, error)
        long, short = max(self.scale), min(self.scale)
        limits = (short, long) if picture.width >= picture.height else (long, short)
        pixels = resize(pixels, fit_size(*pixels.shape[:2], *limits))
        boxes, labels = picture.boxes_xyxy_px[~picture.crowd], picture.labels[~picture.crowd]
        return Sample(pixels, to_cxcywh(boxes, picture.height, picture.width), labels)


def to_cxcywh(boxes_xyxy_px: np.ndarray, height: int, width: int) -> np.ndarray:
    """Corners in pixels [n, 4] to (cx, cy, w, h) float32 [n, 4] in units of a picture of height x width."""
    corners = boxes_xyxy_px / np.array([width, height, width, height], dtype=np.float32)
    low, high = corners[:, :2], corners[:, 2:]
    return np.concatenate(((low + high) * 0.5, high - low), axis=1).astype(np.float32)


def collate(samples: Sequence[Sample | Unreadable | DatasetError]) -> HostBatch | DatasetError:
    """Pads samples into a batch, which may be empty; the first error among them instead, if there is one."""
    for sample in samples:
        if isinstance(sample, DatasetError):
            return sample
    unreadable = tuple(sample for sample in samples if isinstance(sample, Unreadable))
    samples = [sample for sample in samples if isinstance(sample, Sample)]
    unreadable += tuple(itertools.chain.from_iterable(sample.unreadable for sample in samples))
    if not samples:
        return HostBatch(*(torch.zeros(0) for _ in range(4)), [], unreadable)
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
        unreadable,
    )
