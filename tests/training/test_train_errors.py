"""`codetr train`: one line for every error, status 2 for wrong input, and no folder left behind."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from codetr.cli import main
from codetr.training.training_step import TOLERATED_SKIPS, TrainingStep
from tests.detector.detect_runs import error_line
from tests.training.training_runs import MODEL, arguments, train

pytestmark = pytest.mark.usefixtures("one_thread")


def fails(capsys, command: list[str]) -> str:
    """Runs a command that must exit with status 2. Returns its one line of error."""
    capsys.readouterr()
    assert main(command) == 2
    return error_line(capsys)


def other_classes(folder: Path) -> None:
    path = folder / "annotations/instances_val.json"
    path.write_text(path.read_text().replace('"green"', '"blue"'))


def no_json(folder: Path) -> None:
    (folder / "annotations/instances_train.json").write_text("{")


def no_pictures(folder: Path) -> None:
    for file in (folder / "val").iterdir():
        file.write_bytes(b"no picture")


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (no_json, "instances_train.json"),
        (other_classes, "instances_val.json: the categories differ from "),
        (no_pictures, "val/000.png: not an image"),
    ],
)
def test_broken_data(folder, tmp_path, capsys, damage, words):
    data = shutil.copytree(folder, tmp_path / "data")
    damage(data)
    assert words in fails(capsys, arguments(data, tmp_path / "a" / "run", evaluate_every=100))
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"init": None}, "--init: expected weights: none lie beside "),
        ({"init": "nowhere.pth"}, "--init: expected a file, a URL, "),
        ({"model": "co_dino"}, "--model: "),
        ({"data": "missing"}, '"missing" for --data. "missing" does not exist'),
        ({"resume": ""}, "--resume: expected a state in "),
        ({"size": "640"}, "--size"),
        ({"minutes": 5}, "--minutes: expected no --steps with it"),
        ({"steps": None, "epochs": "inf"}, '"inf" for --epochs. Must be < inf'),
        ({"lr": "inf"}, '"inf" for --lr. Must be < inf'),
        ({"save_every": "5s"}, "--save-every"),
        ({"device": "cuda:1"}, "--device"),
        (
            {"train_split": "val", "evaluate_every": 5},
            "--val-split: expected another split than --train-split, got 'val', and ",
        ),
        ({"model": "many.json", "size": "64x32", "multi_scale": 0.5}, "--size: expected 200 cells or more"),
    ],
)
def test_wrong_options(folder, tmp_path, capsys, monkeypatch, options, words):
    monkeypatch.chdir(tmp_path)
    Path("many.json").write_text(json.dumps({**MODEL, "num_queries": 200}))
    assert words in fails(capsys, arguments(folder, tmp_path / "run", **options))
    assert not (tmp_path / "run").exists()


def test_a_run_is_not_overwritten(folder, uninterrupted, capsys):
    for options, words in (
        ({}, f"--out: expected a new folder, got {uninterrupted} with state-00000012.pt; --resume"),
        ({"resume": "", "lr": 5e-4}, "belongs to a run with another --lr: 0.001 there, 0.0005 now"),
        ({"resume": "", "batch": 3}, "another --batch times processes: 2 there, 3 now"),
    ):
        assert words in fails(capsys, arguments(folder, uninterrupted, **options))


def test_the_model_json_of_an_export_is_not_overwritten(folder, tmp_path, capsys):
    (tmp_path / "model.json").write_text('{"format": 1}')
    words = fails(capsys, arguments(folder, tmp_path))
    assert words.endswith(f"--out: expected a new folder, got {tmp_path} with model.json")
    assert [path.name for path in tmp_path.iterdir()] == ["model.json"]


def test_diverged_training_ends(folder, tmp_path, monkeypatch, capsys):
    """Gradients that stay infinite end the run at the next log, and the state before stays."""
    call = TrainingStep.__call__

    def diverging(self, batch, step, factor):
        if step == 5:
            self.parameters[0].register_hook(lambda gradient: gradient * float("inf"))
        call(self, batch, step, factor)

    monkeypatch.setattr(TrainingStep, "__call__", diverging)
    assert train(folder, tmp_path / "run", steps=40, save_every=5, log_every=20) == 1
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("codetr: error: step 20: the gradients of the last 15 steps are non-finite")
    assert error.endswith("; the state after 20 steps is saved, --resume continues from there")
    assert TOLERATED_SKIPS < 15
