"""The command line: `app` lists the commands, `program` runs them, `argument_types` parses values."""

from codetr.cli.app import main

__all__ = ["main"]
