"""DETR-family models with random weights, small but with their true structure, and their ONNX exports.

The graph surgery (`onnx_path.surgeon`) is tested on these files. `ZOO` lists the models; `export` writes
one with a choice of exporter, opset, dynamic axes, sampling operator and simplifier.
`ZooModel.build(full=True)` makes the published configuration and an image of its usual size, still with
random weights, for benchmarks.

Every model is exported whole, from the image to logits and boxes (Mask2Former: to logits and masks). What
that took, with transformers 5.23, rfdetr 1.11 and Torch 2.11:

- torch.onnx knows no `aten._is_all_true`: transformers' shape checks are off, by their environment
  variable.
- The older exporter (`dynamo=False`) gives `linspace` in float64 whatever its dtype. Deformable DETR,
  Grounding DINO and Mask2Former then sample float32 values at float64 grids, which ONNX allows and
  onnxruntime's CPU provider has no kernel for. `linspace` is `arange` times a step here; `export(...,
  double_grids=True)` keeps the exporter's own form.
- While the older exporter traces, sizes that go through `torch.tensor` become constants. For files with
  dynamic sizes they are stacked instead.
- Grounding DINO's mask of phrases needs `aten.isin` and `aten.cummax`, which no exporter has. It depends on
  the prompt alone, so the prompt is fixed and its mask computed before; the image and its mask remain as
  inputs. Its padded logits are written in place into a slice, which the older exporter refuses: `pad` does
  the same.
- OmDet-Turbo looks the embeddings of its prompt up in a cache, by token ids, which the newer exporter
  refuses and the older one makes constant. The prompt's embeddings are computed before, and the image is
  the only input. Its position encoding is constant after tracing, so that it has no dynamic size.
- RF-DETR's own export mode (`LWDETR.export`) fixes the size of the image.
- Two-stage Deformable DETR through the newer exporter gives a file with a missing tensor, which no runtime
  loads.
- The newer exporter writes opset 18 and up, the older one opset 20 and down.
"""

from __future__ import annotations

import functools
import importlib.util
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests import onnx_zoo_models as models
from tests.onnx_zoo_export import (
    Exporter,
    Sampling,
    Simplifier,
    count_calls,
    export_module,
    msda_modules,
    quiet,
    run,
    run_onnx,
    simplify,
)

__all__ = [
    "OPSETS",
    "USUAL_OPSET",
    "ZOO",
    "Usual",
    "ZooModel",
    "count_calls",
    "export",
    "export_module",
    "msda_modules",
    "run",
    "run_onnx",
    "session_folder",
]

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing here is downloaded

every = pytest.mark.skipif(os.environ.get("ONNX_ZOO") != "all", reason="minutes: ONNX_ZOO=all runs it")
"""Marks what is run on request only: every model in every form."""

OPSETS: dict[Exporter, tuple[int, ...]] = {"torchscript": (16, 17, 18, 19, 20), "dynamo": (18, 19, 20, 21)}
USUAL_OPSET: dict[Exporter, int] = {"torchscript": 17, "dynamo": 18}


@dataclass(frozen=True)
class Usual:
    """The published configuration that `build(full=True)` makes.

    Attributes:
        configuration: its name where it was published.
        height, width: of the image that it usually gets, pixels.
        layers: MSDA calls of one image.
        points: per level; as many entries as levels.
        heads, queries: of the decoder's MSDA.
    """

    configuration: str
    height: int
    width: int
    layers: int
    points: tuple[int, ...]
    heads: int
    queries: int


