"""What all tests share: golden files, the GPU marker, hypothesis profiles.

`pytest -m gpu` selects what needs an NVIDIA GPU; elsewhere these tests are skipped with the reason.
HYPOTHESIS_PROFILE=thorough draws many more examples.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

REPOSITORY = Path(__file__).resolve().parents[1]
GOLDEN = Path(__file__).parent / "golden"

_COMMON = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large]}
settings.register_profile("quick", max_examples=25, **_COMMON)
settings.register_profile("thorough", max_examples=500, **_COMMON)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    import torch

    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="no NVIDIA GPU")
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(skip)


@pytest.fixture(scope="session")
def golden_dir() -> Path:
    """The folder of upstream's outputs (tests/golden)."""
    return GOLDEN


@pytest.fixture(scope="session")
def repository() -> Path:
    """The source tree."""
    return REPOSITORY
