"""Exports with dynamic batch and sizes, without a GPU: exported program and ONNX file."""

from __future__ import annotations

import copy
import json
import operator
from pathlib import Path

import numpy as np
import pytest
import torch

import codetr
from codetr.detector.sizes import SizeRange, fixed
from codetr.evaluation import LiveModel
from codetr.export.artifact_metadata import write_metadata
from codetr.export.box_agreement import FP32_LEAST_SHARE, compare_detections
from codetr.export.request import ExportRequest
from codetr.export.traced_model import ExportSubject, dynamic_shapes, example_inputs, export_program
from dynamo_path.constant_reshapes import simplify_reshapes
from dynamo_path.export import main
from tests.export.requests import make_request
from tests.golden_models import GOLDEN, arguments, save_weights, without

SIZES = [(1, 96, 96), (2, 160, 192), (3, 384, 96), (8, 128, 224), (2, 96, 384)]
"""Batch, height, width: the smallest, the longest, and some between. Windows of 4 cells fit into a few."""

SYMBOLIC = (operator.add, operator.mul, operator.sub, operator.floordiv, torch.ops.aten.sym_size.int)


@pytest.fixture(scope="module")
def request_() -> ExportRequest:
    size = SizeRange(96, 160, 384), SizeRange(96, 192, 384)
    return make_request(model="co_dino_demo", dynamic_size=size, batch=SizeRange(1, 1, 8))


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> codetr.CoDino:
    """Two stages of Swin, the first with a shifted block, and three levels. The trace takes seconds."""
    fields = json.loads((GOLDEN / "codino_swin_tiny.json").read_text())
    fields["backbone"] |= {"depths": [2, 1], "num_heads": [2, 2]}
    fields["neck"] |= {"in_channels": [24, 48], "num_outs": 3}
    fields |= {"name": "mini", "encoder_layers": 1, "decoder_layers": 1, "num_levels": 3}
    fields["resize_scale"] = [288, 192]
    file = tmp_path_factory.mktemp("config") / "mini.json"
    file.write_text(json.dumps(fields))
    config = codetr.load_config(file)
    model = codetr.CoDino(config).eval().requires_grad_(False)
    codetr.load_checkpoint(model, codetr.seeded_state_dict(model, 3))
    # Rounding decides which of two cells with nearly equal scores is selected first. Queries with different
    # contents would make the decoder's results depend on it.
    model.decoder.query_embed.copy_(model.decoder.query_embed[:1].expand_as(model.decoder.query_embed))
    return model


@pytest.fixture(scope="module")
def program(model, request_) -> torch.export.ExportedProgram:
    model.fold_position_biases().write_out_group_norms().write_out_linears()
    try:
        return export_program(model, example_inputs(request_), dynamic_shapes(request_))
    finally:  # the model then computes by the other formulation
        for module in model.modules():
            module.__dict__.pop("written_out", None)


