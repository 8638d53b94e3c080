"""`codetr sweep` without a GPU: cells, processes, resuming, accuracy, differences, failures."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
pytest.importorskip("timm", reason="timm is not installed")

from codetr.config import config_file
from codetr.errors import ArgumentError
from onnx_path import sweep
from onnx_path.sweeping import cell_processes, gpu_monitor, machine, measure_cell, subjects
from onnx_path.sweeping.cell_processes import CellProcesses
from onnx_path.sweeping.cells import Cell, CellSpec, MissingCell, plan
from onnx_path.sweeping.classifiers import load_classifier
from onnx_path.sweeping.latency import summarise
from onnx_path.sweeping.measure_cell import make_reference, measure
from onnx_path.sweeping.networks import Network, find_network
from onnx_path.sweeping.output_differences import (
    ClassifierDifferences,
    DetectorDifferences,
    OutputDifferences,
)
from tests.detector.exported_metadata import dynamic_metadata, fixed_metadata

CLASSES = ("apple", "pear")
SMALL = "test_resnet"  # a network of timm for tests


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Weights of a classifier of two classes, and 40 images in a dataset with one more that is damaged."""
    root = tmp_path_factory.mktemp("sweep")
    import timm

    torch.manual_seed(0)
    torch.save(timm.create_model(SMALL, num_classes=2).state_dict(), root / "own.pth")
    random = np.random.default_rng(0)
    for i in range(40):
        place = root / "data" / ("train" if i % 2 else "val") / f"class {i // 2 % 2}"
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 255, (50, 60, 3), np.uint8)).save(place / f"{i}.png")
    (root / "data/val/class 0/damaged.png").write_bytes(b"no picture")
    return root


def command(folder: Path, dataset: Path, out: Path, *options: str) -> list[str]:
    given = [str(folder / "own.pth"), "--network", SMALL, "--dataset", str(dataset), "--out", str(out)]
    given += ["--iterations", "6", "--seconds", "1", "--size", "32x32", "--calibration-images", "8"]
    return [*given, "--compare", "--inputs", "12", *options]


def test_every_table_and_picture_on_a_cpu(folder, tmp_path, capsys, monkeypatch):
    out = tmp_path / "out"
    options = ("--runtime", "torch,onnxruntime,tensorrt", "--precision", "fp32,int8", "--batch", "4")
    given = command(folder, folder / "data", out, *options)
    assert sweep.main(given) == 0, capsys.readouterr().err
    rows = {row["id"]: row for row in json.loads((out / "results.json").read_text())["cells"]}
    assert rows["own-torch-int8-b4-any"]["reason"] == "PyTorch runs no int8"
    measured = {name: row for name, row in rows.items() if row["status"] == "ok"}
    assert set(measured) == {
        f"own-{kind}-b4-any" for kind in ("torch-fp32", "onnxruntime-fp32", "onnxruntime-int8")
    }
    exact, eight = measured["own-onnxruntime-fp32-b4-any"], measured["own-onnxruntime-int8-b4-any"]
    for row in measured.values():
        assert row["accuracy"]["images"] == 20 and row["accuracy"]["bad_images"] == 1
        assert row["model_ms"]["eager"]["samples"] >= 5 and row["images_per_s"] > 0
        assert row["agreement"]["inputs"] == 12
    assert exact["agreement"]["close"] > 0.9 > eight["agreement"]["close"]
    assert exact["accuracy"]["top1"] == measured["own-torch-fp32-b4-any"]["accuracy"]["top1"]
    assert eight["file_bytes"] < exact["file_bytes"]

    # Another sweep adds its cells. Throughput is drawn from two batch sizes on.
    more = ("--runtime", "torch", "--precision", "fp32", "--batch", "2")
    assert sweep.main(command(folder, folder / "data", out, *more)) == 0
    content = json.loads((out / "results.json").read_text())
    assert {row["id"] for row in content["cells"]} == {*rows, "own-torch-fp32-b2-any"}
    assert [network["name"] for network in content["networks"]] == ["own"]
    for name in (
        "report.html",
        "report.md",
        "results.csv",
        "pictures/throughput.png",
        "pictures/accuracy.png",
    ):
        assert (out / name).stat().st_size > 1000, name

    # A second run measures nothing, also by other paths, and another dataset everything.
    started = []
    monkeypatch.setattr(
        CellProcesses,
        "run",
        lambda self, what, spec: started.append(spec.cell.id) or {"status": "failed", "reason": "not run"},
    )
    assert sweep.main(given) == 0
    monkeypatch.chdir(folder)
    assert sweep.main(command(Path(), Path("data"), out, *options)) == 0
    assert started == []
    other = tmp_path / "other"
    shutil.copytree(folder / "data", other)
    (other / "val/class 0/damaged.png").unlink()
    assert sweep.main(command(folder, other, out, *options)) == 1
    assert len(started) == 4  # one of them for the outputs to compare with


