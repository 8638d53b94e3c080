"""Serialized TensorRT engines of ONNX files, by polygraphy's Python API. Needs a GPU."""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from onnx_path.optimization_profiles import Profile


@dataclass(frozen=True)
class Settings:
    """How an engine is built of an ONNX file; always strongly typed and with detailed profiling verbosity.

    Attributes:
        profiles: of the dynamic inputs, by name.
        tf32: multiply float32 matrices with 10 bits of mantissa.
        workspace_bytes: what layers may use at most beside their inputs and outputs; None, all of the GPU.
        optimization_level: 0 to 5; None, TensorRT's default, which is 3.
        timing_cache: file, read if it exists, and updated.
        plugins: libraries that hold the file's custom operators.
        refittable: weights can be exchanged afterwards.
    """

    profiles: Mapping[str, Profile] = field(default_factory=dict)
    tf32: bool = False
    workspace_bytes: int | None = None
    optimization_level: int | None = None
    timing_cache: Path | None = None
    plugins: tuple[Path, ...] = ()
    refittable: bool = False


def serialize_engine(path: Path, settings: Settings, name: str) -> bytes:
    """Builds an engine of what lies at `path` as it is; its plugins are registered.

    Args:
        path: the file that TensorRT parses; external weights lie beside it.
        settings: of the build.
        name: of the file, for errors.

    Raises:
        RuntimeError: TensorRT cannot parse the file or build the engine; with its own words.
    """
    import tensorrt as trt
    from polygraphy.backend.trt import CreateConfig, EngineBytesFromNetwork, NetworkFromOnnxPath
    from polygraphy.backend.trt import Profile as TensorRTProfile
    from polygraphy.exception import PolygraphyException

    from trt_plugin.tensorrt_log import collect_errors, describe

    profile = TensorRTProfile()
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
    """Lets TensorRT report to our logger, errors only, and polygraphy to none, while the block runs.

    Polygraphy would print every message of TensorRT's and its own, the cause of a failure among them.
    """
    from polygraphy.backend.trt import util
    from polygraphy.logger import G_LOGGER

    from trt_plugin import tensorrt_log

    ours = logging.getLogger(tensorrt_log.__name__)
    before, level = util.TRT_LOGGER, ours.level
    util.TRT_LOGGER = tensorrt_log.tensorrt_logger()
    ours.setLevel(logging.ERROR)
    try:
        with G_LOGGER.verbosity(G_LOGGER.CRITICAL + 1):
            yield
    finally:
        util.TRT_LOGGER = before
        ours.setLevel(level)


@contextmanager
def parsed_file(path: Path) -> Iterator[Path]:
    """Gives what TensorRT parses for a file: one in the same folder, by which external weights are found.

    A build and a refit take the same, so that the weights have the same names. See `preparation.fit_plugins`.
    """
    import onnx

    from onnx_path import model_for_tensorrt as preparation

    model = onnx.load(path, load_external_data=False)
    if not preparation.fit_plugins(model, path.parent):
        yield path
        return
    handle, name = tempfile.mkstemp(prefix=f".{path.stem}-", suffix=".onnx", dir=path.parent)
    os.close(handle)
    stripped = Path(name)
    try:
        onnx.save(model, stripped)
        del model  # as large as the weights
        yield stripped
    finally:
        stripped.unlink()
