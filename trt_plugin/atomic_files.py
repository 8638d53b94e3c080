"""Writes files that appear whole or not at all. Every package of this repository uses it."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

_umask_alone = threading.Lock()


@contextlib.contextmanager
def atomic_write(path: str | os.PathLike) -> Iterator[Path]:
    """Yields a temporary path beside `path` and renames it to `path` when the block ends without an error.

    An error in the block removes the temporary file and the folders that were created for it. `path` then
    keeps its old content.

    Args:
        path: the file to write. Missing folders are created.

    Raises:
        OSError: the file cannot be written. The error names `path`, not the temporary file.
    """
    path = Path(path)
    prefix = f".{path.name}."
    with errors_about(path, path.parent / prefix), new_folder(path.parent):
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=prefix, suffix=f".partial{path.suffix}")
        os.close(descriptor)
        temporary = Path(name)
        try:
            yield temporary
            # mkstemp creates a private file. The result follows the umask as every other file does.
            with _umask_alone:  # reading it sets it, for all threads
                umask = os.umask(0)
                os.umask(umask)
            temporary.chmod(0o666 & ~umask)
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)


def write_json(path: str | os.PathLike, content: object, *, indent: int = 1, allow_nan: bool = True) -> None:
    """Writes a JSON file in UTF-8, whole or not at all, see `atomic_write`.

    Raises:
        ValueError: `content` has a non-finite number, which JSON lacks, and `allow_nan` is False.
    """
    text = json.dumps(content, indent=indent, ensure_ascii=False, allow_nan=allow_nan)
    with atomic_write(path) as temporary:
        temporary.write_text(text + "\n", encoding="utf-8")


@contextlib.contextmanager
def new_folder(path: str | os.PathLike) -> Iterator[Path]:
    """Creates a folder and its parents. An error in the block removes those that are new and still empty."""
    path = Path(path)
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    try:
        path.mkdir(parents=True, exist_ok=True)
        yield path
    except BaseException:
        for folder in missing:  # innermost first
            with contextlib.suppress(OSError):  # the folder was not created, or it is not empty
                folder.rmdir()
        raise


@contextlib.contextmanager
def locked(folder: str | os.PathLike) -> Iterator[None]:
    """Creates a folder, and keeps other processes that lock it waiting while the block runs."""
    with new_folder(folder):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)  # released when the folder is closed
            yield
        finally:
            os.close(descriptor)


@contextlib.contextmanager
def errors_about(path: Path, temporary: Path) -> Iterator[None]:
    """Rewrites an `OSError` about a temporary path so that it names `path`.

    Errors without a path, as of a full disk, name `path` too. `temporary` is a prefix of temporary paths.
    """
    try:
        yield
    except OSError as error:
        name = None if error.filename is None else os.path.abspath(os.fsdecode(error.filename))
        if error.errno and (name is None or name.startswith(os.path.abspath(temporary))):
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise
