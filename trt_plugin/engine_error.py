"""The error of engines and of the machine, and the packages whose absence raises it."""

from __future__ import annotations

import warnings
from types import ModuleType

_ADVICE = "install it with: pip install 'codetr-tensorrt[tensorrt]'"


class EngineError(RuntimeError):
    """An engine, its plugin, its metadata or the machine has a problem. The message is one line."""

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))


def import_tensorrt() -> ModuleType:
    """Imports the package `tensorrt`.

    Raises:
        EngineError: the package is not installed, or its libraries cannot be loaded.
    """
    try:
        with warnings.catch_warnings():  # Python 3.12 and newer warn of strings in its bindings
            warnings.simplefilter("ignore")
            import tensorrt
    except ImportError as error:
        raise EngineError(f"TensorRT cannot be imported ({error}); {_ADVICE}") from error
    return tensorrt


def import_cudart() -> ModuleType:
    """Imports the CUDA runtime of cuda-python.

    Raises:
        EngineError: the package is not installed.
    """
    try:
        from cuda.bindings import runtime
    except ImportError as error:
        raise EngineError(f"cuda-python cannot be imported ({error}); {_ADVICE}") from error
    return runtime
