"""DETR-family models with random weights, small but in their published structure, and their ONNX exports.

The graph surgery (`onnx_path.surgeon`) is tested on these files. `ZOO` lists the models; `export` writes one
with a choice of exporter, opset, dynamic axes, sampling operator and simplifier. `ZooModel.build(full=True)`
makes the published configuration and an image of its usual size, still with random weights, for benchmarks.

Every model is exported whole, from the image to its outputs, or as one layer. This takes the following with
transformers 5.23, rfdetr 1.11 and Torch 2.11:

- torch.onnx has no `aten._is_all_true`: an environment variable turns transformers' shape checks off.
- The older exporter (`dynamo=False`) writes `linspace` in float64 whatever its dtype. Deformable DETR,
  Grounding DINO and Mask2Former then sample float32 values at float64 grids, for which onnxruntime's CPU
  provider has no kernel. `linspace` is `arange` times a step here; `double_grids=True` keeps the exporter's.
- While the older exporter traces, sizes that pass through `torch.tensor` become constants. For files with
  dynamic sizes they are stacked instead.
- Grounding DINO's mask of phrases needs `aten.isin` and `aten.cummax`, which no exporter has. The prompt is
  fixed and its mask computed before. Its padded logits are written in place, which the older exporter
  refuses; `pad` does the same.
- OmDet-Turbo looks the embeddings of its prompt up in a cache, which the newer exporter refuses. They are
  computed before. Its position encoding is constant after tracing, so it has no dynamic size.
- RF-DETR's own export mode (`LWDETR.export`) fixes the size of the image.
- Two-stage Deformable DETR through the newer exporter gives a file that lacks a tensor and loads nowhere.
- The newer exporter writes opset 18 and later, the older one opset 20 and earlier.
"""

from __future__ import annotations

import functools
import importlib.util
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import onnx
import pytest
import torch
from torch import Tensor

from onnx_path.surgeon import operate
from tests.onnx import zoo_layers, zoo_models
from tests.onnx.zoo_exporters import Exporter, Sampling, Simplifier, export_module, quiet, simplify
from trt_plugin.atomic_files import atomic_write

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing here is downloaded

USUAL_OPSET: dict[Exporter, int] = {"torchscript": 17, "dynamo": 18}


@dataclass(frozen=True)
class ZooModel:
    """One model of the zoo.

    Attributes:
        name: its key in `ZOO`.
        attentions: the points of each level, of every MSDA in the order of the graph.
        heads, head_dim: of the small model's MSDA.
        maker: full, batch -> the module and example inputs by name. Call `build`.
        published: name of the configuration that `build(full=True)` makes; "" for a layer.
        published_layers: its number of MSDA.
        outputs: names of the outputs.
        exporters: those that can export it whole.
        dynamic: dimensions that may be dynamic with the older exporter, by input.
        package: whose model it is, if not ours.
        plain: the number of attentions whose softmax and locations the surgeon leaves outside.
        masks: the number of attentions whose values are masked.
    """

    name: str
    attentions: tuple[tuple[int, ...], ...]
    heads: int
    head_dim: int
    maker: Callable[..., zoo_models.Built] = field(repr=False)
    published: str = ""
    published_layers: int = 0
    outputs: tuple[str, ...] = ("logits", "pred_boxes")
    exporters: tuple[Exporter, ...] = ("torchscript", "dynamo")
    dynamic: dict[str, dict[int, str]] | None = None
    package: str | None = "transformers"
    plain: int = 0
    masks: int = 0

    @property
    def layers(self) -> int:
        """The number of MSDA."""
        return len(self.attentions)

    def require(self) -> None:
        """Skips the test if the model's package is not installed."""
        if self.package and importlib.util.find_spec(self.package) is None:
            pytest.skip(f"{self.package} is not installed")

    def build(self, full: bool = False, batch: int = 1) -> zoo_models.Built:
        """Makes the module, in evaluation mode and with seeded weights, and example inputs by name.

        Layers have a batch of 1.
        """
        with torch.random.fork_rng(devices=[]), quiet():
            torch.manual_seed(0)
            model, inputs = self.maker(full) if batch == 1 else self.maker(full, batch)
        return model.eval().requires_grad_(False), inputs

    def other_inputs(self, height: int = 160, width: int = 192, batch: int = 2) -> dict[str, Tensor]:
        """Makes inputs of another size for files with dynamic axes."""
        generator = torch.Generator().manual_seed(0)
        inputs = {}
        for name, axes in (self.dynamic or {}).items():
            images = batch if 0 in axes else 1
            if name == "pixel_values":
                inputs[name] = torch.randn(images, 3, height, width, generator=generator)
            else:
                inputs[name] = torch.ones(images, height, width, dtype=torch.int64)
        return inputs


