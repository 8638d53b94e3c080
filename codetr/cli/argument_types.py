"""Types of command-line values that Cyclopts has not: files that exist, files and folders to write."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter, Token


def parsed_by(parse: Callable[[str], Any], metavar: str) -> Parameter:
    """Makes the parameter of a value that a function parses from one word.

    Args:
        parse: raises ValueError with the value that it expected and the one that it got.
        metavar: name of the value in the help.
    """

    def convert(type_: Any, tokens: Sequence[Token]) -> Any:
        return parse(tokens[0].value)

    return Parameter(converter=convert, n_tokens=1, accepts_keys=False, metavar=metavar)


def _file(text: str) -> Path:
    path = Path(text)
    if not text or not path.is_file():
        kind = "no path" if not text else "a folder" if path.is_dir() else "no such file"
        raise ValueError(f"expected a file, got {text!r}, {kind}")
    return path


def _path(text: str) -> Path:
    if not text:  # an unset shell variable; Path("") is the current folder
        raise ValueError("expected a path, got ''")
    return Path(text)


InputFile = Annotated[Path, parsed_by(_file, "FILE")]
"""A file that exists."""
OutputFile = Annotated[Path, parsed_by(_path, "FILE")]
"""A file to write."""
Folder = Annotated[Path, parsed_by(_path, "DIR")]
"""A folder, read or written."""
