"""The worker processes of training: their batches, and their end with the run, however it ends."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from torch.utils.data import Dataset

from codetr.training import batch_loader
from codetr.training.augment import Augmentation
from codetr.training.batch_loader import read_batches
from codetr.training.training_batches import BatchOrder, HostBatch, TrainingSet
from tests.training.training_runs import SUBPROCESS, arguments

SECONDS = 180.0  # tells a hang from an end
MARK = "CODETR_TEST_RUN"  # an environment variable that marks the processes of a run

# `codetr train` whose step 7 does what the first argument says. With "pipes" there is no shared memory.
SCRIPT = """
import os, signal, sys, time
from codetr.cli import main
from codetr.training import batch_loader
from codetr.training.training_step import TrainingStep

what, pipes = sys.argv[1:3]
call = TrainingStep.__call__

def changed_call(self, batch, step, factor):
    if step == 6:
        time.sleep(1.0)  # until the workers have read ahead
        print("now", flush=True)
        if what == "raise":
            raise RuntimeError("step 7 fails")
        if what == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        os.killpg(0, signal.SIGTERM)  # to the workers too, which still serve this step
    call(self, batch, step, factor)

TrainingStep.__call__ = changed_call
if pipes == "pipes":
    batch_loader._free_shared_memory = lambda: 0
sys.exit(main(sys.argv[3:]))
"""


def test_batches_do_not_depend_on_the_workers(dataset, monkeypatch):
    """Nor on shared memory: without it batches go through pipes."""
    order = BatchOrder(dataset.pictures, 4, [(96, 64)], seed=1)

    def batches(workers: int) -> list[HostBatch]:
        with read_batches(
            TrainingSet(dataset, Augmentation()), order.steps(), workers, False, 10**5
        ) as loader:
            return [next(loader) for _ in range(8)]

    expected, shared = batches(0), batches(2)
    monkeypatch.setattr(batch_loader, "_free_shared_memory", lambda: 0)
    for others in (shared, batches(2)):
        for batch, wanted in zip(others, expected, strict=True):
            assert batch.counts == wanted.counts
            assert all(torch.equal(a, b) for a, b in zip(batch[:4], wanted[:4]))
    assert multiprocessing.active_children() == []


class Slow(Dataset):
    """Takes minutes for a sample."""

    def __getitem__(self, index: int) -> None:
        time.sleep(200.0)


def test_a_worker_that_hangs_does_not_delay_the_end():
    started = time.monotonic()
    with contextlib.suppress(KeyError), read_batches(Slow(), [[0]], 1, False, 1):
        raise KeyError
    assert time.monotonic() - started < SECONDS


def processes(mark: Path) -> list[int]:
    """Returns the ids of the running processes with a mark."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"{MARK}={mark}\0".encode() in (folder / "environ").read_bytes():
                found.append(int(folder.name))
    return found


@pytest.mark.parametrize(
    ("what", "pipes", "status", "device"),
    [
        ("raise", "shared", 1, "cpu"),
        pytest.param("kill", "pipes", -signal.SIGKILL, "cpu", marks=pytest.mark.slow),
        pytest.param("terminate", "shared", 128 + signal.SIGTERM, "cpu", marks=pytest.mark.slow),
        pytest.param("raise", "shared", 1, "cuda", marks=pytest.mark.gpu),  # with pinned memory
    ],
)
def test_the_end_of_a_run_ends_its_workers(what, pipes, status, device, folder, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    process = subprocess.Popen(
        [sys.executable, script, what, pipes, *arguments(folder, tmp_path / "run", workers=2, device=device)],
        env={**SUBPROCESS, MARK: str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    try:
        assert any("now" in line for line in process.stdout), "the run ended before step 7"
        deadline = time.monotonic() + SECONDS
        assert process.wait(SECONDS) == status
        while processes(tmp_path) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert processes(tmp_path) == []
    finally:
        process.stdout.close()
        for number in processes(tmp_path):
            os.kill(number, signal.SIGKILL)