def export(
    name: str,
    folder: Path,
    *,
    exporter: Exporter = "torchscript",
    opset: int | None = None,
    dynamic: bool = False,
    simplified: Simplifier | None = None,
    sampling: Sampling = "GridSample",
    double_grids: bool = False,
) -> Path:
    """Exports a model of the zoo with its weights inside, unless the folder holds that file already.

    Skips the test if a package is missing.

    Args:
        name: a key of `ZOO`.
        folder: of the files; one for a whole test session makes it a cache.
        opset: of the standard operators; default: 17 by the older exporter, 18 by the newer one.
        dynamic: leave the dimensions in the model's `dynamic` open.
        simplified: run this tool over the file.
        sampling: the operator that samples: GridSample, or gathers and arithmetic as in files for runtimes
            without GridSample.
        double_grids: keep the older exporter's float64 `linspace`; onnxruntime does not run such a file.
    """
    entry = ZOO[name]
    entry.require()
    opset = opset or USUAL_OPSET[exporter]
    options = [exporter, str(opset), sampling]
    options += ["dynamic"] * dynamic + ["double"] * double_grids + [simplified or "plain"]
    path = folder / f"{'-'.join([name, *options])}.onnx"
    if path.exists():
        return path
    form = {"exporter": exporter, "opset": opset, "sampling": sampling, "double_grids": double_grids}
    with atomic_write(path) as partial:  # another process may be writing the same file
        if simplified:
            simplify(export(name, folder, dynamic=dynamic, **form), partial, simplified)
        else:
            model, inputs = entry.build()
            axes = entry.dynamic if dynamic else None
            export_module(model, inputs, partial, outputs=entry.outputs, dynamic=axes, **form)
    return path


def operated(name: str, folder: Path, target: str = "msda") -> onnx.ModelProto:
    """Returns a model of the zoo after the surgeon, whose result the folder keeps."""
    path = export(name, folder)
    result = path.with_suffix(f".{target}.onnx")
    if not result.exists():
        with atomic_write(result) as partial:
            onnx.save(operate(onnx.load(path), target=target, check=False)[0], partial)
    return onnx.load(result)


_IMAGE = {"pixel_values": {0: "batch", 2: "height", 3: "width"}}
_MASK = {"pixel_mask": {0: "batch", 1: "height", 2: "width"}}
# A prompt that became constant belongs to one image.
_SIZE = {"pixel_values": {2: "height", 3: "width"}}
_MASK_SIZE = {"pixel_mask": {1: "height", 2: "width"}}


def _model(
    name: str,
    layers: int,
    points: tuple[int, ...],
    heads: int,
    head_dim: int,
    published: str,
    published_layers: int,
    **more,
) -> ZooModel:
    """Makes an entry whose attentions have the same points; `more` are other fields of `ZooModel`."""
    more.setdefault("maker", getattr(zoo_models, name, None))
    more |= {"published": published, "published_layers": published_layers}
    return ZooModel(name, (points,) * layers, heads, head_dim, **more)


def _co_dino(name: str, layers: int, golden: str, published: str) -> ZooModel:
    """Makes an entry of our detector."""
    maker = functools.partial(zoo_models.co_dino, golden=golden, published=published)
    more = {"maker": maker, "outputs": ("boxes", "scores", "labels"), "package": None, "masks": layers}
    return _model(name, layers, (4,) * 5, 8, 8, published, 12, **more)


def _layer(
    name: str, attentions: tuple[tuple[int, ...], ...], head_dim: int, *outputs: str, plain: int = 0
) -> ZooModel:
    """Makes an entry of `zoo_layers`."""
    maker = getattr(zoo_layers, name)
    return ZooModel(name, attentions, 4, head_dim, maker, outputs=outputs, package=None, plain=plain)


_SWAPPED = ("pred_boxes", "logits")
_ALL = (
    _model(
        *("deformable_detr", 3, (4,) * 4, 8, 4),
        *("SenseTime/deformable-detr", 12),
        dynamic=_IMAGE | _MASK,
        masks=3,
    ),
    _model(
        *("deformable_detr_two_stage", 3, (4,) * 4, 8, 4),
        *("SenseTime/deformable-detr-with-box-refine-two-stage", 12),
        exporters=("torchscript",),
        dynamic=_IMAGE | _MASK,
        masks=3,
    ),
    _model("rt_detr", 2, (4,) * 3, 8, 4, "PekingU/rtdetr_r50vd", 6, dynamic=_IMAGE),
    _model("rt_detr_v2", 2, (4,) * 3, 2, 16, "PekingU/rtdetr_v2_r50vd", 6, dynamic=_IMAGE),
    _model("d_fine", 2, (3, 6, 3), 4, 8, "ustc-community/dfine-large-coco", 6, dynamic=_IMAGE),
    _model(
        *("grounding_dino", 3, (4,) * 4, 4, 8),
        *("IDEA-Research/grounding-dino-tiny", 12),
        dynamic=_SIZE | _MASK_SIZE,
        masks=3,
    ),
    _model(
        *("mask2former", 2, (4,) * 3, 2, 16),
        *("facebook/mask2former-swin-tiny-coco-instance", 6),
        outputs=("class_queries_logits", "masks_queries_logits"),
        dynamic=_IMAGE,
        masks=2,
    ),
    _model(
        *("omdet_turbo", 2, (4,) * 3, 4, 8),
        *("omlab/omdet-turbo-swin-tiny-hf", 6),
        outputs=("decoder_class_logits", "decoder_coord_logits"),
    ),
    _model(
        *("rf_detr", 2, (2,), 8, 4),
        *("RFDETRMedium", 4),
        outputs=_SWAPPED,
        package="rfdetr",
    ),
    _co_dino("co_dino_swin", 3, "codino_swin_tiny", "co_dino_swin_l"),
    _co_dino("co_dino_r50", 2, "codino_resnet_tiny", "co_dino_r50"),
    _layer("bevformer_temporal", ((4,),), 8, "result"),
    # Each height has its own reference points, which the fused operator does not have.
    _layer("bevformer_spatial", ((8, 8),), 8, "result", plain=1),
    _layer("mask_dino", ((4,) * 3,) * 2, 8, "logits", "masks", "boxes"),
    _layer("vit_adapter", ((4,) * 3, (4,)), 4, "tokens", "levels"),
)
ZOO = {model.name: model for model in _ALL}
