"""Results that are complete or absent, checks of files to write, and the lines of a command's steps."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from codetr.errors import ArgumentError, UsageError
from trt_plugin.atomic_files import errors_about, new_folder


@contextmanager
def stage(name: str) -> Iterator[list[float]]:
    """Prints a line when a step begins and its seconds when it ends; yields a list that gets the seconds."""
    print(f"{name} …", flush=True)
    started, seconds = time.perf_counter(), []
    yield seconds
    seconds.append(time.perf_counter() - started)
    print(f"{name}: {seconds[0]:.1f} s", flush=True)


def check_output(argument: str, path: Path | None, taken: Iterable[Path | None] = ()) -> None:
    """Checks a file that a command writes after minutes of work.

    Args:
        argument: its name, for errors.
        path: the file; None passes.
        taken: other files that the command reads or writes.

    Raises:
        ArgumentError: the file cannot be written, or is one of `taken`.
    """
    if path is None:
        return
    folder = next(folder for folder in path.absolute().parents if folder.exists())
    if path.is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK):
        raise ArgumentError(argument, f"expected a file that can be written, got {path}")
    if path.absolute() in {other.absolute() for other in taken if other is not None}:
        raise ArgumentError(argument, f"expected a file of its own, got {path}, which has another purpose")


def check_positional_output(name: str, path: Path, taken: Iterable[Path | None]) -> None:
    """Checks a file as `check_output` does, for an argument that is no option.

    Raises:
        UsageError: the file cannot be written, or is one of `taken`.
    """
    try:
        check_output(name, path, taken)
    except ArgumentError as error:
        raise UsageError(f"{name}: {error.problem}") from error


@contextmanager
def staged_folder(out: Path) -> Iterator[Path]:
    """Yields an empty temporary folder, whose files move into `out` when the block ends without an error.

    Raises:
        ArgumentError: `out` cannot be written.
        OSError: one of the files cannot be written. The error names `out`, not the temporary folder.
    """
    existing = next(folder for folder in (out, *out.absolute().parents) if folder.exists())
    try:
        temporary = tempfile.TemporaryDirectory(prefix=".codetr-", dir=existing, ignore_cleanup_errors=True)
    except OSError as error:
        raise ArgumentError("out", f"expected a folder to write, got {out} ({error.strerror})") from error
    with temporary as name, errors_about(out, Path(name)):
        yield Path(name)
        with new_folder(out):
            for file in sorted(Path(name).iterdir()):
                os.replace(file, out / file.name)
