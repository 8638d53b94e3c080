"""Gives an engine other weights without a build. The refit commands of both paths use it. Needs a GPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import tensorrt as trt


def refit_engine(path: Path, give: Callable[[trt.Refitter, list[str]], object]) -> bytes:
    """Replaces every weight of an engine.

    Args:
        path: a refittable engine.
        give: sets all weights of a refitter, or raises. The list collects TensorRT's errors. The returned
            object lives until TensorRT has read the weights.

    Returns:
        The new engine, serialised.

    Raises:
        RuntimeError: TensorRT cannot refit the engine. Errors of `give` are passed on.
        trt_plugin.EngineError: the file cannot be loaded.
    """
    from trt_plugin.engine_error import import_tensorrt
    from trt_plugin.engine_file import load_engine
    from trt_plugin.tensorrt_log import collect_errors, describe, tensorrt_logger

    trt = import_tensorrt()
    _runtime, engine = load_engine(path)  # the runtime must outlive the engine
    with collect_errors() as messages:
        refitter = trt.Refitter(engine, tensorrt_logger())
        read_later = give(refitter, messages)
        refitted = refitter.refit_cuda_engine()
        del read_later
        if not refitted:
            raise RuntimeError(f"{path}: TensorRT cannot refit it: {describe(messages)}")
        serialised = engine.serialize()
    if serialised is None:
        raise RuntimeError(f"{path}: TensorRT cannot serialise the new engine: {describe(messages)}")
    return bytes(serialised)
