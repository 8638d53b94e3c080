"""`codetr train` on two processes, which torchrun starts."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest

from codetr.dataset.coco_files import load_coco
from codetr.training.training_batches import BatchOrder
from tests.training.training_runs import SUBPROCESS, arguments, logged, scales_of, train

pytestmark = pytest.mark.usefixtures("one_thread")


def torchrun(command: list[str]) -> subprocess.CompletedProcess:
    """Runs `codetr` on two Gloo processes."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    return subprocess.run(
        [*launcher, "-m", "codetr", *command],
        env=SUBPROCESS,
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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"strict": ""}, ": process 1: {bad}: the image is truncated"),
        ({"model": "unknown"}, ": model: "),
    ],
)
def test_an_error_in_one_process_ends_all(folder, tmp_path, options, error):
    """The second process reads a damaged picture in the third step. What all find is printed once."""
    data = shutil.copytree(folder, tmp_path / "data")
    order = BatchOrder(load_coco(data, "train").pictures, 4, scales_of(folder), seed=0)
    bad = data / "train" / f"{order.requests(2)[3].index:03d}.png"
    bad.write_bytes(bad.read_bytes()[:300])
    done = torchrun(arguments(data, tmp_path / "run", **options))
    assert done.returncode != 0 and done.stderr.count(error.format(bad=bad)) == 1
