"""Cells of ONNX files, engines and exported detectors."""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from PIL import Image

from onnx_path.sweeping import cell_files, subjects
from onnx_path.sweeping.cells import Cell, CellSpec
from onnx_path.sweeping.measure_cell import make_reference, measure
from onnx_path.sweeping.networks import find_network
from tests.detector.exported_metadata import dynamic_metadata, fixed_metadata
from tests.onnx.text_models import text_model


def test_an_onnx_file_that_may_compute_anything(tmp_path):
    path = tmp_path / "sum.onnx"
    torch.onnx.export(
        torch.nn.Conv2d(3, 4, 1),
        (torch.zeros(2, 3, 8, 8),),
        str(path),
        dynamo=True,
        external_data=False,
        dynamic_shapes=({0: torch.export.Dim("n")},),
    )
    network = find_network(str(path), None, None, None)
    cell = Cell("sum", "onnxruntime", "fp32", 3, "any")
    spec = CellSpec(network=network, cell=cell, folder=str(tmp_path), compare=6, iterations=5)
    make_reference(spec)
    found = measure(spec)
    assert found["agreement"]["close"] == 1.0 and found["agreement"]["inputs"] == 6
    assert found["input"] == [3, 8, 8] and found["layers"] == 1


class _TwoOutputs(torch.nn.Module):
    """Outputs of different shapes, of images of any size."""

    def forward(self, images):
        return images.mean(1), images.amax((2, 3))


def file_of_two_outputs(path: Path, *dynamic: int) -> Path:
    """Exports `_TwoOutputs` for images [2, 3, 16, 16], with dynamic sizes on some axes."""
    sizes = (dict.fromkeys(dynamic, torch.export.Dim.DYNAMIC),)
    torch.onnx.export(
        _TwoOutputs(), (torch.zeros(2, 3, 16, 16),), str(path), dynamo=True, external_data=False,
        dynamic_shapes=sizes,
    )  # fmt: skip
    return path


@pytest.mark.parametrize("batch", [1, 2, 3])
def test_a_file_is_compared_on_the_same_inputs_at_every_batch_size(tmp_path, batch):
    """The reference runs at another batch size, and the last batch may be smaller."""
    network = find_network(str(file_of_two_outputs(tmp_path / "two.onnx", 0, 2, 3)), None, None, (8, 12))
    cells = [Cell("two", "onnxruntime", "fp32", size, "any") for size in (7, batch)]
    reference, spec = (
        CellSpec(network=network, cell=cell, folder=str(tmp_path), compare=7, iterations=5) for cell in cells
    )
    make_reference(reference)
    found = measure(spec)
    assert (found["agreement"]["close"], found["agreement"]["inputs"]) == (1.0, 7)
    assert found["input"] == [3, 8, 12]


def test_a_size_fills_the_dynamic_ones_of_a_file(tmp_path):
    path = file_of_two_outputs(tmp_path / "two.onnx", 0, 3)
    network = find_network(str(path), None, None, (8, 12))
    spec = CellSpec(network=network, cell=Cell("two", "onnxruntime", "fp32", 3, "any"), folder=str(tmp_path))
    model = ir.load(path)
    assert cell_files.file_shapes(spec, model, 3) == {"images": (3, 3, 16, 12)}
    other = find_network(str(path), None, None, None)
    assert other.key != network.key
    with pytest.raises(ValueError, match="give --size HEIGHTxWIDTH"):
        cell_files.file_shapes(dataclasses.replace(spec, network=other), model, 3)


def test_shapes_of_an_engine_leave_out_scalars(tmp_path, monkeypatch):
    model = text_model("y = Mul(x, scale)", "float[n, 3] x, float scale", "float[n, 3] y")
    onnx.save(model, tmp_path / "scaled.onnx")
    network = find_network(str(tmp_path / "scaled.onnx"), None, None, None)
    cell = Cell("scaled", "tensorrt", "fp16", 2, "dynamic")
    spec = CellSpec(network=network, cell=cell, folder=str(tmp_path), largest=8, best=4)
    monkeypatch.setattr(cell_files, "build_once", lambda path, command: command)
    command = cell_files.GivenFile(spec).engine()
    assert command[command.index("--min") :][:6] == ["--min", "x:1x3", "--opt", "x:4x3", "--max", "x:8x3"]


