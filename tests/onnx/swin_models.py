"""Swin Transformers with random weights that detect nothing, for the graph surgery.

`SWINS` lists classifiers of torchvision and timm, the backbone of transformers, and the encoder of Nougat,
which reads documents. The surgeon replaces their window attention. It keeps the cosine attention of SwinV2.
Small models have two stages of two blocks; all else is as published.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import onnx
import pytest
import torch
from torch import Tensor, nn

from tests.onnx.surgery_checks import export
from tests.onnx.zoo_exporters import quiet, randomise, simplify
from trt_plugin.atomic_files import atomic_write

Size = tuple[int, int]
SMALL_BLOCKS = 4
_SMALL = {"embed_dim": 32, "depths": [2, 2], "num_heads": [2, 4]}


@dataclass(frozen=True)
class SwinModel:
    """One Swin Transformer.

    Attributes:
        maker: height and width of an image, or None for the published model -> the module.
        package: whose model it is.
        published: name of the configuration that `build(full=True)` makes.
        size: height and width of the small model's image.
        published_size: the same of the published model.
        cosine: the attention is that of SwinV2.
    """

    maker: Callable[[Size | None], nn.Module]
    package: str
    published: str
    size: Size
    published_size: Size
    cosine: bool = False

    # As those of `ZooModel`: a Swin Transformer has no MSDA.
    layers = published_layers = 0
    outputs = ("output",)

    def require(self) -> None:
        """Skips the test if the model's package is not installed."""
        pytest.importorskip(self.package, reason=f"{self.package} is not installed")

    def build(self, full: bool = False, batch: int = 2, size: Size | None = None) -> tuple[nn.Module, dict]:
        """Makes the module, in evaluation mode and with seeded weights, and images by the input's name.

        Args:
            full: the published configuration.
            batch: number of images.
            size: height and width of an image of the small model, if not the usual ones.
        """
        size = size or self.size
        with torch.random.fork_rng(devices=[]), quiet(), torch.no_grad():
            torch.manual_seed(0)
            model = randomise(self.maker(None if full else size))
            for name, parameter in model.named_parameters():
                if "bias_table" in name:
                    nn.init.normal_(parameter)
            images = torch.randn(batch, 3, *(self.published_size if full else size))
        return model.eval().requires_grad_(False), {"x": images}


class _LastMap(nn.Module):
    """A model of transformers whose input is an image and whose result is a tensor."""

    def __init__(self, model: nn.Module, output: str) -> None:
        super().__init__()
        self.model, self.output = model, output

    def forward(self, x: Tensor) -> Tensor:
        result = self.model(x)[self.output]
        return result if isinstance(result, Tensor) else result[-1]


def _backbone(size: Size | None) -> nn.Module:
    from transformers import SwinBackbone, SwinConfig

    return _LastMap(SwinBackbone(SwinConfig(**(_SMALL | {"image_size": 64} if size else {}))), "feature_maps")


def _nougat(size: Size | None) -> nn.Module:
    from transformers import DonutSwinConfig, DonutSwinModel

    sizes = _SMALL if size else {"embed_dim": 128, "depths": [2, 2, 14, 2], "num_heads": [4, 8, 16, 32]}
    config = DonutSwinConfig(
        image_size=size or SWINS["nougat_encoder"].published_size, window_size=7, **sizes
    )
    return _LastMap(DonutSwinModel(config), "last_hidden_state")


def _torchvision(size: Size | None) -> nn.Module:
    from torchvision.models import swin_transformer as source

    if size is None:
        return source.swin_t(weights=None)
    return source.SwinTransformer([4, 4], *_SMALL.values(), [7, 7], num_classes=5)


def _torchvision_v2(size: Size | None) -> nn.Module:
    from torchvision.models import swin_transformer as source

    if size is None:
        return source.swin_v2_t(weights=None)
    parts = {"block": source.SwinTransformerBlockV2, "downsample_layer": source.PatchMergingV2}
    return source.SwinTransformer([4, 4], *_SMALL.values(), [8, 8], num_classes=5, **parts)


def _timm(size: Size | None) -> nn.Module:
    from timm.models import swin_transformer as source

    if size is None:
        return source.swin_base_patch4_window12_384()
    return source.SwinTransformer(size, num_classes=5, window_size=7, **_SMALL)


def _timm_v2(size: Size | None) -> nn.Module:
    from timm.models import swin_transformer_v2 as source

    if size is None:
        return source.swinv2_tiny_window8_256()
    return source.SwinTransformerV2(size, num_classes=5, window_size=8, **_SMALL)


SWINS = {
    "swin_backbone": SwinModel(
        _backbone, "transformers", "microsoft/swin-tiny-patch4-window7-224", (60, 88), (224, 224)
    ),
    "nougat_encoder": SwinModel(_nougat, "transformers", "facebook/nougat-base", (112, 84), (896, 672)),
    "swin_torchvision": SwinModel(_torchvision, "torchvision", "swin_t", (60, 88), (224, 224)),
    "swin_timm": SwinModel(_timm, "timm", "swin_base_patch4_window12_384", (112, 112), (384, 384)),
    "swin_v2_torchvision": SwinModel(_torchvision_v2, "torchvision", "swin_v2_t", (64, 96), (256, 256), True),
    "swin_v2_timm": SwinModel(
        _timm_v2, "timm", "swinv2_tiny_window8_256", (128, 128), (256, 256), cosine=True
    ),
}

OPSETS = {"torchscript": 17, "dynamo": 20}
"""The opset of the files of each exporter."""


def export_swin(
    name: str,
    folder: Path,
    exporter: str = "torchscript",
    *,
    dynamic: bool = False,
    half: bool = False,
    simplified: str | None = None,
) -> onnx.ModelProto:
    """Exports a small model of `SWINS`, unless the folder holds that file already.

    Skips the test if a package is missing.

    Args:
        folder: of the files; one for a whole test session makes it a cache.
        dynamic: leave the batch size, height and width open.
        half: the model is float16.
        simplified: run this tool over the file.
    """
    SWINS[name].require()
    options = ["dynamic"] * dynamic + ["half"] * half + [simplified or "plain"]
    path = folder / f"{'-'.join([name, exporter, *options])}.onnx"
    if not path.exists():
        with atomic_write(path) as partial:  # another process may be writing the same file
            if simplified:
                onnx.save(export_swin(name, folder, exporter, dynamic=dynamic, half=half), partial)
                simplify(partial, partial, simplified)
            else:
                module, images = SWINS[name].build()
                if half:
                    module, images = module.half(), {"x": images["x"].half()}
                axes = {"x": {0: "n", 2: "h", 3: "w"}} if dynamic else None
                export(module, images, partial, exporter=exporter, opset=OPSETS[exporter], dynamic=axes)
    return onnx.load(path)
