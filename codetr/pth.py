"""Reads tensors from files of `torch.save` without running them.

A `.pth` file is a pickle, and a pickle names functions to call. Here only what builds tensors and plain
containers is understood, by functions of this module; every other name becomes an inert `Skipped` object, and
nothing is imported. Both the zip format and the one before PyTorch 1.6 are read.
"""

from __future__ import annotations

import collections
import mmap
import os
import pickle
import struct
import sys
import zipfile
from pathlib import Path
from typing import BinaryIO

import torch
from torch import Tensor

_LEGACY_MAGIC = 0x1950A86A20F9469CFC6C
_STORAGE_TYPES = {
    "DoubleStorage": torch.float64,
    "FloatStorage": torch.float32,
    "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16,
    "LongStorage": torch.int64,
    "IntStorage": torch.int32,
    "ShortStorage": torch.int16,
    "CharStorage": torch.int8,
    "ByteStorage": torch.uint8,
    "BoolStorage": torch.bool,
}


class Skipped:
    """Stands for an object of an unknown class. It takes whatever a pickle does to it and does nothing."""

    def __new__(cls, *args, **kwargs):
        return super().__new__(cls)

    def __init__(self, *args, **kwargs) -> None:
        pass

    def __call__(self, *args, **kwargs) -> Skipped:
        return self

    def _ignore(self, *args) -> None:
        pass

    __setstate__ = __setitem__ = append = extend = add = update = _ignore


def read_pth(path: str | os.PathLike) -> object:
    """Reads a file that `torch.save` wrote.

    Args:
        path: the file. Tensors of a zip file stay mapped to it and are read when they are used.

    Returns:
        The saved object: dicts, lists, numbers, strings, tensors on the CPU, and `Skipped` in place of all
            else.

    Raises:
        ValueError: the file is cut off or no checkpoint; one line that names it.
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            if file.read(2) == b"PK":
                return _read_zip(file)
            file.seek(0)
            return _read_legacy(file)
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror or error}") from None
    except Exception as error:  # a damaged pickle raises whatever its opcodes run into
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(f"{path}: cut off, or not a PyTorch checkpoint ({reason})") from None


def _rebuild_tensor(storage: Tensor, offset: int, size: tuple, stride: tuple, *_: object) -> Tensor:
    return torch.as_strided(storage, size, stride, offset)  # checks that the view stays inside the storage


def _rebuild_parameter(data: Tensor, *_: object) -> Tensor:
    return data


_UNDERSTOOD = {
    ("collections", "OrderedDict"): collections.OrderedDict,
    ("torch", "Size"): tuple,
    ("torch._utils", "_rebuild_tensor"): _rebuild_tensor,
    ("torch._utils", "_rebuild_tensor_v2"): _rebuild_tensor,
    ("torch._utils", "_rebuild_parameter"): _rebuild_parameter,
}


class _Unpickler(pickle.Unpickler):
    """Calls nothing but `_UNDERSTOOD`. Subclasses say where a storage's bytes are."""

    def find_class(self, module: str, name: str) -> object:
        if module in ("torch", "torch.storage") and name in _STORAGE_TYPES:
            return _STORAGE_TYPES[name]
        return _UNDERSTOOD.get((module, name), Skipped)

    def persistent_load(self, identifier: tuple) -> Tensor:
        kind, dtype, key, _, numel = identifier[:5]
        if kind != "storage" or not isinstance(dtype, torch.dtype):
            raise ValueError(f"storage of an unknown type: {identifier!r}")
        if len(identifier) > 5 and identifier[5] is not None:
            raise ValueError("storages that are views of others are not read")
        return self.storage(str(key), dtype, int(numel))

    def storage(self, key: str, dtype: torch.dtype, numel: int) -> Tensor:
        raise NotImplementedError


class _ZipUnpickler(_Unpickler):
    def __init__(self, archive: zipfile.ZipFile, folder: str, data: mmap.mmap) -> None:
        super().__init__(archive.open(f"{folder}data.pkl"), encoding="utf-8")
        self.archive, self.folder, self.data = archive, folder, data
        self.storages: dict[str, Tensor] = {}

    def storage(self, key: str, dtype: torch.dtype, numel: int) -> Tensor:
        if key not in self.storages:
            info = self.archive.getinfo(f"{self.folder}data/{key}")
            if info.compress_type != zipfile.ZIP_STORED or numel * dtype.itemsize > info.file_size:
                raise ValueError(f"record {info.filename} is compressed or too short")
            # The bytes follow the record's own header, whose name and extra field may differ from the
            # directory's.
            name_length, extra_length = struct.unpack_from("<HH", self.data, info.header_offset + 26)
            start = info.header_offset + 30 + name_length + extra_length
            self.storages[key] = _from_buffer(self.data, dtype, numel, start)
        return self.storages[key]


def _read_zip(file: BinaryIO) -> object:
    with zipfile.ZipFile(file) as archive:
        names = archive.namelist()
        pickles = [name for name in names if name.endswith("/data.pkl") and name.count("/") == 1]
        if len(pickles) != 1:
            raise ValueError("the archive has no data.pkl")
        folder = pickles[0].removesuffix("data.pkl")
        if f"{folder}constants.pkl" in names:
            raise ValueError("the archive is a TorchScript program")
        byteorder = archive.read(f"{folder}byteorder").decode() if f"{folder}byteorder" in names else "little"
        if byteorder != sys.byteorder:
            raise ValueError(f"the bytes are in {byteorder}-endian order")
        # Copy on write: tensors may be changed, the file never is.
        data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        return _ZipUnpickler(archive, folder, data).load()


class _LegacyUnpickler(_Unpickler):
    def __init__(self, file: BinaryIO, size: int) -> None:
        super().__init__(file, encoding="utf-8")
        self.size = size
        self.storages: dict[str, Tensor] = {}

    def storage(self, key: str, dtype: torch.dtype, numel: int) -> Tensor:
        # The bytes come after the pickle: make room now, fill it later.
        if key not in self.storages:
            if numel * dtype.itemsize > self.size:
                raise ValueError(f"storage {key} is larger than the file")
            self.storages[key] = torch.empty(numel, dtype=dtype)
        return self.storages[key]


def _read_legacy(file: BinaryIO) -> object:
    size = os.fstat(file.fileno()).st_size
    if _LegacyUnpickler(file, size).load() != _LEGACY_MAGIC:
        raise ValueError("unknown magic number")
    _LegacyUnpickler(file, size).load()  # protocol version
    _LegacyUnpickler(file, size).load()  # sizes of types on the machine that wrote it
    unpickler = _LegacyUnpickler(file, size)
    result = unpickler.load()
    for key in _LegacyUnpickler(file, size).load():
        storage = unpickler.storages[str(key)]
        (numel,) = struct.unpack("<q", file.read(8))
        data = bytearray(file.read(storage.numel() * storage.element_size()))
        if numel != storage.numel() or len(data) != storage.numel() * storage.element_size():
            raise ValueError("a storage is cut off")
        storage.copy_(_from_buffer(data, storage.dtype, numel, 0))
    return result


def _from_buffer(data: bytearray | mmap.mmap, dtype: torch.dtype, numel: int, offset: int) -> Tensor:
    if numel == 0:
        return torch.empty(0, dtype=dtype)
    return torch.frombuffer(data, dtype=dtype, count=numel, offset=offset)