@pytest.mark.gpu
def test_cells_on_a_gpu(folder, tmp_path, capsys):
    """Static and dynamic engines beside PyTorch, in processes that load ahead, with the state of the GPU."""
    pytest.importorskip("tensorrt", reason="TensorRT is not installed")
    out = tmp_path / "out"
    options = ("--precision", "fp32,fp16,int8", "--batch", "1,4", "--shapes", "static,dynamic")
    given = command(folder, folder / "data", out, *options, "--jobs", "2", "--ahead", "1")
    assert sweep.main(given) == 0, capsys.readouterr().err
    rows = json.loads((out / "results.json").read_text())["cells"]
    measured = [row for row in rows if row["status"] == "ok"]
    assert {(row["runtime"], row["precision"], row["shapes"], row["batch"]) for row in measured} == {
        *(("torch", precision, "any", batch) for precision in ("fp32", "fp16") for batch in (1, 4)),
        *(
            ("tensorrt", precision, shapes, batch)
            for precision in ("fp32", "fp16", "int8")
            for shapes in ("static", "dynamic")
            for batch in (1, 4)
        ),
    }
    for row in measured:
        assert all(row["model_ms"][kind]["median"] > 0 for kind in ("eager", "graph")), row["id"]
        assert row["gpu"]["samples"] and row["peak_gpu_bytes"] > 0 and row["layers"] > 0, row["id"]
        assert row["agreement"]["close"] > (0.9 if row["precision"] == "fp32" else 0), row["id"]
    assert (out / "report.html").stat().st_size > 1000


def test_engines_are_built_before_the_measurements(folder, tmp_path, monkeypatch):
    """Each engine once, and the first of a network and precision, which makes its ONNX file, in front."""
    started = []
    monkeypatch.setattr(sweep, "gpu_name", lambda: "GPU")
    monkeypatch.setattr(
        CellProcesses,
        "run",
        lambda self, what, spec: started.append((what, spec.cell)) or {"status": "failed", "reason": "x"},
    )
    options = ("--runtime", "torch,tensorrt", "--precision", "fp32,int8", "--batch", "1,4", "--jobs", "2")
    given = command(folder, folder / "data", tmp_path / "out", *options, "--shapes", "static,dynamic")
    assert sweep.main(given) == 1
    built = [cell for what, cell in started if what == "build"]
    assert [what for what, _ in started[: len(built)]] == ["build"] * 6
    assert {(cell.precision, cell.batch) for cell in built[:2]} == {("fp32", 1), ("int8", 1)}
    engines = {(cell.precision, cell.shapes, cell.batch) for cell in built}
    static = {(precision, "static", batch) for precision in ("fp32", "int8") for batch in (1, 4)}
    assert engines == static | {("fp32", "dynamic", 1), ("int8", "dynamic", 1)}
    started.clear()
    assert sweep.main(given) == 1
    assert not [cell for what, cell in started if what == "build"]


def test_sweeps_at_the_same_time_share_a_folder(folder, tmp_path, monkeypatch):
    def given(batch: str) -> list[str]:
        return command(folder, folder / "data", tmp_path / "out", "--runtime", "torch", "--batch", batch)

    def run(self, what, spec):
        if spec.cell.batch == 1:
            assert sweep.main(given("2")) == 1  # another sweep begins and ends during this cell
        return {"status": "failed", "reason": "not run"}

    monkeypatch.setattr(CellProcesses, "run", run)
    assert sweep.main(given("1")) == 1
    content = json.loads((tmp_path / "out/results.json").read_text())
    assert sorted(row["batch"] for row in content["cells"]) == [1, 1, 2, 2]


