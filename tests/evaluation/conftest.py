"""Fixtures of the tests of evaluation."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.evaluation.coco_folders import write_dataset
from tests.evaluation.tiny_detector import Tiny, make_tiny


@pytest.fixture(scope="session")
def tiny(tmp_path_factory) -> Tiny:
    """A small detector and a dataset of objects that it finds."""
    return make_tiny(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def coco_folder(tmp_path_factory) -> Path:
    """A dataset with the annotation file `DOCUMENT`. Tests may add files to it."""
    return write_dataset(tmp_path_factory.mktemp("coco"))
