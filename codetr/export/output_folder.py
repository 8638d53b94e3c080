"""Folders of results that are complete or absent, and the lines that commands print about their steps."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from codetr.errors import ArgumentError
from trt_plugin.atomic_files import errors_about, new_folder


@contextmanager
def stage(name: str) -> Iterator[list[float]]:
    """Prints a line when a step begins and its seconds when it ends; yields a list that gets the seconds."""
    print(f"{name} …", flush=True)
    started, seconds = time.perf_counter(), []
    yield seconds
    seconds.append(time.perf_counter() - started)
    print(f"{name}: {seconds[0]:.1f} s", flush=True)


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
        files = sorted(Path(name).iterdir())
        with new_folder(out):
            for file in files:
                if (out / file.name).is_dir():
                    raise ArgumentError("out", f"expected no folder {file.name} in {out}, got one")
            for file in files:
                os.replace(file, out / file.name)
