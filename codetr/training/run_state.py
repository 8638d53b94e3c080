"""The saved states of a run, from which --resume continues: whole files, the newest two kept."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from codetr.config import RUN_CONFIG
from codetr.errors import ArgumentError, UsageError
from trt_plugin.atomic_files import atomic_write

STATE_FORMAT = 1
KEPT = 2


def find_states(folder: Path) -> list[Path]:
    """Returns the states in the folder of a run, the newest last."""
    return sorted(folder.glob("state-*.pt"))


def newest_state(folder: Path, resume: bool) -> Path | None:
    """Returns the state that a run continues from, None for a new run.

    Raises:
        ArgumentError: there is no state to resume from, or the folder belongs to another run or an export.
    """
    states = find_states(folder)
    if resume and not states:
        raise ArgumentError("resume", f"expected a state in {folder}, got none; start without --resume")
    found = states or [path for path in (folder / RUN_CONFIG,) if path.exists()]
    if found and not resume:
        text = f"expected a new folder, got {folder} with {found[-1].name}"
        raise ArgumentError("out", f"{text}; --resume continues that run" if states else text)
    return states[-1] if resume else None


def save_state(folder: Path, step: int, options: Mapping[str, Any], content: Mapping[str, Any]) -> None:
    """Writes a state and removes old ones.

    Args:
        options: values that the run's result depends on, by name.
        content: tensors, numbers and strings in dictionaries and lists.
    """
    path = folder / f"state-{step:08d}.pt"
    with atomic_write(path) as temporary:
        torch.save({"format": STATE_FORMAT, "options": dict(options), **content}, temporary)
    for old in find_states(folder)[:-KEPT]:
        old.unlink()


def load_state(path: Path, options: Mapping[str, Any]) -> dict[str, Any]:
    """Reads a state. It runs no code of the file.

    Args:
        options: of this run, as for `save_state`.

    Raises:
        UsageError: the file is damaged, or a run with other options wrote it. The message names one.
    """
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
        if content["format"] != STATE_FORMAT:
            raise ValueError(content["format"])
    except OSError:
        raise
    except Exception as error:  # a damaged file raises many types
        words = "damaged or not a training state of this version; remove it to use an older one"
        raise UsageError(f"{path}: {words}") from error
    before = content["options"]
    for name in before | dict(options):
        if options.get(name) != before.get(name):
            there, now = (f"{values.get(name)!s:.80}" for values in (before, options))
            raise UsageError(
                f"{path}: belongs to a run with another {name}: {there} there, {now} now; "
                "--resume needs the same options"
            )
    return content
