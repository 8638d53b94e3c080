"""Types of the command-line options that several benchmarks share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from cyclopts import Parameter


def several(parse: Callable[[str], Any], metavar: str, **settings: Any) -> Parameter:
    """Makes the parameter of a tuple, see `codetr.cli.argument_types.parsed_by`.

    Args:
        parse: parses one value. Its ValueError is the message.
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


class EngineFile(NamedTuple):
    """An engine and its name in the results."""

    label: str
    path: Path


def _engine_file(text: str) -> EngineFile:
    label, _, path = text.partition("=")
    if not (label and path):
        raise ValueError(f"expected LABEL=FILE, got {text!r}")
    if not Path(path).is_file():
        raise ValueError(f"expected a file, got {path!r}")
    return EngineFile(label, Path(path))


EngineFiles = Annotated[tuple[Any, ...], several(_engine_file, "LABEL=FILE")]
"""A tuple of `EngineFile`."""
ModelName = Annotated[str, Parameter(metavar="NAME|RUN|JSON")]
WeightsName = Annotated[str, Parameter(metavar="NAME|FILE|URL")]
OneOrMore = Parameter(consume_multiple=(1, 1000))
"""An option with one value or several."""
