"""Exports with non-maximum suppression in the graph: files, commands, and readers of their detections."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

import codetr
import trt_plugin
from codetr.detector.postprocess import apply_nms, apply_nms_to_batch
from codetr.errors import UsageError
from codetr.evaluation import LiveModel
from codetr.export.box_agreement import compare_detections
from tests.golden_models import GOLDEN, arguments, load_golden, save_weights

NAME = "codino_resnet_tiny"
OUTPUTS = ("boxes", "scores", "labels", "num_detections")
PHOTO = GOLDEN.parents[1] / "codetr/demo/coffee.jpg"
IOU = 0.1
"""Threshold at which the golden model's detections suppress each other."""


@pytest.fixture(scope="module")
def weights(tmp_path_factory) -> dict[str, Path]:
    return save_weights(tmp_path_factory.mktemp("weights"))


@pytest.fixture(scope="module")
def exported(weights, tmp_path_factory) -> Path:
    """The folder that the command wrote on the CPU."""
    pytest.importorskip("onnxscript", reason="onnxscript is not installed")
    from onnx_path.export import main

    folder = tmp_path_factory.mktemp("exported")
    options = {"device": "cpu", "batch": 2, "nms": "hard", "nms-iou": IOU}
    assert main(arguments(weights, folder, NAME, **options)) == 0
    return folder


def test_exported_file_gives_final_detections(exported):
    ort = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    model, tensors = load_golden(NAME)
    inputs = tensors["in/images"], tensors["in/image_shapes_hw"].long()
    with torch.no_grad():
        detections = tuple(output.numpy() for output in model(*inputs))
    session = ort.InferenceSession(exported / "model.onnx", providers=["CPUExecutionProvider"])
    assert [output.name for output in session.get_outputs()] == list(OUTPUTS)
    found = session.run(None, {"images": inputs[0].numpy(), "image_shapes": inputs[1].numpy()})
    expected = apply_nms_to_batch(*detections, method="hard", iou_threshold=IOU)
    comparison = compare_detections(expected, found[:3], box_tolerance_px=1e-3, score_tolerance=1e-5)
    assert comparison.equal == comparison.expected == comparison.found
    assert 0 < comparison.expected < detections[1].size, "nothing was suppressed"
    np.testing.assert_array_equal(found[2], expected[2])
    assert found[3].tolist() == (expected[2] >= 0).sum(axis=1).tolist()
    assert (found[0][found[2] < 0] == 0).all() and (found[1][found[2] < 0] == 0).all()


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


def test_exported_program_gives_final_detections(weights, tmp_path):
    from dynamo_path.export import main

    assert main([*arguments(weights, tmp_path, NAME, device="cpu"), "--nms", "--nms-iou", str(IOU)]) == 0
    model, tensors = load_golden(NAME)
    inputs = tensors["in/images"][:1], tensors["in/image_shapes_hw"][:1].long()
    with torch.no_grad():
        found = torch.export.load(tmp_path / "model.pt2").module()(*inputs)
        detections = tuple(output.numpy() for output in model(*inputs))
    expected = apply_nms_to_batch(*detections, method="hard", iou_threshold=IOU)
    assert found[3].tolist() == (expected[2] >= 0).sum(axis=1).tolist() < [30]
    for got, wanted in zip(found, expected):
        np.testing.assert_allclose(got.numpy(), wanted, rtol=1e-5, atol=1e-4)


def test_accuracy_applies_the_suppression_of_a_file_to_all(exported, tmp_path):
    pytest.importorskip("pycocotools", reason="pycocotools is not installed")
    from benchmarks import accuracy

    metadata = trt_plugin.ArtifactMetadata.load(exported / "model.json")
    others = {"plain": {"nms_in_graph": False}, "other": {"nms": {**metadata.nms, "iou_threshold": 0.7}}}
    for name, change in others.items():
        dataclasses.replace(metadata, **change).save(tmp_path / f"{name}.json")
    plain, other = ((name, tmp_path / f"{name}.onnx") for name in others)
    inside = "hard", exported / "model.onnx"
    assert accuracy.shared_nms([plain, inside]) == {"nms": "hard", "nms_iou": IOU}
    assert accuracy.shared_nms([plain]) == {}
    with pytest.raises(UsageError, match=r"expected the suppression of --hard.*0\.7"):
        accuracy.shared_nms([inside, other])


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("path", ["onnx_path", "dynamo_path"])
def test_engine_gives_final_detections(weights, timing_cache, tmp_path, capsys, path, precision):
    pytest.importorskip("tensorrt", reason="TensorRT is not installed")
    needed = {"onnx_path": "polygraphy", "dynamo_path": "torch_tensorrt"}[path]
    pytest.importorskip(needed, reason=f"{needed} is not installed")
    main = __import__(f"{path}.export", fromlist=["main"]).main
    options = {"batch": 2, "precision": precision, "nms": "hard", "nms-iou": IOU}
    options |= {"timing-cache": timing_cache}
    status = main(arguments(weights, tmp_path, NAME, **options))
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
