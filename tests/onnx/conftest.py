"""Fixtures of the ONNX tests."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest

if all(importlib.util.find_spec(name) for name in ("onnx_ir", "onnxscript", "onnxruntime")):
    from tests.onnx import attention_layers
    from tests.onnx.engine_stand_ins import machine, model, no_gpu, tensorrt  # noqa: F401
    from tests.onnx.surgery_checks import export
else:
    collect_ignore_glob = ["test_*.py"]  # the extra `onnx` is not installed


@pytest.fixture(scope="session")
def zoo_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the zoo's files, which all workers share."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "onnx_zoo"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def stacked(tmp_path_factory: pytest.TempPathFactory):
    """A model of one attention as in Deformable DETR with references of two columns; tests change copies."""
    module = attention_layers.Attention(attention_layers.by_stack)
    return export(module, attention_layers.inputs(), tmp_path_factory.mktemp("stacked"))