def test_an_engine_has_the_precision_and_batch_of_its_metadata(tmp_path):
    engine = tmp_path / "net.engine"
    engine.write_bytes(b"engine")
    dataclasses.replace(fixed_metadata(), precision="fp16").save(tmp_path / "net.json")
    network = find_network(str(engine), None, None, None)
    assert (network.task, network.precision, network.batch) == ("detect", "fp16", 2)
    dynamic_metadata().save(tmp_path / "net.json")
    assert find_network(str(engine), None, None, None).batch is None


def test_a_file_in_bfloat16(tmp_path):
    onnx.save(text_model("y = Relu(x)", "bfloat16[1, 3] x", "bfloat16[1, 3] y"), tmp_path / "relu.onnx")
    assert find_network(str(tmp_path / "relu.onnx"), None, None, None).precision == "bf16"


@pytest.mark.parametrize(("own", "batch"), [(-1, 2), (-1, 5), (4, 4)])
def test_an_engine_without_metadata_runs_the_batch_of_its_cell(tmp_path, monkeypatch, own, batch):
    subject = engine_subject(tmp_path, monkeypatch, own, batch)
    (inputs,) = subject.batches(batch)
    assert inputs["images"].shape == (batch, 3, 8, 8) and inputs["limit"].shape == (1,)
    assert np.abs(inputs["images"]).min() > 0


def test_an_engine_of_another_batch(tmp_path, monkeypatch):
    subject = engine_subject(tmp_path, monkeypatch, 4, 1)
    with pytest.raises(ValueError, match=r"net\.engine: expected --batch 4, the engine's own, got 1"):
        next(subject.batches(1))


@pytest.mark.parametrize(("size", "found"), [(None, (768, 1152)), ((512, 640), (512, 640))])
def test_an_exported_detector_of_dynamic_sizes(tmp_path, size, found):
    """The inputs have the usual size, or the one that was chosen."""
    (tmp_path / "net.engine").write_bytes(b"engine")
    dynamic_metadata().save(tmp_path / "net.json")
    network = find_network(str(tmp_path / "net.engine"), None, None, size)
    cell = Cell("net", "tensorrt", "fp32", 2, "static")
    subject = subjects.open_subject(CellSpec(network=network, cell=cell, folder=str(tmp_path)))
    (inputs,) = subject.batches(2)
    assert inputs["images"].shape == (2, 3, *found) and inputs["image_shapes"].tolist() == [[*found]] * 2


def test_a_detector_is_compared_on_the_pictures_that_can_be_read(tmp_path):
    (tmp_path / "net.engine").write_bytes(b"engine")
    dynamic_metadata().save(tmp_path / "net.json")
    data = tmp_path / "data"
    data.mkdir()
    for name, colour in (("a", "red"), ("c", "blue")):
        Image.new("RGB", (60, 50), colour).save(data / f"{name}.png")
    (data / "b.png").write_bytes(b"no picture")
    network = find_network(str(tmp_path / "net.engine"), None, None, None)
    cell = Cell("net", "tensorrt", "fp32", 2, "static")
    spec = CellSpec(network=network, cell=cell, folder=str(tmp_path), dataset=str(data), compare=3)
    (inputs,) = subjects.open_subject(spec).batches(3)
    red, blue = inputs["images"][:, :, 0, 0]
    assert red[0] > red[2] and blue[2] > blue[0]


def engine_subject(tmp_path, monkeypatch, own: int, batch: int) -> subjects.Subject:
    """Opens an engine of images [own, 3, 8, 8] in a cell of a batch size. A dynamic batch is tuned for 3."""
    runner = SimpleNamespace(
        inputs={
            "images": SimpleNamespace(shape=(own, 3, 8, 8), dtype="float32"),
            "limit": SimpleNamespace(shape=(1,), dtype="float32"),
        },
        best_shape=lambda name: (3 if own == -1 else own, 3, 8, 8) if name == "images" else (1,),
    )
    monkeypatch.setattr("trt_plugin.EngineRunner", lambda path: contextlib.nullcontext(runner))
    (tmp_path / "net.engine").write_bytes(b"engine")
    network = find_network(str(tmp_path / "net.engine"), None, None, None)
    cell = Cell("net", "tensorrt", "fp32", batch, "static")
    return subjects.open_subject(CellSpec(network=network, cell=cell, folder=str(tmp_path)))