def batch_of(count: int, height: int, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns images of different sizes, with zeros in their padding."""
    generator = torch.Generator().manual_seed(height + width)
    images = torch.randn(count, 3, height, width, generator=generator)
    shapes = torch.tensor([[height - 11 * i, width - 7 * i] for i in range(count)])
    for image, (h, w) in zip(images, shapes.tolist()):
        image[:, h:] = 0
        image[:, :, w:] = 0
    return images, shapes


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@torch.no_grad()
def test_program_of_dynamic_sizes(model, program, sizes):
    inputs = batch_of(*sizes)
    got, expected = (tuple(x.numpy() for x in run(*inputs)) for run in (program.module(), model))
    for one, other in zip(got, expected, strict=True):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
    # Relative noise of 1e-7 behind every layer moves these boxes by up to 6e-4 px and scores by 5e-6.
    comparison = compare_detections(expected, got, box_tolerance_px=5e-3, score_tolerance=5e-5)
    assert comparison.equal_share == 1.0, comparison


def test_range_of_the_program(program):
    ranges = sorted((int(found.lower), int(found.upper)) for found in program.range_constraints.values())
    assert ranges == [(1, 8), (3, 12), (3, 12), (96, 384), (96, 384)]
    with torch.no_grad(), pytest.raises(AssertionError, match=r"images.size\(\)\[2\] >= 96"):
        program.module()(*batch_of(1, 64, 96))


def test_shape_arithmetic_is_little(program):
    """The blocks of the Swin compute no size, and reshapes need no computed size."""
    targets = [node.target for node in program.graph.nodes if node.op == "call_function"]
    assert sum(target in SYMBOLIC for target in targets) <= 20
    for costly in ("pad", "roll", "repeat", "nonzero", "cumsum"):
        assert not [target for target in targets if costly in str(target)], costly
    module = copy.deepcopy(program.graph_module)
    views = targets.count(torch.ops.aten.reshape.default)
    assert simplify_reshapes(module) <= 4 < views / 3


@pytest.fixture(scope="module")
def onnx_file(program, request_, tmp_path_factory) -> Path:
    pytest.importorskip("onnxscript", reason="onnxscript is not installed")
    from onnx_path.export import write_onnx

    path = tmp_path_factory.mktemp("onnx") / "model.onnx"
    write_onnx(program, path)
    return path


def test_dynamic_dimensions_of_the_onnx_file(onnx_file, request_):
    onnx = pytest.importorskip("onnx")
    from onnx_path.export import profiles_of
    from onnx_path.tensorrt.optimization_profiles import inputs_of

    content = onnx.load(onnx_file, load_external_data=False)
    assert [one.shape for one in inputs_of(content)] == [("batch", 3, "height", "width"), ("batch", 2)]
    assert [x.type.tensor_type.shape.dim[0].dim_param for x in content.graph.output] == ["batch"] * 3
    assert profiles_of(request_)["images"] == ((1, 3, 96, 96), (1, 3, 160, 192), (8, 3, 384, 384))


def test_shape_arithmetic_of_the_onnx_file_is_little(onnx_file):
    """A stage of the Swin computes its shapes once for all blocks."""
    onnx = pytest.importorskip("onnx")
    nodes = onnx.load(onnx_file, load_external_data=False).graph.node
    computed = {node.output[0] for node in nodes if node.op_type == "Concat"}
    reshapes = [node for node in nodes if node.op_type == "Reshape"]
    assert len(computed & {node.input[1] for node in reshapes}) <= 10 < len(reshapes) / 4
    assert sum(node.op_type in ("Shape", "Range", "Expand") for node in nodes) <= 12


@pytest.fixture(scope="module")
def onnx_artifact(model, onnx_file, request_) -> Path:
    """The ONNX file with its metadata beside it."""
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    pytest.importorskip("tensorrt", reason="TensorRT is not installed")
    write_metadata(ExportSubject(model, None, [], "none"), request_, onnx_file.parent)
    return onnx_file


@pytest.mark.parametrize(
    ("sizes", "pictures", "shapes"),
    [
        ({}, [(60, 90), (90, 60), (70, 70), (20, 60)], [(192, 288), (288, 192), (192, 192), (96, 288)]),
        ({"max_size": 224}, [(60, 70), (70, 60), (400, 400)], [(192, 224), (224, 192), (192, 192)]),
        ({"height": 128, "width": 256}, [(60, 70), (400, 200)], [(128, 149), (128, 64)]),
    ],
    ids=["published", "max-size", "fixed"],
)
def test_detector_of_the_onnx_file(model, onnx_artifact, sizes, pictures, shapes):
    """Alone and together, pictures have PyTorch's input size and detections.

    PyTorch pads to no multiple of 32. Both pad alike at these sizes.
    """
    random = np.random.default_rng(0)
    pictures = [random.integers(0, 255, (*hw, 3), dtype=np.uint8) for hw in pictures]
    in_pytorch = codetr.Detector(backend=LiveModel(model, model.config, "cpu", **sizes))
    with codetr.Detector(backend="onnxruntime", onnx=onnx_artifact, device="cpu", **sizes) as detector:
        assert (detector.backend.batch.min, detector.backend.batch.max) == (1, 8)
        for batch in (1, len(pictures)):
            inputs = [one.backend.preprocessor.batch(pictures[:batch]) for one in (in_pytorch, detector)]
            assert inputs[0].image_shapes.tolist() == [list(shape) for shape in shapes[:batch]]
            np.testing.assert_array_equal(inputs[0].images, inputs[1].images)
            expected, found = (
                [
                    (one.boxes_xyxy_px[None], one.scores[None], one.labels[None])
                    for one in runs.detect(pictures, threshold=0.0, nms="none", batch=batch)
                ]
                for runs in (in_pytorch, detector)
            )
            for pair in zip(expected, found, strict=True):
                comparison = compare_detections(*pair)
                assert comparison.equal_share >= FP32_LEAST_SHARE, comparison


@pytest.mark.parametrize(
    ("options", "shapes"),
    [
        ({"batch": SizeRange(1, 1, 8)}, ((2, 3, 800, 1344), [(0,), (0,)])),
        ({"dynamic_size": (SizeRange(512, 768, 1344),) * 2}, ((1, 3, 768, 512), [(2, 3), ()])),
        ({"dynamic_size": (fixed(512), SizeRange(640, 640, 1280))}, ((1, 3, 512, 640), [(3,), ()])),
        ({"batch": fixed(4)}, ((4, 3, 800, 1344), None)),
    ],
    ids=str,
)
def test_example_inputs_and_dynamic_axes(options, shapes):
    request = make_request(**options)
    example, axes = shapes
    images, image_shapes = example_inputs(request)
    assert images.shape == example and image_shapes.tolist() == [list(example[2:])] * example[0]
    told = dynamic_shapes(request)
    assert (told if axes is None else [tuple(axis) for axis in told]) == axes


def test_sizes_of_a_level_of_one_cell_are_refused(tmp_path, capsys):
    options = {"dynamic-size": "64-96-128", "device": "cpu"}
    given = arguments(save_weights(tmp_path), tmp_path / "out", "codino_resnet_tiny", **options)
    assert main(without(given, "--height", "--width")) != 0
    assert "--dynamic-size: expected sizes from " in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
