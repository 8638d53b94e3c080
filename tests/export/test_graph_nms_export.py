"""Exports with suppression inside: files, commands, and what reads their detections."""

from __future__ import annotations

import dataclasses
import functools
import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import codetr
import trt_plugin
from benchmarks import accuracy
from codetr.cli import main as codetr_main
from codetr.detector.postprocess import apply_nms, apply_nms_to_batch
from codetr.errors import UsageError
from codetr.export.box_agreement import compare_detections
from codetr.export.engine_check import EngineCheck, compare_engine
from tests.export.requests import make_request
from tests.golden_models import GOLDEN, arguments, load_golden, save_weights

NAME = "codino_resnet_tiny"
OUTPUTS = ("boxes", "scores", "labels", "num_detections")
PHOTO = GOLDEN.parents[1] / "codetr/demo/coffee.jpg"
IOU = 0.1
"""At which the golden model's detections suppress each other."""


@pytest.fixture(scope="module")
def weights(tmp_path_factory) -> dict[str, Path]:
    return save_weights(tmp_path_factory.mktemp("weights"))


@pytest.fixture(scope="module")
def exported(weights, tmp_path_factory) -> dict[str, Path]:
    """What the command writes with and without --nms, on the CPU."""
    pytest.importorskip("onnxscript", reason="onnxscript is not installed")
    from onnx_path.export import main

    folders = {}
    for nms in ("hard", "none"):
        folders[nms] = tmp_path_factory.mktemp(nms)
        options = {"device": "cpu", "batch": 2, "nms": nms}
        given = ["--nms-iou", str(IOU)] if nms == "hard" else []
        assert main([*arguments(weights, folders[nms], NAME, **options), *given]) == 0
    return folders


def test_exported_file_gives_final_detections(exported):
    ort = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    model, tensors = load_golden(NAME)
    inputs = tensors["in/images"], tensors["in/image_shapes_hw"].long()
    with torch.no_grad():
        detections = tuple(output.numpy() for output in model(*inputs))
    session = ort.InferenceSession(exported["hard"] / "model.onnx", providers=["CPUExecutionProvider"])
    assert [output.name for output in session.get_outputs()] == list(OUTPUTS)
    found = session.run(None, {"images": inputs[0].numpy(), "image_shapes": inputs[1].numpy()})
    expected = apply_nms_to_batch(*detections, method="hard", iou_threshold=IOU)
    comparison = compare_detections(expected, found[:3], box_tolerance_px=1e-3, score_tolerance=1e-5)
    assert comparison.equal == comparison.expected == comparison.found
    assert 0 < comparison.expected < detections[1].size, "nothing was suppressed"
    np.testing.assert_array_equal(found[2], expected[2])
    assert found[3].tolist() == (expected[2] >= 0).sum(axis=1).tolist()
    assert (found[0][found[2] < 0] == 0).all() and (found[1][found[2] < 0] == 0).all()


def test_metadata_says_what_is_inside(exported):
    inside, plain = (
        trt_plugin.ArtifactMetadata.load(exported[nms] / "model.json") for nms in ("hard", "none")
    )
    assert inside.nms_in_graph and not plain.nms_in_graph
    assert (inside.nms["method"], inside.nms["iou_threshold"]) == ("hard", IOU)
    assert plain.nms == dataclasses.asdict(codetr.load_config(GOLDEN / f"{NAME}.json").nms)
    assert [tensor["name"] for tensor in plain.outputs] == list(OUTPUTS[:3])
    assert inside.outputs == [
        *plain.outputs,
        {"name": "num_detections", "shape": [2], "dtype": "int64"},
    ]


def test_metadata_of_before(exported, tmp_path):
    content = json.loads((exported["none"] / "model.json").read_text(encoding="utf-8"))
    del content["nms_in_graph"]
    (tmp_path / "model.json").write_text(json.dumps(content), encoding="utf-8")
    assert not trt_plugin.ArtifactMetadata.load(tmp_path / "model.json").nms_in_graph


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"nms_in_graph": "yes"}, "nms_in_graph: expected true or false, got 'yes'"),
        ({"nms": {"method": "hard"}}, 'nms: expected an object with "method" and "iou_threshold", got '),
    ],
    ids=["flag", "parameters"],
)
def test_wrong_metadata(exported, change, message):
    metadata = trt_plugin.ArtifactMetadata.load(exported["hard"] / "model.json")
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(metadata, **change)


def test_detector_suppresses_once(exported):
    """The file with it inside finds what the other finds with the same post-processing, and no padding."""
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    found = {}
    for nms, options in (("hard", {}), ("none", {"nms": "hard", "nms_iou": IOU})):
        file = exported[nms] / "model.onnx"
        with codetr.Detector(backend="onnxruntime", onnx=file, device="cpu") as detector:
            (found[nms],) = detector.detect([PHOTO], threshold=0.0, **options)
    inside, outside = found["hard"], found["none"]
    assert 0 < len(inside) == len(outside) < 30
    np.testing.assert_array_equal(inside.labels, outside.labels)
    np.testing.assert_allclose(inside.scores, outside.scores, atol=1e-6)
    np.testing.assert_allclose(inside.boxes_xyxy_px, outside.boxes_xyxy_px, atol=1e-3)


