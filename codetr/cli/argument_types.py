"""Types of command-line values that Cyclopts has not: files that exist, files and folders to write.

`Parameter` is Cyclopts' own. In Python 3.10 it ignores `metavar`, which Cyclopts 4 lacks.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import cyclopts
from cyclopts import Token
from cyclopts.types import ExistingDirectory, ExistingFile

from codetr.errors import ArgumentError

if sys.version_info >= (3, 11):
    Parameter = cyclopts.Parameter
else:

    class Parameter(cyclopts.Parameter):
        def __init__(self, *arguments: Any, metavar: str | None = None, **settings: Any) -> None:
            super().__init__(*arguments, **settings)


def parsed_by(parse: Callable[[str], Any], metavar: str, several: bool = False, **settings: Any) -> Parameter:
    """Makes the parameter of a value that a function parses from one word.

    Args:
        parse: raises ValueError with the value that it expected and the one that it got.
        metavar: name of the value in the help.
        several: whether the parameter is a tuple. By default the option is repeated for each value.
        settings: more arguments of `cyclopts.Parameter`.
    """

    def convert(type_: Any, tokens: Sequence[Token]) -> Any:
        values = tuple(parse(token.value) for token in tokens)
        return values if several else values[0]

    return Parameter(converter=convert, n_tokens=1, accepts_keys=False, metavar=metavar, **settings)


def _path(text: str) -> Path:
    if not text:  # an unset shell variable; Path("") is the current folder
        raise ValueError("expected a path, got ''")
    return Path(text)


InputFile = Annotated[ExistingFile, Parameter(metavar="FILE")]
OutputFile = Annotated[Path, parsed_by(_path, "FILE")]
"""A file to write."""
InputFolder = Annotated[ExistingDirectory, Parameter(metavar="DIR")]
Folder = Annotated[Path, parsed_by(_path, "DIR")]
"""A folder, read or written."""


def compile_patterns(argument: str, patterns: Sequence[str]) -> list[re.Pattern]:
    """Compiles regular expressions.

    Raises:
        ArgumentError: one of them is none.
    """
    compiled = []
    for pattern in patterns:
        try:
            compiled.append(re.compile(pattern))
        except re.error as error:
            text = f"expected a regular expression, got {pattern!r} ({error})"
            raise ArgumentError(argument, text) from error
    return compiled
