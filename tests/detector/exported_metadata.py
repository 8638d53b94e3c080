"""Metadata of exported files with fixed and with dynamic sizes, and an ONNX file with metadata."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from codetr.detector.sizes import InputSizes, SizeRange, fixed
from trt_plugin import ArtifactMetadata

FIXED = InputSizes(fixed(2), fixed(64), fixed(96))
DYNAMIC = InputSizes(SizeRange(1, 1, 8), SizeRange(512, 768, 1344), SizeRange(512, 1152, 1344))

ONNX_GRAPH = """
<ir_version: 8, opset_import: ["": 17]>
found (float[2, 3, 64, 96] images, int64[2, 2] image_shapes)
    => (float[2, 3, 4] boxes, float[2, 3] scores, int64[2, 3] labels)
<int64[4] order = {1, 0, 1, 0}, int64[3] rows = {2, 1, 4}, int64[2] pictures = {2, 1},
 float[1, 3, 4] corners = {0, 0, 1, 1, nan, nan, nan, nan, 0, 0, 1, 1},
 float[1, 3] best = {0.8, 0.9, nan}, int64[1, 3] classes = {1, 0, 1}>
{
    swapped = Gather<axis = 1>(image_shapes, order)
    sides = Cast<to = 1>(swapped)
    row = Reshape(sides, rows)
    boxes = Mul(row, corners)
    scores = Tile(best, pictures)
    labels = Tile(classes, pictures)
}
"""
"""The network of `fixed_metadata`. It finds a dog as large as the picture, with the score 0.8."""


def fixed_metadata() -> ArtifactMetadata:
    """Two images of 64 x 96 pixels, two classes."""
    return ArtifactMetadata(
        model="tiny",
        inputs=[
            {"name": "images", "shape": [2, 3, 64, 96], "dtype": "float32"},
            {"name": "image_shapes", "shape": [2, 2], "dtype": "int64"},
        ],
        outputs=[
            {"name": "boxes", "shape": [2, 3, 4], "dtype": "float32"},
            {"name": "scores", "shape": [2, 3], "dtype": "float32"},
            {"name": "labels", "shape": [2, 3], "dtype": "int32"},
        ],
        class_names=["cat", "dog"],
        mean=[0.0, 0.0, 0.0],
        std=[1.0, 1.0, 1.0],
        resize={"height": 64, "width": 96, "mode": "fit_pad"},
        max_per_img=3,
        nms={"method": "soft", "iou_threshold": 0.8},
        precision="fp32",
        batch=2,
        tensorrt_version="10.6.0",
        plugin_version="1",
        gpu="none",
        torch_version="2.11.0",
        source_weights="random",
    )


def write_onnx(folder: Path, **changed: object) -> Path:
    """Writes the network as model.onnx, and its metadata with changed fields. Skips a test without onnx."""
    onnx = pytest.importorskip("onnx", reason="onnx is not installed")
    path = folder / "model.onnx"
    onnx.save(onnx.parser.parse_model(ONNX_GRAPH), path)
    dataclasses.replace(fixed_metadata(), **changed).save(path.with_suffix(".json"))
    return path


def dynamic_metadata(scale: list[int] | None = None, /, **changed: list[int]) -> ArtifactMetadata:
    """The sizes `DYNAMIC`.

    Args:
        scale: (long side, short side) by which the model resizes pictures.
        changed: shapes of `images` in its profile by "min", "opt" or "max".
    """
    shapes = DYNAMIC.shapes()
    inputs = [{"name": name, "shape": shapes[name], "dtype": "float32"} for name in shapes]
    resize = {"height": 768, "width": 1152, "mode": "fit_pad"} | ({"scale": scale} if scale else {})
    profiles = DYNAMIC.profiles()
    profiles["images"] |= changed
    return dataclasses.replace(fixed_metadata(), inputs=inputs, resize=resize, batch=1, profiles=profiles)
