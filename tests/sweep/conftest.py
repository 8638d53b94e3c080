"""Fixtures of the sweep's tests."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

if not all(importlib.util.find_spec(name) for name in ("onnx_ir", "onnxscript", "onnxruntime")):
    collect_ignore_glob = ["test_*.py"]  # the extra `onnx` is not installed


@pytest.fixture(scope="session")
def folder(tmp_path_factory) -> Path:
    """Weights of a classifier of two classes, and 40 images in a dataset with one more that is damaged."""
    import timm

    from tests.sweep.sweep_specs import SMALL

    root = tmp_path_factory.mktemp("sweep")
    torch.manual_seed(0)
    torch.save(timm.create_model(SMALL, num_classes=2).state_dict(), root / "own.pth")
    random = np.random.default_rng(0)
    for i in range(40):
        place = root / "data" / ("train" if i % 2 else "val") / f"class {i // 2 % 2}"
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 255, (50, 60, 3), np.uint8)).save(place / f"{i}.png")
    (root / "data/val/class 0/damaged.png").write_bytes(b"no picture")
    return root
