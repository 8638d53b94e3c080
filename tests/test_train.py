"""`codetr train` with a tiny model: whole, killed, stopped, resumed, by the clock, on two processes."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import codetr
from codetr.cli.detect import main
from codetr.cli.parser import make_parser
from codetr.dataset.coco_files import load_coco
from codetr.training import command, plan, validation
from codetr.training.augment import Augmentation
from codetr.training.data import (
    BatchOrder,
    TrainingSet,
    collate,
)
from codetr.training.log import read_table
from codetr.training.schedule import Schedule
from codetr.training.state import find_states
from codetr.training.step import Step
from tests.training_runs import MODEL, ROOT, arguments, assert_same_run, logged, scales_of, write_boxes

pytest_plugins = ("tests.training_fixtures",)
pytestmark = pytest.mark.usefixtures("one_thread")

# Runs.


def test_files_of_a_run(folder, uninterrupted, tmp_path, capsys):
    names = {path.name for path in uninterrupted.iterdir()}
    expected = {"model.json", "model.safetensors", "training.json", "log.csv", "curves.png"}
    assert names == expected | {"state-00000008.pt", "state-00000012.pt"}
    rows = logged(uninterrupted)
    assert [row["step"] for row in rows] == ["3", "6", "9", "12"]
    losses = [float(row[name]) for row in rows for name in ("loss", "encoder/class", "denoising/giou")]
    assert np.isfinite(losses).all()
    for row in rows:
        terms = sum(float(value) for name, value in row.items() if "/" in name)
        assert terms == pytest.approx(float(row["loss"]), rel=1e-4)
    assert Image.open(uninterrupted / "curves.png").size == (1200, 800)
    report = json.loads((uninterrupted / "training.json").read_text())
    assert report["steps"] == 12 and report["images"] == 24 and report["classes"] == ["green", "red"]
    assert report["sessions"][0]["stopped_by"] == "the end" and report["sessions"][0]["torch"]

    model = ["--model", uninterrupted / "model.json", "--weights", uninterrupted / "model.safetensors"]
    picture = folder / "val" / "000.png"
    assert main(["detect", str(picture), *map(str, model), "--out", str(tmp_path), "--threshold", "0"]) == 0
    document = json.loads((tmp_path / "detections.json").read_text())
    assert {category["name"] for category in document["categories"]} == {"green", "red"}


@pytest.mark.parametrize("workers", [0, 2])
def test_a_killed_run_goes_on(folder, uninterrupted, tmp_path, workers):
    """Killed without a word after a state was written, and resumed: the same weights and the same log."""
    out = tmp_path / "run"
    command = [sys.executable, "-m", "codetr", *arguments(folder, out, workers=workers)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        deadline = time.monotonic() + 120
        while not find_states(out):
            assert process.poll() is None and time.monotonic() < deadline, "no state was written"
            time.sleep(0.01)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert not (out / "training.json").exists(), "the run ended before it was killed"
    assert find_states(out)[-1].name != "state-00000012.pt"
    (out / "log.csv").open("a").write("9,0.7")  # what a write that did not end leaves
    assert main(arguments(folder, out, workers=workers, resume="")) == 0
    assert_same_run(out, uninterrupted)


def test_a_signal_stops_a_run_between_steps(folder, uninterrupted, tmp_path, monkeypatch, capsys):
    """SIGTERM in the middle of a step: the step ends, the state is saved, and --resume goes on from it."""
    call = Step.__call__

    def interrupted(self, batch, step, factor):
        if step == 6:
            signal.raise_signal(signal.SIGTERM)
        call(self, batch, step, factor)

    out = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(Step, "__call__", interrupted)
        assert main(arguments(folder, out)) == 128 + signal.SIGTERM
    assert "stopped by SIGTERM after 7 steps; --resume" in capsys.readouterr().out
    assert find_states(out)[-1].name == "state-00000007.pt"
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    assert main(arguments(folder, out, resume="")) == 0
    assert_same_run(out, uninterrupted)
    sessions = json.loads((out / "training.json").read_text())["sessions"]
    assert [(entry["first_step"], entry["last_step"]) for entry in sessions] == [(0, 7), (7, 12)]
    assert main(arguments(folder, out, resume="")) == 0
    assert "is at its end, after 12 steps" in capsys.readouterr().out


def test_time_limit_and_minutes(folder, tmp_path, monkeypatch, capsys):
    """A run by the clock: stopped by its limit, resumed with the clock going on, ended by the clock."""
    now = [1000.0]
    monkeypatch.setattr("codetr.training.trainer.time.monotonic", lambda: now[0])
    call = Step.__call__

    def slow(self, batch, step, factor):
        now[0] += 6.0
        call(self, batch, step, factor)

    monkeypatch.setattr(Step, "__call__", slow)
    out = tmp_path / "run"
    options = {"steps": None, "minutes": 1, "warmup": 0, "save_every": "60m", "log_every": 1}
    assert main(arguments(folder, out, **options, time_limit=0.5)) == 0
    assert "stopped by the time limit after 5 steps" in capsys.readouterr().out
    now[0] += 500.0  # nobody's training time
    assert main(arguments(folder, out, **options, resume="")) == 0
    assert "after 10 steps" in capsys.readouterr().out
    schedule = Schedule(minutes=1.0, floor=0.01)
    rates = [float(row["learning_rate"]) for row in logged(out)]
    assert rates == pytest.approx([1e-3 * schedule.factor(i, i / 10) for i in range(10)], rel=1e-4)


def test_validation(folder, tmp_path, monkeypatch):
    """AP with pycocotools, a loss without; ten times in a run unless told otherwise."""
    find = validation.importlib.util.find_spec
    for there in (True, False):
        if there and find("pycocotools") is None:
            continue
        monkeypatch.setattr(
            "codetr.training.validation.importlib.util.find_spec", lambda name, there=there: there or None
        )
        out = tmp_path / f"run{there}"
        every = 5 if there else None
        assert main(arguments(folder, out, steps=20, evaluate_every=every, log_every=100)) == 0
        rows = read_table(out / "validation.csv")
        steps = range(5, 21, 5) if there else range(2, 21, 2)
        assert [int(row["step"]) for row in rows] == list(steps)
        values = [float(row["AP" if there else "loss"]) for row in rows]
        assert all(0.0 <= value <= 1.0 for value in values) if there else min(values) > 1.0


def test_a_short_run_logs_its_last_step(folder, tmp_path, capsys):
    out = tmp_path / "run"
    assert main(arguments(folder, out, steps=4, log_every=None)) == 0
    assert [row["step"] for row in logged(out)] == ["4"]
    assert np.isfinite(float(logged(out)[0]["loss"]))
    assert "step 4 (100.0%" in capsys.readouterr().err


# Pictures that cannot be used.


def spoil(data: Path, split: str, broken: Sequence[int] = (2, 5, 7), truncated: int | None = 11) -> None:
    """Makes pictures bad: missing, of another size, empty, and without their last rows."""
    changes = (
        lambda path: path.unlink(),
        lambda path: Image.new("RGB", (10, 10)).save(path),
        lambda path: path.write_bytes(b""),
    )
    for index, change in zip(broken, changes):
        change(data / split / f"{index:03d}.png")
    if truncated is not None:
        path = data / split / f"{truncated:03d}.png"
        path.write_bytes(path.read_bytes()[:300])


@pytest.mark.parametrize("workers", [0, 2])
def test_bad_pictures_do_not_end_a_run(folder, tmp_path, capsys, monkeypatch, workers):
    """Named once, counted, in training and validation; --resume sees the same, whatever it knows of them."""
    pytest.importorskip("pycocotools", reason="pycocotools is not installed")
    data = tmp_path / "data"
    write_boxes(data, "train", 20, 0)
    write_boxes(data, "val", 8, 1)
    spoil(data, "train")
    spoil(data, "val", (1, 3), 4)
    options = {"model": folder / "model.json", "evaluate_every": 6, "workers": workers, "steps": 24}
    out = tmp_path / "run"
    assert main(arguments(data, out, **options)) == 0
    printed = capsys.readouterr()
    lines = [line for line in printed.err.splitlines() if "warning" in line]
    files = [data / "annotations" / f"instances_{split}.json" for split in ("train", "val")]
    expected = [
        f"{data}/train/002.png: no such file",
        f"{data}/train/005.png: the annotation file says 96x64, the picture has 10x10",
        f"{data}/train/007.png: the file is empty",
        f"3 of 20 pictures of {files[0]} cannot be used and are left out",
        f"{data}/val/001.png: no such file",
        f"{data}/val/003.png: the annotation file says 64x96, the picture has 10x10",
        f"2 of 8 pictures of {files[1]} cannot be used and are left out",
    ]
    assert lines[:7] == [f"codetr: warning: {line}" for line in expected]
    for line, name in zip(sorted(lines[7:]), ("train/011.png", "val/004.png"), strict=True):
        assert line.startswith(f"codetr: warning: {data}/{name}: the image is truncated")
        assert line.endswith("; left out")
    assert f"; 3 of 8 pictures of {files[1]} left out" in printed.err
    assert printed.out.splitlines()[-1].endswith(f"24 steps; 4 of 20 pictures of {files[0]} left out")
    assert json.loads((out / "training.json").read_text())["pictures_left_out"] == 4
    assert {row["left_out"] for row in read_table(out / "validation.csv")} == {"3"}

    again = tmp_path / "again"  # the pictures of both sessions are the same; what is known of them is not
    call = Step.__call__

    def interrupted(self, batch, step, factor):
        if step == 10:
            signal.raise_signal(signal.SIGTERM)
        call(self, batch, step, factor)

    with monkeypatch.context() as patch:
        patch.setattr(Step, "__call__", interrupted)
        assert main(arguments(data, again, **options)) == 128 + signal.SIGTERM
    (data / "train/011.png").write_bytes(b"")
    assert main(arguments(data, again, **options, resume="")) == 0
    assert_same_run(again, out)


def test_strict_ends_a_run_at_a_bad_picture(folder, tmp_path, capsys):
    """Before it begins, with all of them; later, with the state of the last step."""
    data, out = tmp_path / "data", tmp_path / "run"
    write_boxes(data, "train", 20, 0)
    write_boxes(data, "val", 4, 1)
    spoil(data, "train")
    spoil(data, "val", (1,), None)
    options = {"model": folder / "model.json", "evaluate_every": 100, "strict": "", "save_every": 100}
    assert main(arguments(data, out, **options)) == 2
    lines = capsys.readouterr().err.splitlines()
    for line, name in zip(lines, ("train/002", "train/005", "train/007", "val/001")):
        assert line.startswith(f"codetr: error: {data}/{name}.png: ")
    file = data / "annotations/instances_train.json"
    assert lines[4:] == [f"codetr: error: --strict: 3 of 20 pictures of {file} cannot be used"]
    assert not out.exists()

    shutil.copytree(folder, data, dirs_exist_ok=True)
    order = BatchOrder(load_coco(data, "train").pictures, 2, scales_of(folder), seed=0)
    bad = data / "train" / f"{order.requests(5)[0].index:03d}.png"
    seen = [request.index for step in range(5) for request in order.requests(step)]
    assert order.requests(5)[0].index not in seen
    whole = bad.read_bytes()
    bad.write_bytes(whole[:300])
    assert main(arguments(data, out, **options)) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith(f"codetr: error: {bad}: the image is truncated")
    assert error.endswith("; the state after 5 steps is saved, --resume goes on from there")
    assert [path.name for path in find_states(out)] == ["state-00000005.pt"]
    bad.write_bytes(whole)
    assert main(arguments(data, out, **options, resume="")) == 0
    assert main(arguments(data, tmp_path / "whole", **options)) == 0
    assert_same_run(out, tmp_path / "whole")


def test_roboflow_export(tmp_path, capsys):
    """Its valid is validated on; its category 0 is no class of the model, whatever valid lacks."""
    pytest.importorskip("pycocotools", reason="pycocotools is not installed")
    for split, count in (("train", 6), ("valid", 4)):
        write_boxes(tmp_path, split, count, 0)
        file = tmp_path / "annotations" / f"instances_{split}.json"
        document = json.loads(file.read_text())
        parent = {"id": 0, "name": "boxes", "supercategory": "none"}
        children = [{**row, "supercategory": "boxes"} for row in document["categories"]]
        document["categories"] = [parent, *children]
        if split == "valid":
            document["annotations"] = [row for row in document["annotations"] if row["category_id"] == 5]
        (tmp_path / split / "_annotations.coco.json").write_text(json.dumps(document))
        file.unlink()
    (tmp_path / "model.json").write_text(json.dumps(MODEL))
    out = tmp_path / "run"
    assert main(arguments(tmp_path, out, steps=2, evaluate_every=None)) == 0
    notes = [line for line in capsys.readouterr().err.splitlines() if "note" in line]
    words = "is no class, it has no annotations and is the supercategory of others"
    file = tmp_path / "train/_annotations.coco.json"
    assert notes == [f"codetr: note: {file}: category 'boxes' {words}"]
    assert codetr.load_config(out / "model.json").class_names == ("green", "red")
    assert len(read_table(out / "validation.csv")) == 2
    model = ["--model", out / "model.json", "--weights", out / "model.safetensors", "--device", "cpu"]
    assert main(["evaluate", "--data", str(tmp_path), *map(str, model)]) == 0
    assert f"4 pictures of {tmp_path / 'valid'}" in capsys.readouterr().out

    # Where only valid has objects of that category, it is a class of both.
    file = tmp_path / "valid/_annotations.coco.json"
    document = json.loads(file.read_text())
    document["annotations"][0]["category_id"] = 0
    file.write_text(json.dumps(document))
    assert main(arguments(tmp_path, tmp_path / "all", steps=2, evaluate_every=None)) == 0
    assert codetr.load_config(tmp_path / "all/model.json").class_names == ("boxes", "green", "red")


# Threads.


def test_threads_and_workers_share_the_cores(folder, tmp_path, monkeypatch):
    """On the CPU, without what other programs and the user's own choice take."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    monkeypatch.setattr(plan.os, "sched_getaffinity", lambda _: range(8), raising=False)

    def planned(**options) -> tuple[int | None, int]:
        command = arguments(folder, tmp_path / "run", **{"workers": None, **options})
        made = plan.make_plan(make_parser(None, None, None).parse_args(command))
        return made.threads, made.settings.workers

    assert planned() == (6, 2)
    assert planned(workers=5) == (3, 5) and planned(workers=9) == (1, 9)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert planned() == (2, 0)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert planned() == (None, 0)


