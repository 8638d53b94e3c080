"""`codetr train` with a tiny model: complete, killed, stopped, resumed, by the clock, with bad pictures."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import codetr
from codetr.cli import main
from codetr.training import trainer, training_plan
from codetr.training.run_state import find_states
from codetr.training.torchrun_processes import Processes
from codetr.training.train_options import TrainOptions
from codetr.training.trainer import learning_rate_factor
from codetr.training.training_log import read_table
from codetr.training.training_step import TrainingStep
from tests.training.training_runs import (
    MODEL,
    SUBPROCESS,
    arguments,
    assert_same_run,
    logged,
    train,
    write_boxes,
)

pytestmark = pytest.mark.usefixtures("one_thread")


@contextlib.contextmanager
def before_step(number: int, action: Callable[[], None]):
    """Calls a function before the step with this number, counted from 0."""
    call = TrainingStep.__call__

    def changed(self, batch, step, factor):
        if step == number:
            action()
        call(self, batch, step, factor)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TrainingStep, "__call__", changed)
        yield


def terminate() -> None:
    signal.raise_signal(signal.SIGTERM)


def test_files_of_a_run(folder, uninterrupted, tmp_path):
    names = {path.name for path in uninterrupted.iterdir()}
    expected = {"model.json", "model.safetensors", "training.json", "log.csv", "curves.png"}
    assert names == expected | {"state-00000008.pt", "state-00000012.pt"}
    rows = logged(uninterrupted)
    assert [row["step"] for row in rows] == ["3", "6", "9", "12"]
    for row in rows:
        terms = sum(float(value) for name, value in row.items() if "/" in name)
        assert np.isfinite(terms) and terms == pytest.approx(float(row["loss"]), rel=1e-4)
    assert Image.open(uninterrupted / "curves.png").size == (1200, 800)
    report = json.loads((uninterrupted / "training.json").read_text())
    assert report["steps"] == 12 and report["images"] == 24 and report["classes"] == ["green", "red"]
    assert report["sessions"][0]["stopped_by"] == "the end" and report["sessions"][0]["torch"]

    picture = str(folder / "val" / "000.png")
    model = ["--model", str(uninterrupted), "--device", "cpu"]
    assert main(["detect", picture, *model, "--out", str(tmp_path), "--threshold", "0"]) == 0
    document = json.loads((tmp_path / "detections.json").read_text())
    assert {category["name"] for category in document["categories"]} == {"green", "red"}


def test_a_killed_run_resumes(folder, uninterrupted, tmp_path):
    """SIGKILL after a state was written, then --resume: the same weights and the same log."""
    out = tmp_path / "run"
    command = [sys.executable, "-m", "codetr", *arguments(folder, out, workers=2)]
    process = subprocess.Popen(command, env=SUBPROCESS, stderr=subprocess.DEVNULL, start_new_session=True)
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
    (out / "log.csv").open("a").write("9,0.7")  # an incomplete row
    assert train(folder, out, workers=2, resume="") == 0
    assert_same_run(out, uninterrupted)


def test_a_signal_stops_a_run_between_steps(folder, uninterrupted, tmp_path, capsys):
    """SIGTERM during a step: the step ends, the run saves its state, and --resume continues from it."""
    out = tmp_path / "run"
    with before_step(6, terminate):
        assert train(folder, out) == 128 + signal.SIGTERM
    assert "stopped by SIGTERM after 7 steps; --resume" in capsys.readouterr().out
    assert find_states(out)[-1].name == "state-00000007.pt"
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    assert train(folder, out, resume="") == 0
    assert_same_run(out, uninterrupted)
    sessions = json.loads((out / "training.json").read_text())["sessions"]
    assert [(entry["first_step"], entry["last_step"]) for entry in sessions] == [(0, 7), (7, 12)]
    assert train(folder, out, resume="") == 0
    assert "is at its end, after 12 steps" in capsys.readouterr().out


def test_a_run_that_failed_after_its_last_state_resumes(folder, uninterrupted, tmp_path, capsys):
    """The weights cannot be written at the end: --resume writes them from the state."""
    out = tmp_path / "run"
    (out / "model.safetensors").mkdir(parents=True)
    assert train(folder, out, save_every=100) == 1
    assert "; the state after 12 steps is saved, --resume continues from" in capsys.readouterr().err
    (out / "model.safetensors").rmdir()
    assert train(folder, out, save_every=100, resume="") == 0
    assert_same_run(out, uninterrupted)


def test_a_failing_step_leaves_the_state_before_it(folder, uninterrupted, tmp_path, capsys):
    def fail():
        raise torch.OutOfMemoryError("CUDA out of memory.")

    out = tmp_path / "run"
    with before_step(6, fail):
        assert train(folder, out) == 1
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("codetr: error: CUDA out of memory.; the state after 6 steps is saved, --resume")
    assert [path.name for path in find_states(out)] == ["state-00000004.pt", "state-00000006.pt"]
    assert train(folder, out, resume="") == 0
    assert_same_run(out, uninterrupted)


@pytest.fixture
def clock(monkeypatch):
    """A clock that a step moves by six seconds."""
    now = [1000.0]
    monkeypatch.setattr("codetr.training.trainer.time.monotonic", lambda: now[0])
    call = TrainingStep.__call__

    def slow(self, batch, step, factor):
        now[0] += 6.0
        call(self, batch, step, factor)

    monkeypatch.setattr(TrainingStep, "__call__", slow)
    return now


def test_validation_is_no_part_of_the_speed(folder, tmp_path, monkeypatch, clock):
    def validate(*arguments, **options):
        clock[0] += 3.0
        return dict.fromkeys(trainer.VALIDATION_COLUMNS[3:-1], 0.0)

    monkeypatch.setattr(trainer, "validate", validate)
    out = tmp_path / "run"
    assert train(folder, out, steps=None, minutes=1, warmup=0, log_every=50, evaluate_every=1) == 0
    (row,) = read_table(out / "log.csv")
    assert float(row["images_per_second"]) == pytest.approx(2 / 6, rel=1e-3)


def test_time_limit_and_minutes(folder, tmp_path, clock, capsys):
    """A run by the clock: stopped by its limit, resumed with the clock going on, ended by the clock."""
    out = tmp_path / "run"
    options = {"steps": None, "minutes": 1, "warmup": 0, "save_every": "60.0m", "log_every": 1}
    assert train(folder, out, **options, time_limit=0.5) == 0
    assert "stopped by the time limit after 5 steps" in capsys.readouterr().out
    clock[0] += 500.0  # no training time
    assert train(folder, out, **options, resume="") == 0
    assert "after 10 steps" in capsys.readouterr().out
    rates = [float(row["learning_rate"]) for row in logged(out)]
    expected = [1e-3 * learning_rate_factor(step, step / 10, 0, 0.01) for step in range(10)]
    assert rates == pytest.approx(expected, rel=1e-4)


# Bad pictures.


def spoil(data: Path, split: str, missing: int, truncated: int) -> list[Path]:
    """Makes two pictures unusable: a missing one, and one that its header hides."""
    paths = [data / split / f"{index:03d}.png" for index in (missing, truncated)]
    paths[0].unlink()
    paths[1].write_bytes(paths[1].read_bytes()[:300])
    return paths


def test_bad_pictures_do_not_end_a_run(folder, tmp_path, capsys):
    """They are reported once and counted, in training and validation."""
    data, out = shutil.copytree(folder, tmp_path / "data"), tmp_path / "run"
    missing, truncated = spoil(data, "train", 2, 11)
    others = spoil(data, "val", 1, 3)
    assert train(data, out, steps=6, batch=4, evaluate_every=3) == 0  # one epoch
    printed = capsys.readouterr()
    warnings = [
        line.removeprefix("codetr: warning: ") for line in printed.err.splitlines() if "warning" in line
    ]
    train_file, val_file = (data / "annotations" / f"instances_{split}.json" for split in ("train", "val"))
    assert warnings[:4] == [
        f"{missing}: no such file",
        f"1 of 20 pictures of {train_file} cannot be used and are left out",
        f"{others[0]}: no such file",
        f"1 of 4 pictures of {val_file} cannot be used and are left out",
    ]
    assert sorted(line.split(": ")[0] for line in warnings[4:]) == [str(truncated), str(others[1])]
    assert f"; 2 of 4 pictures of {val_file} left out" in printed.err
    assert printed.out.splitlines()[-1].endswith(f"6 steps; 2 of 20 pictures of {train_file} left out")
    assert json.loads((out / "training.json").read_text())["pictures_left_out"] == 2
    assert {row["left_out"] for row in read_table(out / "validation.csv")} == {"2"}


def test_roboflow_export(tmp_path, capsys):
    """The run validates on its split valid. Its category 0 is no class, unless an annotation has it."""
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
    assert train(tmp_path, out, steps=2, evaluate_every=None) == 0
    assert "category 'boxes' is no class" in capsys.readouterr().err
    assert codetr.load_config(out / "model.json").class_names == ("green", "red")
    rows = read_table(out / "validation.csv")
    assert len(rows) == 2 and all(0.0 <= float(row["AP"]) <= 1.0 for row in rows)
    assert main(["evaluate", "--data", str(tmp_path), "--model", str(out), "--device", "cpu"]) == 0
    assert f"4 pictures of {tmp_path / 'valid'}" in capsys.readouterr().out

    # A category that only the split valid uses is a class of both splits.
    file = tmp_path / "valid/_annotations.coco.json"
    document = json.loads(file.read_text())
    document["annotations"][0]["category_id"] = 0
    file.write_text(json.dumps(document))
    data, validation_data = training_plan._load(TrainOptions(data=tmp_path, out=out, model=""))
    assert data.class_names == validation_data.class_names == ("boxes", "green", "red")


def test_defaults_of_the_plan(folder, tmp_path, monkeypatch):
    """Threads and workers share the cores. Length, warm-up and others depend on dataset and weights."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    monkeypatch.setattr(training_plan.os, "sched_getaffinity", lambda _: range(8), raising=False)

    def planned(**options):
        given = TrainOptions(
            **{"data": folder, "out": tmp_path, "model": folder / "model.json", "init": "none", **options}
        )
        return training_plan.make_plan(given, Processes(0, 1, torch.device("cpu")))

    plan = planned(epochs=50.0)
    assert (plan.threads, plan.options.workers) == (6, 2)
    options = plan.options
    assert (options.steps, options.warmup, options.backbone_lr_factor) == (550, 27, 1.0)
    assert (options.batch_norm, options.precision) == ("train", "fp32")
    assert planned(workers=9).threads == 1
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert (planned().threads, planned().options.workers) == (2, 0)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert planned().threads is None


@pytest.mark.slow
def test_it_learns(folder, tmp_path):
    """Rectangles of two colours are learned in 100 steps."""
    out = tmp_path / "run"
    options = {"steps": 100, "batch": 4, "lr": 2e-3, "clip": 1.0, "ema": 0.98, "multi_scale": 1}
    assert train(folder, out, **options, denoising=20, evaluate_every=100, log_every=50) == 0
    assert float(read_table(out / "validation.csv")[-1]["AP50"]) > 0.4


@pytest.mark.gpu
def test_a_run_on_the_gpu(folder, tmp_path):
    """With worker processes, pinned memory and bfloat16: stopped, resumed, finite, and weights that load."""
    out = tmp_path / "run"
    options = {"device": "cuda", "workers": 2, "steps": 40, "log_every": 10}
    assert train(folder, out, **options, time_limit=1e-9) == 0
    assert train(folder, out, **options, resume="") == 0
    assert np.isfinite([float(row["loss"]) for row in logged(out)]).all()
    model = codetr.CoDino(codetr.load_config(out / "model.json"))
    codetr.load_checkpoint(model, out / "model.safetensors")