@pytest.mark.parametrize(("name", "value"), [("nms", "soft"), ("nms", "none"), ("nms_iou", 0.5)])
def test_what_is_inside_cannot_be_chosen_again(exported, tmp_path, capsys, name, value):
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    file = exported["hard"] / "model.onnx"
    with codetr.Detector(backend="onnxruntime", onnx=file, device="cpu") as detector:
        message = f"{name}: expected None, the network suppresses by itself, got {value!r}"
        with pytest.raises(ValueError, match=message):
            detector.detect([PHOTO], **{name: value})
    option = f"--{name.replace('_', '-')}"
    given = ["detect", PHOTO, "--onnx", file, "--device", "cpu", "--out", tmp_path / "out", option, value]
    assert codetr_main([str(argument) for argument in given]) == 2
    inside = f"{option}: is fixed in the ONNX file {file} (hard, IoU {IOU}), leave it out"
    assert capsys.readouterr().err == f"codetr: error: {inside}\n"
    assert not list(tmp_path.iterdir())


def arguments_with(weights: dict[str, Path], folder: Path, given: tuple[str, ...]) -> list[str]:
    return [*arguments(weights, folder, NAME, device="cpu"), *given]


@pytest.mark.parametrize("path", ["onnx_path", "dynamo_path"])
@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("--nms", "soft"), 'Invalid value "soft" for --nms'),
        (("--nms-iou", "0.5"), "--nms-iou: expected --nms with it"),
        (("--nms", "none", "--nms-iou", "0.5"), "--nms-iou: expected --nms with it"),
        (("--nms", "--nms-iou", "2"), 'Invalid value "2" for --nms-iou'),
    ],
    ids=lambda value: "".join(value) if isinstance(value, tuple) else "",
)
def test_wrong_arguments(weights, tmp_path, capsys, path, given, message):
    pytest.importorskip("onnxscript", reason="onnxscript is not installed")
    main = __import__(f"{path}.export", fromlist=["main"]).main
    assert main(arguments_with(weights, tmp_path / "out", given)) == 2
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == 1 and message in errors[0], errors
    assert not list(tmp_path.iterdir())


def test_exported_program_gives_final_detections(weights, tmp_path):
    from dynamo_path.export import main

    assert main(arguments_with(weights, tmp_path, ("--nms", "--nms-iou", str(IOU)))) == 0
    model, tensors = load_golden(NAME)
    inputs = tensors["in/images"][:1], tensors["in/image_shapes_hw"][:1].long()
    with torch.no_grad():
        found = torch.export.load(tmp_path / "model.pt2").module()(*inputs)
        detections = tuple(output.numpy() for output in model(*inputs))
    expected = apply_nms_to_batch(*detections, method="hard", iou_threshold=IOU)
    assert found[3].tolist() == (expected[2] >= 0).sum(axis=1).tolist() < [30]
    for got, wanted in zip(found, expected):
        np.testing.assert_allclose(got.numpy(), wanted, rtol=1e-5, atol=1e-4)


class Engine:
    """Stands in for `trt_plugin.EngineRunner`: has computed already."""

    outputs: dict[str, np.ndarray]

    def __init__(self, _path: Path) -> None:
        pass

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def __call__(self, _inputs: object) -> dict[str, np.ndarray]:
        return self.outputs


def test_comparison_of_an_engine(tmp_path, monkeypatch, capsys):
    """An engine that suppresses nothing, or counts wrong, is none to keep."""
    boxes = np.float32([[(2 * i, 0, 2 * i + 10, 10) for i in range(6)]])  # neighbours: IoU 2 / 3
    detections = boxes, np.linspace(1, 0.5, 6, dtype=np.float32)[None], np.zeros((1, 6), np.int64)
    expected = apply_nms_to_batch(*detections, method="hard", iou_threshold=0.5)
    request = make_request(nms=[], nms_iou=0.5, out=tmp_path)
    batch = SimpleNamespace(images=np.zeros((1, 3, 8, 8), np.float32), image_shapes=None)
    checks = [EngineCheck(batch, {"fp32": expected})]
    monkeypatch.setattr(trt_plugin, "EngineRunner", Engine)

    Engine.outputs = dict(zip(OUTPUTS, (*expected, np.array([3])), strict=True))
    compare_engine(checks, request, tmp_path)
    assert (
        "engine fp32 against PyTorch fp32: 3 of 3 detections from score 0.3 on match"
        in capsys.readouterr().out
    )
    Engine.outputs["num_detections"] = np.array([4])
    with pytest.raises(RuntimeError, match=r"num_detections: expected .* \[3\], got \[4\]"):
        compare_engine(checks, request, tmp_path)
    Engine.outputs = dict(zip(OUTPUTS, (*detections, np.array([6])), strict=True))
    with pytest.raises(RuntimeError, match="expected 6 or more of 6 equal, got 3"):
        compare_engine(checks, request, tmp_path)


def test_accuracy_applies_what_is_inside_to_all(exported, tmp_path):
    pytest.importorskip("pycocotools", reason="pycocotools is not installed")
    parse = functools.partial(accuracy.parse, ["--data", "x", "--model", "co_dino_r50"])
    options = parse()
    options.onnx = [exported[nms] / "model.onnx" for nms in ("none", "hard")]
    assert accuracy.shared_nms(options) == {"nms": "hard", "nms_iou": IOU}
    options.onnx = options.onnx[:1]
    assert accuracy.shared_nms(options) == {}
    metadata = trt_plugin.ArtifactMetadata.load(exported["hard"] / "model.json")
    dataclasses.replace(metadata, nms={**metadata.nms, "iou_threshold": 0.7}).save(tmp_path / "model.json")
    options.onnx = [exported["hard"] / "model.onnx", tmp_path / "model.onnx"]
    with pytest.raises(UsageError, match=r"suppresses by .*0\.7.*compare them in two runs"):
        accuracy.shared_nms(options)


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
        # In order, and nothing that is kept suppresses anything else that is: a second run changes nothing.
        for got, wanted in zip(apply_nms(*kept, "hard", IOU + 1e-4), kept):
            np.testing.assert_array_equal(got, wanted)
        for rows, value in zip(padding, (0, 0, -1)):
            assert (rows == value).all()
