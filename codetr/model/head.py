"""The head: prediction branches, two-stage query selection, and the final top-k."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx.experimental.symbolic_shapes import statically_known_true

import msda
from codetr.config import Config
from codetr.model.geometry import Pyramid, proposal_boxes
from codetr.model.layers import Float32Linear, Linear

# Logit of a coordinate 1 that no predicted delta moves. Cells that cannot be proposals get boxes at the
# corner. Upstream uses infinity; a finite number survives every compiler.
UNUSABLE_LOGIT = 1e4


class BoxBranch(nn.Module):
    """Predicts the change of a box in logit space by three linear layers; the last runs in fp32."""

    def __init__(self, embed_dims: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(embed_dims, embed_dims)
        self.fc2 = nn.Linear(embed_dims, embed_dims)
        self.fc3 = Float32Linear(embed_dims, 4)

    def forward(self, x: Tensor) -> Tensor:
        """[..., C] -> [..., 4] fp32."""
        x = F.relu(self.fc2(F.relu(self.fc1(x))))
        if torch.compiler.is_exporting():
            # TensorRT 10.6 fuses this form of `fc3` with the cast before it and the sigmoid behind it. Its
            # matrix product of four columns takes 22 us more (900 queries, H200).
            return (x.float()[..., None, :] * self.fc3.weight).sum(dim=-1) + self.fc3.bias
        return self.fc3(x)


class QuerySelection(nn.Module):
    """Selects the `num_queries` cells of the encoder with the highest class logit, and a box for each."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.num_queries = config.num_queries
        self.output = Linear(config.embed_dims, config.embed_dims)
        self.norm = nn.LayerNorm(config.embed_dims)
        self.class_branch = Float32Linear(config.embed_dims, config.num_classes)
        self.box_branch = BoxBranch(config.embed_dims)

    def forward(self, memory: Tensor, pyramid: Pyramid) -> tuple[Tensor, Tensor]:
        """Selects cells.

        Args:
            memory: [N, S, C].

        Returns:
            Class logits [N, Q, classes] and boxes [N, Q, 4] (cx, cy, w, h in units of the image), both fp32,
            best first.
        """
        proposals, usable = proposal_boxes(pyramid)
        x = self.output(memory, norm=self.norm)
        # Cells that cannot be proposals count as empty. All empty cells have one result, which replaces
        # theirs afterwards, instead of zeros in each cell before.
        empty = self.norm(self.output.bias[None, None])  # [1, 1, C]
        best = torch.where(usable, self._best_logit(x), self.class_branch(empty).amax(dim=-1))
        index = best_indices(best, self.num_queries)  # [N, Q]
        # Only the selected cells need a box.
        usable = _gather_rows(usable.float()[:, :, None], index) > 0.5  # [N, Q, 1]
        proposals = _gather_rows(proposals, index)
        x = torch.where(usable, _gather_rows(x, index), empty)
        start = torch.log(proposals / (1.0 - proposals)).masked_fill(~usable, UNUSABLE_LOGIT)
        return self.class_branch(x), torch.sigmoid(self.box_branch(x) + start)

    def _best_logit(self, x: Tensor) -> Tensor:
        """Returns the best class logit of each cell, [..., C] -> [...] fp32.

        Exports compute it by `msda.linear_max`, which writes no logits. Builds replace the operator where
        its kernel is slow.
        """
        branch = self.class_branch
        fits = msda.has_fast_linear_max(branch.in_features, branch.out_features)
        if _exports_operators() and fits:
            return msda.linear_max(x, branch.weight, branch.bias)
        return self.class_branch(x).amax(dim=-1)


def detections(
    logits: Tensor, boxes: Tensor, image_shapes: Tensor, count: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the `count` best (query, class) pairs of each image.

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
    scores = logits.flatten(1)
    index = best_indices(scores, count)  # [N, K]
    # Integer division is a chain of ten nodes in ONNX; this one is exact below 2^22 pairs.
    query = torch.floor((index.float() + 0.5) / num_classes).long()
    labels = index - query * num_classes
    cx, cy, w, h = _gather_rows(boxes, query).unbind(-1)
    corners = torch.stack((cx - 0.5 * w, cy - 0.5 * h, cx + 0.5 * w, cy + 0.5 * h), dim=-1)
    # Boxes are in units of the image, not of the padded tensor that holds it.
    height, width = image_shapes.float()[:, None].unbind(-1)  # [N, 1] each
    limits = torch.stack((width, height, width, height), dim=-1)  # [N, 1, 4]
    return torch.minimum((corners * limits).clamp(min=0.0), limits), _gather(scores, index).sigmoid(), labels


def best_indices(x: Tensor, count: int) -> Tensor:
    """Returns the places of the `count` largest numbers in each row, largest first.

    Exports search by `msda.top_k_indices`. TensorRT 10.6 searches a row with one thread block, which takes
    0.3 ms for 73,656 numbers on an H200.

    Args:
        x: [N, S] fp32; S may be a symbol of an export.

    Returns:
        [N, count] int64. The order of equal numbers is not specified.
    """
    longest = msda.longest_top_k_row(count)
    if _exports_operators() and statically_known_true(x.shape[1] <= longest):
        return msda.top_k_indices(x, count).long()
    return x.topk(count, dim=1).indices


def _exports_operators() -> bool:
    """Whether the module is traced for an export that knows the library's operators.

    `torch.onnx.export` of the module itself has no translation for those of selection.
    """
    return torch.compiler.is_exporting() and not torch.onnx.is_in_onnx_export()


def _gather(x: Tensor, index: Tensor) -> Tensor:
    """x: [N, S], index: [N, Q] -> [N, Q]."""
    return _gather_rows(x[:, :, None], index).squeeze(-1)


def _gather_rows(x: Tensor, index: Tensor) -> Tensor:
    """x: [N, S, C], index: [N, Q] -> [N, Q, C], by one gather of whole rows."""
    images = torch.arange(index.shape[0], device=index.device)[:, None]
    rows = (images * x.shape[1] + index).flatten()
    return x.flatten(0, 1).index_select(0, rows).reshape(*index.shape, x.shape[-1])
