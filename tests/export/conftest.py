"""Fixtures of the exports' tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engines.plugin_engines import plugin_or_skip
from tests.golden_models import save_weights


@pytest.fixture(scope="session")
def weights(tmp_path_factory) -> dict[str, Path]:
    """The golden models' weights as checkpoints."""
    return save_weights(tmp_path_factory.mktemp("weights"))


@pytest.fixture
def plugin() -> None:
    """The plugin library, loaded; skips without it or without TensorRT."""
    plugin_or_skip()


@pytest.fixture
def torch_tensorrt(plugin):
    """Torch-TensorRT, with the plugin library loaded; skips without one of them."""
    return pytest.importorskip("torch_tensorrt", reason="Torch-TensorRT is not installed")
