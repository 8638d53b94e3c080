"""`codetr train`: one line for everything that goes wrong, and nothing left behind."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import codetr
from codetr.cli.detect import main
from codetr.training.state import find_states
from codetr.training.step import TOLERATED_SKIPS, Step
from tests.training_runs import MODEL, ROOT, arguments, assert_same_run, write_boxes

pytest_plugins = ("tests.training_fixtures",)
pytestmark = pytest.mark.usefixtures("one_thread")


def fails(capsys, command: list[str]) -> str:
    """Runs a command that must fail as wrong usage; returns its one line, the last but for progress."""
    capsys.readouterr()
    assert main(command) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[-1].startswith("codetr: error: "), lines
    assert all(line.startswith(("training ", "step ")) for line in lines[:-1]), lines
    return lines[-1]


# What goes wrong.


def test_a_run_is_not_overwritten(folder, uninterrupted, tmp_path, capsys):
    error = fails(capsys, arguments(folder, uninterrupted))
    assert f"--out {uninterrupted}: holds a run (state-00000012.pt); add --resume" in error
    error = fails(capsys, arguments(folder, uninterrupted, resume="", lr=5e-4))
    assert "state-00000012.pt: is of a run with another --lr: 0.001 there, 0.0005 now" in error
    error = fails(capsys, arguments(folder, uninterrupted, resume="", batch=3))
    assert "another --batch times processes: 2 there, 3 now" in error
    error = fails(capsys, arguments(folder, tmp_path / "new", resume=""))
    assert f"--resume: there is no state in {tmp_path / 'new'}" in error
    assert not (tmp_path / "new").exists()


def broken(folder: Path, what: str) -> str:
    """Breaks a data set; returns the file that the error must name."""
    file = folder / "annotations" / "instances_train.json"
    document = json.loads(file.read_text())
    if what == "not JSON":
        file.write_text(file.read_text()[:-5])
    elif what == "an unknown class":
        document["annotations"][3]["category_id"] = 77
        file.write_text(json.dumps(document))
    elif what == "no pictures":
        for file in sorted((folder / "train").iterdir(), reverse=True):
            file.unlink()
    elif what == "no good picture to validate":
        for file in sorted((folder / "val").iterdir(), reverse=True):
            file.write_bytes(b"no picture")
    elif what == "other classes to validate":
        file = folder / "annotations" / "instances_val.json"
        document = json.loads(file.read_text())
        document["categories"][0]["name"] = "blue"
        file.write_text(json.dumps(document))
    return str(file)


BROKEN = (
    *("not JSON", "an unknown class", "no pictures", "other classes to validate"),
    "no good picture to validate",
)


@pytest.mark.parametrize("what", BROKEN)
def test_broken_data(folder, tmp_path, capsys, what):
    """One line that names the file, status 2, and no folder left behind."""
    data = tmp_path / "data"
    write_boxes(data, "train", 6, 0)
    write_boxes(data, "val", 2, 1)
    file = broken(data, what)
    options = {"model": folder / "model.json", "evaluate_every": 100}
    error = fails(capsys, arguments(data, tmp_path / "a" / "run", **options))
    assert file in error
    assert not (tmp_path / "a").exists()


def test_no_data(folder, tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    for name in ("empty", "missing"):
        data = tmp_path / name
        error = fails(capsys, arguments(data, tmp_path / "run", model=folder / "model.json"))
        assert f"{data}: " in error


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"init": None},
            "--init: needed, no weights are published for model model .*'none' trains from scratch",
        ),
        ({"init": "nowhere.pth"}, "--init nowhere.pth: no such file; expected a file, a URL"),
        ({"model": "co_dino"}, "--model: model 'co_dino': expected one of"),
        ({"size": "640"}, "argument --size: expected LONGxSHORT in pixels"),
        ({"minutes": 5}, "not allowed with argument"),
        ({"lr": 0}, "argument --lr: expected a number above 0, got '0'"),
        ({"ema": 1}, "argument --ema: expected a number from 0 to below 1, got '1'"),
        ({"save_every": "5s"}, "argument --save-every: expected a whole number above 0, got '5s'"),
        ({"flip": "nan"}, "argument --flip: expected a number from 0 to 1, got 'nan'"),
        (
            {"data": "plain", "evaluate_every": 5},
            "--evaluate-every: .*plain has no annotations of a split val",
        ),
        ({"val_split": "train", "evaluate_every": 5}, "--val-split train: .* is what is trained on"),
    ],
)
def test_wrong_arguments(folder, tmp_path, capsys, monkeypatch, options, message):
    monkeypatch.chdir(tmp_path)
    if "data" in options:
        write_boxes(tmp_path / options["data"], "train", 2, 0)
        options = {**options, "model": folder / "model.json"}
    error = fails(capsys, arguments(folder, tmp_path / "run", **options))
    assert re.search(message, error), error
    assert not (tmp_path / "run").exists()


def test_too_small_pictures(folder, tmp_path, capsys):
    """At the least of the sizes, the pyramid has fewer cells than there are queries."""
    model = tmp_path / "many.json"
    model.write_text(json.dumps({**MODEL, "num_queries": 200}))
    options = {"model": model, "size": "64x32", "multi_scale": 0.5}
    error = fails(capsys, arguments(folder, tmp_path / "run", **options))
    size = r"(96x64|64x96) has 85 cells when it is fitted into 32x32"
    assert re.search(f"--size, --multi-scale: a picture of {size}, fewer than the model's 200", error), error


def test_weights_of_another_model(folder, uninterrupted, tmp_path, capsys):
    model = tmp_path / "wide.json"
    model.write_text(json.dumps({**MODEL, "feedforward_channels": 96}))
    weights = uninterrupted / "model.safetensors"
    error = fails(capsys, arguments(folder, tmp_path / "run", model=model, init=weights))
    assert f"--init {weights}: the weights are not those of model wide" in error
    assert not (tmp_path / "run").exists()


def test_diverged_training_ends(folder, tmp_path, monkeypatch, capsys):
    """Gradients that stay infinite end the run at the next log, and the state before stays."""
    call = Step.__call__

    def diverging(self, batch, step, factor):
        if step == 5:
            parameter = self.parameters[0]
            parameter.register_hook(lambda gradient: gradient * float("inf"))
        call(self, batch, step, factor)

    monkeypatch.setattr(Step, "__call__", diverging)
    out = tmp_path / "run"
    assert main(arguments(folder, out, steps=40, save_every=5, log_every=20)) == 1
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("codetr: error: step 20: the gradients of the last 15 steps are not finite")
    assert error.endswith("; the state after 20 steps is saved, --resume goes on from there")
    assert TOLERATED_SKIPS < 15


def test_a_failing_step_leaves_the_state_before_it(folder, uninterrupted, tmp_path, monkeypatch, capsys):
    """After a step that runs out of memory, --resume comes to what an uninterrupted run comes to."""
    take = Step.__call__

    def failing(self, batch, step, factor):
        if step == 6:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        take(self, batch, step, factor)

    out = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(Step, "__call__", failing)
        assert main(arguments(folder, out)) == 1
    error = capsys.readouterr().err.splitlines()[-1]
    assert error == (
        "codetr: error: CUDA out of memory. Tried to allocate 2.00 GiB.; the state after 6 steps is saved, "
        "--resume goes on from there"
    )
    assert [path.name for path in find_states(out)] == ["state-00000004.pt", "state-00000006.pt"]
    assert codetr.load_config(out / "model.json").class_names == ("green", "red")
    assert main(arguments(folder, out, resume="")) == 0
    assert_same_run(out, uninterrupted)


def test_an_error_whose_state_cannot_be_saved_is_told_all_the_same(folder, tmp_path, monkeypatch, capsys):
    def full(*_):
        raise OSError(28, "No space left on device", "state.pt")

    monkeypatch.setattr("codetr.training.trainer.save_state", full)
    assert main(arguments(folder, tmp_path / "run", save_every=4)) == 1
    assert capsys.readouterr().err.splitlines()[-1] == "codetr: error: state.pt: No space left on device"
    assert not (tmp_path / "run").exists() or find_states(tmp_path / "run") == []


def test_help_needs_no_torch():
    code = (
        "import sys; from codetr.cli.detect import main\ntry: main(['train', '--help'])\nexcept SystemExit: pass\n"
    )
    code += "assert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "--backbone-lr-factor" in done.stdout and "--strict" in done.stdout
    for layout in ("annotations/instances_train.json", "train/_annotations.coco.json", "annotations.json"):
        assert layout in done.stdout