def test_waiting_threads_sleep(folder, tmp_path):
    """OpenMP is told before Torch is loaded, unless the user has told it."""
    script = tmp_path / "script.py"
    script.write_text(
        "import os, sys\nfrom codetr.cli.detect import main\nassert 'torch' not in sys.modules\n"
        "status = main(sys.argv[1:])\nprint(os.environ['OMP_WAIT_POLICY'])\nsys.exit(status)\n"
    )
    for given, expected in ((None, "passive"), ("active", "active")):
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        environment.pop("OMP_WAIT_POLICY", None)
        environment |= {"OMP_WAIT_POLICY": given} if given else {}
        command = [sys.executable, str(script), *arguments(folder, tmp_path / "run", model="unknown")]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.stdout.splitlines() == [expected], done.stderr


@pytest.mark.slow
def test_it_learns(folder, tmp_path):
    """Rectangles of two colours are learned in some hundred steps."""
    pytest.importorskip("pycocotools", reason="pycocotools is not installed")
    out = tmp_path / "run"
    options = {"steps": 200, "batch": 4, "lr": 2e-3, "clip": 1.0, "ema": 0.98, "multi_scale": 1}
    assert main(arguments(folder, out, **options, evaluate_every=200, log_every=50)) == 0
    assert float(read_table(out / "validation.csv")[-1]["AP50"]) > 0.4


