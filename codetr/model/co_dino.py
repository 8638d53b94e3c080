"""Co-DINO, the detector (DETRs with Collaborative Hybrid Assignments Training, arXiv 2211.12860).

Only the query head is built. The auxiliary heads, which give the method its name, teach the encoder in
upstream's training and do not run at inference.
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

import torch
from torch import Tensor, nn

from codetr.config import Config
from codetr.model.backbones import make_backbone
from codetr.model.backbones.swin import WindowAttention
from codetr.model.geometry import Pyramid, make_pyramid
from codetr.model.head import QuerySelection, detections
from codetr.model.layers import (
    Float32Linear,
    FrozenBatchNorm2d,
    GroupNorm,
    Linear,
    device_constant,
    device_size,
)
from codetr.model.neck import ChannelMapper, Level
from codetr.model.transformer import Decoder, DenoisingQueries, Encoder

_DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


class TrainingOutputs(NamedTuple):
    """Inputs of the losses, fp32. Boxes are (cx, cy, w, h) in units of the image."""

    encoder_logits: Tensor  # [N, Q, classes] of the queries selected from the encoder's output, best first
    encoder_boxes: Tensor  # [N, Q, 4]
    # [layers, N, D + Q, classes] after every decoder layer; the D denoising queries first
    class_logits: Tensor
    boxes_cxcywh: Tensor  # [layers, N, D + Q, 4]


class CoDino(nn.Module):
    """A detector in evaluation mode.

    Args:
        config: see `codetr.load_config`.

    Example:
        >>> config = codetr.load_config("co_dino_r50")
        >>> model = codetr.CoDino(config)
        >>> report = codetr.load_checkpoint(model, "co_dino_r50")
        >>> boxes, scores, labels = model(images, image_shapes)
    """

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.dtype = torch.float32
        self.backbone = make_backbone(config.backbone)
        self.neck = ChannelMapper(config.neck)
        self.encoder = Encoder(config)
        self.query_selection = QuerySelection(config)
        self.decoder = Decoder(config)
        self.eval()

    def forward(self, images: Tensor, image_shapes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Detects objects.

        Args:
            images: [N, 3, H, W] fp32, RGB normalised by the configuration's mean and std, each image in the
                upper left corner with zeros around it.
            image_shapes: [N, 2], (h, w) of each image inside H x W, in pixels; any number type.

        Returns:
            boxes [N, K, 4] fp32, (x1, y1, x2, y2) in pixels of the resized image; scores [N, K] fp32,
            descending; labels [N, K] int64. K is the configuration's `max_per_img`. Non-maximum suppression
            is not part of the model, see `codetr.apply_nms`.

        Raises:
            ValueError: wrong shapes, or the images have fewer cells than the model has queries.
        """
        outputs = self._run(images, image_shapes, every_layer=False)
        return outputs["det_boxes"], outputs["det_scores"], outputs["det_labels"]

    def stages(self, images: Tensor, image_shapes: Tensor) -> dict[str, Tensor]:
        """Detects objects as `forward` does, and returns every stage.

        Returns:
            `backbone.i` and `neck.i` [N, C, H_i, W_i]; `memory` [N, S, C]; `topk_scores` [N, Q, classes]
            (logits) and `topk_boxes` [N, Q, 4] of the selected queries; `class_logits` [layers, N, Q,
            classes] and `boxes_cxcywh` [layers, N, Q, 4] after every decoder layer; `det_boxes`,
            `det_scores`, `det_labels`. All boxes but `det_boxes` are (cx, cy, w, h) in units of the image.
        """
        return self._run(images, image_shapes, every_layer=True)

    def training_outputs(
        self, images: Tensor, image_shapes: Tensor, denoising: DenoisingQueries | None = None
    ) -> TrainingOutputs:
        """Runs the detector for training: differentiable answers of every layer, without the final top-k.

        Args:
            denoising: queries made of the targets, decoded with the selected ones.

        Raises:
            ValueError: as `forward`.
        """
        _, _, pyramid, memory = self._encode(images, image_shapes)
        encoder_logits, encoder_boxes = self.query_selection(memory, pyramid)
        logits, boxes = self.decoder(memory, encoder_boxes, pyramid, every_layer=True, denoising=denoising)
        return TrainingOutputs(encoder_logits, encoder_boxes, torch.stack(logits), torch.stack(boxes))

    def set_precision(self, precision: str) -> CoDino:
        """Sets the type of weights and activations, in place.

        In a 16-bit model these stay fp32: images and reference points, box arithmetic, arguments of sine
        embeddings, class logits and box deltas (`Float32Linear`), statistics of frozen batch norms, scores
        and final boxes.

        Args:
            precision: "fp32", "fp16" or "bf16". Weights that were rounded to 16 bits stay rounded.

        Returns:
            The model.
        """
        if precision not in _DTYPES:
            raise ValueError(f"precision: expected one of {', '.join(_DTYPES)}, got {precision!r}")
        self.dtype = _DTYPES[precision]
        for module in self.modules():  # frozen batch norms have buffers only, which stay fp32
            if isinstance(module, Float32Linear):
                continue
            for parameter in module.parameters(recurse=False):
                parameter.data = parameter.data.to(self.dtype)
        return self

    def write_out_group_norms(self) -> CoDino:
        """Replaces group norms by their form for exports, see `codetr.model.layers.GroupNorm`; returns the
        model."""
        for module in self.modules():
            if isinstance(module, GroupNorm):
                module.written_out = True
        for module in self.neck.convs:
            module.on_cells = self.backbone.gives_cells
        return self

    def write_out_linears(self) -> CoDino:
        """Replaces linear layers by their form for exports, see `codetr.model.layers.Linear`.

        These are the layers of Swin, and in transformers of 192 or 256 channels those before LayerNorm, which
        one kernel of `msda.linear` computes with the norm, and the first layer of a feed-forward block, which
        builds merge with the second to `msda.feed_forward`.

        With 192 channels, TensorRT 10.6 fuses a layer with residual and LayerNorm into a kernel that gave
        other bits in 2 of 2,000 runs of the demo model (fp16, H100).

        Returns:
            The model.
        """
        linears = [module for module in self.backbone.modules() if isinstance(module, Linear)]
        if self.config.embed_dims in (192, 256):
            layers = [*self.encoder.layers, *self.decoder.layers]
            linears += [linear for layer in layers for linear in (layer.ffn.fc1, layer.ffn.fc2)]
            linears += [layer.self_attn.out_proj for layer in self.decoder.layers]
            linears.append(self.query_selection.output)
        for linear in linears:
            linear.written_out = True
        return self

    def fold_batch_norms(self) -> CoDino:
        """Folds every frozen batch norm into the convolution before it, which has fp32 weights.

        Returns:
            The model.
        """
        for parent in list(self.modules()):
            # ResNets register modules in the order of execution.
            for (_, convolution), (name, norm) in itertools.pairwise(list(parent.named_children())):
                if isinstance(norm, FrozenBatchNorm2d):
                    norm.fold_into(convolution)
                    setattr(parent, name, nn.Identity())
        return self

    def fold_position_biases(self) -> CoDino:
        """Replaces the table of each Swin block by the position bias of every pair of cells, for exports.

        Returns:
            The model.
        """
        for module in self.modules():
            if isinstance(module, WindowAttention):
                module.fold_bias()
        return self

    def _encode(
        self, images: Tensor, image_shapes: Tensor
    ) -> tuple[list[Tensor], list[Level], Pyramid, Tensor]:
        """Checks the inputs; returns the backbone's maps, the levels, the pyramid, and memory [N, S, C]."""
        if images.dim() != 4 or images.shape[1] != 3:
            raise ValueError(f"images: expected [N, 3, H, W], got {list(images.shape)}")
        if image_shapes.dim() != 2 or image_shapes.shape[0] != images.shape[0] or image_shapes.shape[1] != 2:
            expected = f"[N, 2] with N = {images.shape[0]} (from images)"
            raise ValueError(f"image_shapes: expected {expected}, got {list(image_shapes.shape)}")
        features = self.backbone(images.to(self.dtype))
        levels = self.neck(features)
        x = torch.cat([level.cells for level in levels], dim=1)  # [N, S, C]
        height, width = images.shape[2:]
        cells = x.shape[1]
        if cells < self.config.num_queries:
            raise ValueError(
                f"images: {height} x {width} pixels give {cells} cells, fewer than the model's "
                f"{self.config.num_queries} queries; use larger images"
            )
        input_hw = torch.cat([device_size(size, images.device) for size in (height, width)])
        # Height plus width of the finest level is at least its longest axis.
        longest = levels[0].height + levels[0].width
        # Every level has half the cells of the previous one, rounded up.
        strides = [float(self.backbone.first_stride << level) for level in range(self.config.num_levels)]
        level_hw = torch.ceil(input_hw / device_constant(strides, torch.float32, images.device)[:, None])
        pyramid = make_pyramid(image_shapes, input_hw, level_hw, cells)
        return features, levels, pyramid, self.encoder(x, pyramid, longest)

    def _run(self, images: Tensor, image_shapes: Tensor, every_layer: bool) -> dict[str, Tensor]:
        features, levels, pyramid, memory = self._encode(images, image_shapes)
        topk_logits, topk_boxes = self.query_selection(memory, pyramid)
        logits, boxes = self.decoder(memory, topk_boxes, pyramid, every_layer)
        det = detections(logits[-1], boxes[-1], image_shapes, self.config.max_per_img)
        return {
            **{f"backbone.{i}": feature for i, feature in enumerate(features)},
            **{f"neck.{i}": level.as_map() for i, level in enumerate(levels)},
            "memory": memory,
            "topk_scores": topk_logits,
            "topk_boxes": topk_boxes,
            "class_logits": torch.stack(logits),
            "boxes_cxcywh": torch.stack(boxes),
            **dict(zip(("det_boxes", "det_scores", "det_labels"), det)),
        }
