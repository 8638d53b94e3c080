"""Fixtures of the tests of training."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from codetr.dataset.coco_files import load_coco
from tests.training.training_runs import MODEL, train, write_boxes


@pytest.fixture(scope="session")
def folder(tmp_path_factory) -> Path:
    """A dataset of 20 pictures and 4 for validation, with model.json beside it."""
    folder = tmp_path_factory.mktemp("boxes")
    write_boxes(folder, "train", 20, 0)
    write_boxes(folder, "val", 4, 1)
    (folder / "model.json").write_text(json.dumps(MODEL))
    return folder


@pytest.fixture(scope="session")
def dataset(folder):
    return load_coco(folder, "train")


@pytest.fixture
def one_thread():
    """Sums of several threads may differ in their last bit; these tests compare bits."""
    with _one_thread():
        yield


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """OMP_NUM_THREADS keeps `codetr train` from choosing the number of threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def uninterrupted(folder, tmp_path_factory) -> Path:
    """A run of 12 steps."""
    out = tmp_path_factory.mktemp("runs") / "whole"
    with _one_thread():
        assert train(folder, out) == 0
    return out
