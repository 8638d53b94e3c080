"""Passes TensorRT's messages to Python's logging, and collects them for errors that need a reason.

TensorRT keeps one global logger: the first that a builder or runtime of the process was given. Plugins may
report through it. All code of this repository therefore uses the logger of this module.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

from trt_plugin.engine_error import import_tensorrt

if TYPE_CHECKING:
    import tensorrt as trt

_log = logging.getLogger(__name__)
_collectors: list[list[str]] = []
_lock = threading.Lock()


@functools.cache
def tensorrt_logger() -> trt.ILogger:
    """Returns the logger for every `trt.Builder`, `trt.Runtime` and parser of the process.

    Raises:
        EngineError: TensorRT is not installed.
    """
    trt = import_tensorrt()
    levels = {
        trt.ILogger.WARNING: logging.WARNING,
        trt.ILogger.INFO: logging.INFO,
        trt.ILogger.VERBOSE: logging.DEBUG,
    }

    class Logger(trt.ILogger):
        def __init__(self) -> None:
            trt.ILogger.__init__(self)

        def log(self, severity: trt.ILogger.Severity, message: str) -> None:
            level = levels.get(severity, logging.ERROR)
            if level == logging.ERROR and _collectors:
                level = logging.DEBUG
                for lines in _collectors:
                    lines.append(message)
            _log.log(level, "%s", message)

    return Logger()


@contextlib.contextmanager
def collect_errors() -> Iterator[list[str]]:
    """Collects TensorRT's error messages in a list, and logs them with the level DEBUG meanwhile.

    TensorRT's functions fail by returning None or False. The list then holds the reason.
    """
    lines: list[str] = []
    with _lock:
        _collectors.append(lines)
    try:
        yield lines
    finally:
        with _lock:
            # By identity: lists with the same content are equal.
            _collectors[:] = [other for other in _collectors if other is not lines]


def describe(lines: list[str]) -> str:
    """Returns the collected messages in one line, each once."""
    return "; ".join(dict.fromkeys(" ".join(line.split()) for line in lines)) or "TensorRT gave no reason"
