"""What turns features into boxes: prediction branches, two-stage query selection, and the final top-k."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from codetr.config import Config
from codetr.geometry import Pyramid, proposal_boxes
from codetr.layers import Float32Linear

# The logit of a coordinate 1 that no predicted delta moves: cells that cannot be proposals get boxes at the
# corner. Upstream writes infinity; a finite number survives every compiler.
UNUSABLE_LOGIT = 1e4


class BoxBranch(nn.Module):
    """Three linear layers to the change of a box in logit space; the last one in fp32."""

    def __init__(self, embed_dims: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(embed_dims, embed_dims)
        self.fc2 = nn.Linear(embed_dims, embed_dims)
        self.fc3 = Float32Linear(embed_dims, 4)

    def forward(self, x: Tensor) -> Tensor:
        """[..., C] -> [..., 4] fp32."""
        return self.fc3(F.relu(self.fc2(F.relu(self.fc1(x)))))


class QuerySelection(nn.Module):
    """Picks the `num_queries` cells of the encoder with the highest class logit, and a box for each."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.num_queries = config.num_queries
        self.output = nn.Linear(config.embed_dims, config.embed_dims)
        self.norm = nn.LayerNorm(config.embed_dims)
        self.class_branch = Float32Linear(config.embed_dims, config.num_classes)
        self.box_branch = BoxBranch(config.embed_dims)

    def forward(self, memory: Tensor, pyramid: Pyramid) -> tuple[Tensor, Tensor]:
        """Selects.

        Args:
            memory: [N, S, C].

        Returns:
            Class logits [N, Q, classes] and boxes [N, Q, 4] (cx, cy, w, h in units of the image), both fp32,
            best first.
        """
        proposals, usable = proposal_boxes(pyramid)
        x = memory.masked_fill(~usable[:, :, None], 0.0)
        x = self.norm(self.output(x))
        logits = self.class_branch(x)  # [N, S, classes]
        index = logits.amax(dim=-1).topk(self.num_queries, dim=1).indices  # [N, Q]
        # Only the selected cells need a box.
        delta = self.box_branch(_gather_rows(x, index))
        start = torch.log(proposals / (1.0 - proposals))
        start = start.masked_fill(~usable[:, :, None], UNUSABLE_LOGIT)
        boxes = torch.sigmoid(delta + _gather_rows(start, index))
        return _gather_rows(logits, index), boxes


def detections(
    logits: Tensor, boxes: Tensor, image_shapes: Tensor, count: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The `count` best (query, class) pairs of each image.

    Args:
        logits: [N, Q, classes] fp32.
        boxes: [N, Q, 4] fp32, (cx, cy, w, h) in units of the image.
        image_shapes: [N, 2], (h, w) of each image inside its padding, in pixels.
        count: K.

    Returns:
        boxes [N, K, 4] fp32, (x1, y1, x2, y2) in pixels of the resized image, clipped to it; scores [N, K]
        fp32, best first; labels [N, K] int64.
    """
    num_classes = logits.shape[-1]
    best, index = logits.flatten(1).topk(count, dim=1)  # [N, K]
    # Integer division is a chain of ten nodes in ONNX; this one is exact below 2^22 pairs.
    query = torch.floor((index.float() + 0.5) / num_classes).long()
    labels = index - query * num_classes
    cx, cy, w, h = _gather_rows(boxes, query).unbind(-1)
    corners = torch.stack((cx - 0.5 * w, cy - 0.5 * h, cx + 0.5 * w, cy + 0.5 * h), dim=-1)
    # Boxes are in units of the image, not of the padded tensor that holds it.
    height, width = image_shapes.float()[:, None].unbind(-1)  # [N, 1] each
    limits = torch.stack((width, height, width, height), dim=-1)  # [N, 1, 4]
    return torch.minimum((corners * limits).clamp(min=0.0), limits), best.sigmoid(), labels


def _gather_rows(x: Tensor, index: Tensor) -> Tensor:
    """x: [N, S, C], index: [N, Q] -> [N, Q, C]. Whole rows are picked from those of all images."""
    images = torch.arange(index.shape[0], device=index.device)[:, None]
    rows = (images * x.shape[1] + index).flatten()
    return x.flatten(0, 1).index_select(0, rows).reshape(*index.shape, x.shape[-1])
