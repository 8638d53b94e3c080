"""Fixtures of the exports' tests."""

from __future__ import annotations

import pytest

import trt_plugin


@pytest.fixture
def torch_tensorrt():
    """Torch-TensorRT, with the plugin library loaded; skips without one of them."""
    try:
        trt_plugin.load()
    except trt_plugin.EngineError as error:
        pytest.skip(str(error))
    return pytest.importorskip("torch_tensorrt", reason="Torch-TensorRT is not installed")
