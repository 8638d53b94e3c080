"""The error of everything that concerns engines, and optional packages whose absence is such an error."""

from __future__ import annotations

import warnings
from types import ModuleType


class EngineError(RuntimeError):
    """An engine, its plugin, its metadata or the machine is not as it should be. The message is one line."""

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))


def import_tensorrt() -> ModuleType:
    """The module `tensorrt`.

    Raises:
        EngineError: it is not installed, or its libraries cannot be loaded.
    """
    try:
        # Its bindings hold strings that Python 3.12 and newer warn of.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import tensorrt
    except ImportError as error:
        raise EngineError(
            f"TensorRT cannot be imported ({error}); install it with: pip install 'codetr-tensorrt[tensorrt]'"
        ) from error
    return tensorrt


def import_cudart() -> ModuleType:
    """The CUDA runtime of cuda-python.

    Raises:
        EngineError: it is not installed.
    """
    try:
        from cuda.bindings import runtime
    except ImportError as error:
        try:
            from cuda import cudart as runtime  # cuda-python before 12.6
        except ImportError:
            raise EngineError(
                f"cuda-python cannot be imported ({error}); "
                "install it with: pip install 'codetr-tensorrt[tensorrt]'"
            ) from error
    return runtime