@dataclass(frozen=True)
class ZooModel:
    """One model of the zoo.

    Attributes:
        name: its key in `ZOO`.
        layers: MSDA calls of the small model.
        heads, head_dim, points: of the small model's MSDA; one entry of `points` per level.
        maker: full -> the module and example inputs by name. Call `build`.
        outputs: names of the outputs.
        usual_size: what `build(full=True)` makes.
        exporter: the default of `export`.
        exporters: those that can export it whole.
        dynamic: dimensions that may be dynamic with `exporter`, by input.
        package: whose model it is, if not ours.
    """

    name: str
    layers: int
    heads: int
    head_dim: int
    points: tuple[int, ...]
    maker: Callable[[bool], models.Built] = field(repr=False)
    usual_size: Usual
    outputs: tuple[str, ...] = ("logits", "pred_boxes")
    exporter: Exporter = "torchscript"
    exporters: tuple[Exporter, ...] = ("torchscript", "dynamo")
    dynamic: dict[str, dict[int, str]] | None = None
    package: str | None = "transformers"

    def require(self) -> None:
        """Skips the test that asks for this model where the model's package is not installed."""
        if self.package and importlib.util.find_spec(self.package) is None:
            pytest.skip(f"{self.package} is not installed")

    def build(self, full: bool = False) -> models.Built:
        """Makes the module, in evaluation mode and with seeded weights, and example inputs by name."""
        with torch.random.fork_rng(devices=[]), quiet():
            torch.manual_seed(0)
            model, inputs = self.maker(full)
        return model.eval().requires_grad_(False), inputs

    def other_inputs(self, height: int = 160, width: int = 192, batch: int = 2) -> dict[str, Tensor]:
        """Example inputs of another size, for files with dynamic axes; one image where `dynamic` says so."""
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
    exporter: Exporter | None = None,
    opset: int | None = None,
    dynamic: bool = False,
    simplified: Simplifier | None = None,
    sampling: Sampling = "GridSample",
    double_grids: bool = False,
) -> Path:
    """Exports a model of the zoo, unless the folder holds that file already.

    Args:
        name: a key of `ZOO`.
        folder: where files are kept; one of a test session makes this a cache.
        exporter: default: the model's.
        opset: of the standard operators; default: 17 by the older exporter, 18 by the newer one.
        dynamic: leave the dimensions in the model's `dynamic` open.
        simplified: run this tool over the file.
        sampling: the operator that samples: GridSample, or gathers and arithmetic as in files for runtimes
            without GridSample.
        double_grids: keep the older exporter's float64 `linspace`; onnxruntime does not run such a file.

    Returns:
        The ONNX file; its weights lie in it.

    Raises:
        ValueError: an exporter or opset that the model does not support, or no dynamic dimensions.
    """
    entry = ZOO[name]
    exporter = exporter or entry.exporter
    opset = opset or USUAL_OPSET[exporter]
    if exporter not in entry.exporters:
        raise ValueError(f"exporter: {name} can be exported by {entry.exporters}, got {exporter!r}")
    if opset not in OPSETS[exporter]:
        raise ValueError(f"opset: {exporter} writes {OPSETS[exporter]}, got {opset}")
    if dynamic and (entry.dynamic is None or exporter != entry.exporter):
        raise ValueError(f"dynamic: {name} has no dynamic dimensions with {exporter}")
    options = [exporter, str(opset), sampling]
    options += ["dynamic"] * dynamic + ["double"] * double_grids + [simplified or "plain"]
    path = folder / f"{'-'.join([name, *options])}.onnx"
    if path.exists():
        return path
    partial = path.with_suffix(f".{os.getpid()}")  # another process may be writing the same file
    if simplified:
        source = export(
            name,
            folder,
            exporter=exporter,
            opset=opset,
            dynamic=dynamic,
            sampling=sampling,
            double_grids=double_grids,
        )
        simplify(source, partial, simplified)
    else:
        model, inputs = entry.build()
        axes = entry.dynamic if dynamic else None
        export_module(
            model,
            inputs,
            partial,
            outputs=entry.outputs,
            exporter=exporter,
            opset=opset,
            dynamic=axes,
            sampling=sampling,
            double_grids=double_grids,
        )
    partial.replace(path)
    return path


def session_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for `export` that all workers of one test session share."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "onnx_zoo"
    folder.mkdir(exist_ok=True)
    return folder


_IMAGE = {"pixel_values": {0: "batch", 2: "height", 3: "width"}}
_MASK = {"pixel_mask": {0: "batch", 1: "height", 2: "width"}}
# A prompt that became constant is that of one image.
_SIZE = {"pixel_values": {2: "height", 3: "width"}}
_MASK_SIZE = {"pixel_mask": {1: "height", 2: "width"}}

