"""Types of the command-line options that several benchmarks share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter


def several(parse: Callable[[str], Any], metavar: str, **settings: Any) -> Parameter:
    """Makes the parameter of a tuple whose values a function parses from one word each.

    Args:
        parse: raises ValueError with the value that it expected and the one that it got.
        metavar: name of a value in the help.
        settings: more arguments of `cyclopts.Parameter`. By default the option is repeated for each value.
    """
    return Parameter(
        converter=lambda _, tokens: tuple(parse(token.value) for token in tokens),
        n_tokens=1,
        accepts_keys=False,
        metavar=metavar,
        **settings,
    )


@dataclass(frozen=True)
class EngineFile:
    """An engine and its name in the results."""

    label: str
    path: Path


def _engine_file(text: str) -> EngineFile:
    label, _, path = text.partition("=")
    if not (label and path):
        raise ValueError(f"expected LABEL=FILE, got {text!r}")
    if not Path(path).is_file():
        raise ValueError(
            f"expected a file, got {path!r}, {'a folder' if Path(path).is_dir() else 'no such file'}"
        )
    return EngineFile(label, Path(path))


EngineFiles = Annotated[tuple[Any, ...], several(_engine_file, "LABEL=FILE")]
"""A tuple of `EngineFile`."""
ModelName = Annotated[str, Parameter(metavar="NAME|RUN|JSON")]
WeightsName = Annotated[str, Parameter(metavar="NAME|FILE|URL")]
Several = Parameter(consume_multiple=True)
"""An option with any number of values, none included."""
OneOrMore = Parameter(consume_multiple=(1, 1000))
"""An option with one value or several."""
