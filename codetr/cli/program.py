"""Runs commands: Cyclopts parses the options, and every failure ends in one line on stderr.

A command is a function with annotated parameters that returns its exit status. `run_program` gives it a
command line, for `codetr COMMAND` as for `python -m MODULE`. Exit status of every command: 0, done; 1, it
failed; 2, wrong options or input; 130, interrupted. CODETR_TRACEBACK=1 shows the Python traceback instead of
the line. CODETR_BUILD_TIMING_CACHE=FILE is the default of `--timing-cache` of `codetr build` and
`python -m onnx_path.build`; so it is for every option.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence

from cyclopts import App, CoercionError, CycloptsError
from cyclopts.config import Env

from codetr.cli.argument_types import Parameter
from codetr.errors import ArgumentError, UsageError, one_line


def make_app(name: str, help: str | None = None, variables: str = "CODETR_", **settings: object) -> App:
    """Makes a Cyclopts app with the settings that all programs share.

    Args:
        name: the program, such as "codetr" or "python -m onnx_path.build".
        help: text before the options; default: the docstring of the command.
        variables: beginning of the environment variables that hold defaults of options.
        settings: more arguments of `cyclopts.App`.
    """
    return App(
        name=name,
        help=help,
        help_format="markdown",
        default_parameter=Parameter(
            negative=(),  # --refittable has no --no-refittable
            show_default=lambda value: None if value is False or value == () else value,
        ),
        result_action="return_value",
        print_error=False,
        exit_on_error=False,
        suppress_keyboard_interrupt=False,
        config=Env(variables, show=False),
        **settings,
    )


def run_program(
    command: App | Callable[..., int | None], argv: Sequence[str] | None = None, program: str = ""
) -> int:
    """Runs a command line and returns its exit status.

    Args:
        command: a function, or an app with several commands.
        argv: the arguments; default: `sys.argv[1:]`.
        program: name in the help and before "error: …".
    """
    app = command
    if not isinstance(app, App):
        name = program.rpartition(".")[2].upper()  # of a module, the same as `codetr`'s command
        app = make_app(program, variables=f"CODETR_{name}_", version_flags=())
        app.default(command)
    try:
        status = app(sys.argv[1:] if argv is None else list(argv))
        sys.stdout.flush()  # a failure to write still becomes one line here
        return status or 0
    except KeyboardInterrupt:
        complain("error", "interrupted", program)
        return 130
    except BrokenPipeError:  # the reader of the output has ended, such as `head`
        _flush_or_discard()
        return 1
    except Exception as error:
        if os.environ.get("CODETR_TRACEBACK"):
            raise
        complain("error", message_of(error, program), program)
        _flush_or_discard()
        return 2 if isinstance(error, (ArgumentError, CycloptsError, UsageError)) else 1


def complain(kind: str, message: str, program: str = "") -> None:
    """Prints "<program>: <kind>: <message>" on stderr."""
    print(": ".join(filter(None, (program, kind, message))), file=sys.stderr, flush=True)


def message_of(error: Exception, program: str = "") -> str:
    """Returns the message of an error as a program prints it, on one line."""
    if isinstance(error, CycloptsError):
        command = " ".join([program, *(error.command_chain or ())])
        text = " ".join(str(error).split())
        if isinstance(error, CoercionError) and error.msg and error.token and error.token.keyword is None:
            text = f"Invalid value for {error.argument.name}: {text}"  # Cyclopts names options alone
        return f"{text} (see {command} --help)"
    if isinstance(error, ArgumentError):
        return f"--{error.argument.replace('_', '-')}: {' '.join(error.problem.split())}"
    return one_line(error)


def _flush_or_discard() -> None:
    """Leaves no output for the flush at the interpreter's exit, which would print a traceback if it
    failed."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
