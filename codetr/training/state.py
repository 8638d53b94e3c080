"""The state of a run, from which it goes on: written whole or not at all, the newest two kept."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from trt_plugin.atomic_files import atomic_write

FORMAT = 1
KEPT = 2
_NAME = re.compile(r"state-(\d+)\.pt")


class StateError(ValueError):
    """A state that cannot be read, or is of another run."""


def find_states(folder: Path) -> list[Path]:
    """The states in a run's folder, the newest last."""
    if not folder.is_dir():
        return []
    found = [(match, path) for path in folder.iterdir() if (match := _NAME.fullmatch(path.name))]
    return [path for _, path in sorted(found, key=lambda pair: int(pair[0][1]))]


def save_state(folder: Path, step: int, options: Mapping[str, Any], content: Mapping[str, Any]) -> Path:
    """Writes a state and removes old ones.

    Args:
        folder: of the run.
        step: steps taken.
        options: what the run's result depends on, by the option's name; strings and numbers.
        content: tensors, numbers and texts in dictionaries and lists.
    """
    path = folder / f"state-{step:08d}.pt"
    with atomic_write(path) as temporary:
        torch.save({"format": FORMAT, "options": dict(options), **content}, temporary)
    for old in find_states(folder)[:-KEPT]:
        old.unlink()
    return path


def load_state(path: Path, options: Mapping[str, Any]) -> dict[str, Any]:
    """Reads a state; nothing that its pickle names is run.

    Args:
        path: of the state.
        options: of this run, as for `save_state`.

    Raises:
        StateError: it is damaged, or was written by a run with other options; the message names one.
    """
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except OSError:
        raise
    except Exception as error:  # whatever a damaged file makes of the unpickler
        raise StateError(
            f"{path}: damaged, or not a training state; remove it to use an older one"
        ) from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise StateError(f"{path}: not a training state of this version of codetr")
    before = content["options"]
    for name in (*options, *(name for name in before if name not in options)):
        if options.get(name) != before.get(name):
            raise StateError(
                f"{path}: is of a run with another {name}: {_brief(before.get(name))} there, "
                f"{_brief(options.get(name))} now; --resume needs the same options"
            )
    return content


def _brief(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 80 else f"{text[:79]}…"
