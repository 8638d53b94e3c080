"""The JSON report of a command, and the checks of files that it writes at its end."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path

from codetr.errors import ArgumentError
from trt_plugin.atomic_files import atomic_write


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


def write_json(path: Path, content: object) -> None:
    """Writes a JSON file, whole or not at all."""
    with atomic_write(path) as temporary:
        text = json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False)
        temporary.write_text(text + "\n", encoding="utf-8")