# Several processes.

RECORDER = """
import os, sys, torch
from codetr.cli.detect import main
from codetr.training.step import Step
from codetr.training.trainer import Trainer

call, run, seen = Step.__call__, Trainer.run, []

def recorded_call(self, batch, step, factor):
    seen.append(batch.pixels)
    call(self, batch, step, factor)

def recorded_run(self):
    finished = run(self)
    weights = {"network": self.plain_network.state_dict(), "average": self.average.model.state_dict()}
    torch.save({**weights, "seen": seen}, os.path.join(sys.argv[1], f"rank{self.processes.rank}.pt"))
    return finished

Step.__call__, Trainer.run = recorded_call, recorded_run
sys.exit(main(sys.argv[2:]))
"""


def torchrun(tmp_path: Path, processes: int, command: list[str]) -> subprocess.CompletedProcess:
    """Runs `codetr` on Gloo processes, each of which writes what it saw and its weights to rank<i>.pt."""
    script = tmp_path / "recorder.py"
    script.write_text(RECORDER)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [*launcher, str(processes), str(script), str(tmp_path), *command],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_two_processes_are_one_with_twice_the_batch(folder, tmp_path):
    """Both end with the same weights, saw each half of the batches, and report the losses of the whole."""
    options = {"steps": 4, "log_every": 1, "denoising": 0, "batch_norm": "frozen", "workers": 1}
    done = torchrun(tmp_path, 2, arguments(folder, tmp_path / "two", batch=2, **options))
    assert done.returncode == 0, done.stderr
    first, second = (torch.load(tmp_path / f"rank{rank}.pt") for rank in range(2))
    for name in ("network", "average"):
        assert all(torch.equal(tensor, second[name][key]) for key, tensor in first[name].items())

    assert main(arguments(folder, tmp_path / "one", batch=4, **options)) == 0
    data = load_coco(folder, "train")
    order = BatchOrder(data.pictures, 4, scales_of(folder), seed=0)
    samples = TrainingSet(data, Augmentation())
    for step, halves in enumerate(zip(first["seen"], second["seen"], strict=True)):
        whole = [samples[request] for request in order.requests(step)]
        for half, expected in zip(halves, (whole[:2], whole[2:])):
            assert torch.equal(half, collate(expected).pixels)
    losses = [[float(row["loss"]) for row in logged(tmp_path / name)] for name in ("two", "one")]
    assert losses[0] == pytest.approx(losses[1], rel=2e-3)


