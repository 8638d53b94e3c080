"""Builds serialized TensorRT engines of ONNX files with polygraphy. Needs a GPU."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from onnx_path.tensorrt.optimization_profiles import ShapeRange


@dataclass(frozen=True)
class Settings:
    """Settings of a build. Every engine is strongly typed and has detailed profiling verbosity.

    Attributes:
        profiles: shapes of the dynamic inputs by name.
        tf32: multiply float32 matrices with 10 bits of mantissa.
        workspace_bytes: most memory that layers may use for intermediate results. Default: all of the GPU.
        optimization_level: 0 to 5. Default: TensorRT's, which is 3.
        timing_cache: file that is read if it exists, and updated.
        plugins: libraries with the file's custom operators.
        refittable: the engine takes other weights without a new build.
    """

    profiles: Mapping[str, ShapeRange] = field(default_factory=dict)
    tf32: bool = False
    workspace_bytes: int | None = None
    optimization_level: int | None = None
    timing_cache: Path | None = None
    plugins: tuple[Path, ...] = ()
    refittable: bool = False


def serialize_engine(path: Path, settings: Settings, name: str) -> bytes:
    """Builds an engine.

    Args:
        path: file that TensorRT parses, with external weights beside it. Its plugins are registered.
        name: name of the file in errors.

    Raises:
        RuntimeError: TensorRT cannot parse the file or build the engine. The message has TensorRT's reason.
    """
    import tensorrt as trt
    from polygraphy.backend.trt import CreateConfig, EngineBytesFromNetwork, NetworkFromOnnxPath, Profile
    from polygraphy.exception import PolygraphyException

    from trt_plugin.tensorrt_log import collect_errors, describe

    profile = Profile()
    for input_name, shapes in settings.profiles.items():
        profile.add(input_name, *shapes)
    limits = {trt.MemoryPoolType.WORKSPACE: settings.workspace_bytes} if settings.workspace_bytes else None
    cache = settings.timing_cache
    try:
        with _quiet_polygraphy(), collect_errors() as messages:
            build = EngineBytesFromNetwork(
                NetworkFromOnnxPath(str(path), strongly_typed=True),
                config=CreateConfig(
                    tf32=settings.tf32,
                    refittable=settings.refittable,
                    profiles=[profile] if settings.profiles else None,
                    profiling_verbosity=trt.ProfilingVerbosity.DETAILED,
                    memory_pool_limits=limits,
                    load_timing_cache=str(cache) if cache and cache.is_file() else None,
                    builder_optimization_level=settings.optimization_level,
                ),
                save_timing_cache=str(cache) if cache else None,
            )
            return build()
    except PolygraphyException as error:
        reason = describe(messages) if messages else error
        raise RuntimeError(f"{name}: TensorRT cannot build an engine of it: {reason}") from error


@contextmanager
def _quiet_polygraphy() -> Iterator[None]:
    """Sends TensorRT's errors to the project's logger and silences polygraphy while the block runs.

    Polygraphy prints every message of TensorRT and of its own otherwise, the cause of a failure twice.
    """
    from polygraphy.backend.trt import util
    from polygraphy.logger import G_LOGGER

    from trt_plugin import tensorrt_log

    logger = logging.getLogger(tensorrt_log.__name__)
    before, level = util.TRT_LOGGER, logger.level
    util.TRT_LOGGER = tensorrt_log.tensorrt_logger()
    logger.setLevel(logging.ERROR)
    try:
        with G_LOGGER.verbosity(G_LOGGER.CRITICAL + 1):
            yield
    finally:
        util.TRT_LOGGER = before
        logger.setLevel(level)
