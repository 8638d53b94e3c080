"""Other weights in an engine, without a build: what the two paths' refit commands share. Needs a GPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import tensorrt as trt


def refit_engine(path: Path, give: Callable[[trt.Refitter, list[str]], object]) -> bytes:
    """Gives every weight of an engine another value.

    Args:
        path: a refittable engine.
        give: sets all weights of a refitter, or raises; the list collects TensorRT's errors, see
            `trt_plugin.tensorrt_log.describe`. What it returns lives until TensorRT has read the weights.

    Returns:
        The new engine, serialised.

    Raises:
        RuntimeError: TensorRT cannot refit it; what `give` raises is passed on.
        trt_plugin.EngineError: the file cannot be loaded.
    """
    from trt_plugin.engine_error import import_tensorrt
    from trt_plugin.engine_file import load_engine
    from trt_plugin.tensorrt_log import collect_errors, describe, tensorrt_logger

    trt = import_tensorrt()
    _runtime, engine = load_engine(path)  # the first must outlive the second
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
