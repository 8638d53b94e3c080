"""The losses of Co-DINO's query head, for the encoder, every decoder layer and the denoising queries."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.distributed
from torch import Tensor

from codetr.model import TrainingOutputs
from codetr.model.layers import device_constant
from codetr.training.denoising import DenoisingLayout
from codetr.training.losses import corners, overlaps, quality_focal_loss
from codetr.training.matching import Matching, match_queries
from codetr.training.targets import Targets

TERMS = {"class": 1.0, "box": 5.0, "giou": 2.0}
"""Weights of the terms, upstream's."""


def average_over_ranks(counts: Tensor) -> Tensor:
    """Returns the mean over the processes of a distributed training; with one process, `counts`."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.all_reduce(counts)
        counts = counts / torch.distributed.get_world_size()
    return counts


def total(losses: Mapping[str, Tensor]) -> Tensor:
    """Returns the sum of all terms."""
    return torch.stack(tuple(losses.values())).sum()


def compute_losses(
    outputs: TrainingOutputs, targets: Targets, layout: DenoisingLayout | None = None
) -> dict[str, Tensor]:
    """Compares a batch's outputs with its objects, with upstream's choices.

    The class loss is the quality focal loss. Its target is the IoU of the box for a matched query, and 0 for
    other queries. The box losses of matched queries are the L1 distance of (cx, cy, w, h) in units of the
    image, and 1 - GIoU. Sums are divided by the number of matched objects or, for denoising queries, of
    positive queries. This count is averaged over ranks and at least 1, so that gradients do not depend on the
    number of GPUs that share a batch. (Upstream's Co-DINO averages it for boxes only, DINO for classes too.)

    It computes in fp32, also under autocast. The device waits for the host once, for the matching, and never
    if no image has an object.

    Args:
        outputs: of the detector. The decoder's first `layout.num_queries` queries are denoising queries.
        layout: of the denoising queries, None if there are none.

    Returns:
        Weighted terms, scalars: `encoder/class`, `encoder/box`, `encoder/giou`, `decoder.0/class`, ...
        and with a layout `denoising.0/class`, ...; see `total`.

    Raises:
        FloatingPointError: predictions are non-finite: training has diverged.
    """
    denoising = layout.num_queries if layout else 0
    layers = len(outputs.class_logits)
    class_logits, boxes = outputs.class_logits.float(), outputs.boxes_cxcywh.float()
    logits = torch.cat((outputs.encoder_logits.float()[None], class_logits[:, :, denoising:]))
    selected = torch.cat((outputs.encoder_boxes.float()[None], boxes[:, :, denoising:]))
    matching = match_queries(logits, selected, targets)
    positives = layout.positive.numel() if layout else 0
    counts = device_constant([matching.query.shape[1], positives], torch.float32, logits.device)
    matched_count, positive_count = average_over_ranks(counts).clamp(min=1.0).unbind()

    names = ["encoder", *(f"decoder.{layer}" for layer in range(layers))]
    losses = _terms(names, logits, selected, targets, matching, matched_count)
    if layout is not None:
        target = torch.arange(len(targets.labels), device=logits.device).repeat(layout.num_groups)
        pairs = Matching(target.expand(layers, -1), layout.positive.flatten().expand(layers, -1))
        names = [f"denoising.{layer}" for layer in range(layers)]
        class_logits, boxes = class_logits[:, :, :denoising], boxes[:, :, :denoising]
        losses |= _terms(names, class_logits, boxes, targets, pairs, positive_count)
    return losses


def _terms(
    names: list[str],
    logits: Tensor,
    boxes: Tensor,
    targets: Targets,
    matching: Matching,
    count: Tensor,
) -> dict[str, Tensor]:
    """Returns the three terms of each of L sets of queries.

    Args:
        logits: [L, N, Q, classes].
        boxes: [L, N, Q, 4].
        matching: P pairs in each set.
        count: scalar, divisor of the sums.
    """
    layers, images, queries, classes = logits.shape
    pairs = matching.target.shape  # (L, P)
    layer = torch.arange(layers, device=logits.device)[:, None]
    target = matching.target.flatten()  # [L * P]
    image = targets.image[target]
    row = ((layer * images).expand(pairs).flatten() + image) * queries + matching.query.flatten()
    wanted = targets.boxes_cxcywh[target]  # [L * P, 4]
    # index_select, because the backward of indexing sorts.
    found = boxes.reshape(-1, 4).index_select(0, row)
    distance = (found - wanted).abs().sum(dim=-1)
    iou, giou = overlaps(corners(found), corners(wanted))

    quality = logits.new_zeros((layers * images * queries, classes))
    quality[row, targets.labels[target]] = iou.detach()
    class_loss = quality_focal_loss(logits, quality.view(logits.shape)).flatten(1).sum(dim=1)
    sums = (class_loss, distance.view(pairs).sum(dim=1), (1.0 - giou).view(pairs).sum(dim=1))
    losses = {}
    for (term, weight), values in zip(TERMS.items(), sums):
        for name, value in zip(names, (values * (weight / count)).unbind()):
            losses[f"{name}/{term}"] = value
    return losses
