"""The command line `codetr`: `app` lists the commands, `program` runs them, `argument_types` parses
values."""

from __future__ import annotations

from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Runs `codetr`, see `codetr.cli.app.main`."""
    from codetr.cli.app import main as run

    return run(argv)
