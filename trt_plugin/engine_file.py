"""Loads an engine file; everything that can be wrong with it, its plugin or the machine is one clear line."""

from __future__ import annotations

import re
import struct
from pathlib import Path
from typing import TYPE_CHECKING

from trt_plugin import library
from trt_plugin.cuda_runtime import call, require_gpu
from trt_plugin.engine_error import EngineError, import_tensorrt
from trt_plugin.tensorrt_log import collect_errors, describe, tensorrt_logger

if TYPE_CHECKING:
    import tensorrt as trt

# The beginning of an engine file, as trtexec --getPlanVersionOnly reads it: a tag, the version of the layout,
# and for layout 0 the four numbers of TensorRT's version in bytes 24 to 27.
_HEADER_BYTES = 28
_TAG = 0x74727466

# Words of TensorRT's messages.
_VERSION_PROBLEM = re.compile("expecting library version|version tag does not match|engine version", re.I)
_DEVICE_PROBLEM = re.compile("incompatible device|expecting compute|platform specific tag", re.I)
_PLUGIN_PROBLEM = re.compile("cannot find plugin|plugin ?creator|getCreator|plugin registry", re.I)


def built_with(content: bytes) -> tuple[int, int, int, int] | None:
    """TensorRT's version (major, minor, patch, build) that wrote an engine; None for other bytes."""
    if len(content) < _HEADER_BYTES:
        return None
    tag, layout = struct.unpack_from("<II", content)
    return tuple(content[24:28]) if tag == _TAG and layout == 0 else None


def load_engine(path: Path, device: int = 0) -> tuple[trt.Runtime, trt.ICudaEngine]:
    """Loads an engine, with the plugins of this package registered if their library is there.

    Args:
        path: the engine file.
        device: number of the GPU, which becomes the thread's current one.

    Returns:
        The runtime, which must outlive the engine, and the engine.

    Raises:
        EngineError: in one line: no such file, empty, not an engine, truncated or damaged, of another
            TensorRT version, for another GPU, plugin library missing, no GPU, TensorRT or cuda-python not
            installed.
    """
    content = read_plan(path)
    trt = import_tensorrt()
    require_gpu(device)
    call("cudaSetDevice", device)
    plugin_problem = ""
    try:
        library.load()
    except EngineError as error:  # an engine without our plugins needs no library
        plugin_problem = str(error)
    with collect_errors() as messages:
        runtime = trt.Runtime(tensorrt_logger())
        engine = runtime.deserialize_cuda_engine(content) if runtime is not None else None
    if engine is None:
        raise EngineError(f"{path} {_reason(content, describe(messages), plugin_problem)}")
    return runtime, engine


def read_plan(path: Path) -> bytes:
    """An engine file's bytes.

    Raises:
        EngineError: there is none, it cannot be read, it is empty, or it does not begin like an engine.
    """
    if not path.exists():
        raise EngineError(f"the engine {path} does not exist")
    try:
        content = path.read_bytes()
    except OSError as error:
        raise EngineError(f"the engine {path} cannot be read: {error.strerror or error}") from error
    if not content:
        raise EngineError(f"the engine {path} is empty: its export did not finish")
    if len(content) < _HEADER_BYTES or struct.unpack_from("<I", content)[0] != _TAG:
        raise EngineError(f"{path} is not a TensorRT engine: it does not begin like one")
    return content


def _reason(content: bytes, messages: str, plugin_problem: str) -> str:
    """Why TensorRT refuses an engine, to follow its path."""
    running = import_tensorrt().__version__
    version = built_with(content)
    if _VERSION_PROBLEM.search(messages) or (version and version[:3] != _numbers(running)):
        builder = (
            "another version of TensorRT" if version is None else "TensorRT " + ".".join(map(str, version))
        )
        return (
            f"was built by {builder}, and this is TensorRT {running}: export it again with this version, or "
            "install the one that built it"
        )
    if _DEVICE_PROBLEM.search(messages):
        return f"was built for another kind of GPU: export it again on this machine (TensorRT: {messages})"
    if _PLUGIN_PROBLEM.search(messages):
        if plugin_problem:
            return f"needs a plugin that is not registered: {plugin_problem}"
        return f"needs a plugin that is not registered (TensorRT: {messages})"
    return f"is truncated or damaged: export it again (TensorRT: {messages})"


def _numbers(version: str) -> tuple[int, int, int]:
    """(10, 6, 0) of "10.6.0.post1"."""
    found = re.match(r"(\d+)\.(\d+)\.(\d+)", version)
    if found is None:
        raise EngineError(f"TensorRT's version {version!r} is not of the form major.minor.patch")
    return tuple(int(number) for number in found.groups())
