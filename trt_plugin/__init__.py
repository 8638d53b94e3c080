"""Runs TensorRT engines: the plugin library, the metadata beside an engine, and the runner.

Nothing here imports Torch. The functions that need TensorRT and cuda-python import them, so importing this
package needs neither.
"""

from __future__ import annotations

import importlib

_EXPORTS = {
    "ArtifactMetadata": "metadata",
    "EngineError": "engine_error",
    "EngineRunner": "runner",
    "NAMESPACE": "library",
    "OPERATORS": "library",
    "PLUGIN_VERSION": "library",
    "TensorInfo": "engine_tensors",
    "library_path": "library",
    "load": "library",
}

__all__ = sorted(_EXPORTS)


def __getattr__(name: str) -> object:
    if name in _EXPORTS:
        return getattr(importlib.import_module(f"{__name__}.{_EXPORTS[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_EXPORTS})
