"""What all commands share: errors in one line, exit status, checks of files before the work is done."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from codetr.cli.command import UsageError, check_writable, one_line, run_command

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (MemoryError("no 3 GiB"), "out of memory: no 3 GiB"),
        (ModuleNotFoundError("x", name="torch.nn"), "the package torch is not installed: pip install codetr"),
        (ImportError("cuda is not here"), "cuda is not here"),
        (OSError(28, "No space left on device"), "No space left on device"),
        (OSError(2, "No such file", "a.txt"), "a.txt: No such file"),
        (ValueError("two\nlines"), "two lines"),
        (KeyError("a"), "KeyError: 'a'"),
        (AssertionError(), "AssertionError"),
    ],
)
def test_errors_in_one_line(error, line):
    assert one_line(error).startswith(line) and "\n" not in one_line(error)


def test_long_errors_are_cut_unless_they_have_a_summary():
    error = ValueError("x" * 1000)
    assert len(one_line(error)) == 320 and one_line(error).endswith("…")
    error.summary = "many x"
    assert one_line(error) == "many x"


@pytest.mark.parametrize(
    ("error", "status"), [(UsageError("x"), 2), (ValueError("x"), 1), (KeyboardInterrupt(), 130)]
)
def test_status(error, status, capsys, monkeypatch):
    def command() -> int:
        raise error

    assert run_command(command, "p") == status
    assert capsys.readouterr().err in ("p: error: x\n", "p: error: interrupted\n")
    assert run_command(lambda: 7) == 7
    monkeypatch.setenv("CODETR_TRACEBACK", "1")
    if status != 130:
        with pytest.raises(ValueError):
            run_command(command)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
def test_output_that_cannot_be_written():
    """A full disk and a closed pipe (codetr … | head): no traceback of Python's own flush at the exit."""
    code = (
        "from codetr.cli.command import run_command\nraise SystemExit(run_command(lambda: print('x') or 0, 'p'))"
    )

    def run(stdout) -> tuple[int, str]:
        done = subprocess.run(
            [sys.executable, "-c", code],
            stdout=stdout,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            check=False,
        )
        return done.returncode, done.stderr

    with open("/dev/full", "w") as full:
        assert run(full) == (1, "p: error: No space left on device\n")
    read, write = os.pipe()
    os.close(read)
    try:
        assert run(write) == (1, "")
    finally:
        os.close(write)


def test_writable_is_known_before(tmp_path):
    (tmp_path / "file").touch()
    check_writable("--out", tmp_path / "new" / "folder" / "x.json")
    for path, message in (
        (tmp_path, f"--out {tmp_path}: is a folder, not a file"),
        (tmp_path / "file" / "x.json", "cannot write there"),
        (Path("/proc/x.json"), "--out /proc/x.json: cannot write there"),
    ):
        with pytest.raises(UsageError, match=message):
            check_writable("--out", path)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
