"""The processor cores that this process may use."""

from __future__ import annotations

import os


def usable_cores() -> int:
    """Counts the cores that this process may use, such as those of a container, at least 1."""
    usable = getattr(os, "sched_getaffinity", None)
    return len(usable(0)) if usable else os.cpu_count() or 1
