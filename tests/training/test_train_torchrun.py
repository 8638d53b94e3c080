"""`codetr train` on two processes, which torchrun starts."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from codetr.dataset.coco_files import load_coco
from codetr.training.training_batches import BatchOrder
from tests.training.training_runs import ROOT, arguments, logged, scales_of, train

pytestmark = pytest.mark.usefixtures("one_thread")


def torchrun(command: list[str]) -> subprocess.CompletedProcess:
    """Runs `codetr` on two Gloo processes."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    return subprocess.run(
        [*launcher, "-m", "codetr", *command],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_two_processes_are_one_with_twice_the_batch(folder, tmp_path):
    """They report the losses of all."""
    options = {"steps": 4, "log_every": 1, "denoising": 0, "batch_norm": "frozen", "workers": 1}
    done = torchrun(arguments(folder, tmp_path / "two", batch=2, **options))
    assert done.returncode == 0, done.stderr
    assert train(folder, tmp_path / "one", batch=4, **options) == 0
    losses = [[float(row["loss"]) for row in logged(tmp_path / name)] for name in ("two", "one")]
    assert losses[0] == pytest.approx(losses[1], rel=2e-3)


@pytest.fixture
def damaged(folder, tmp_path) -> tuple[Path, Path]:
    """A dataset in which the second process reads a damaged picture in the third step; the picture."""
    data = shutil.copytree(folder, tmp_path / "data")
    order = BatchOrder(load_coco(data, "train").pictures, 4, scales_of(folder), seed=0)
    bad = data / "train" / f"{order.requests(2)[3].index:03d}.png"
    bad.write_bytes(bad.read_bytes()[:300])
    return data, bad


@pytest.mark.slow
def test_bad_pictures_of_several_processes(damaged, tmp_path):
    """The first process reports the result of the check, each process what it finds later."""
    data, bad = damaged
    missing = data / "train" / ("001.png" if bad.name == "000.png" else "000.png")
    missing.unlink()
    done = torchrun(arguments(data, tmp_path / "run", steps=4, log_every=1))
    assert done.returncode == 0, done.stderr
    assert done.stderr.count(f"{missing}: no such file") == done.stderr.count("1 of 20 pictures") == 1
    assert done.stderr.count(f"{bad}: the image is truncated") == 1
    assert f"after 4 steps; 2 of 20 pictures of {data / 'annotations/instances_train.json'}" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"strict": ""}, ": process 1: {bad}: the image is truncated"),
        ({"model": "unknown"}, ": model: "),
    ],
)
def test_an_error_in_one_process_ends_all(damaged, tmp_path, options, error):
    """An error that all processes find is printed once."""
    data, bad = damaged
    done = torchrun(arguments(data, tmp_path / "run", **options))
    assert done.returncode != 0 and done.stderr.count(error.format(bad=bad)) == 1
