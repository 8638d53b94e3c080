"""The command: tables and pictures, processes, resuming, rows with reasons."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from onnx_path import sweep
from onnx_path.sweeping import cell_processes
from onnx_path.sweeping.cell_processes import CellProcesses
from tests.sweep.sweep_specs import SMALL, command, spec_of


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


def test_a_measurement_ends_with_its_sweep():
    code = "import time; from onnx_path.sweeping import measure_cell as m; m._wait_for_line(); time.sleep(60)"
    assert subprocess.run([sys.executable, "-c", code], input=b"\n", timeout=50).returncode == 1


def test_two_sweeps_measure_the_same_cell(folder, tmp_path, monkeypatch):
    popen, script = subprocess.Popen, ["sh", "-c", "read line; exit 3"]
    monkeypatch.setattr(subprocess, "Popen", lambda command, **options: popen(script, **options))
    spec, sweeps = spec_of(folder, tmp_path), [CellProcesses(tmp_path, 60) for _ in range(2)]
    for processes in sweeps:
        processes.load(spec)
    for processes in sweeps:
        assert processes.run("cell", spec)["reason"] == "the process ended with status 3: no message"
        processes.stop_all()


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
        (["resnet18", "--network", "resnet34", "--out", "o"], "--network: expected none with resnet18;"),
        (["resnet18", "--random", "--weights", "own.pth", "--out", "o"], "--weights: expected one network"),
        (["own.pth", "--network", SMALL, "--weights", "own.pth", "--out", "o"], "--weights: expected none"),
        (["resnet18", "--random", "--size", "32x64", "--out", "o"], "--size: expected a square for resnet18"),
        (["resnet18", "--random", "--dataset", "none", "--out", "o"], "--dataset: expected a folder"),
        (["resnet18", "--precision", "fp32,fp4", "--out", "o"], "expected some of fp32,"),
        (["resnet18", "--batch", "0", "--out", "o"], "expected batch sizes"),
        (["resnet18", "--random", "--ahead", "1", "--out", "o"], "--ahead: expected 0 where the CPU"),
        (
            ["own.pth", "--network", SMALL, "--random", "--out", "o"],
            "--random: expected the name of a network with it, got own.pth",
        ),
        (["resnet18", "--limit", "9", "--out", "o"], "--limit: expected --dataset with it, got none"),
        (["resnet18", "--inputs", "9", "--out", "o"], "--inputs: expected --compare with it, got none"),
        (["resnet18", "--calibration", ".", "--out", "o"], "--calibration: expected --precision int8 or fp8"),
        (
            ["resnet18", "--runtime", "torch", "--shapes", "dynamic", "--out", "o"],
            "--shapes: expected --runtime tensorrt with it, got none",
        ),
        (["resnet18", "--opt-batch", "1", "--out", "o"], "--opt-batch: expected --shapes dynamic with it"),
        (
            ["resnet18", "--shapes", "dynamic", "--opt-batch", "9", "--out", "o"],
            "--opt-batch: expected at most 1, the largest of --batch, got 9",
        ),
        (["--report", "none", "--batch", "8"], "--report: expected no networks and no other options with it"),
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


@pytest.mark.parametrize("name", ["own.safetensors", "own.onnx"])
def test_a_damaged_file_is_named(tmp_path, capsys, name):
    """Such as the pointer that Git LFS leaves in place of a file."""
    (tmp_path / name).write_text("version https://git-lfs.github.com/spec/v1")
    assert sweep.main([str(tmp_path / name), "--out", str(tmp_path / "out")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert str(tmp_path / name) in line
