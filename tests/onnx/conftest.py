"""Fixtures of the ONNX tests."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

if all(importlib.util.find_spec(name) for name in ("onnx_ir", "onnxscript", "onnxruntime")):
    from tests.onnx.engine_stand_ins import machine, model, no_gpu, tensorrt  # noqa: F401
else:
    collect_ignore_glob = ["test_*.py"]  # the extra `onnx` is not installed


@pytest.fixture(scope="session")
def zoo_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the zoo's files, which all workers share."""
    from tests.onnx import model_zoo

    return model_zoo.session_folder(tmp_path_factory)


@pytest.fixture(scope="session")
def stacked(tmp_path_factory: pytest.TempPathFactory):
    """A model of one attention as in Deformable DETR with references of two columns; tests change copies."""
    from tests.onnx import attention_layers as layers
    from tests.onnx.surgery_checks import export

    folder = tmp_path_factory.mktemp("stacked")
    return export(layers.Attention(layers.by_stack), layers.inputs(), folder)
