"""Refits of engines by both paths: weights, stand-ins for TensorRT, commands, and with a GPU engines."""

from __future__ import annotations

import dataclasses
import importlib
import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import codetr
import trt_plugin
from codetr.cli import main
from codetr.detector.sizes import InputSizes, SizeRange, fixed
from dynamo_path import export, refit
from tests.engines.engine_samples import METADATA
from tests.golden_models import GOLDEN, MODELS, arguments, save_weights, without


@pytest.fixture
def engine(tmp_path) -> Path:
    """A file with the metadata of a refittable engine beside it."""
    path = tmp_path / "model.engine"
    path.write_bytes(b"engine")
    dataclasses.replace(METADATA, refittable=True).save(tmp_path / "model.json")
    return path


class Layer:
    """Stands in for a layer of tensorrt.INetworkDefinition."""

    def __init__(self, name: str, kind: str, **arrays: object) -> None:
        self.name, self.type = name, SimpleNamespace(name=kind)
        self.__dict__ |= arrays


class Weights:
    """Stands in for tensorrt.Weights."""

    def __init__(self, values: np.ndarray) -> None:
        self.values = values.tolist()


@pytest.mark.parametrize(
    ("wanted", "refused", "missing", "message"),
    [
        ("a KERNEL, a BIAS, b CONSTANT", "", [], None),
        ("a BIAS, c BIAS", "", [], "the engine has weight c BIAS that the network of the model has not"),
        ("d X, e X, f X, g X, h X", "", [], r"the engine has 5 weights \(d X, e X, f X, …\) that"),
        ("a KERNEL, a BIAS", "a", [], "x: TensorRT does not take weight a KERNEL"),
        ("a KERNEL", "", ["a"], "x: weight a would stay as it is"),
    ],
)
def test_weights_that_an_engine_gets(monkeypatch, wanted, refused, missing, message):
    # TensorRT's bindings give arrays with strides of 0, and Weights for types that NumPy lacks.
    as_given = np.lib.stride_tricks.as_strided(np.arange(1, 7, dtype=np.float16), strides=(0,))
    layers = [
        Layer("a", "CONVOLUTION", kernel=as_given, bias=as_given[:2]),
        Layer("b", "CONSTANT", weights=Weights(np.zeros(2))),
        Layer("c", "SHUFFLE"),
    ]
    types = dict.fromkeys(("IConstantLayer", "IConvolutionLayer", "IScaleLayer"), Layer)
    roles = SimpleNamespace(KERNEL="KERNEL", BIAS="BIAS", CONSTANT="CONSTANT")
    tensorrt = SimpleNamespace(WeightsRole=roles, Weights=Weights, **types)
    monkeypatch.setitem(sys.modules, "tensorrt", tensorrt)
    monkeypatch.setattr("trt_plugin.engine_error.import_tensorrt", lambda: tensorrt)
    given = {}

    def set_weights(name, role, weights):
        given[f"{name} {role}"] = weights.values
        return name != refused

    pairs = [pair.split() for pair in wanted.split(", ")]
    refitter = SimpleNamespace(
        get_all=lambda: ([name for name, _ in pairs], [SimpleNamespace(name=role) for _, role in pairs]),
        get_missing=lambda: (missing, missing),
        set_weights=set_weights,
    )
    monkeypatch.setattr("trt_plugin.engine_refit.refit_engine", lambda path, give: give(refitter, []))
    network = SimpleNamespace(num_layers=len(layers), get_layer=layers.__getitem__)
    if message is not None:
        with pytest.raises(RuntimeError, match=message):
            refit.refit_plan(Path("x"), network)
        return
    refit.refit_plan(Path("x"), network)
    assert given == {"a KERNEL": [*range(1, 7)], "a BIAS": [1, 2], "b CONSTANT": [0, 0]}


@pytest.mark.parametrize(
    ("module", "weights", "out", "change", "message"),
    [
        ("dynamo_path", "w.pth", "new.json", {}, "--out: expected a file of its own, got new.json"),
        ("dynamo_path", "w.pth", "new.engine", {"refittable": False}, "ENGINE: expected an engine"),
        ("dynamo_path", "w.pth", "new.engine", None, "the metadata model.json "),
        ("dynamo_path", "w.pth --model nope", "new.engine", {}, "'nope': expected one of|expected a GPU"),
        ("dynamo_path", "w.pth", "new.engine", {}, "w.pth|expected a GPU that PyTorch finds"),
        ("onnx_path", "w.onnx", "new.json", {}, "--out: expected a file of its own, got new.json"),
        ("onnx_path", "w.onnx", "new.engine", {"refittable": False}, "ENGINE: expected an engine"),
    ],
)
def test_command_errors(engine, monkeypatch, capsys, module, weights, out, change, message):
    pytest.importorskip("onnx", reason="onnx is not installed")
    command = importlib.import_module(f"{module}.refit")
    monkeypatch.chdir(engine.parent)
    Path("w.onnx").touch()
    if change is None:
        Path("model.json").unlink()
    else:
        dataclasses.replace(METADATA, **{"refittable": True} | change).save(Path("model.json"))
    before = sorted(engine.parent.iterdir())
    assert command.main(["model.engine", *weights.split(), "--out", out]) in (1, 2)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"python -m {module}.refit: error: ")
    assert re.search(message, line), line
    assert sorted(engine.parent.iterdir()) == before


