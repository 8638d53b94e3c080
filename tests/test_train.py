"""`codetr train` with a tiny model: whole, killed, stopped, resumed, by the clock, on two processes."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import codetr
from codetr.cli import main
from codetr.coco import load_coco
from codetr.training import command, validation
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
from tests.training_runs import ROOT, arguments, assert_same_run, logged, scales_of, write_boxes

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
from codetr.cli import main
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


def test_an_error_in_one_process_ends_all(folder, tmp_path):
    """A picture that only one process reads is damaged: it says so, and nobody waits for ever."""
    data = tmp_path / "data"
    write_boxes(data, "train", 20, 0)
    order = BatchOrder(load_coco(data, "train").pictures, 4, scales_of(folder), seed=0)
    bad = data / "train" / f"{order.requests(2)[3].index:03d}.png"  # of the second process, third step
    bad.write_bytes(bad.read_bytes()[:300])
    started = time.monotonic()
    done = torchrun(tmp_path, 2, arguments(data, tmp_path / "run", model=folder / "model.json"))
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
