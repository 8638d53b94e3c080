"""Encoder and decoder: Deformable DETR (arXiv 2010.04159) with the refinement of DINO (arXiv 2203.03605)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from codetr.config import Config
from codetr.model.geometry import Pyramid, encoder_positions, sine_embedding
from codetr.model.head import BoxBranch
from codetr.model.layers import FeedForward, Float32Linear, MultiheadAttention, inverse_sigmoid
from msda import MultiScaleDeformableAttention


def _deformable_attention(config: Config) -> MultiScaleDeformableAttention:
    return MultiScaleDeformableAttention(
        config.embed_dims, config.num_heads, config.num_levels, config.num_points
    )


def _feed_forward(config: Config) -> FeedForward:
    return FeedForward(config.embed_dims, config.feedforward_channels, config.embed_dims, "relu")


class EncoderLayer(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.self_attn = _deformable_attention(config)
        self.norm1 = nn.LayerNorm(config.embed_dims)
        self.ffn = _feed_forward(config)
        self.norm2 = nn.LayerNorm(config.embed_dims)

    def forward(self, x: Tensor, positions: Tensor, reference_points: Tensor, pyramid: Pyramid) -> Tensor:
        """x, positions: [N, S, C]; reference_points: [N, S, L, 2] -> [N, S, C]."""
        x = self.self_attn(
            x + positions,
            x,
            reference_points,
            pyramid.spatial_shapes,
            pyramid.level_start_index,
            key_padding_mask=pyramid.padding_mask,
            residual=x,
            norm=self.norm1,
        )
        return self.ffn(x, residual=x, norm=self.norm2)


class Encoder(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.encoding = config.positional_encoding
        self.level_embeds = nn.Parameter(torch.randn(config.num_levels, config.embed_dims))
        self.layers = nn.ModuleList(EncoderLayer(config) for _ in range(config.encoder_layers))

    def forward(self, x: Tensor, pyramid: Pyramid, longest: int) -> Tensor:
        """[N, S, C] -> memory [N, S, C]; `longest` as in `encoder_positions`."""
        positions = encoder_positions(pyramid, self.level_embeds, longest, self.encoding.temperature, x.dtype)
        reference_points = pyramid.reference_points  # [N, S, L, 2]
        for layer in self.layers:
            x = layer(x, positions, reference_points, pyramid)
        return x


class DenoisingQueries(NamedTuple):
    """Queries of noised targets that training decodes with the selected ones (DINO section 3.3)."""

    content: Tensor  # [N, D, C], embeddings of noised labels
    boxes_cxcywh: Tensor  # [N, D, 4] fp32, noised boxes in units of the image
    attention_mask: Tensor  # [D + Q, D + Q] bool, True where a query (row) must not attend; the D come first


class DecoderLayer(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.self_attn = MultiheadAttention(config.embed_dims, config.num_heads)
        self.norm1 = nn.LayerNorm(config.embed_dims)
        self.cross_attn = _deformable_attention(config)
        self.norm2 = nn.LayerNorm(config.embed_dims)
        self.ffn = _feed_forward(config)
        self.norm3 = nn.LayerNorm(config.embed_dims)

    def forward(
        self,
        x: Tensor,
        position: Tensor,
        memory: Tensor,
        reference_points: Tensor,
        pyramid: Pyramid,
        attention_mask: Tensor | None = None,
    ) -> Tensor:
        """x, position: [N, Q, C]; memory: [N, S, C]; reference_points: [N, Q, L, 4] -> [N, Q, C].

        attention_mask: [Q, Q] bool, True where a query (row) must not attend to another.
        """
        x = self.self_attn(x, position, attention_mask, residual=x, norm=self.norm1)
        x = self.cross_attn(
            x + position,
            memory,
            reference_points,
            pyramid.spatial_shapes,
            pyramid.level_start_index,
            key_padding_mask=pyramid.padding_mask,
            residual=x,
            norm=self.norm2,
        )
        return self.ffn(x, residual=x, norm=self.norm3)


class Decoder(nn.Module):
    """Refines the selected boxes layer by layer.

    A layer predicts two boxes, both relative to its reference box. The next layer attends around the box
    predicted from the layer's raw output. The layer's answer comes from its normalised output and is not
    refined further.
    """

    TEMPERATURE = 10000.0  # for the sine embedding of boxes

    def __init__(self, config: Config) -> None:
        super().__init__()
        dims = config.embed_dims
        self.query_embed = nn.Parameter(torch.randn(config.num_queries, dims))
        self.ref_point_head = FeedForward(2 * dims, dims, dims, "relu")
        self.layers = nn.ModuleList(DecoderLayer(config) for _ in range(config.decoder_layers))
        self.norm = nn.LayerNorm(dims)
        self.class_branches = nn.ModuleList(Float32Linear(dims, config.num_classes) for _ in self.layers)
        self.box_branches = nn.ModuleList(BoxBranch(dims) for _ in self.layers)

    def forward(
        self,
        memory: Tensor,
        boxes: Tensor,
        pyramid: Pyramid,
        every_layer: bool,
        denoising: DenoisingQueries | None = None,
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Decodes the selected boxes.

        Args:
            memory: [N, S, C].
            boxes: [N, Q, 4] fp32, (cx, cy, w, h) in units of the image.
            every_layer: whether to return the answers of all layers, or of the last one only.
            denoising: D queries to decode before the selected ones.

        Returns:
            Class logits [N, Q, classes] and boxes [N, Q, 4], fp32, of each layer; D + Q queries with
            denoising.
        """
        ratios = torch.cat((pyramid.valid_ratios, pyramid.valid_ratios), dim=-1)[:, None]  # [N, 1, L, 4]
        boxes, attention_mask = boxes.detach(), None
        # A sum broadcasts the parameter over the images. From an expanded parameter TensorRT 10.6 reads wrong
        # values where it adds the first layer's attention of a batch above 1. Boxes are finite. A slice of
        # memory would cut the encoder's last LayerNorm into two kernels.
        x = self.query_embed + (0.0 * boxes[:, :1, :1]).to(memory.dtype)  # [N, Q, C]
        if denoising is not None:
            x = torch.cat((denoising.content.to(x.dtype), x), dim=1)
            boxes = torch.cat((denoising.boxes_cxcywh, boxes), dim=1)
            attention_mask = denoising.attention_mask
        all_logits, all_boxes = [], []
        last = len(self.layers) - 1
        reference = boxes
        for index, layer in enumerate(self.layers):
            # The layer attends around `reference`, which stops gradients. Answers start from `boxes`, so that
            # the previous layer learns from this answer too ("look forward twice", DINO section 3.5).
            reference_points = reference[:, :, None] * ratios  # [N, Q, L, 4]
            position = self._position(reference_points[:, :, 0]).to(x.dtype)
            x = layer(x, position, memory, reference_points, pyramid, attention_mask)
            if every_layer or index == last:
                answer = self.norm(x)
                all_logits.append(self.class_branches[index](answer))
                all_boxes.append(torch.sigmoid(self.box_branches[index](answer) + inverse_sigmoid(boxes)))
            if index < last:
                boxes = torch.sigmoid(self.box_branches[index](x) + inverse_sigmoid(reference))
                reference = boxes.detach()
        return all_logits, all_boxes

    def _position(self, boxes: Tensor) -> Tensor:
        """Boxes (cx, cy, w, h) [N, Q, 4] fp32 -> [N, Q, C]; upstream's order of embeddings is y, x, w, h."""
        cx, cy, w, h = boxes.unbind(-1)
        num_feats = self.query_embed.shape[-1] // 2
        embedding = sine_embedding(torch.stack((cy, cx, w, h), dim=-1), num_feats, self.TEMPERATURE)
        return self.ref_point_head(embedding.flatten(2).to(self.query_embed.dtype))