def test_missing_onnx_file(engine, capsys):
    assert main(["refit", str(engine), "no.onnx", "--out", "new.engine"]) == 2
    assert "error: WEIGHTS: expected an ONNX file, got no.onnx, no such file" in capsys.readouterr().err


def test_request_is_that_of_the_export(engine):
    sizes = InputSizes(SizeRange(1, 2, 4), SizeRange(64, 64, 128), fixed(96))
    metadata = dataclasses.replace(
        METADATA,
        inputs=[{"name": name, "shape": shape, "dtype": "x"} for name, shape in sizes.shapes().items()],
        profiles=sizes.profiles(),
        batch=2,
        nms={"method": "hard", "iou_threshold": 0.6},
        nms_in_graph=True,
        refittable=True,
    )
    request = refit.request_of(metadata, "w", engine)
    assert (request.sizes, request.precision, request.model) == (sizes, "fp16", "co_dino_r50")
    assert (request.nms_method, request.nms_iou, request.refittable) == ("hard", 0.6, True)
    metadata = dataclasses.replace(metadata, nms_in_graph=False)
    assert refit.request_of(metadata, "w", engine).nms_method == "none"


def test_refitted_engines_have_the_classes_of_their_weights(engine, tmp_path, monkeypatch):
    """Weights of a finetuned model: other classes, in the same number."""
    from codetr.export import engine_check, traced_model
    from onnx_path import refit as onnx_refit

    classes = ["Hund", "Katze", "Maus"]
    file, config = tmp_path / "new" / "model.onnx", tmp_path / "finetuned.json"
    file.parent.mkdir()
    file.touch()
    dataclasses.replace(METADATA, class_names=classes, source_weights="w").save(file.with_suffix(".json"))
    monkeypatch.setattr("trt_plugin.cuda_runtime.require_gpu", lambda: None)
    monkeypatch.setattr(onnx_refit, "refit_plan", lambda *paths: b"refitted")
    out = tmp_path / "onnx.engine"
    assert onnx_refit.main([str(engine), str(file), "--out", str(out)]) == 0
    metadata = trt_plugin.ArtifactMetadata.load(out.with_suffix(".json"))
    assert (metadata.class_names, metadata.source_weights) == (classes, "w")

    fields = json.loads((GOLDEN / "codino_resnet_tiny.json").read_text())
    config.write_text(json.dumps({**fields, "num_classes": 3, "class_names": classes}))
    subject = SimpleNamespace(module=lambda: torch.nn.Identity(), checks=[], source_weights="w")
    monkeypatch.setattr(torch.nn.Module, "to", lambda self, device: self)
    monkeypatch.setattr(export, "import_requirements", lambda: None)
    monkeypatch.setattr("dynamo_path.engine.with_network", lambda *given: b"refitted")
    monkeypatch.setattr(engine_check, "compare_engine", lambda *given: None)
    for name in ("pick_device", "example_inputs", "dynamic_shapes", "export_program"):
        monkeypatch.setattr(traced_model, name, lambda *given: None)
    monkeypatch.setattr(traced_model, "prepare", lambda request: subject)
    out = tmp_path / "dynamo.engine"
    assert refit.main([str(engine), "w.pth", "--model", str(config), "--out", str(out)]) == 0
    metadata = trt_plugin.ArtifactMetadata.load(out.with_suffix(".json"))
    assert (metadata.class_names, metadata.source_weights) == (classes, "w")


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("name", MODELS)
def test_engine_refitted_from_onnx_is_the_one_built(name, precision, quick_build, tmp_path, capsys):
    pytest.importorskip("polygraphy", reason="polygraphy is not installed")
    from onnx_path import export as onnx_export
    from onnx_path import refit as onnx_refit

    height, width = codetr.load_config(GOLDEN / f"{name}.json").input_hw
    options = {"height": height, "width": width, "batch": 2, "precision": precision}
    for folder, weights in (("a", save_weights(tmp_path)), ("b", other_weights(tmp_path, name))):
        given = arguments(weights, tmp_path / folder, name, **options)
        assert onnx_export.main([*given, "--refittable", *quick_build]) == 0, capsys.readouterr().err
    new = tmp_path / "new.engine"
    given = [str(tmp_path / path) for path in ("a/model.engine", "b/model.onnx")]
    assert onnx_refit.main([*given, "--out", str(new)]) == 0, capsys.readouterr().err
    check_refitted(tmp_path / "a/model.engine", new, tmp_path / "b/model.engine", name, precision)


