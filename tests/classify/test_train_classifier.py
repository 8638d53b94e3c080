"""`codetr train --task classify`: it learns, resumes to the same weights, and its file says all about it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from codetr.cli import main
from tests.classify.class_pictures import COLOURS, write_classes

pytest.importorskip("torchvision", reason="torchvision is not installed")

from codetr.classify import training
from codetr.classify.class_folders import load_class_folders
from codetr.classify.classifier_file import load_classifier
from codetr.classify.pictures import read_batches
from codetr.classify.top_k import TopK


def arguments(data: Path, out: Path, /, **options) -> list[str]:
    given = {
        **{"task": "classify", "data": data, "out": out, "network": "shufflenet_v2_x0_5", "weights": "none"},
        **{"image_size": 32, "epochs": 3, "batch": 8, "lr": 0.05, "device": "cpu", "workers": 0},
    } | options
    pairs = ((f"--{name.replace('_', '-')}", value) for name, value in given.items() if value is not None)
    return ["train", *(word for name, value in pairs for word in (name, str(value)) if word)]


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("classes")
    write_classes(folder / "train", 40, 0)
    write_classes(folder / "val", 16, 1)
    return folder


@pytest.fixture(scope="module")
def whole(data, tmp_path_factory) -> Path:
    """A run without interruption."""
    out = tmp_path_factory.mktemp("runs") / "whole"
    assert main(arguments(data, out)) == 0
    return out


def test_it_learns_and_its_file_tells_all(data, tmp_path, capsys):
    options = {"network": "resnet18", "lr": 0.003, "epochs": 5, "batch": 4, "colour": 0.1}
    assert main(arguments(data, tmp_path / "run", **options)) == 0
    assert capsys.readouterr().out.count("\nepoch ") == 4  # one line an epoch
    log = json.loads((tmp_path / "run" / "training.json").read_text())
    assert [row["epoch"] for row in log["epochs"]] == [1, 2, 3, 4, 5]
    assert log["epochs"][-1]["top1"] >= 0.75  # of four classes
    model = load_classifier(tmp_path / "run")
    assert model.class_names == tuple(sorted(COLOURS)) and model.network == "resnet18"
    assert (model.preprocessing.resize, model.preprocessing.crop) == (37, 32)
    counts = TopK()
    dataset = load_class_folders(data / "val", model.class_names)
    with torch.inference_mode():
        for images, labels in read_batches(dataset.pictures, model.preprocessing, 8):
            counts.update(model(torch.from_numpy(images)).numpy(), labels)
    assert counts.top1 == log["epochs"][-1]["top1"]


@pytest.mark.parametrize("workers", [0, 2])
def test_an_interrupted_run_resumes_to_the_same_weights(data, whole, tmp_path, monkeypatch, workers):
    save = training.save_state

    def stop(folder, epoch, *arguments):
        save(folder, epoch, *arguments)
        if epoch == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(training, "save_state", stop)
    assert main(arguments(data, tmp_path / "run", workers=workers)) == 130
    assert not (tmp_path / "run" / "model.safetensors").exists()
    monkeypatch.setattr(training, "save_state", save)
    assert main([*arguments(data, tmp_path / "run", workers=workers), "--resume"]) == 0
    weights, wanted = (load_file(folder / "model.safetensors") for folder in (tmp_path / "run", whole))
    assert weights.keys() == wanted.keys()
    assert [name for name in wanted if not torch.equal(weights[name], wanted[name])] == []


def test_initial_weights_of_other_classes(data, whole, tmp_path, capsys):
    other = write_classes(tmp_path / "set" / "train", 8, names=("red", "green"))
    shutil.copytree(other, tmp_path / "set" / "val")
    state = torch.load(sorted(whole.glob("state-*.pt"))[-1], weights_only=True)
    torch.save({"state_dict": state["model"]}, tmp_path / "own.pth")
    for file in (whole / "model.safetensors", tmp_path / "own.pth"):
        out = tmp_path / f"run-{file.stem}"
        assert main(arguments(tmp_path / "set", out, weights=file, epochs=1)) == 0
        total = len(state["model"])
        assert f"; {total - 2} of {total} tensors of {file}" in capsys.readouterr().err
        assert len(load_classifier(out).class_names) == 2


def test_corrupt_pictures_are_left_out(data, tmp_path, capsys):
    copy = shutil.copytree(data, tmp_path / "set")
    (copy / "train" / "red" / "002.png").write_text("no picture")
    for damaged in (copy / "train" / "red" / "006.png", copy / "val" / "red" / "002.png"):
        damaged.write_bytes(damaged.read_bytes()[:-300])
    assert main(arguments(copy, tmp_path / "run", epochs=2)) == 0
    printed = capsys.readouterr()
    lines = printed.err.splitlines()
    assert [sum(name in line for line in lines) for name in ("002.png", "006.png")] == [2, 1]
    assert f"2 of 40 pictures of {copy / 'train'} and 1 of 16 pictures of {copy / 'val'} left" in printed.out
    assert json.loads((tmp_path / "run" / "training.json").read_text())["pictures_left_out"] == 3


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"network": None}, "--network: expected a classifier of torchvision such as resnet18, got none"),
        ({"network": "resnet19"}, "--network: expected a classifier of torchvision (resnet18, "),
        ({"network": "fasterrcnn_resnet50_fpn"}, "--network: expected a classifier of torchvision"),
        ({"weights": "nowhere.pth"}, "--weights: expected pretrained, none or a file, got 'nowhere.pth'"),
        ({"weights": "wrong.safetensors"}, "--weights: expected weights of shufflenet_v2_x0_5, got 0 of "),
        ({"weights": "damaged.safetensors"}, "--weights: damaged.safetensors: damaged, or no safetensors"),
        ({"weights": "damaged.pth"}, "--weights: damaged.pth: cut off, or not a PyTorch checkpoint"),
        ({"weights": "module.pth"}, "--weights: module.pth: expected a state dict, as torch.save("),
        ({"data": "missing"}, '"missing" for --data. "missing" does not exist'),
        (
            {"data": "empty"},
            "--data: expected a folder of class folders, got empty/train: no such folder",
        ),
        (
            {"data": "other"},
            "--data: expected each class folder to be one of the network's 4 classes (blue, …)",
        ),
        ({"epochs": 1.5}, "--epochs: expected a whole number with --task classify, got 1.5"),
        ({"resume": ""}, "--resume: expected a state in "),
        ({"denoising": 5}, "--denoising: expected it with --task detect only"),
        ({"model": "co_dino_r50"}, "--model: expected it with --task detect only"),
        ({"task": "detect"}, "--network: expected it with --task classify only"),
    ],
)
def test_errors_in_one_line(data, tmp_path, capsys, monkeypatch, options, words):
    monkeypatch.chdir(tmp_path)
    for name in ("damaged.pth", "damaged.safetensors"):
        Path(name).write_bytes(b"PK")
    save_file({"a": torch.zeros(3)}, "wrong.safetensors")
    torch.save(torch.nn.Linear(2, 3), "module.pth")
    shutil.copytree(data, "other")
    Path("other/val/yellow").mkdir()
    Path("empty").mkdir()
    assert main(arguments(data, tmp_path / "run", **options)) == 2
    *_, line = capsys.readouterr().err.splitlines()
    assert words in line
    assert not (tmp_path / "run").exists()


def test_a_run_is_not_overwritten(data, whole, capsys):
    assert main(arguments(data, whole)) == 2
    assert f"--out: expected a new folder, got {whole} with state-00000003.pt" in capsys.readouterr().err
    assert main([*arguments(data, whole, lr=0.1), "--resume"]) == 2
    assert "belongs to a run with another --lr: 0.05 there, 0.1 now" in capsys.readouterr().err


def test_a_diverged_run_ends(data, tmp_path, capsys):
    assert main(arguments(data, tmp_path / "run", lr=1e30)) == 1
    assert "the loss is non-finite; try a lower --lr" in capsys.readouterr().err


@pytest.mark.parametrize("content", [None, b"", b"\x02\0\0\0\0\0\0\0{}"])
def test_files_of_others(tmp_path, content):
    path = tmp_path / "model.safetensors"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ValueError, match=r"model\.safetensors: (no such file|expected the weights of)"):
        load_classifier(path)