def test_cells_load_while_another_is_measured(folder, tmp_path, monkeypatch):
    events = []
    start, ending = CellProcesses._start, cell_processes._ending

    def record(self, what, spec):
        events.append(f"load {spec.cell.batch}")
        return start(self, what, spec)

    def end(status, log):
        events.append(f"end {log.name.split('-b')[1][0]}")
        return ending(status, log)

    popen = subprocess.Popen
    script = ["sh", "-c", "read line && echo $line; exit 3"]
    monkeypatch.setattr(subprocess, "Popen", lambda command, **options: popen(script, **options))
    monkeypatch.setattr(CellProcesses, "_start", record)
    monkeypatch.setattr(cell_processes, "_ending", end)
    monkeypatch.setattr(sweep, "gpu_name", lambda: "GPU")
    given = [str(folder / "own.pth"), "--network", SMALL, "--out", str(tmp_path / "out"), "--ahead", "2"]
    assert sweep.main([*given, "--runtime", "torch", "--precision", "fp32", "--batch", "1,2,3,4"]) == 1
    assert events == ["load 2", "load 3", "load 1", "end 1", "load 4", "end 2", "end 3", "end 4"]


def test_a_cell_that_turns_out_missing_does_not_stop_others_from_loading(folder, tmp_path, monkeypatch):
    """Its process, which has loaded the network, ends."""
    started, processes, states = [], [], []

    def start(self, what, spec):
        started.append((spec.cell.precision, spec.cell.batch))
        processes.append(subprocess.Popen(["sh", "-c", "read line"], stdin=subprocess.PIPE))
        return processes[-1], tmp_path / spec.cell.id

    def run(self, what, spec):
        ended = [process.poll() is not None for process in processes]
        states.append((spec.cell.precision, spec.cell.batch, ended))
        return {"status": "missing" if spec.cell.precision == "int8" else "failed", "reason": "x"}

    monkeypatch.setattr(sweep, "gpu_name", lambda: "GPU")
    monkeypatch.setattr(CellProcesses, "_start", start)
    monkeypatch.setattr(CellProcesses, "run", run)
    given = [str(folder / "own.pth"), "--network", SMALL, "--out", str(tmp_path / "out"), "--ahead", "1"]
    given += ["--runtime", "onnxruntime", "--precision", "int8,fp16", "--batch", "1,2"]
    assert sweep.main(given) == 1
    assert started == [("int8", 2), ("fp16", 2)]
    assert states == [("int8", 1, [False]), ("fp16", 1, [True, False]), ("fp16", 2, [True, False])]


