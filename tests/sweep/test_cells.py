"""Cells of classifiers: accuracy on class folders, reasons of failures, cells that cannot exist."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from codetr.errors import ArgumentError
from onnx_path.sweeping import measure_cell, subjects
from onnx_path.sweeping.cells import Cell, CellSpec, MissingCell, plan
from onnx_path.sweeping.measure_cell import measure
from onnx_path.sweeping.networks import Network, find_network
from tests.sweep.sweep_specs import SMALL, spec_of


def test_specs_survive_json(folder, tmp_path):
    spec = spec_of(folder, tmp_path)
    assert CellSpec.of_dict(json.loads(json.dumps(spec.as_dict()))) == spec


@pytest.mark.parametrize(
    ("source", "runtime", "precision", "batch", "shapes", "gpu", "reason"),
    [
        ("torchvision", "tensorrt", "int8", 8, "dynamic", True, None),
        ("torchvision", "tensorrt", "int8", 8, "dynamic", False, "TensorRT needs an NVIDIA GPU"),
        ("torchvision", "torch", "fp8", 1, "any", True, "PyTorch runs no fp8"),
        ("torchvision", "torch", "tf32", 1, "any", False, "TF32 is arithmetic of NVIDIA GPUs"),
        ("onnx", "torch", "fp32", 1, "any", True, "PyTorch has no module for an ONNX file"),
        ("engine", "onnxruntime", "fp16", 1, "any", True, "an engine runs in TensorRT"),
        ("onnx", "tensorrt", "fp16", 2, "static", True, "the file has batch 1"),
        ("onnx", "tensorrt", "fp16", 1, "dynamic", True, "the file has a static batch size"),
        ("onnx", "tensorrt", "fp32", 1, "static", True, "the file is in fp16"),
        ("float32", "tensorrt", "fp16", 1, "static", True, None),
        ("float32", "tensorrt", "int8", 1, "static", True, "codetr quantize makes an int8 file of this one"),
        ("float32", "onnxruntime", "fp32", 1, "any", False, None),
        ("float32", "onnxruntime", "fp16", 1, "any", False, "onnxruntime runs the file in its own fp32"),
    ],
)
def test_cells_that_cannot_exist(source, runtime, precision, batch, shapes, gpu, reason):
    own = {"batch": 1, "precision": "fp16"} if source == "onnx" else {}
    source = "onnx" if source == "float32" else source
    network = Network("net", source, "net", "classify", "random", "key", **own)
    (cell,) = plan([network], [runtime], [precision], [batch], [shapes], gpu)
    assert cell.reason == reason


def test_fp8_convolutions_are_a_missing_cell(folder, tmp_path):
    spec = spec_of(folder, tmp_path, cell=Cell("own", "onnxruntime", "fp8", 2, "any"))
    spec.files.mkdir(parents=True)
    with pytest.raises(MissingCell, match=r"no layer that 8 bits make faster; kept: \d+ convolutions that"):
        measure(spec)


def test_a_class_folder_that_the_network_does_not_know(folder, tmp_path):
    (tmp_path / "val" / "class 2").mkdir(parents=True)
    network = find_network(SMALL, None, "random", (32, 32))  # knows ImageNet's classes
    with pytest.raises(ValueError, match="class 2"):
        measure(spec_of(folder, tmp_path, network=network, dataset=str(tmp_path)))


class _Undecided(torch.nn.Module):
    """A network that `torch.export` cannot trace."""

    def forward(self, images):
        return images.mean((2, 3)) if images.sum() > 0 else images.amax((2, 3))


def _without_export(subject):
    subject._files._classifier = dataclasses.replace(subject._classifier, module=_Undecided())


def _without_memory(subject):
    def run(*arguments):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")

    subject._classifier.module.forward = run


@pytest.mark.parametrize(
    ("runtime", "change", "reason"),
    [
        ("torch", _without_memory, "out of GPU memory at batch 2"),
        ("onnxruntime", _without_export, r"the network cannot be exported to ONNX: .*data-dependent"),
    ],
)
def test_a_failed_cell_is_a_row_with_a_reason(folder, tmp_path, monkeypatch, runtime, change, reason):
    opened = subjects.open_subject

    def open_subject(spec):
        subject = opened(spec)
        change(subject)
        return subject

    monkeypatch.setattr(subjects, "open_subject", open_subject)
    result = result_of(spec_of(folder, tmp_path, cell=Cell("own", runtime, "fp32", 2, "any")), monkeypatch)
    assert result["status"] == "failed" and re.fullmatch(reason + ".*", result["reason"]), result
    assert len(result["reason"]) < 400 and "\n" not in result["reason"]


def test_an_empty_dataset_is_a_row_with_a_reason(folder, tmp_path, monkeypatch):
    (tmp_path / "data" / "val").mkdir(parents=True)
    result = result_of(spec_of(folder, tmp_path, dataset=str(tmp_path / "data")), monkeypatch)
    assert result["status"] == "failed"
    assert result["reason"].startswith("--dataset: expected a folder of class folders with pictures")


def result_of(spec: CellSpec, monkeypatch) -> dict:
    """What the process of a cell leaves."""
    spec.files.mkdir(parents=True, exist_ok=True)
    source, result = (Path(spec.folder) / name for name in ("spec.json", "result.json"))
    source.write_text(json.dumps(spec.as_dict()))
    monkeypatch.setattr(measure_cell, "_wait_for_line", lambda: None)
    assert measure_cell.main(["cell", str(source), str(result)]) == 0
    return json.loads(result.read_text())


def test_more_class_folders_than_classes(folder, tmp_path):
    for name in "abc":
        (tmp_path / "val" / name).mkdir(parents=True)
        Image.new("RGB", (40, 40)).save(tmp_path / "val" / name / "0.png")
    spec = spec_of(folder, tmp_path, dataset=str(tmp_path))
    with pytest.raises(ValueError, match="for each of the network's 2 classes, got 3 in"):
        measure(spec)


def test_a_limit_takes_images_of_all_classes(folder, tmp_path):
    from onnx_path.sweeping.subjects import open_subject

    subject = open_subject(spec_of(folder, tmp_path, dataset=str(folder / "data"), limit=2))
    runtime = SimpleNamespace(facts={})
    subject.outputs = lambda runtime, inputs: [np.eye(2, dtype=np.float32)]  # says class 0, then class 1
    assert subject.accuracy(runtime)["top1"] == 1
    (batch,) = subject.batches(2)
    first = ("class 0/0.png", "class 1/10.png")
    pixels = [np.asarray(Image.open(folder / "data/val" / name)) for name in first]
    np.testing.assert_allclose(batch["images"], subject._classifier.preprocessing.batch(pixels), atol=1e-6)


def test_labels_of_weights_without_names_are_the_sorted_folders(folder, tmp_path):
    shutil.copytree(folder / "data" / "val" / "class 0", tmp_path / "val" / "daisy")
    shutil.copytree(folder / "data" / "val" / "class 1", tmp_path / "val" / "tulip")
    renamed, named = (
        measure(spec_of(folder, tmp_path, dataset=str(data))) for data in (tmp_path, folder / "data")
    )
    assert renamed["accuracy"]["top1"] == named["accuracy"]["top1"] > 0


def test_a_calibration_folder_without_pictures(folder, tmp_path):
    """The error names the sweep's option, and the arrays of a failed quantisation do not stay."""
    (tmp_path / "empty").mkdir()
    cell = Cell("own", "onnxruntime", "int8", 2, "any")
    spec = spec_of(folder, tmp_path, cell=cell, calibration=str(tmp_path / "empty"))
    with pytest.raises(ArgumentError) as caught:
        measure(spec)
    assert (caught.value.argument, [*spec.files.glob("*.npz")]) == ("calibration", [])
