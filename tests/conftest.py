"""Settings of all tests: the GPU marker, hypothesis profiles, and equal random numbers in every run.

`pytest -m gpu` selects what needs an NVIDIA GPU; elsewhere these tests are skipped with the reason.
HYPOTHESIS_PROFILE=thorough draws many more examples, and others every time.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator

import pytest
import torch
from hypothesis import HealthCheck, settings

for name, examples in (("quick", 25), ("gpu", 100), ("thorough", 1000)):
    settings.register_profile(
        name,
        max_examples=examples,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        derandomize=name != "thorough",
    )
settings.load_profile(
    os.environ.get("HYPOTHESIS_PROFILE") or ("gpu" if torch.cuda.is_available() else "quick")
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="no NVIDIA GPU")
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(skip)


@pytest.fixture(autouse=True, scope="session")
def one_thread_in_onnxruntime() -> Iterator[None]:
    """Sessions take one thread: those of several workers would spin on each other's cores."""
    try:
        import onnxruntime
    except ModuleNotFoundError:
        yield
        return

    class Options(onnxruntime.SessionOptions):
        def __init__(self) -> None:
            super().__init__()
            self.intra_op_num_threads = 1

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(onnxruntime, "SessionOptions", Options)
        yield


@pytest.fixture(scope="session")
def quick_build(tmp_path_factory) -> list[str]:
    """Options with which TensorRT builds an engine quickly: it times few kernels, and none twice.

    CODETR_TIMING_CACHE names a file of times that outlasts the run.
    """
    cache = os.environ.get("CODETR_TIMING_CACHE") or tmp_path_factory.mktemp("timing") / "cache"
    return ["--optimization-level", "1", "--timing-cache", str(cache)]


def pytest_runtest_setup() -> None:
    """Before a test's fixtures: what it draws without a generator of its own depends on no other test.

    Collections of garbage in the test then visit its own objects alone, not those of all imported modules.
    """
    torch.manual_seed(0)
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    gc.unfreeze()  # libraries report objects that are left at the end
