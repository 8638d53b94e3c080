"""What all tests of the matrix need: a GPU for those marked `gpu`, and one thread."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests.matrix import backends


@pytest.fixture(autouse=True)
def cuda_operator(request: pytest.FixtureRequest) -> None:
    """Skips a test marked `gpu` where the operator has no CUDA kernels."""
    if request.node.get_closest_marker("gpu") and (reason := backends.no_gpu()):
        pytest.skip(reason)


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> str:
    """Both devices of the operator."""
    return request.param


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """More threads would only wait for each other on these small tensors."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