_ALL = (
    ZooModel(
        "deformable_detr",
        layers=4,
        heads=8,
        head_dim=4,
        points=(4,) * 4,
        maker=models.deformable_detr,
        usual_size=Usual("SenseTime/deformable-detr", 800, 1333, 12, (4,) * 4, 8, 300),
        dynamic=_IMAGE | _MASK,
    ),
    ZooModel(
        "deformable_detr_two_stage",
        layers=4,
        heads=8,
        head_dim=4,
        points=(4,) * 4,
        maker=models.deformable_detr_two_stage,
        usual_size=Usual(
            "SenseTime/deformable-detr-with-box-refine-two-stage", 800, 1333, 12, (4,) * 4, 8, 300
        ),
        exporters=("torchscript",),
        dynamic=_IMAGE | _MASK,
    ),
    ZooModel(
        "rt_detr",
        layers=3,
        heads=8,
        head_dim=4,
        points=(4,) * 3,
        maker=models.rt_detr,
        usual_size=Usual("PekingU/rtdetr_r50vd", 640, 640, 6, (4,) * 3, 8, 300),
        dynamic=_IMAGE,
    ),
    ZooModel(
        "rt_detr_v2",
        layers=3,
        heads=2,
        head_dim=16,
        points=(4,) * 3,
        maker=models.rt_detr_v2,
        usual_size=Usual("PekingU/rtdetr_v2_r50vd", 640, 640, 6, (4,) * 3, 8, 300),
        dynamic=_IMAGE,
    ),
    ZooModel(
        "d_fine",
        layers=3,
        heads=4,
        head_dim=8,
        points=(3, 6, 3),
        maker=models.d_fine,
        usual_size=Usual("ustc-community/dfine-large-coco", 640, 640, 6, (3, 6, 3), 8, 300),
        dynamic=_IMAGE,
    ),
    ZooModel(
        "grounding_dino",
        layers=4,
        heads=4,
        head_dim=8,
        points=(4,) * 4,
        maker=models.grounding_dino,
        usual_size=Usual("IDEA-Research/grounding-dino-tiny", 800, 1333, 12, (4,) * 4, 8, 900),
        dynamic=_SIZE | _MASK_SIZE,
    ),
    ZooModel(
        "mask2former",
        layers=2,
        heads=2,
        head_dim=16,
        points=(4,) * 3,
        maker=models.mask2former,
        usual_size=Usual("facebook/mask2former-swin-tiny-coco-instance", 800, 1344, 6, (4,) * 3, 8, 100),
        outputs=("class_queries_logits", "masks_queries_logits"),
        dynamic=_IMAGE,
    ),
    ZooModel(
        "omdet_turbo",
        layers=2,
        heads=4,
        head_dim=8,
        points=(4,) * 3,
        maker=models.omdet_turbo,
        usual_size=Usual("omlab/omdet-turbo-swin-tiny-hf", 640, 640, 6, (4,) * 3, 8, 900),
        outputs=("decoder_class_logits", "decoder_coord_logits"),
    ),
    ZooModel(
        "rf_detr",
        layers=3,
        heads=8,
        head_dim=4,
        points=(2,),
        maker=models.rf_detr,
        usual_size=Usual("RFDETRMedium", 576, 576, 4, (2,), 16, 300),
        outputs=("pred_boxes", "logits"),
        package="rfdetr",
    ),
    ZooModel(
        "rf_detr_two_levels",
        layers=3,
        heads=8,
        head_dim=4,
        points=(2, 2),
        maker=models.rf_detr_two_levels,
        usual_size=Usual("RFDETRMedium with levels P3 and P5", 576, 576, 4, (2, 2), 16, 300),
        outputs=("pred_boxes", "logits"),
        package="rfdetr",
    ),
    *(
        ZooModel(
            name,
            layers=layers,
            heads=8,
            head_dim=8,
            points=points or (4,) * 5,
            maker=functools.partial(
                models.co_dino, golden=golden, published=published, points_per_level=points
            ),
            usual_size=Usual(published, 768, 1152, 12, points or (4,) * 5, 8, 900),
            outputs=("boxes", "scores", "labels"),
            package=None,
        )
        for name, layers, golden, published, points in (
            ("co_dino_swin", 5, "codino_swin_tiny", "co_dino_swin_l", None),
            ("co_dino_r50", 3, "codino_resnet_tiny", "co_dino_r50", None),
            ("co_dino_ragged", 3, "codino_resnet_tiny", "co_dino_r50", (2, 6, 5, 4, 3)),
        )
    ),
)
ZOO = {model.name: model for model in _ALL}
