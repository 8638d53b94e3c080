"""Finds and loads the compiled operators, `libmsda_torch.so`, which are beside this file."""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path

import torch

FILE_NAME = "libmsda_torch.so"
BUILD_COMMAND = "pip install --no-build-isolation -e . (or `make build`) in the source tree"


@dataclass(frozen=True)
class BuildInfo:
    """The compiled operators: their file, and the CUDA architectures in it ("" without CUDA)."""

    path: Path
    cuda_architectures: str

    @property
    def has_cuda(self) -> bool:
        return bool(self.cuda_architectures)


def library_path() -> Path:
    """The path of the shared object: $MSDA_TORCH_LIBRARY if set, else the file beside this one.

    Raises:
        ImportError: naming the missing file, or the folder that hides it, and the remedy.
    """
    override = os.environ.get("MSDA_TORCH_LIBRARY")
    path = Path(override) if override else Path(__file__).with_name(FILE_NAME)
    if not path.is_file():
        if not override and (installed := _installed_library()):
            raise ImportError(
                f"msda: Python imported {path.parent}, which has no compiled operators, not the installed "
                f"{installed.parent}; run Python in another folder than {path.parents[1]}, or install that "
                f"with {BUILD_COMMAND}"
            )
        source = "named by MSDA_TORCH_LIBRARY" if override else "of the msda package"
        raise ImportError(
            f"msda: the compiled operators {path} ({source}) do not exist; build them with {BUILD_COMMAND}"
        )
    return path


def _installed_library() -> Path | None:
    """The shared object of an installed distribution that a folder msda in the working directory hides."""
    for distribution in metadata.distributions(name="codetr-tensorrt"):
        path = Path(distribution.locate_file(f"msda/{FILE_NAME}"))
        if path.is_file():
            return path
    return None


@cache
def load() -> BuildInfo:
    """Registers the operators with Torch, once.

    Raises:
        ImportError: if the shared object is missing or can't be loaded, with the remedy.
    """
    path = library_path()
    try:
        torch.ops.load_library(path)
    except OSError as error:
        raise ImportError(
            f"msda: {path} can't be loaded ({error}); rebuild it with {BUILD_COMMAND}"
        ) from error
    describe = ctypes.CDLL(str(path)).msda_cuda_architectures
    describe.restype = ctypes.c_char_p
    return BuildInfo(path=path, cuda_architectures=describe().decode())


def build_info() -> BuildInfo:
    """Returns the file of the compiled operators in use and its CUDA architectures."""
    return load()
