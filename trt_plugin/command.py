"""What the commands of this package share: arguments, and errors that end in one line on stderr.

Exit status: 0, done; 1, it failed; 2, wrong arguments; 130, interrupted.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from trt_plugin.engine_error import EngineError


class UsageError(ValueError):
    """Wrong arguments."""


class ArgumentParser(argparse.ArgumentParser):
    """A parser whose errors are `UsageError`, not an exit after several lines."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (see {self.prog} --help)")


def run_command(command: Callable[[], None]) -> int:
    """Runs a command and returns its exit status, see the module's docstring."""
    try:
        command()
        sys.stdout.flush()
    except KeyboardInterrupt:
        return _complain("interrupted", 130)
    except BrokenPipeError:  # who read our output has gone, `head` for one
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except UsageError as error:
        return _complain(str(error), 2)
    except (EngineError, ValueError, TypeError) as error:
        return _complain(str(error), 1)
    except OSError as error:
        return _complain(f"{error.filename}: {error.strerror}" if error.filename else str(error), 1)
    except Exception as error:
        return _complain(f"{type(error).__name__}: {error}", 1)
    return 0


def warn(message: str) -> None:
    """Prints a line on stderr; the command goes on."""
    print(f"warning: {' '.join(message.split())}", file=sys.stderr, flush=True)


def to_path(text: str) -> Path:
    """A path that is not empty, for `add_argument(type=…)`."""
    if not text:
        raise argparse.ArgumentTypeError("expected a path, got ''")
    return Path(text)


def to_count(text: str) -> int:
    """A number of runs, for `add_argument(type=…)`."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"expected a number of runs, got {text!r}")
    return int(text)


def _complain(message: str, status: int) -> int:
    print(f"error: {' '.join(message.split())}", file=sys.stderr)
    return status
