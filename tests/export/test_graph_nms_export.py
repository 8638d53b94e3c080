"""Exports with non-maximum suppression in the graph: files, commands, and readers of their detections."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import codetr
import trt_plugin
from codetr.detector.postprocess import apply_nms
from codetr.evaluation import LiveModel
from tests.golden_models import GOLDEN, arguments, load_golden

NAME = "codino_resnet_tiny"
OUTPUTS = ("boxes", "scores", "labels", "num_detections")
PHOTO = GOLDEN.parents[1] / "codetr/demo/coffee.jpg"
IOU = 0.1
"""Threshold at which the golden model's detections suppress each other."""


@pytest.fixture(scope="module")
def exported(weights, tmp_path_factory) -> Path:
    """The folder that the command wrote on the CPU."""
    pytest.importorskip("onnxscript", reason="onnxscript is not installed")
    from onnx_path.export import main

    folder = tmp_path_factory.mktemp("exported")
    options = {"device": "cpu", "batch": 2, "nms": "hard", "nms-iou": IOU}
    assert main(arguments(weights, folder, NAME, **options)) == 0
    return folder


def test_metadata(exported):
    metadata = trt_plugin.ArtifactMetadata.load(exported / "model.json")
    assert metadata.nms_in_graph
    assert (metadata.nms["method"], metadata.nms["iou_threshold"]) == ("hard", IOU)
    assert [tensor["name"] for tensor in metadata.outputs] == list(OUTPUTS)
    assert metadata.outputs[3] == {"name": "num_detections", "shape": [2], "dtype": "int64"}


def test_detector_suppresses_once(exported):
    """The file's detections, without padding, are PyTorch's after the same suppression."""
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    model = load_golden(NAME)[0].eval()
    in_pytorch = codetr.Detector(backend=LiveModel(model, model.config, "cpu", height=128, width=96))
    file = exported / "model.onnx"
    with codetr.Detector(backend="onnxruntime", onnx=file, device="cpu") as detector:
        (inside,) = detector.detect([PHOTO], threshold=0.0)
    (outside,) = in_pytorch.detect([PHOTO], threshold=0.0, nms="hard", nms_iou=IOU)
    assert 0 < len(inside) == len(outside) < 30
    np.testing.assert_array_equal(inside.labels, outside.labels)
    np.testing.assert_allclose(inside.scores, outside.scores, atol=1e-6)
    np.testing.assert_allclose(inside.boxes_xyxy_px, outside.boxes_xyxy_px, atol=1e-3)


@pytest.mark.parametrize(("name", "value"), [("nms", "soft"), ("nms", "none"), ("nms_iou", 0.5)])
def test_suppression_in_the_graph_excludes_options(exported, name, value):
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    detector = codetr.Detector(backend="onnxruntime", onnx=exported / "model.onnx", device="cpu")
    with detector, pytest.raises(ValueError, match=f"^{name}: expected none, .*, got {value!r}"):
        detector.detect([PHOTO], **{name: value})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("--nms", "soft"), 'Invalid value "soft" for --nms'),
        (("--nms-iou", "0.5"), "--nms-iou: expected --nms with it"),
        (("--nms", "none", "--nms-iou", "0.5"), "--nms-iou: expected --nms with it"),
        (("--nms", "--nms-iou", "2"), "for --nms-iou. Must be <= 1"),
    ],
    ids=str,
)
def test_wrong_arguments(weights, tmp_path, capsys, given, message):
    from dynamo_path.export import main

    assert main([*arguments(weights, tmp_path / "out", NAME, device="cpu"), *given]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
    assert not list(tmp_path.iterdir())


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("path", ["onnx_path", "dynamo_path"])
def test_engine_gives_final_detections(weights, quick_build, tmp_path, capsys, path, precision):
    pytest.importorskip("tensorrt", reason="TensorRT is not installed")
    needed = {"onnx_path": "polygraphy", "dynamo_path": "torch_tensorrt"}[path]
    pytest.importorskip(needed, reason=f"{needed} is not installed")
    main = __import__(f"{path}.export", fromlist=["main"]).main
    options = {"batch": 2, "precision": precision, "nms": "hard", "nms-iou": IOU}
    status = main([*arguments(weights, tmp_path, NAME, **options), *quick_build])
    output = capsys.readouterr()
    assert status == 0, output.err
    assert f"engine {precision} against PyTorch fp32: " in output.out
    _, tensors = load_golden(NAME)
    inputs = {"images": tensors["in/images"].numpy(), "image_shapes": tensors["in/image_shapes_hw"].numpy()}
    with trt_plugin.EngineRunner(tmp_path / "model.engine") as runner:
        runner.metadata.check_engine(tmp_path / "model.json", runner.inputs, runner.outputs, {})
        assert list(runner.outputs) == list(OUTPUTS)
        found, again = runner(inputs), runner(inputs)
        assert runner.uses_cuda_graph
    for name in OUTPUTS:
        np.testing.assert_array_equal(found[name], again[name])
    for image, count in enumerate(found["num_detections"].tolist()):
        assert 0 < count < 30
        kept, padding = (
            [found[name][image, rows] for name in OUTPUTS[:3]] for rows in (slice(count), slice(count, None))
        )
        # The detections are in order, and a second suppression changes nothing.
        for got, wanted in zip(apply_nms(*kept, "hard", IOU + 1e-4), kept):
            np.testing.assert_array_equal(got, wanted)
        for rows, value in zip(padding, (0, 0, -1)):
            assert (rows == value).all()
