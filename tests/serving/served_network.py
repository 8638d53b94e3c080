"""A tiny ONNX file that the server runs: two boxes in every image, as slowly as a test wants."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from codetr.detector.sizes import InputSizes, SizeRange, fixed
from tests.detector.exported_metadata import fixed_metadata

BOXES = [[0, 0, 48, 32], [10, 10, 20, 20]]
"""Of a hammer and a wrench, in pixels of the input of 64 x 96."""
SCORES = [0.9, 0.2]


def write_network(folder: Path, loops: int = 0) -> Path:
    """Writes model.onnx and its metadata.

    Args:
        loops: products of two matrices of 256 x 256 in each run, some milliseconds each.
    """
    import onnx

    model = onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["" : 17]>
        served (float[N, 3, 64, 96] images, int64[N, 2] image_shapes)
            => (float[N, 2, 4] boxes, float[N, 2] scores, int32[N, 2] labels)
            <float[1, 2, 4] one_boxes = {{{", ".join(str(float(x)) for box in BOXES for x in box)}}},
             float[1, 2] one_scores = {{{SCORES[0]}, {SCORES[1]}}}, int32[1, 2] one_labels = {{0, 1}},
             int64 loops = {{{loops}}}, bool yes = {{1}}, int64[2] side = {{256, 256}},
             int64[1] zero = {{0}}, int64[1] one = {{1}}, int64[1] two = {{2}}, int64[1] four = {{4}},
             float half = {{0.5}}>
        {{
            shape = Shape(image_shapes)
            count = Slice(shape, zero, one)
            matrix = ConstantOfShape<value = float[1] {{0.001}}>(side)
            product = Loop(loops, yes, matrix) <body = step (int64 i, bool go, float[256, 256] x)
                => (bool on, float[256, 256] y) {{ on = Identity(go) y = MatMul(x, matrix) }}>
            total = ReduceSum<keepdims = 0>(product)
            bounded = Min(total, half)
            nothing = Sub(bounded, bounded)
            box_shape = Concat<axis = 0>(count, two, four)
            row_shape = Concat<axis = 0>(count, two)
            wide_boxes = Expand(one_boxes, box_shape)
            boxes = Add(wide_boxes, nothing)
            scores = Expand(one_scores, row_shape)
            labels = Expand(one_labels, row_shape)
        }}
    """)
    onnx.checker.check_model(model)
    onnx.save(model, folder / "model.onnx")
    sizes = InputSizes(SizeRange(1, 1, 8), fixed(64), fixed(96))
    shapes = sizes.shapes()
    metadata = dataclasses.replace(
        fixed_metadata(),
        inputs=[{"name": name, "shape": shapes[name], "dtype": "float32"} for name in shapes],
        outputs=[
            {"name": "boxes", "shape": [-1, 2, 4], "dtype": "float32"},
            {"name": "scores", "shape": [-1, 2], "dtype": "float32"},
            {"name": "labels", "shape": [-1, 2], "dtype": "int32"},
        ],
        class_names=["hammer", "wrench"],  # as in the examples of docs/serving.md
        max_per_img=2,
        batch=1,
        profiles=sizes.profiles(),
    )
    metadata.save(folder / "model.json")
    return folder / "model.onnx"
