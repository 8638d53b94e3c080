"""Types of the command-line options that several benchmarks share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, NamedTuple

from codetr.cli.argument_types import Parameter, parsed_by


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


EngineFiles = Annotated[tuple[Any, ...], parsed_by(_engine_file, "LABEL=FILE", several=True)]
"""A tuple of `EngineFile`."""
ModelName = Annotated[str, Parameter(metavar="NAME|RUN|JSON")]
WeightsName = Annotated[str, Parameter(metavar="NAME|FILE|URL")]
OneOrMore = Parameter(consume_multiple=(1, 1000))
"""An option with one value or several."""
