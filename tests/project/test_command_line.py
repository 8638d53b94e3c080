"""The command line layer: errors in one line, exit status, and the list of commands without Torch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from codetr.cli.app import COMMANDS
from codetr.cli.app import main as codetr_main
from codetr.cli.program import run_program
from codetr.errors import ArgumentError, UsageError, one_line
from onnx_path import build

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (MemoryError("no 3 GiB"), "out of memory: no 3 GiB"),
        (ModuleNotFoundError("x", name="torch.nn"), "the package torch is not installed: pip install"),
        (ImportError("cuda is not here"), "cuda is not here"),
        (OSError(28, "No space left on device"), "No space left on device"),
        (OSError(2, "No such file", "a.txt"), "a.txt: No such file"),
        (ValueError("two\nlines"), "two lines"),
        (KeyError("a"), "KeyError: 'a'"),
        (AssertionError(), "AssertionError"),
        (ValueError("x" * 1000), "x" * 319 + "…"),
    ],
)
def test_errors_in_one_line(error, line):
    assert one_line(error).startswith(line) and "\n" not in one_line(error)


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (ArgumentError("max_size", "expected 1, got 2"), 2, "p: error: --max-size: expected 1, got 2\n"),
        (UsageError("x"), 2, "p: error: x\n"),
        (ValueError("x"), 1, "p: error: x\n"),
    ],
)
def test_status(error, status, line, capsys, monkeypatch):
    def command() -> int:
        raise error

    assert run_program(command, [], "p") == status
    assert capsys.readouterr().err == line
    assert run_program(lambda: 7, [], "p") == 7
    monkeypatch.setenv("CODETR_TRACEBACK", "1")
    with pytest.raises(ValueError):
        run_program(command, [], "p")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
def test_output_that_cannot_be_written():
    """A full disk and a closed pipe (codetr … | head) give no traceback at the interpreter's exit."""
    code = (
        "from codetr.cli.program import run_program\ndef command(): print('x')\n"
        "raise SystemExit(run_program(command, [], 'p'))"
    )

    def run(stdout) -> tuple[int, bytes]:
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, cwd=ROOT, check=False)
        return done.returncode, done.stderr

    with open("/dev/full", "w") as full:
        assert run(full) == (1, b"p: error: No space left on device\n")
    read, write = os.pipe()
    os.close(read)
    try:
        assert run(write) == (1, b"")
    finally:
        os.close(write)


def test_front_door(capsys):
    assert codetr_main(["--help"]) == 0
    printed = capsys.readouterr().out
    assert all(name in printed for _, name, _, _ in COMMANDS)
    for arguments in (["fly"], ["detect"]):
        assert codetr_main(arguments) == 2
        assert "--help)" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["codetr", "module"])
def test_options_from_the_environment(command, tmp_path, monkeypatch, capsys):
    """A command and its module read the same variable, which the command line overrides."""
    monkeypatch.setenv("CODETR_BUILD_OPTIMIZATION_LEVEL", "7")
    (tmp_path / "x.onnx").write_text("no model")
    words = [str(tmp_path / "x.onnx"), "--out", str(tmp_path)]

    def run(*options: str) -> str:
        if command == "codetr":
            assert codetr_main(["build", *words, *options]) == 2
        else:
            assert build.main([*words, *options]) == 2
        return capsys.readouterr().err

    assert 'Invalid value "7" for CODETR_BUILD_OPTIMIZATION_LEVEL' in run()
    assert "not an ONNX file" in run("--optimization-level", "2")
