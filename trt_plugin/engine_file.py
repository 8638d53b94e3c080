"""Reads and loads engine files. A wrong file, plugin or machine is an error of one line."""

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

# An engine file begins with a tag and the version of its layout, as trtexec --getPlanVersionOnly reads them.
# In layout 0, bytes 24 to 27 are the four numbers of TensorRT's version.
HEADER_BYTES = 28
_TAG = 0x74727466

# Parts of TensorRT's messages.
_VERSION_PROBLEM = re.compile("expecting library version|version tag does not match|engine version", re.I)
_DEVICE_PROBLEM = re.compile("incompatible device|expecting compute|platform specific tag", re.I)
_PLUGIN_PROBLEM = re.compile("cannot find plugin|plugin ?creator|getCreator|plugin registry", re.I)


def built_with(content: bytes) -> str:
    """Returns the version of TensorRT that wrote an engine, such as "10.6.0.26"; "" if it is not known."""
    tag, layout = struct.unpack_from("<II", content)
    return ".".join(map(str, content[24:28])) if tag == _TAG and layout == 0 else ""


def load_engine(path: Path, device: int = 0) -> tuple[trt.Runtime, trt.ICudaEngine]:
    """Loads an engine. Registers the plugins of this package first, if their library exists.

    Args:
        path: the engine file.
        device: number of the GPU, which becomes the thread's current GPU.

    Returns:
        The runtime, which must outlive the engine, and the engine.

    Raises:
        EngineError: the file is missing, no engine, damaged, of another TensorRT version or for another
            GPU; or the plugin library, a GPU, TensorRT or cuda-python is missing.
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


def read_plan(path: Path, num_bytes: int = -1) -> bytes:
    """Reads an engine file.

    Args:
        num_bytes: size of the part to read, from the beginning; at least `HEADER_BYTES`. Default: all.

    Raises:
        EngineError: the file cannot be read, or does not begin like an engine.
    """
    try:
        with path.open("rb") as file:
            content = file.read(num_bytes)
    except OSError as error:
        raise EngineError(f"the engine {path} cannot be read: {error.strerror}") from error
    if len(content) < HEADER_BYTES or struct.unpack_from("<I", content)[0] != _TAG:
        raise EngineError(f"{path} is not a TensorRT engine: it does not begin like one")
    return content


def _reason(content: bytes, messages: str, plugin_problem: str) -> str:
    """Returns why TensorRT refuses an engine: the rest of a sentence that begins with its path."""
    running = import_tensorrt().__version__
    version = built_with(content)
    another = version and version.split(".")[:3] != running.split(".")[:3]
    if another or _VERSION_PROBLEM.search(messages):
        builder = f"TensorRT {version}" if version else "another version of TensorRT"
        return (
            f"was built by {builder}, and this is TensorRT {running}: export it again with this version, or "
            "install the one that built it"
        )
    if _DEVICE_PROBLEM.search(messages):
        return f"was built for another kind of GPU: export it again on this machine (TensorRT: {messages})"
    if _PLUGIN_PROBLEM.search(messages):
        return f"needs a plugin that is not registered: {plugin_problem or f'TensorRT: {messages}'}"
    return f"is truncated or damaged: export it again (TensorRT: {messages})"
