"""One-to-one matching of queries to objects at the least total cost (DETR, arXiv 2005.12872)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from codetr.training.losses import corners, focal_cost, overlaps
from codetr.training.targets import Targets


class Matching(NamedTuple):
    """P pairs of objects and queries in each of L sets of queries, in the order of the objects."""

    target: Tensor  # [L, P] int64, index of the object in the targets
    query: Tensor  # [L, P] int64, index of the query in the object's image


@torch.no_grad()
def match_queries(logits: Tensor, boxes_cxcywh: Tensor, targets: Targets) -> Matching:
    """Matches L sets of queries to objects, each set on its own.

    A GPU idles while it waits for the host. So one copy moves the costs of all layers and images to the host,
    and another one moves the pairs back.

    Args:
        logits: [L, N, Q, classes].
        boxes_cxcywh: [L, N, Q, 4], units of the image.

    Returns:
        Every object with a query of its own. An image with more than Q objects has pairs for those Q objects
        with the least total cost.

    Raises:
        FloatingPointError: a cost is non-finite: training has diverged.
    """
    layers = logits.shape[0]
    if not len(targets.labels):
        nothing = targets.labels.new_zeros((layers, 0))
        return Matching(nothing, nothing)
    costs = matching_costs(logits, boxes_cxcywh, targets).cpu().numpy()
    pairs = torch.from_numpy(assign(costs, targets.counts))
    if logits.is_cuda:
        pairs = pairs.pin_memory()
    return Matching(*pairs.to(logits.device, non_blocking=True).unbind(0))


def matching_costs(logits: Tensor, boxes_cxcywh: Tensor, targets: Targets) -> Tensor:
    """Returns the cost of each query for each object of its image, with upstream's weights: [L, T, Q] fp32.

    Its parts are the focal cost of the object's class, the L1 distance of (cx, cy, w, h) in units of the
    image, and GIoU.
    """
    image = targets.image
    class_logits = logits.float().transpose(2, 3)[:, image, targets.labels]  # [L, T, Q]
    boxes = boxes_cxcywh.float()
    wanted = targets.boxes_cxcywh[:, None]  # [T, 1, 4]
    distance = (boxes[:, image] - wanted).abs().sum(dim=-1)
    _, giou = overlaps(corners(boxes)[:, image], corners(wanted))
    return 2.0 * focal_cost(class_logits) + 5.0 * distance - 2.0 * giou


def assign(costs: np.ndarray, counts: Sequence[int]) -> np.ndarray:
    """Solves the assignment problems of all layers and images.

    Args:
        costs: [L, T, Q], of each query for each object.
        counts: objects of each image, T in all.

    Returns:
        [2, L, P] int64: index of the object, 0..T-1, and of its query, ascending by object.

    Raises:
        FloatingPointError: a cost is non-finite.
    """
    if not np.isfinite(costs).all():
        raise FloatingPointError("training diverged: predictions are non-finite; try a lower learning rate")
    ends = np.cumsum(counts)
    pairs = []
    for layer in costs:
        for count, end in zip(counts, ends):
            # SciPy transposes matrices with more rows than columns; [objects, queries] has fewer. It keeps
            # Python's lock, so that threads were not faster.
            target, query = linear_sum_assignment(layer[end - count : end])
            pairs.append((target + (end - count), query))
    targets, queries = (np.concatenate(column).reshape(len(costs), -1) for column in zip(*pairs))
    return np.stack((targets, queries))
