"""TensorRT engines from ONNX files with MSDA nodes, by polygraphy's Python API. Needs a GPU."""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from onnx_path.operator import DOMAIN, remove_function_bodies


def import_requirements() -> None:
    """Imports what a build and running its engine need, and registers the plugins.

    Raises:
        ImportError: naming what to install.
        trt_plugin.EngineError: TensorRT, cuda-python or the plugin library is missing or cannot be loaded.
    """
    try:
        import polygraphy  # noqa: F401
    except ImportError as error:
        raise ImportError("polygraphy is not installed: pip install codetr-tensorrt[tensorrt]") from error
    import trt_plugin
    from trt_plugin.errors import import_cudart

    import_cudart()
    trt_plugin.load()


def build_engine(
    onnx_path: Path,
    engine_path: Path,
    timing_cache: Path | None = None,
    optimization_level: int | None = None,
) -> None:
    """Builds a strongly typed engine: the types in the file are the types in the engine, and TF32 is off.

    Args:
        onnx_path: a file with static shapes; external weights lie beside it.
        engine_path: the engine is written here.
        timing_cache: file of TensorRT's timing cache, read if it exists, and updated.
        optimization_level: 0 to 5, TensorRT's default is 3.

    Raises:
        ImportError: a package is missing.
        RuntimeError: TensorRT cannot parse the file or build the engine; with its own words.
    """
    import_requirements()
    import tensorrt as trt
    from polygraphy.backend.trt import CreateConfig, EngineBytesFromNetwork, NetworkFromOnnxPath
    from polygraphy.exception import PolygraphyException

    from trt_plugin.log import collect_errors, describe

    try:
        with (
            _without_function_bodies(onnx_path) as parsed_path,
            _quiet_polygraphy(),
            collect_errors() as messages,
        ):
            network = NetworkFromOnnxPath(str(parsed_path), strongly_typed=True)
            config = CreateConfig(
                tf32=False,
                profiling_verbosity=trt.ProfilingVerbosity.DETAILED,
                load_timing_cache=str(timing_cache) if timing_cache and timing_cache.is_file() else None,
                builder_optimization_level=optimization_level,
            )
            build = EngineBytesFromNetwork(
                network, config=config, save_timing_cache=str(timing_cache) if timing_cache else None
            )
            engine = build()
    except PolygraphyException as error:
        reason = describe(messages) if messages else error
        raise RuntimeError(f"{onnx_path.name}: TensorRT cannot build an engine of it: {reason}") from error
    engine_path.write_bytes(engine)


@contextmanager
def _quiet_polygraphy() -> Iterator[None]:
    """Lets TensorRT report to our logger, errors only, and polygraphy to none, while the block runs.

    Polygraphy would print every message of TensorRT's and its own, the cause of a failure among them.
    """
    from polygraphy.backend.trt import util
    from polygraphy.logger import G_LOGGER

    from trt_plugin import log

    ours = logging.getLogger(log.__name__)
    before, level = util.TRT_LOGGER, ours.level
    util.TRT_LOGGER = log.tensorrt_logger()
    ours.setLevel(logging.ERROR)
    try:
        with G_LOGGER.verbosity(G_LOGGER.CRITICAL + 1):
            yield
    finally:
        util.TRT_LOGGER = before
        ours.setLevel(level)


@contextmanager
def _without_function_bodies(path: Path) -> Iterator[Path]:
    """Gives a file in the same folder (external weights are found by it) without bodies of the MSDA nodes.

    TensorRT's parser up to 10.6 would otherwise build the bodies, not the plugins.
    """
    import onnx

    model = onnx.load(path, load_external_data=False)
    if not any(function.domain == DOMAIN for function in model.functions):
        yield path
        return
    remove_function_bodies(model)
    handle, name = tempfile.mkstemp(prefix=f".{path.stem}-", suffix=".onnx", dir=path.parent)
    os.close(handle)
    stripped = Path(name)
    try:
        onnx.save(model, stripped)
        del model  # as large as the weights
        yield stripped
    finally:
        stripped.unlink()
