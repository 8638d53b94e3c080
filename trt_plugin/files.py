"""Files that appear whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO


@contextlib.contextmanager
def atomic_write(path: Path) -> Iterator[BinaryIO]:
    """Gives a file to write that is renamed to `path` when the block ends well, and is gone otherwise.

    Raises:
        OSError: it cannot be written; names `path`.
    """
    try:
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(descriptor, "wb") as file:
                yield file
            umask = os.umask(0)
            os.umask(umask)
            os.chmod(name, 0o666 & ~umask)  # mkstemp's files are private
            os.replace(name, path)
        except BaseException:
            os.unlink(name)
            raise
    except OSError as error:
        prefix = os.path.abspath(path.parent / f".{path.name}.")
        if error.errno and (error.filename is None or os.path.abspath(error.filename).startswith(prefix)):
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise
