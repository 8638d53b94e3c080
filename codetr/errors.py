"""Errors that name what the caller gave, and their text on one line. Standard library only."""

from __future__ import annotations

_EXTRAS = {
    "batch": ("pyarrow", "ray"),
    "onnx": ("onnx", "onnx_ir", "onnxruntime", "onnxscript"),
    "tensorrt": ("cuda", "polygraphy", "tensorrt"),
    "dynamo": ("torch_tensorrt",),
    "inspect": ("graphviz", "matplotlib"),
    "train": ("pycocotools", "scipy", "torchvision"),
    "video": ("av",),
    "serve": ("aiohttp", "fastapi", "python_multipart", "ray", "starlette", "yaml"),
    "sweep": ("itables", "jinja2", "timm"),
}
"""Packages that each extra of the project installs."""


class ArgumentError(ValueError):
    """An argument has a wrong value.

    A command prints the argument as its option: `max_size` becomes `--max-size`.

    Attributes:
        argument: name of the parameter.
        problem: the value that was expected and the one that was given.
    """

    def __init__(self, argument: str, problem: str) -> None:
        super().__init__(f"{argument}: {problem}")
        self.argument = argument
        self.problem = problem


class UsageError(ValueError):
    """A command got wrong options or unusable input: it ends with exit status 2."""


def one_line(error: BaseException, limit: int = 320) -> str:
    """Returns the message of an error on one line.

    Args:
        error: its attribute `summary`, if it has one, replaces the message.
        limit: longest text, in characters.
    """
    message = " ".join(str(getattr(error, "summary", error)).split())
    if isinstance(error, ModuleNotFoundError) and error.name:
        package = error.name.partition(".")[0]
        extras = ",".join(extra for extra, packages in _EXTRAS.items() if package in packages)
        wanted = f"codetr-tensorrt[{extras}]" if extras else "codetr-tensorrt"
        message = f"the package {package} is not installed: pip install '{wanted}'"
    elif isinstance(error, OSError) and error.strerror:
        message = f"{error.filename}: {error.strerror}" if error.filename is not None else error.strerror
    elif isinstance(error, MemoryError):
        message = f"out of memory: {message}" if message else "out of memory"
    elif not isinstance(error, (OSError, ValueError, RuntimeError, ImportError)) or not message:
        message = f"{type(error).__name__}: {message}" if message else type(error).__name__
    return message if len(message) <= limit else message[: limit - 1] + "…"
