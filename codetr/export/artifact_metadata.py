"""The metadata file model.json, which every program that runs an exported file reads."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import torch

import trt_plugin
from codetr.export.request import ExportRequest, own_size
from codetr.export.traced_model import ExportSubject
from trt_plugin.engine_error import import_tensorrt


def write_metadata(
    subject: ExportSubject, request: ExportRequest, folder: Path, build_seconds: float | None = None
) -> None:
    """Writes model.json, see `trt_plugin.ArtifactMetadata`.

    Args:
        folder: where the exported files lie.
        build_seconds: time of TensorRT's build. Without an engine it is None, and TensorRT's version and the
            GPU's name stay empty.
    """
    engine = build_seconds is not None
    config, sizes = subject.model.config, request.sizes
    resize = {"height": sizes.height.opt, "width": sizes.width.opt, "mode": "fit_pad"}
    # Images fill a fixed size that the caller chose. The model's own size is rounded up, and they do not fill
    # it.
    if sizes.resizable or (sizes.height.opt, sizes.width.opt) == own_size(config):
        resize["scale"] = sorted(config.resize_scale, reverse=True)
    shapes = sizes.shapes()
    boxes = (shapes["images"][0], config.max_per_img)
    outputs = {
        "boxes": ((*boxes, 4), "float32"),
        "scores": (boxes, "float32"),
        "labels": (boxes, "int64"),
        "num_detections": (boxes[:1], "int64"),
    }
    metadata = trt_plugin.ArtifactMetadata(
        model=config.name,
        inputs=_tensors(images=(shapes["images"], "float32"), image_shapes=(shapes["image_shapes"], "int64")),
        outputs=_tensors(**{name: outputs[name] for name in request.output_names}),
        class_names=list(config.label_names),
        mean=list(config.mean),
        std=list(config.std),
        resize=resize,
        max_per_img=config.max_per_img,
        nms=dataclasses.asdict(subject.nms or config.nms),
        nms_in_graph=subject.nms is not None,
        precision=request.precision,
        batch=sizes.batch.opt,
        profiles=sizes.profiles(),
        refittable=engine and request.refittable,
        tensorrt_version=import_tensorrt().__version__ if engine else "",
        plugin_version=trt_plugin.PLUGIN_VERSION,
        gpu=torch.cuda.get_device_name() if engine else "",
        torch_version=torch.__version__,
        source_weights=subject.source_weights,
        build_seconds=round(build_seconds, 1) if engine else None,
    )
    metadata.save(folder / "model.json")


def _tensors(**tensors: tuple[tuple[int, ...], str]) -> list[dict[str, Any]]:
    return [{"name": name, "shape": list(shape), "dtype": dtype} for name, (shape, dtype) in tensors.items()]
