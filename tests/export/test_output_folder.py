"""Folders of results that are complete or absent."""

from __future__ import annotations

import errno

import pytest

from codetr.export.output_folder import staged_folder


def test_failure_on_the_way_keeps_what_was_there(tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    (out / "model.onnx").write_text("before")
    with pytest.raises(KeyboardInterrupt), staged_folder(out) as folder:
        (folder / "model.onnx").write_text("half")
        raise KeyboardInterrupt
    assert [(file.name, file.read_text()) for file in out.iterdir()] == [("model.onnx", "before")]
    with staged_folder(out) as folder:
        (folder / "model.onnx").write_text("whole")
    assert [(file.name, file.read_text()) for file in out.iterdir()] == [("model.onnx", "whole")]
    with pytest.raises(OSError) as error, staged_folder(out) as folder:
        raise OSError(errno.EIO, "Input/output error", str(folder / "model.onnx"))
    assert error.value.filename == str(out)