def test_a_process_ends_with_its_sweep(folder, tmp_path):
    (tmp_path / "spec.json").write_text(json.dumps(spec_of(folder, tmp_path).as_dict()))
    files = [str(tmp_path / "spec.json"), str(tmp_path / "result.json")]
    program = [sys.executable, "-m", "onnx_path.sweeping.measure_cell", "cell", *files]
    done = subprocess.run(program, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert (done.returncode, done.stderr.splitlines()[-1]) == (1, "the sweep has ended")
    assert not (tmp_path / "result.json").exists()


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_a_network_that_8_bits_make_no_faster(folder, tmp_path, monkeypatch, jobs):
    """One process finds out for all batch sizes. The rows say why, and no cell failed."""
    started = []
    monkeypatch.setattr(sweep, "gpu_name", lambda: "GPU")
    monkeypatch.setattr(
        CellProcesses,
        "run",
        lambda self, what, spec: started.append((what, spec.cell.id)) or {"status": "missing", "reason": "x"},
    )
    given = command(folder, folder / "data", tmp_path / "out", "--precision", "fp8", "--batch", "1,4")
    given += ["--runtime", "tensorrt", "--shapes", "static,dynamic", "--jobs", jobs]
    for _ in range(2):  # the second time from the kept rows
        assert sweep.main(given) == 0
        rows = json.loads((tmp_path / "out/results.json").read_text())["cells"]
        assert [(row["status"], row["reason"]) for row in rows] == [("missing", "x")] * 4
    what = "cell" if jobs == "1" else "build"
    assert [x for x in started if x[0] != "reference"] == [(what, "own-tensorrt-fp8-b1-static")]


def test_fp8_convolutions_are_a_missing_cell(folder, tmp_path):
    spec = spec_of(folder, tmp_path, cell=Cell("own", "onnxruntime", "fp8", 2, "any"))
    spec.files.mkdir(parents=True)
    with pytest.raises(MissingCell, match=r"no layer that 8 bits make faster; kept: \d+ convolutions that"):
        measure(spec)


@pytest.mark.parametrize(
    ("process", "limit", "reason"),
    [
        (
            ["sh", "-c", "kill -9 $$"],
            "60",
            "the process was killed by SIGKILL, as Linux does for want of memory",
        ),
        (["sh", "-c", "sleep 20"], "1", "took longer than --cell-seconds 1"),
        (["sh", "-c", "echo no such GPU; exit 3"], "60", "the process ended with status 3: no such GPU"),
    ],
)
def test_a_lost_process_is_a_row(folder, tmp_path, monkeypatch, capsys, process, limit, reason):
    popen = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", lambda command, **options: popen(process, **options))
    given = [str(folder / "own.pth"), "--network", SMALL, "--out", str(tmp_path / "out")]
    assert sweep.main([*given, "--runtime", "torch", "--precision", "fp32", "--cell-seconds", limit]) == 1
    (row,) = json.loads((tmp_path / "out/results.json").read_text())["cells"]
    assert (row["status"], row["reason"]) == ("failed", reason)
    assert f"own-torch-fp32-b1-any: failed: {reason}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "expected at least one NETWORK and --out DIR"),
        (["resnet19", "--out", "o"], "'resnet19', near resnet18"),
        (["own.pth", "--out", "o"], "--network: expected the network of the weights own.pth"),
        (["none.onnx", "--out", "o"], "there is no none.onnx"),
        (["resnet18", "--network", "resnet34", "--out", "o"], "--network: expected none with the name"),
        (["resnet18", "--random", "--weights", "own.pth", "--out", "o"], "--weights: expected one network"),
        (["own.pth", "--network", SMALL, "--weights", "own.pth", "--out", "o"], "--weights: expected none"),
        (["resnet18", "--random", "--size", "32x64", "--out", "o"], "--size: expected a square for resnet18"),
        (["resnet18", "--random", "--dataset", "none", "--out", "o"], "--dataset: expected a folder"),
        (["resnet18", "--precision", "fp32,fp4", "--out", "o"], "expected some of fp32,"),
        (["resnet18", "--batch", "0", "--out", "o"], "expected batch sizes"),
        (["resnet18", "--random", "--ahead", "1", "--out", "o"], "--ahead: expected 0 where the CPU"),
        (["--report", "none"], "results.json"),
    ],
)
def test_command_errors(folder, tmp_path, monkeypatch, capsys, options, message):
    monkeypatch.chdir(tmp_path)
    shutil.copy(folder / "own.pth", "own.pth")
    assert sweep.main(options) in (1, 2)
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
    assert [file.name for file in tmp_path.iterdir()] == ["own.pth"]


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
    monkeypatch.setattr(sys, "stdin", io.StringIO("\n"))
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
    assert subject.accuracy(runtime, 2)["top1"] == 1
    (batch,) = subject.batches(2, 2)
    first = ("class 0/0.png", "class 1/10.png")
    pixels = [np.asarray(Image.open(folder / "data/val" / name)) for name in first]
    np.testing.assert_allclose(batch["images"], subject._classifier.preprocessing.batch(pixels), atol=1e-6)


