"""Greedy non-maximum suppression in the graph, for exports whose outputs are final detections.

The result equals `codetr.detector.postprocess.apply_nms` with the method "hard" for every input. Shapes are
fixed and there is no loop, so a CUDA graph holds the engine. A compiler that rounds an IoU differently may
decide differently where the IoU equals the threshold up to the last digit.

ONNX's NonMaxSuppression (TensorRT's INMSLayer) would be one node, but its output size depends on the data.
The host would wait for the GPU in the middle of the engine to learn it, which a CUDA graph does not hold.
Greedy suppression is a chain of up to K decisions, and K steps are hundreds of small kernels in a row. This
module needs K / 10 steps:

1. A table for each block of ten boxes holds the kept boxes for each of the 2^10 sets that earlier blocks may
   leave. Nine small matrix products compute all tables at once.
2. Block after block, the boxes that earlier blocks leave form a number of ten bits, which selects a row of
   the table. A product of this row with the matrix of overlaps gives the boxes that it suppresses.

Soft-NMS has no such form: each choice depends on scores that all earlier choices have lowered, so a block has
no finite table.
"""

from __future__ import annotations

import itertools

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from codetr.model import CoDino

BLOCK = 10
"""Boxes of a block. Fewer boxes need more steps; each additional box doubles the rows of a table."""


class HardNms(nn.Module):
    """Greedy non-maximum suppression within classes.

    Args:
        iou_threshold: boxes whose IoU with a kept one of their class is above it are dropped; 0 to 1.
    """

    def __init__(self, iou_threshold: float) -> None:
        super().__init__()
        self.iou_threshold = iou_threshold
        sets = torch.tensor(list(itertools.product((0.0, 1.0), repeat=BLOCK)))
        self.register_buffer("sets", sets, persistent=False)  # [2^B, B]; row i is i in binary
        bits = 2.0 ** torch.arange(BLOCK - 1, -1, -1)
        self.register_buffer("bits", bits, persistent=False)

    def forward(self, boxes: Tensor, scores: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Suppresses overlapping boxes of a class.

        Args:
            boxes: [N, K, 4] fp32, (x1, y1, x2, y2), any unit.
            scores: [N, K] fp32, descending; of equal ones the first wins.
            labels: [N, K] int64.

        Returns:
            boxes [N, K, 4], scores [N, K] and labels [N, K] of the kept boxes, best first, then zeros, and -1
            for labels; num_detections [N] int64, the number of kept boxes.
        """
        count = scores.shape[1]
        kept = self._kept(boxes, labels)
        num_detections = kept.sum(dim=1, keepdim=True)
        # Kept boxes come first, in their order. The keys are distinct integers, which fp32 holds exactly.
        place = torch.arange(count, device=boxes.device, dtype=torch.float32)
        order = (kept * count - place).topk(count, dim=1).indices
        empty = place >= num_detections
        return (
            boxes.gather(1, order[:, :, None].expand(-1, -1, 4)).masked_fill(empty[:, :, None], 0.0),
            scores.gather(1, order).masked_fill(empty, 0.0),
            labels.gather(1, order).masked_fill(empty, -1),
            num_detections[:, 0].long(),
        )

    def _kept(self, boxes: Tensor, labels: Tensor) -> Tensor:
        """Returns [N, K] fp32: 1 where a box is kept, else 0."""
        count = labels.shape[1]
        num_blocks = -(-count // BLOCK)
        missing = num_blocks * BLOCK - count
        if missing:  # boxes without area neither suppress nor are suppressed
            boxes, labels = F.pad(boxes, (0, 0, 0, missing)), F.pad(labels, (0, missing))
        suppresses = self._suppresses(boxes, labels).split(BLOCK, dim=1)
        blocks = boxes.unflatten(1, (num_blocks, BLOCK)), labels.unflatten(1, (num_blocks, BLOCK))
        table = self._table(self._suppresses(*blocks)).flatten(1, 2)  # [N, blocks * 2^B, B]

        suppressors = torch.zeros_like(boxes[:, None, :, 0])  # [N, 1, K]: kept boxes that suppress each
        bits = self.bits.expand(len(boxes), 1, -1)
        kept: list[Tensor] = []
        for index, overlaps in enumerate(suppresses):
            mine = suppressors[:, :, index * BLOCK : (index + 1) * BLOCK]
            left = bits.masked_fill(mine > 0.5, 0.0).sum(dim=2, keepdim=True)
            row = (left + index * len(self.sets)).long()
            kept.append(table.gather(1, row.expand(-1, -1, BLOCK)))  # [N, 1, B]
            suppressors = suppressors + kept[-1] @ overlaps
        return torch.cat(kept, dim=2)[:, 0, :count]

    def _table(self, suppresses: Tensor) -> Tensor:
        """Tabulates the kept boxes of each set of a block: [N, blocks, B, B] -> [N, blocks, 2^B, B].

        A box is kept if it is in the set and no kept box suppresses it. The first box is correct at the
        start, and each step makes at least one more box correct.
        """
        sets = self.sets.expand(*suppresses.shape[:2], -1, -1)
        kept = sets
        for _ in range(BLOCK - 1):
            kept = sets.masked_fill(kept @ suppresses > 0.5, 0.0)
        return kept

    def _suppresses(self, boxes: Tensor, labels: Tensor) -> Tensor:
        """Returns [..., K, K] fp32: 1 where the first box, if kept, suppresses the second.

        The operations are those of `codetr.detector.postprocess`, so the same rounding makes the same
        decisions.
        """
        x1, y1, x2, y2 = boxes.unbind(-1)
        area = (x2 - x1) * (y2 - y1)
        width = torch.minimum(x2[..., :, None], x2[..., None, :]) - torch.maximum(
            x1[..., :, None], x1[..., None, :]
        )
        height = torch.minimum(y2[..., :, None], y2[..., None, :]) - torch.maximum(
            y1[..., :, None], y1[..., None, :]
        )
        intersection = width.clamp(min=0.0) * height.clamp(min=0.0)
        union = area[..., :, None] + area[..., None, :] - intersection
        iou = (intersection / union).masked_fill(union <= 0.0, 0.0)
        iou = iou.masked_fill(labels[..., :, None] != labels[..., None, :], 0.0)
        place = torch.arange(labels.shape[-1], device=boxes.device)
        later = (place[:, None] < place).float()
        return (iou > self.iou_threshold).float() * later


class CoDinoWithNms(nn.Module):
    """A detector whose outputs are final detections.

    Args:
        model: in any precision; boxes and scores are always fp32.
        iou_threshold: as `HardNms`.
    """

    def __init__(self, model: CoDino, iou_threshold: float) -> None:
        super().__init__()
        self.model = model
        self.nms = HardNms(iou_threshold)
        self.eval()

    def forward(self, images: Tensor, image_shapes: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Detects objects. The arguments are those of `CoDino`, the result is that of `HardNms`."""
        return self.nms(*self.model(images, image_shapes))
