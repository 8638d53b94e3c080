"""What the commands of this folder share: options, reports, and errors that name an option or a file."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from codetr.cli.command import UsageError, one_line, to_path
from onnx_path import custom_operators as plugins
from onnx_path import optimization_profiles as profiles
from onnx_path.surgery import files
from trt_plugin.atomic_files import atomic_write
from trt_plugin.engine_error import EngineError


def add_plugins(parser: argparse.ArgumentParser, which: str) -> None:
    """Adds --plugins.

    Args:
        parser: of the command.
        which: what the plugins are of, for the help.
    """
    parser.add_argument(
        "--plugins",
        metavar="FILE",
        type=to_path,
        action="append",
        default=[],
        help=f"a library with plugins {which}; may be repeated (ours needs no mention)",
    )


def add_json(parser: argparse.ArgumentParser) -> None:
    """Adds --json."""
    parser.add_argument(
        "--json", metavar="REPORT.json", type=to_path, help="also write the report to this file"
    )


def check_no_metadata(report: Path, engine: Path) -> None:
    """Raises `UsageError` if a report would lie where an engine's metadata are."""
    if report.absolute() == engine.with_suffix(".json").absolute():
        raise UsageError(
            f"--json {report}: whoever runs {engine.name} looks there for its metadata; name another"
        )


def write_report(path: Path, content: object) -> None:
    """Writes a report as JSON, whole or not at all."""
    with atomic_write(path) as temporary:
        text = json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False)
        temporary.write_text(text + "\n", encoding="utf-8")


@contextmanager
def usage_errors(model: Path, *others: type[Exception]) -> Iterator[None]:
    """Makes what is wrong with file, profile or machine a `UsageError`, which names option or file.

    Args:
        model: the file, for errors that name no option.
        others: more such errors.
    """
    try:
        yield
    except (plugins.PluginMissing, profiles.BadProfile, *others) as error:
        message = one_line(error)
        raise UsageError(message if message.startswith("--") else f"{model}: {message}") from error
    except (files.BadModel, EngineError, ImportError, OSError) as error:
        raise UsageError(one_line(error)) from error
