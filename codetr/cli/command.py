"""What the repository's commands share: arguments, and errors that end in one line on stderr.

Exit status of every command: 0, done; 1, something failed; 2, wrong arguments; 130, interrupted (Ctrl-C).
CODETR_TRACEBACK=1 shows the Python traceback in place of the line. Free of Torch.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from codetr.errors import ArgumentError, UsageError, one_line

if TYPE_CHECKING:
    from codetr.config import Config


class ArgumentParser(argparse.ArgumentParser):
    """A parser whose errors are `UsageError`, not an exit after several lines."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (see {self.prog} --help)")


def run_command(command: Callable[[], int], program: str = "") -> int:
    """Runs a command and returns its exit status, see the module's docstring.

    Args:
        command: does the work and returns 0, or another status after it has complained itself.
        program: name before "error: …", if any.
    """
    try:
        status = command()
        sys.stdout.flush()  # here, where what goes wrong is still one line
        return status
    except KeyboardInterrupt:
        complain("error", "interrupted", program)
        return 130
    except BrokenPipeError:  # who read our output has gone, `head` for one
        _flush_or_discard()
        return 1
    except Exception as error:
        if os.environ.get("CODETR_TRACEBACK"):
            raise
        complain("error", one_line(error), program)
        _flush_or_discard()
        return 2 if isinstance(error, (ArgumentError, UsageError)) else 1


def complain(kind: str, message: str, program: str = "") -> None:
    """Prints "<program>: <kind>: <message>" on stderr."""
    print(": ".join(filter(None, (program, kind, message))), file=sys.stderr, flush=True)


def _flush_or_discard() -> None:
    """Leaves nothing to Python's own flush at the exit, which would print a traceback if it failed."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


# Types of arguments and checks of them.


def positive(text: str) -> int:
    """A whole number above 0, for `add_argument(type=…)`."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number above 0, got {text!r}")
    return int(text)


def whole(text: str) -> int:
    """A whole number from 0 on, for `add_argument(type=…)`."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"expected a whole number, got {text!r}")
    return int(text)


def fraction(text: str) -> float:
    """A number from 0 to 1, for `add_argument(type=…)`."""
    number = float(text)
    if not 0.0 <= number <= 1.0:
        raise argparse.ArgumentTypeError(f"expected a number from 0 to 1, got {text!r}")
    return number


def to_path(text: str) -> Path:
    """A path that is not empty: an empty one, of an unset shell variable, would be the current folder."""
    if not text:
        raise argparse.ArgumentTypeError("expected a path, got ''")
    return Path(text)


def check_file(option: str, name: str | os.PathLike, hint: str = "") -> None:
    """Raises `UsageError` if a name, which `option` was given, is not that of a file."""
    if not name:
        raise UsageError(f"{option}: expected a path, got ''{hint}")
    if Path(name).is_dir():
        raise UsageError(f"{option} {name}: is a folder, not a file{hint}")
    if not Path(name).is_file():
        raise UsageError(f"{option} {name}: {'not a file' if Path(name).exists() else 'no such file'}{hint}")


def check_writable(option: str, file: Path) -> None:
    """Raises `UsageError` if a file cannot be written, before the work that it is for is done."""
    if file.is_dir():
        raise UsageError(f"{option} {file}: is a folder, not a file")
    folder = next(folder for folder in file.absolute().parents if folder.exists())
    try:
        if not folder.is_dir():
            raise NotADirectoryError(f"{folder} is a file, not a folder")
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise UsageError(f"{option} {file}: cannot write there ({error.strerror or error})") from error


def model_config(model: str) -> Config:
    """Loads what --model names; an error is a `UsageError`."""
    from codetr.config import load_config

    try:
        return load_config(model)
    except (ValueError, OSError) as error:
        raise UsageError(f"--model: {one_line(error)}") from error


def weights_source(model: str, weights: str | None) -> str:
    """Resolves --weights: a known name, a URL or a file; by default `codetr.weights.default_weights`.

    Raises:
        UsageError: none of these, none given and the model has none, or there is no such model.
    """
    from codetr.weights import KNOWN_WEIGHTS, default_weights, is_url

    config, known = model_config(model), ", ".join(KNOWN_WEIGHTS)
    if weights is None:
        weights = default_weights(model, config)
        if weights is None:
            raise UsageError(
                f"--weights: needed, none lie beside {model} and none are published for model {config.name} "
                f"(only for {known})"
            )
        return weights
    if weights not in KNOWN_WEIGHTS and not is_url(weights):
        check_file("--weights", weights, f"; expected a file, a URL, or one of {known}")
    return weights
