"""Folders that disappear with the process. Standard library only."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

_REMOVER = "import shutil, sys; sys.stdin.read(1); shutil.rmtree(sys.argv[1], ignore_errors=True)"
"""Waits for a character, or until nobody is left to send one."""


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
