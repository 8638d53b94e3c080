"""Files that appear complete or not at all."""

from __future__ import annotations

import errno
import os
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from trt_plugin.atomic_files import atomic_write, write_json


def test_appears_whole_or_not_at_all(tmp_path):
    target = tmp_path / "new" / "file.bin"
    with atomic_write(target) as temporary:
        temporary.write_bytes(b"old")
        assert not target.exists() and temporary.parent == target.parent
    with pytest.raises(RuntimeError), atomic_write(target) as temporary:
        temporary.write_bytes(b"half")
        raise RuntimeError
    assert target.read_bytes() == b"old" and len(list(target.parent.iterdir())) == 1


def test_nor_its_folder(tmp_path):
    with pytest.raises(RuntimeError), atomic_write(tmp_path / "new" / "folder" / "file.bin"):
        raise RuntimeError
    assert not list(tmp_path.iterdir())


def test_errors_name_the_file(tmp_path):
    """Not the temporary one; a full disk names none."""
    target = tmp_path / "file.bin"
    with pytest.raises(OSError) as error, atomic_write(target):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert (error.value.filename, error.value.strerror) == (str(target), "No space left on device")
    target.mkdir()
    with pytest.raises(IsADirectoryError) as error, atomic_write(target):
        pass
    assert error.value.filename == str(target) and not list(target.iterdir())


def test_threads_leave_the_umask(tmp_path, monkeypatch):
    """Each call of umask lets another thread run."""
    change = os.umask

    def umask(mask: int) -> int:
        before = change(mask)
        time.sleep(0.001)
        return before

    monkeypatch.setattr(os, "umask", umask)
    before = os.umask(0o027)
    try:
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda index: write_json(tmp_path / f"{index}.json", index), range(40)))
        assert os.umask(0o027) == 0o027
        assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o640}
    finally:
        os.umask(before)