@pytest.mark.parametrize("name", ["own.safetensors", "own.onnx"])
def test_a_damaged_file_is_named(tmp_path, capsys, name):
    """Such as the pointer that Git LFS leaves in place of a file."""
    (tmp_path / name).write_text("version https://git-lfs.github.com/spec/v1")
    assert sweep.main([str(tmp_path / name), "--out", str(tmp_path / "out")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert str(tmp_path / name) in line


def test_labels_of_weights_without_names_are_the_sorted_folders(folder, tmp_path):
    shutil.copytree(folder / "data" / "val" / "class 0", tmp_path / "val" / "daisy")
    shutil.copytree(folder / "data" / "val" / "class 1", tmp_path / "val" / "tulip")
    renamed, named = (
        measure(spec_of(folder, tmp_path, dataset=str(data))) for data in (tmp_path, folder / "data")
    )
    assert renamed["accuracy"]["top1"] == named["accuracy"]["top1"] > 0


def spec_of(folder: Path, tmp_path: Path, **changes: object) -> CellSpec:
    network = find_network(str(folder / "own.pth"), SMALL, None, (32, 32))
    cell = Cell("own", "torch", "fp32", 2, "any")
    return CellSpec(**{"network": network, "cell": cell, "folder": str(tmp_path), "iterations": 5, **changes})


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
    assert subjects.file_shapes(spec, 3) == {"images": (3, 3, 16, 12)}
    other = find_network(str(path), None, None, None)
    assert other.key != network.key
    with pytest.raises(ValueError, match="give --size HEIGHTxWIDTH"):
        subjects.file_shapes(dataclasses.replace(spec, network=other), 3)


def test_shapes_of_an_engine_leave_out_scalars(tmp_path, monkeypatch):
    import onnx

    text = """<ir_version: 8, opset_import: ["" : 17]>
        g (float[n, 3] x, float scale) => (float[n, 3] y) { y = Mul(x, scale) }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "scaled.onnx")
    network = find_network(str(tmp_path / "scaled.onnx"), None, None, None)
    cell = Cell("scaled", "tensorrt", "fp16", 2, "dynamic")
    spec = CellSpec(network=network, cell=cell, folder=str(tmp_path), largest=8, best=4)
    monkeypatch.setattr(subjects, "build_once", lambda path, command: command)
    command = subjects._build(spec, cell)
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
    import onnx

    text = """<ir_version: 8, opset_import: ["" : 17]>
        g (bfloat16[1, 3] x) => (bfloat16[1, 3] y) { y = Relu(x) }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "relu.onnx")
    assert find_network(str(tmp_path / "relu.onnx"), None, None, None).precision == "bf16"


@pytest.mark.parametrize(("own", "batch"), [(-1, 2), (-1, 5), (4, 4)])
def test_an_engine_without_metadata_runs_the_batch_of_its_cell(tmp_path, monkeypatch, own, batch):
    subject = engine_subject(tmp_path, monkeypatch, own, batch)
    (inputs,) = subject.batches(batch, batch)
    assert inputs["images"].shape == (batch, 3, 8, 8) and inputs["limit"].shape == (1,)
    assert np.abs(inputs["images"]).min() > 0


def test_an_engine_of_another_batch(tmp_path, monkeypatch):
    subject = engine_subject(tmp_path, monkeypatch, 4, 1)
    with pytest.raises(ValueError, match=r"net\.engine: expected --batch 4, the engine's own, got 1"):
        next(subject.batches(1, 1))


@pytest.mark.parametrize(("size", "found"), [(None, (768, 1152)), ((512, 640), (512, 640))])
def test_an_exported_detector_of_dynamic_sizes(tmp_path, size, found):
    """The inputs have the usual size, or the one that was chosen."""
    (tmp_path / "net.engine").write_bytes(b"engine")
    dynamic_metadata().save(tmp_path / "net.json")
    network = find_network(str(tmp_path / "net.engine"), None, None, size)
    cell = Cell("net", "tensorrt", "fp32", 2, "static")
    subject = subjects.open_subject(CellSpec(network=network, cell=cell, folder=str(tmp_path)))
    (inputs,) = subject.batches(2, 2)
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
    (inputs,) = subjects.open_subject(spec).batches(3, 2)
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


def test_specs_survive_json(folder, tmp_path):
    spec = spec_of(folder, tmp_path)
    assert CellSpec.of_dict(json.loads(json.dumps(spec.as_dict()))) == spec


def test_random_weights_are_the_same_and_their_outputs_moderate():
    network = find_network(SMALL, None, "random", (32, 32))
    one, other = (load_classifier(network) for _ in range(2))
    images = torch.randn(4, 3, 32, 32)
    with torch.inference_mode():
        logits = one.module(images)
        torch.testing.assert_close(logits, other.module(images), rtol=0, atol=0)
    assert 1e-3 < logits.std() < 100
    assert len(one.class_names) == len(one.folder_names) == 1000
    assert one.folder_names[0] == "n01440764"


def test_weights_of_our_training_state_their_network(tmp_path):
    from codetr.classify.classifier_file import make_classifier, save_classifier
    from codetr.classify.pictures import ClassifierPreprocessing

    path = tmp_path / "trained/model.safetensors"
    path.parent.mkdir()
    model = make_classifier("resnet18", 2).eval()
    save_classifier(path, model, "resnet18", CLASSES, ClassifierPreprocessing(36, 32))
    network = find_network(str(path.parent), None, None, None)
    found = load_classifier(network)
    assert (network.name, network.source, network.architecture) == ("trained", "torchvision", "resnet18")
    assert (found.folder_names, found.preprocessing.crop) == (CLASSES, 32)
    images = torch.randn(2, 3, 32, 32)
    with torch.inference_mode():
        torch.testing.assert_close(found.module(images), model(images))


def test_a_detector_of_a_training_run(tmp_path):
    shutil.copy(config_file("co_dino_demo"), tmp_path / "model.json")
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    network = find_network(str(tmp_path), None, None, None)
    assert (network.name, network.task) == (tmp_path.name, "detect")
    assert network.weights == str(tmp_path / "model.safetensors")
    assert find_network(str(tmp_path), None, "random", None).weights == "random"


def test_weights_of_another_network(folder):
    with pytest.raises(ValueError, match=r"own\.pth: expected weights of resnet18"):
        load_classifier(find_network(str(folder / "own.pth"), "resnet18", None, None))


def test_a_calibration_folder_without_pictures(folder, tmp_path):
    """The error names the sweep's option, and the arrays of a failed quantisation do not stay."""
    (tmp_path / "empty").mkdir()
    cell = Cell("own", "onnxruntime", "int8", 2, "any")
    spec = spec_of(folder, tmp_path, cell=cell, calibration=str(tmp_path / "empty"))
    with pytest.raises(ArgumentError) as caught:
        measure(spec)
    assert (caught.value.argument, [*spec.files.glob("*.npz")]) == ("calibration", [])


@pytest.mark.parametrize("network", ["test_convnext", "squeezenet1_0"])
def test_the_number_of_classes_in_sorted_weights(tmp_path, network):
    """Safetensors sort names, so that the last layer need not be last; SqueezeNet's is a convolution."""
    import timm
    import torchvision
    from safetensors.torch import save_file

    library = timm.create_model if network.startswith("test_") else torchvision.models.get_model
    save_file(library(network, num_classes=5).state_dict(), tmp_path / "own.safetensors")
    found = load_classifier(find_network(str(tmp_path / "own.safetensors"), network, None, (32, 32)))
    assert (len(found.class_names), found.folder_names) == (5, None)


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


def test_statistics_of_latencies():
    found = summarise([*range(1, 100), 1000], 10)
    assert (found["median"], found["p95"], found["p99"], found["max"]) == (50.5, 96, 1000, 1000)
    low, high = found["ci95"]
    assert found["mean"] == pytest.approx(59.5)
    assert low < found["mean"] < high
    assert high - low == pytest.approx(2 * 1.96 * np.std([*range(1, 100), 1000], ddof=1) / 10)


def test_differences_of_outputs():
    differences = OutputDifferences(1e-3, 0)
    differences.update([np.float32([[1, 2], [3, 4]])], [np.float32([[1.0005, 2.1], [3, 4]])])
    assert differences.report()["close"] == 0.75


def test_differences_of_classifiers():
    differences = ClassifierDifferences(1e-3, 0, ["a", "b", "c"])
    expected = np.log(np.float32([[0.7, 0.2, 0.1], [0.5, 0.3, 0.2]]))
    differences.update([expected], [np.log(np.float32([[0.7, 0.1, 0.2], [0.5, 0.3, 0.2]]))])
    report = differences.report()
    assert [row["disagreement"] for row in report["by_rank"]] == [0, 0.5, 0.5]
    assert [row["mean_abs_error"] for row in report["by_rank"]] == pytest.approx([0, 0, 0], abs=1e-6)
    assert [name for name, _ in report["example"]["got"]] == ["a", "c", "b"]


def test_differences_of_detectors():
    boxes = np.float32([[[0, 0, 10, 10], [20, 20, 40, 40], [0, 0, 0, 0]]])
    scores, labels = np.float32([[0.5, 0.9, 0]]), np.int64([[1, 2, -1]])
    moved = boxes + np.float32([1, 0, 0, 0])
    differences = DetectorDifferences()
    differences.update((boxes, scores, labels), (moved, scores - 0.25, np.int64([[3, 2, -1]])))
    report = differences.report()
    assert report["matched"] == 0.5
    assert report["by_rank"] == [{"rank": 1, "box_px": 1.0, "score": pytest.approx(0.25)}]


@pytest.mark.parametrize(
    ("bits", "reasons", "watts"),
    [
        (0x1, [], 300.0),
        (0x20 | 0x4, ["power cap", "thermal slowdown (software)"], 300.0),
        (None, ["unknown"], 300.0),
        (0x1, [], None),
    ],
)
def test_throttling_is_named(monkeypatch, bits, reasons, watts):
    """A GPU that does not tell its power is watched too."""

    class NVMLError(Exception):
        pass

    def told(value):
        if value is None:
            raise NVMLError
        return value

    process = SimpleNamespace(pid=7, usedGpuMemory=2**30)
    nvml = SimpleNamespace(
        NVMLError=NVMLError,
        NVML_CLOCK_SM=1,
        NVML_TEMPERATURE_GPU=0,
        nvmlClocksThrottleReasonSwPowerCap=0x4,
        nvmlClocksThrottleReasonSwThermalSlowdown=0x20,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetUtilizationRates=lambda handle: SimpleNamespace(gpu=50),
        nvmlDeviceGetMemoryInfo=lambda handle: SimpleNamespace(used=2**30),
        nvmlDeviceGetPowerUsage=lambda handle: 1000 * told(watts),
        nvmlDeviceGetClockInfo=lambda handle, kind: 1980,
        nvmlDeviceGetTemperature=lambda handle, kind: 40,
        nvmlDeviceGetComputeRunningProcesses=lambda handle: [process],
        nvmlDeviceGetCurrentClocksEventReasons=lambda handle: told(bits),
        nvmlDeviceGetCurrentClocksThrottleReasons=lambda handle: told(bits),
    )
    monkeypatch.setattr(gpu_monitor, "import_nvml", lambda: nvml)
    monkeypatch.setattr(gpu_monitor, "PERIOD_S", 0.01)
    with gpu_monitor.GpuMonitor() as monitor:
        monitor.watch_process(7)
        monitor._stop.wait(0.1)
    gpu, peak = monitor.report([[0, sys.maxsize]])
    assert (gpu["throttled"], gpu["reasons"], peak) == (bool(reasons), reasons, 2**30)
    assert gpu["samples"][0][1:] == [50, 1024.0, watts, 1980, 40]


@pytest.mark.parametrize(
    ("visible", "name"),
    [(None, "GPU 0"), ("1,0", "GPU 1"), ("GPU-b", "GPU b"), ("", None), ("-1", None), ("7", None)],
)
def test_the_gpu_is_the_first_visible_one(monkeypatch, visible, name):
    class NVMLError(Exception):
        pass

    def find(key):
        try:
            return {0: "GPU 0", 1: "GPU 1", "GPU-b": "GPU b"}[key]
        except KeyError:
            raise NVMLError from None

    nvml = SimpleNamespace(
        NVMLError=NVMLError,
        nvmlDeviceGetHandleByIndex=find,
        nvmlDeviceGetHandleByUUID=find,
        nvmlDeviceGetName=lambda handle: handle,
    )
    monkeypatch.setattr(machine, "import_nvml", lambda: nvml)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert machine.gpu_name.__wrapped__() == name
