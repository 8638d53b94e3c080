"""ResNet (arXiv 1512.03385) with frozen batch norms."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from codetr.config import ResNetConfig
from codetr.model.layers import FrozenBatchNorm2d


class BasicBlock(nn.Module):
    """Two 3x3 convolutions, the stride in the first; ResNet-18 and 34."""

    expansion = 1

    def __init__(self, in_channels: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, channels, 3, stride, padding=1, bias=False)
        self.bn1 = FrozenBatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = FrozenBatchNorm2d(channels)
        self.downsample = _shortcut(in_channels, channels, stride)

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        return F.relu(out + self.downsample(x))


class Bottleneck(nn.Module):
    """1x1, 3x3 with the stride, 1x1 to four times the channels; ResNet-50 and deeper."""

    expansion = 4

    def __init__(self, in_channels: int, channels: int, stride: int) -> None:
        super().__init__()
        out_channels = channels * self.expansion
        self.conv1 = nn.Conv2d(in_channels, channels, 1, bias=False)
        self.bn1 = FrozenBatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, stride, padding=1, bias=False)
        self.bn2 = FrozenBatchNorm2d(channels)
        self.conv3 = nn.Conv2d(channels, out_channels, 1, bias=False)
        self.bn3 = FrozenBatchNorm2d(out_channels)
        self.downsample = _shortcut(in_channels, out_channels, stride)

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)))
        out = F.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        return F.relu(out + self.downsample(x))


def _shortcut(in_channels: int, out_channels: int, stride: int) -> nn.Module:
    if stride == 1 and in_channels == out_channels:
        return nn.Identity()
    return nn.Sequential(
        nn.Conv2d(in_channels, out_channels, 1, stride, bias=False), FrozenBatchNorm2d(out_channels)
    )


class ResNet(nn.Module):
    """The backbone."""

    first_stride = 4  # pixels per cell of the finest map; each further map has twice as many
    gives_cells = False

    def __init__(self, config: ResNetConfig) -> None:
        super().__init__()
        channels = config.base_channels
        self.conv1 = nn.Conv2d(3, channels, 7, stride=2, padding=3, bias=False)
        self.bn1 = FrozenBatchNorm2d(channels)
        block_type = BasicBlock if config.expansion == BasicBlock.expansion else Bottleneck
        in_channels = channels
        for stage, depth in enumerate(config.depths):
            blocks = []
            for block in range(depth):
                stride = 2 if stage > 0 and block == 0 else 1
                blocks.append(block_type(in_channels, channels << stage, stride))
                in_channels = (channels << stage) * block_type.expansion
            self.add_module(f"layer{stage + 1}", nn.Sequential(*blocks))

    def forward(self, x: Tensor) -> list[Tensor]:
        """[N, 3, H, W] -> 4 maps [N, C_i, ceil(H / s), ceil(W / s)], s = 4, 8, 16, 32."""
        x = F.relu(self.bn1(self.conv1(x)))
        x = F.max_pool2d(x, kernel_size=3, stride=2, padding=1)
        outs = []
        for stage in (self.layer1, self.layer2, self.layer3, self.layer4):
            x = stage(x)
            outs.append(x)
        return outs
