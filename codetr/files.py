"""Files that appear whole or not at all, and folders that stay empty for nobody. Standard library only."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

_REMOVER = "import shutil, sys; sys.stdin.read(1); shutil.rmtree(sys.argv[1], ignore_errors=True)"
"""Waits for a character, or until nobody is left to send one."""


@contextlib.contextmanager
def atomic_write(path: str | os.PathLike) -> Iterator[Path]:
    """Yields a temporary path in the folder of `path` and renames it to `path` when the block ends well.

    When the block raises, the temporary file is removed and `path` stays as it was. The folder is created,
    and goes again with it.

    Args:
        path: the file to appear.

    Raises:
        OSError: it cannot be written; names `path`, not the temporary file.
    """
    path = Path(path)
    prefix = f".{path.name}."
    with errors_about(path, path.parent / prefix), new_folder(path.parent):
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=prefix, suffix=f".partial{path.suffix}")
        os.close(descriptor)
        temporary = Path(name)
        try:
            yield temporary
            # mkstemp makes the file private; what we publish follows the user's umask like any other file.
            umask = os.umask(0)
            os.umask(umask)
            temporary.chmod(0o666 & ~umask)
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def new_folder(path: str | os.PathLike) -> Iterator[Path]:
    """Makes a folder and those above it; when the block raises, those made here that are empty go again.

    Args:
        path: the folder; it may exist.
    """
    path = Path(path)
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    try:
        path.mkdir(parents=True, exist_ok=True)
        yield path
    except BaseException:
        for folder in missing:  # the innermost first
            with contextlib.suppress(OSError):  # it was not made, or something is in it
                folder.rmdir()
        raise


@contextlib.contextmanager
def removed_after(folder: Path) -> Iterator[None]:
    """Removes a folder when the block ends, or the process: a library may abort it, and the system kill it.

    Args:
        folder: exists.
    """
    command = [sys.executable, "-I", "-S", "-c", _REMOVER, os.path.abspath(folder)]
    with contextlib.ExitStack() as after:
        after.callback(shutil.rmtree, folder, ignore_errors=True)
        # In a session of its own it outlives what is sent to all of ours.
        remover = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
        after.callback(remover.communicate, b"\n")
        yield


@contextlib.contextmanager
def errors_about(path: Path, temporary: Path) -> Iterator[None]:
    """Makes errors about a temporary path, or (as of a full disk) about none, errors about `path`.

    Args:
        path: what the user knows.
        temporary: how the temporary paths begin.
    """
    try:
        yield
    except OSError as error:
        name = None if error.filename is None else os.path.abspath(os.fsdecode(error.filename))
        if error.errno and (name is None or name.startswith(os.path.abspath(temporary))):
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise
