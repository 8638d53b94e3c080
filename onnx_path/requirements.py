"""Packages, the plugin library and the GPU that the commands of this folder need; names all that is missing.

Imports no package before it is asked for.
"""

from __future__ import annotations

import ctypes
import importlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from codetr.cli.command import UsageError, run_command
from trt_plugin.engine_error import EngineError, import_cudart, import_tensorrt
from trt_plugin.library import library_path

GRAPH = ("onnx", "onnx_ir", "onnxscript")
"""What modules of this folder import at the top."""
BUILD = ("polygraphy", "tensorrt", "cuda")
"""What a build imports."""
EXTRAS = dict.fromkeys((*GRAPH, "onnxruntime"), "onnx") | dict.fromkeys(BUILD, "tensorrt")


@dataclass(frozen=True)
class Missing:
    """Something that this machine lacks.

    Attributes:
        name: in a list of several.
        message: if it is the only one.
        extra: of this project that installs it, if one does.
    """

    name: str
    message: str
    extra: str = ""


def packages(*modules: str) -> list[Missing]:
    """Imports modules, keys of `EXTRAS`, and returns those that cannot be imported."""
    missing = []
    for module in modules:
        extra = EXTRAS[module]
        try:
            _import(module)
        except EngineError as error:
            name = {"tensorrt": "TensorRT", "cuda": "cuda-python"}[module]
            cause = error.__cause__
            reason = "" if isinstance(cause, ModuleNotFoundError) else f" (cannot be loaded: {cause})"
            missing.append(Missing(name + reason, str(error), extra))
        except ImportError:
            name = module.replace("_", "-")
            message = f"{name} is not installed: pip install 'codetr-tensorrt[{extra}]'"
            missing.append(Missing(name, message, extra))
    return missing


def plugin_library() -> list[Missing]:
    """Returns our plugin library if it does not exist."""
    try:
        library_path()
    except EngineError as error:
        name = str(error).partition(" does not exist")[0].rstrip(",")
        return [Missing(name, str(error))]
    return []


def gpu() -> list[Missing]:
    """Returns the GPU if there is none; without cuda-python the driver is asked."""
    from trt_plugin.cuda_runtime import require_gpu

    if packages("cuda"):
        message = "TensorRT needs an NVIDIA GPU, and its driver finds none"
        return [] if _driver_finds_gpu() else [Missing("an NVIDIA GPU", message)]
    try:
        require_gpu()
    except EngineError as error:
        return [Missing(f"an NVIDIA GPU ({str(error).rpartition(': ')[2]})", str(error))]
    return []


def require(missing: Sequence[Missing]) -> None:
    """Raises `EngineError` if something is missing: one line that names all of it and how to install it."""
    if not missing:
        return
    if len(missing) == 1:
        raise EngineError(missing[0].message)
    *names, last = (one.name for one in missing)
    extras = ",".join(sorted({one.extra for one in missing} - {""}))
    install = f"; install the packages with: pip install 'codetr-tensorrt[{extras}]'" if extras else ""
    raise EngineError(f"this machine lacks {', '.join(names)} and {last}{install}")


def stop_without_graph_packages(*modules: str, engines: bool = False) -> None:
    """Ends the process with one line and status 2 if a package of `GRAPH` is missing.

    Commands call this before they import the modules that import these packages.

    Args:
        modules: what else the command imports, to be named in the same line.
        engines: the command also needs the plugin library and a GPU.
    """
    if not packages(*GRAPH):
        return
    missing = packages(*GRAPH, *modules)
    if engines:
        missing += [*plugin_library(), *gpu()]

    def complain() -> int:
        try:
            require(missing)
        except EngineError as error:
            raise UsageError(str(error)) from error
        return 0

    sys.exit(run_command(complain))


def _import(module: str) -> None:
    if module == "tensorrt":
        import_tensorrt()
    elif module == "cuda":
        import_cudart()
    else:
        importlib.import_module(module)


def _driver_finds_gpu() -> bool:
    try:
        return ctypes.CDLL("libcuda.so.1").cuInit(0) == 0
    except OSError:
        return False
