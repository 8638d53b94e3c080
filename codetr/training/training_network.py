"""The network that is trained: a detector and its denoising queries, from 8-bit pixels to the loss inputs."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from codetr.model import CoDino, TrainingOutputs
from codetr.training.denoising import Denoising, DenoisingLayout
from codetr.training.targets import Targets


class TrainingNetwork(nn.Module):
    """A detector and its denoising queries in one module, for DistributedDataParallel to wrap.

    Without `denoising` there are no denoising queries.
    """

    def __init__(self, model: CoDino, denoising: Denoising | None) -> None:
        super().__init__()
        self.model = model
        self.denoising = denoising
        self.register_buffer("mean", torch.tensor(model.config.mean), persistent=False)
        self.register_buffer("std", torch.tensor(model.config.std), persistent=False)

    def forward(
        self, pixels: Tensor, targets: Targets, generator: torch.Generator | None = None
    ) -> tuple[TrainingOutputs, DenoisingLayout | None]:
        """Runs the detector on images, uint8 [N, H, W, 3] RGB, each in the upper left of its row.

        `generator` is the source of the denoising queries' noise, on the device.
        """
        images = normalise(pixels, targets.image_shapes, self.mean, self.std)
        queries = layout = None
        if self.denoising is not None:
            queries, layout = self.denoising(targets, generator)
        return self.model.training_outputs(images, targets.image_shapes, queries), layout


def normalise(pixels: Tensor, image_shapes: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Normalises pixels to a detector's input, as `codetr.detector.preprocess` does. The padding is zero.

    Args:
        pixels: uint8 [N, H, W, 3].
        image_shapes: [N, 2], (h, w) of each image in the upper left.
        mean, std: [3] fp32.

    Returns:
        [N, 3, H, W] fp32, its channels last in memory.
    """
    height, width = pixels.shape[1:3]
    rows = torch.arange(height, device=pixels.device) < image_shapes[:, :1]  # [N, H]
    columns = torch.arange(width, device=pixels.device) < image_shapes[:, 1:]  # [N, W]
    inside = (rows[:, :, None] & columns[:, None])[..., None]  # [N, H, W, 1]
    images = torch.where(inside, (pixels.float() - mean) / std, 0.0)
    return images.permute(0, 3, 1, 2)


def use_channels_last(model: CoDino) -> None:
    """Lays out the weights of convolutions in place, for images whose channels are last in memory.

    The weights of a 1x1 convolution fit both layouts, and `Module.to` keeps their strides. Their gradients
    would have other strides, which costs a copy when processes exchange them.
    """
    for part in (model.backbone, model.neck):
        for parameter in part.parameters():
            if parameter.dim() == 4:
                inner, height, width = parameter.shape[1:]
                strides = (inner * height * width, 1, inner * width, inner)
                laid_out = torch.empty_strided(parameter.shape, strides, device=parameter.device)
                parameter.data = laid_out.copy_(parameter.data)


def parameter_groups(
    network: nn.Module, learning_rate: float, backbone_factor: float, weight_decay: float
) -> list[dict]:
    """Returns parameter groups for an optimiser, in which the backbone has its own learning rate.

    As upstream, weights of norms, biases and embeddings decay like the others.

    Args:
        learning_rate: of all parameters but the backbone's.
        backbone_factor: learning rate of the backbone as a share of `learning_rate`; 0 freezes it.
    """
    groups: dict[float, list[nn.Parameter]] = {backbone_factor: [], 1.0: []}
    for name, parameter in network.named_parameters():
        if parameter.requires_grad:
            groups[backbone_factor if name.startswith("model.backbone.") else 1.0].append(parameter)
    return [
        {"params": parameters, "lr": learning_rate * factor, "weight_decay": weight_decay}
        for factor, parameters in groups.items()
        if parameters
    ]
