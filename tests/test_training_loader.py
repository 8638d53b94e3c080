"""The processes that read pictures end when their run does, however it ends."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from torch.utils.data import Dataset

from codetr.training.data import Sample
from codetr.training.loader import Loader
from codetr.training.state import find_states
from tests.training_runs import ROOT, arguments

pytest_plugins = ("tests.training_fixtures",)

SECONDS = 10.0  # within which all is over
WORKERS = 2
MARK = "CODETR_TEST_RUN"  # an environment variable by which a run's processes are known
LAUNCHERS = {
    "one process": [sys.executable],
    "torchrun": [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"],
}

# `codetr train` whose step 7 does what the first argument says; with "pipes" there is no shared memory.
SCRIPT = """
import os, signal, sys, time
from codetr.cli.detect import main
from codetr.training import loader
from codetr.training.step import Step

what, pipes = sys.argv[1:3]
call = Step.__call__

def changed_call(self, batch, step, factor):
    if step == 6 and what != "nothing" and os.environ.get("RANK", "0") == "0":
        time.sleep(1.0)  # until all that is read ahead waits to be taken
        print("now", flush=True)
        if what == "raise":
            raise RuntimeError("step 7 fails")
        if what == "interrupt":
            raise KeyboardInterrupt
        if what == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        os.killpg(0, signal.SIGTERM)
    call(self, batch, step, factor)

Step.__call__ = changed_call
if pipes == "pipes":
    loader._free_shared_memory = lambda: 0
sys.exit(main(sys.argv[3:]))
"""


def processes(mark: str) -> list[int]:
    """The ids of the processes that were started with a mark and have not ended."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"{MARK}={mark}\0".encode() in (folder / "environ").read_bytes():
                found.append(int(folder.name))
    return found


@pytest.fixture
def mark() -> Iterator[str]:
    """A mark; whatever bears it in the end is killed."""
    if not Path("/proc/self/environ").exists():
        pytest.skip("needs /proc to see processes of processes")
    mark = uuid.uuid4().hex
    yield mark
    for process in processes(mark):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


def start(launcher: str, mark: str, tmp_path: Path, command: list[str]) -> subprocess.Popen:
    """Starts the script in a session of its own; what it prints comes through `stdout`."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    environment = {**os.environ, MARK: mark, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [*LAUNCHERS[launcher], str(script), *command],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )


def wait_for(process: subprocess.Popen, words: str) -> float:
    """Reads until a line has some words; returns when it came. Fails if it does not."""
    for line in process.stdout:
        if words in line:
            return time.monotonic()
    pytest.fail(f"the run ended without {words!r}")


def assert_all_end(process: subprocess.Popen, mark: str, since: float) -> None:
    """The process and all that it started end within SECONDS."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(SECONDS - (time.monotonic() - since))
    assert process.poll() is not None, f"still running {SECONDS} s after its last line"
    while processes(mark) and time.monotonic() < since + SECONDS:
        time.sleep(0.05)
    assert processes(mark) == []
    process.stdout.close()


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_run_ends_with_its_last_line(launcher, folder, tmp_path, mark):
    command = arguments(folder, tmp_path / "run", workers=WORKERS)
    process = start(launcher, mark, tmp_path, ["nothing", "shared", *command])
    assert_all_end(process, mark, wait_for(process, "wrote "))
    assert process.returncode == 0


@pytest.mark.parametrize(
    ("what", "pipes", "status"),
    [
        ("raise", "shared", 1),
        ("raise", "pipes", 1),
        ("interrupt", "shared", 130),
        ("kill", "shared", -signal.SIGKILL),
        ("kill", "pipes", -signal.SIGKILL),
    ],
)
def test_a_run_that_dies_takes_its_workers_along(what, pipes, status, folder, tmp_path, mark):
    """With full queues: an error in the middle of an epoch, Ctrl-C, and a main process that is killed."""
    command = arguments(folder, tmp_path / "run", workers=WORKERS)
    process = start("one process", mark, tmp_path, [what, pipes, *command])
    assert_all_end(process, mark, wait_for(process, "now"))
    assert process.returncode == status


@pytest.mark.parametrize("what", ["raise", "kill"])
def test_torchrun_leaves_nobody(what, folder, tmp_path, mark):
    """One of two processes fails, or is killed."""
    command = arguments(folder, tmp_path / "run", workers=2)
    process = start("torchrun", mark, tmp_path, [what, "shared", *command])
    assert_all_end(process, mark, wait_for(process, "now"))
    assert process.returncode != 0


def test_workers_serve_on_after_a_signal_to_the_group(folder, tmp_path, mark):
    """SIGTERM to all processes of a group: the step ends, the state is saved, then the workers end."""
    command = arguments(folder, tmp_path / "run", workers=WORKERS, steps=1000)
    process = start("one process", mark, tmp_path, ["terminate", "shared", *command])
    assert_all_end(process, mark, wait_for(process, "stopped by SIGTERM after 7 steps"))
    assert process.returncode == 128 + signal.SIGTERM
    assert find_states(tmp_path / "run")[-1].name == "state-00000007.pt"


class Stuck(Dataset):
    """Item 0 is a sample; who reads another never comes back."""

    def __len__(self) -> int:
        return 100

    def __getitem__(self, index: int) -> Sample:
        while index:
            time.sleep(1.0)
        return Sample(np.zeros((32, 32, 3), np.uint8), np.zeros((0, 4), np.float32), np.zeros(0, np.int64))


def test_workers_that_are_stuck_are_not_waited_for(tmp_path):
    before = multiprocessing.active_children()
    loader = Loader(Stuck(), WORKERS, False, 4096, batch_size=1, sampler=range(100))
    assert next(loader).counts == [0]
    started = time.monotonic()
    loader.close()
    loader.close()
    assert time.monotonic() - started < SECONDS
    assert multiprocessing.active_children() == before
    assert next(loader, None) is None


def test_a_worker_that_is_killed_is_an_error_and_the_others_end():
    before = multiprocessing.active_children()
    loader = Loader(Stuck(), 2, False, 4096, batch_size=1, sampler=range(100))
    with pytest.raises(RuntimeError, match=r"killed by signal|exited unexpectedly"), loader:
        next(loader)
        worker = next(iter(loader._workers))
        os.kill(worker.pid, signal.SIGKILL)
        next(loader)
    assert multiprocessing.active_children() == before


def test_a_loader_that_nobody_closes_ends_with_python(tmp_path):
    """Kept alive by a name in a module, as in an interactive session."""
    script = tmp_path / "forgetful.py"
    script.write_text(
        "from tests.test_training_loader import Loader, Stuck\n"
        f"loader = Loader(Stuck(), {WORKERS}, False, 4096, batch_size=1, sampler=range(100))\n"
        "next(loader)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(script)]
    process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
    assert process.communicate(timeout=60)[1].count("Traceback") == 0 and process.returncode == 0


@pytest.mark.gpu
def test_workers_end_where_memory_is_pinned(folder, tmp_path, mark):
    """The thread that pins memory ends before the workers whose batches it takes."""
    for what, words in (("nothing", "wrote "), ("raise", "now")):
        command = arguments(folder, tmp_path / what, workers=WORKERS, device="cuda")
        process = start("one process", mark, tmp_path, [what, "shared", *command])
        assert_all_end(process, mark, wait_for(process, words))
