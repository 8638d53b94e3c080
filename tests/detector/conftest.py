"""Fixtures of the detector's tests: a network that always finds the same, and pictures."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from codetr.detector import network_options
from tests.detector.detect_runs import FakeBackend


@pytest.fixture
def fake(monkeypatch):
    """Replaces the torch backend. The command line is the real one."""
    monkeypatch.setattr(network_options, "TorchBackend", FakeBackend)


@pytest.fixture
def photos(tmp_path) -> Path:
    folder = tmp_path / "photos"
    (folder / "deep").mkdir(parents=True)
    rng = np.random.default_rng(0)
    for name, size in (("a.jpg", (60, 90)), ("b.png", (90, 60)), ("deep/a.png", (50, 50))):
        Image.fromarray(rng.integers(0, 256, (*size, 3), dtype=np.uint8)).save(folder / name)
    (folder / "notes.txt").write_text("no picture")
    return folder