def test_bad_pictures_of_several_processes(folder, tmp_path):
    """The first names what all find, the others what they alone find; all are counted, the run goes on."""
    data = tmp_path / "data"
    write_boxes(data, "train", 20, 0)
    order = BatchOrder(load_coco(data, "train").pictures, 4, scales_of(folder), seed=0)
    index = order.requests(2)[3].index  # of the second process, third step
    spoil(data, "train", [0 if index else 1], index)
    options = {"model": folder / "model.json", "steps": 4, "log_every": 1}
    done = torchrun(tmp_path, 2, arguments(data, tmp_path / "run", **options))
    assert done.returncode == 0, done.stderr
    assert done.stderr.count(": no such file") == done.stderr.count("1 of 20 pictures") == 1
    assert done.stderr.count(f"{index:03d}.png: the image is truncated") == 1
    assert f"after 4 steps; 2 of 20 pictures of {data / 'annotations/instances_train.json'}" in done.stdout


def test_an_error_in_one_process_ends_all(folder, tmp_path):
    """A picture that only one process reads is damaged: it says so, and nobody waits for ever."""
    data = tmp_path / "data"
    write_boxes(data, "train", 20, 0)
    order = BatchOrder(load_coco(data, "train").pictures, 4, scales_of(folder), seed=0)
    bad = data / "train" / f"{order.requests(2)[3].index:03d}.png"  # of the second process, third step
    bad.write_bytes(bad.read_bytes()[:300])
    started = time.monotonic()
    options = {"model": folder / "model.json", "strict": ""}
    done = torchrun(tmp_path, 2, arguments(data, tmp_path / "run", **options))
    assert done.returncode != 0
    assert f"codetr: error: process 1: {bad}: the image is truncated" in done.stderr
    assert time.monotonic() - started < 90


