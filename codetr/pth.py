"""Reads the files of `torch.save` without running them.

A `.pth` file is a pickle, and a pickle names functions to call. Here `torch.load` gets an unpickler that
knows only the functions for tensors and plain containers. Every other name becomes an inert `Skipped` object.
"""

from __future__ import annotations

import collections
import os
import pickle
import zipfile
from pathlib import Path
from types import SimpleNamespace

import torch

_UNDERSTOOD = {
    ("collections", "OrderedDict"): collections.OrderedDict,
    ("torch", "Size"): torch.Size,
    ("torch._utils", "_rebuild_tensor"): torch._utils._rebuild_tensor,
    ("torch._utils", "_rebuild_tensor_v2"): torch._utils._rebuild_tensor_v2,
    ("torch._utils", "_rebuild_parameter"): torch._utils._rebuild_parameter,
}


class Skipped:
    """Stands for an object of an unknown class. It accepts every operation of a pickle and does nothing."""

    def __new__(cls, *args, **kwargs):
        return super().__new__(cls)

    def __init__(self, *args, **kwargs) -> None:
        pass

    def __call__(self, *args, **kwargs) -> Skipped:
        return self

    def _ignore(self, *args) -> None:
        pass

    __setstate__ = __setitem__ = append = extend = add = update = _ignore


class _Unpickler(pickle.Unpickler):
    """`torch.load` derives its unpickler from this one and adds the storages."""

    def find_class(self, module: str, name: str) -> object:
        return _UNDERSTOOD.get((module, name), Skipped)


_PICKLE = SimpleNamespace(
    __name__="codetr.pth",
    Unpickler=_Unpickler,
    load=lambda file, **options: _Unpickler(file, **options).load(),
)


def read_pth(path: str | os.PathLike) -> object:
    """Reads a file that `torch.save` wrote.

    Args:
        path: the file. Tensors of a zip file stay mapped to it and are read when they are used.

    Returns:
        The saved object: dicts, lists, numbers, strings, tensors on the CPU, and `Skipped` in place of all
        others.

    Raises:
        ValueError: the file is cut off or no checkpoint; one line that names it.
    """
    path = Path(path)
    try:
        zipped = zipfile.is_zipfile(path)
        if zipped:
            with zipfile.ZipFile(path) as archive:
                if any(name.endswith("/constants.pkl") for name in archive.namelist()):
                    raise ValueError("the archive is a TorchScript program")
        return torch.load(path, map_location="cpu", pickle_module=_PICKLE, weights_only=False, mmap=zipped)
    except Exception as error:  # a damaged pickle raises the errors of its operations
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(f"{path}: cut off, or not a PyTorch checkpoint ({reason})") from None
