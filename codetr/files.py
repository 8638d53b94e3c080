"""Files that appear whole or not at all. Standard library only."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def atomic_write(path: str | os.PathLike) -> Iterator[Path]:
    """Yields a temporary path in the folder of `path` and renames it to `path` when the block ends well.

    When the block raises, the temporary file is removed and `path` stays as it was. The folder is created.

    Args:
        path: the file to appear.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(
        dir=path.parent, prefix=f".{path.name}.", suffix=f".partial{path.suffix}"
    )
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
