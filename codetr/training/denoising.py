"""Contrastive denoising (DINO, arXiv 2203.03605, section 3.3): queries made from the objects themselves.

A denoising query is an object's label and box with noise. A positive query has less noise and must find the
object. A negative query has more noise and must answer "nothing". They need no matching, so the decoder
learns from them early. Each group of queries has a positive and a negative query for each object. The layout
of an image is

    group 0: positives 0..n-1, negatives 0..n-1; group 1: ...

where n is the largest number of objects in an image of the batch. Images with fewer objects have padding with
zero content and the middle half of the image as its box. Like upstream's, it has to answer "nothing".
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from codetr.config import Config
from codetr.model.layers import inverse_sigmoid
from codetr.model.transformer import DenoisingQueries
from codetr.training.targets import Targets

# The noise is upstream's for 1x schedules. Its longer Swin-L training has 500 pairs and a box noise of 0.4.
LABEL_NOISE = 0.5
"""Random labels replace half of this share of the labels."""
BOX_NOISE = 1.0
"""Corners of positive queries move by up to half of this times the box's side, those of negative queries by
half of this to all of it."""


class DenoisingLayout(NamedTuple):
    """The places of the denoising queries of the T objects in a batch."""

    num_groups: int  # G
    num_queries: int  # D, of each image
    positive: Tensor  # [G, T] int64, index of each object's positive query among the queries of its image


class Denoising(nn.Module):
    """Makes denoising queries. It holds the only parameter that inference does not need.

    Args:
        num_pairs: pairs of queries of an image. The number of groups is the largest that fits, at least one.
    """

    def __init__(self, config: Config, num_pairs: int) -> None:
        super().__init__()
        self.num_matching = config.num_queries
        self.num_pairs = num_pairs
        self.label_embedding = nn.Embedding(config.num_classes, config.embed_dims)

    def forward(
        self, targets: Targets, generator: torch.Generator | None = None
    ) -> tuple[DenoisingQueries, DenoisingLayout]:
        """Makes the queries of a batch.

        Args:
            generator: source of the noise, on the device of the targets. None is the default generator.

        Returns:
            The queries and their layout. Without objects there are 0 queries, which still connect the
            embedding to the loss, so that every rank of a distributed training has a gradient for it.
        """
        largest = max(targets.counts)
        groups = max(1, self.num_pairs // largest) if largest else 1
        queries = groups * 2 * largest
        images = len(targets.counts)
        device = targets.labels.device

        labels, boxes = self._noised(targets, groups, generator)  # [G, 2, T], [G, 2, T, 4]
        half = torch.arange(groups * 2, device=device).view(groups, 2, 1) * largest
        index = half + targets.place  # [G, 2, T], in the image
        rows = (targets.image * queries + index).flatten()
        embedded = self.label_embedding(labels.flatten())
        content = embedded.new_zeros((images * queries, embedded.shape[-1])).index_copy(0, rows, embedded)
        all_boxes = boxes.new_full((images * queries, 4), 0.5).index_copy(0, rows, boxes.flatten(0, 2))
        return (
            DenoisingQueries(
                content=content.view(images, queries, embedded.shape[-1]),
                boxes_cxcywh=all_boxes.view(images, queries, 4),
                attention_mask=_attention_mask(groups, 2 * largest, self.num_matching, device),
            ),
            DenoisingLayout(groups, queries, index[:, 0]),
        )

    def _noised(
        self, targets: Targets, groups: int, generator: torch.Generator | None
    ) -> tuple[Tensor, Tensor]:
        """Returns noised labels [G, 2, T] and boxes [G, 2, T, 4] (cx, cy, w, h), positives first."""
        device = targets.labels.device
        shape = (groups, 2, len(targets.labels))
        replaced = torch.rand(shape, generator=generator, device=device) < 0.5 * LABEL_NOISE
        random_labels = torch.randint(
            self.label_embedding.num_embeddings, shape, generator=generator, device=device
        )
        labels = torch.where(replaced, random_labels, targets.labels)

        amount = torch.rand((*shape, 4), generator=generator, device=device)
        sign = torch.randint(2, (*shape, 4), generator=generator, device=device) * 2 - 1
        amount[:, 1] += 1.0
        center, sides = targets.boxes_cxcywh[:, :2], targets.boxes_cxcywh[:, 2:]
        reach = 0.5 * BOX_NOISE * sides
        top_left = (center - 0.5 * sides + sign[..., :2] * amount[..., :2] * reach).clamp(0.0, 1.0)
        bottom_right = (center + 0.5 * sides + sign[..., 2:] * amount[..., 2:] * reach).clamp(0.0, 1.0)
        boxes = torch.cat((0.5 * (top_left + bottom_right), bottom_right - top_left), dim=-1)
        # Corners may have swapped places. Such a negative side becomes the smallest that refinement knows.
        return labels, inverse_sigmoid(boxes).sigmoid()


def _attention_mask(groups: int, group_size: int, num_matching: int, device: torch.device) -> Tensor:
    """Returns a mask [D + Q, D + Q] bool, True where a query (row) must not attend.

    A denoising query attends to its group and to the matching queries. Matching queries attend only to each
    other, because denoising queries would show them the objects.
    """
    denoising = groups * group_size
    mask = torch.zeros((denoising + num_matching,) * 2, dtype=torch.bool, device=device)
    group = torch.arange(denoising, device=device) // max(1, group_size)
    mask[:denoising, :denoising] = group[:, None] != group
    mask[denoising:, :denoising] = True
    return mask