def other_weights(folder: Path, name: str) -> dict[str, Path]:
    """`save_weights` in which every parameter of one model differs, by more than fp16's rounding."""
    paths = save_weights(folder)
    random = torch.Generator().manual_seed(0)
    tensors = {
        key: tensor * (0.3 + 0.7 * torch.rand(tensor.shape, generator=random))
        if tensor.is_floating_point()
        else tensor
        for key, tensor in load_file(paths[name]).items()
    }
    paths[name] = folder / "b.safetensors"
    save_file(tensors, paths[name])
    return paths


def check_refitted(before: Path, refitted: Path, built: Path, name: str, precision: str) -> None:
    """Requires the scores of a refitted engine to be those of the built one, and not the old ones."""
    old, got, expected = (detect(path, name)["scores"] for path in (before, refitted, built))
    tolerance = {"fp32": 1e-4, "fp16": 2e-2, "bf16": 1e-1}[precision]
    np.testing.assert_allclose(got, expected, rtol=tolerance, atol=tolerance)
    assert np.abs(got - old).max() > 3 * np.abs(got - expected).max()


def detect(engine: Path, name: str) -> dict[str, np.ndarray]:
    tensors = load_file(GOLDEN / f"{name}.safetensors")
    images, shapes = tensors["in/images"].numpy(), tensors["in/image_shapes_hw"].numpy().astype(np.int64)
    with trt_plugin.EngineRunner(engine) as runner:
        return {
            name: np.array(array)
            for name, array in runner({"images": images, "image_shapes": shapes}).items()
        }


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("sizes", "precision"), [("static", "fp32"), ("dynamic", "fp16"), ("static", "bf16")]
)
@pytest.mark.parametrize("name", MODELS)
def test_refitted_engine_is_the_one_built(
    torch_tensorrt, name, precision, sizes, quick_build, tmp_path, capsys
):
    """Every parameter of the two weights differs, frozen statistics included."""
    first, second = save_weights(tmp_path), other_weights(tmp_path, name)
    height, width = codetr.load_config(GOLDEN / f"{name}.json").input_hw
    options = {"height": height, "width": width, "batch": 2, "precision": precision}
    if sizes == "dynamic":
        options = {"dynamic-size": f"96-{height}x{width}-256", "batch": "1-4", "precision": precision}
    for weights, folder in ((first, "a"), (second, "b")):
        given = arguments(weights, tmp_path / folder, name, **options)
        if sizes == "dynamic":
            given = without(given, "--height", "--width")
        assert export.main([*given, "--refittable", *quick_build]) == 0, capsys.readouterr().err
    engine, new = tmp_path / "a/model.engine", tmp_path / "new.engine"
    config = str(GOLDEN / f"{name}.json")
    status = refit.main([str(engine), str(second[name]), "--out", str(new), "--model", config])
    assert status == 0, capsys.readouterr().err
    assert trt_plugin.ArtifactMetadata.load(new.with_suffix(".json")).source_weights == str(second[name])
    check_refitted(engine, new, tmp_path / "b/model.engine", name, precision)


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("name", MODELS)
def test_dynamic_engine_detects_as_pytorch(torch_tensorrt, name, precision, quick_build, tmp_path, capsys):
    """The command compares four sizes and batches."""
    options = {"batch": "1-8", "precision": precision}
    given = arguments(save_weights(tmp_path), tmp_path / "out", name, **options)
    given = without(given, "--height", "--width")
    assert export.main([*given, "--dynamic-size", "96-128x160-320", *quick_build]) == 0, (
        capsys.readouterr().err
    )
    output = capsys.readouterr().out
    for file in ("engine", "model.ep", "model.ts"):
        for size in ("1 x 128 x 160", "8 x 96 x 96", "1 x 320 x 320", "8 x 96 x 160"):
            assert f"{file} {precision} against PyTorch {precision} at {size}: " in output


@pytest.mark.gpu
def test_fallback_is_told_and_asked_for(torch_tensorrt, quick_build, tmp_path, capsys, monkeypatch):
    """An operator without a converter is an error that names it, or PyTorch runs it in model.ts."""
    from torch_tensorrt.dynamo.conversion import DYNAMO_CONVERTERS

    export.import_requirements()
    monkeypatch.setattr(DYNAMO_CONVERTERS, "disallowed_targets", {torch.ops.aten.topk.default})
    monkeypatch.setattr(DYNAMO_CONVERTERS, "set_disallowed_targets", lambda targets: None)  # each build does
    given = [*arguments(save_weights(tmp_path), tmp_path / "out", "codino_resnet_tiny"), *quick_build]
    assert export.main(given) == 1
    assert "has no converter for aten.topk.default (in query_selection)" in capsys.readouterr().err
    assert export.main([*given, "--allow-fallback"]) == 0
    names = {"model.pt2", "model.ep", "model.ts", "model.json"}
    assert {file.name for file in (tmp_path / "out").iterdir()} == names