def test_an_error_that_all_find_is_said_once(folder, tmp_path):
    done = torchrun(tmp_path, 2, arguments(folder, tmp_path / "run", model="unknown"))
    assert done.returncode != 0 and done.stderr.count("codetr: error: --model") == 1


def test_other_processes_leave_an_error_to_the_first(folder, tmp_path, monkeypatch, capsys):
    """They do not leave before it has spoken, which would end it; what only they find they say."""
    waited = []
    monkeypatch.setattr(command.time, "sleep", waited.append)
    for name, value in (("RANK", "1"), ("LOCAL_RANK", "1"), ("WORLD_SIZE", "2")):
        monkeypatch.setenv(name, value)
    assert main(arguments(folder, tmp_path / "run", model="unknown")) == 2
    assert waited == [command.SECONDS_TO_SPEAK] and "codetr: error: --model" in capsys.readouterr().err


# The benchmark.


def test_benchmark_measures_the_same_with_both_attentions(folder, monkeypatch):
    """With grid_sample in the kernels' place, a step calls it and comes to the same loss."""
    import msda.reference
    from benchmarks import training

    calls = []
    reference = msda.reference.fused_attention
    monkeypatch.setattr(
        msda.reference, "fused_attention", lambda *args: calls.append(len(args)) or reference(*args)
    )
    losses = {}
    for name in training.ATTENTIONS:
        problem = training.Problem(str(folder / "model.json"), 64, 96, 2)
        with training.attention(name):
            step, batch = training.prepare(problem, bf16=False, device="cpu")
            step(batch, 0, 1.0)
        losses[name] = step.meter.read()[0]["loss"]
        assert len(calls) == (0 if name == "kernels" else 3)  # encoder and decoder layers
    assert losses["kernels"] == pytest.approx(losses["grid_sample"], rel=1e-4)


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is here")
def test_benchmark_without_gpu(capsys):
    from benchmarks import training

    assert training.main([]) == 1
    assert capsys.readouterr().err.startswith(
        "benchmarks.training: error: this benchmark needs an NVIDIA GPU"
    )
    assert training.main(["--problem", "co_dino_r50"]) == 2
    assert "expected MODEL:HEIGHTxWIDTH:BATCH" in capsys.readouterr().err


# On a GPU.


@pytest.mark.gpu
def test_a_step_waits_for_the_gpu_once(folder):
    """The copy of the matching's costs to the host is the only one that a step waits for."""
    from benchmarks import training

    step, batch = training.prepare(training.Problem(str(folder / "model.json"), 64, 96, 2), bf16=True)
    for index in range(3):
        step(batch, index, 1.0)
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            step(batch, 3, 1.0)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    waits = [warning for warning in caught if "synchronizing" in str(warning.message)]
    assert len(waits) == 1, [f"{warning.filename}:{warning.lineno}" for warning in waits]


@pytest.mark.gpu
def test_a_run_on_the_gpu(folder, tmp_path):
    """With worker processes, pinned memory and bfloat16: stopped, resumed, finite, and weights that load."""
    out = tmp_path / "run"
    options = {"device": "cuda", "workers": 2, "steps": 40, "log_every": 10}
    assert main(arguments(folder, out, **options, time_limit=1e-9)) == 0
    assert main(arguments(folder, out, **options, resume="")) == 0
    assert np.isfinite([float(row["loss"]) for row in logged(out)]).all()
    model = codetr.CoDino(codetr.load_config(out / "model.json"))
    codetr.load_checkpoint(model, out / "model.safetensors")
