"""Fixtures of the tests on the emulator, which name this module in `pytest_plugins`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cuda_emulator import build
from tests.emulated import Emulator


@pytest.fixture(scope="session")
def compile_emulated(pytestconfig: pytest.Config) -> Callable[..., Path]:
    """`build.build` with a cache that pytest keeps, so that one of its processes compiles; skips where
    nothing can be compiled."""
    if reason := build.missing():
        pytest.skip(reason)

    def compile_emulated(*sources: Path, defines: tuple[str, ...] = ()) -> Path:
        return build.build(sources, pytestconfig.cache.mkdir("cuda_emulator"), defines)

    return compile_emulated


@pytest.fixture(scope="session")
def emulator(compile_emulated: Callable[..., Path]) -> Emulator:
    """The kernels of the repository on the emulator."""
    sources = sorted((build.KERNELS / "src").glob("*.cu"))
    return Emulator(compile_emulated(*sources, build.HERE / "operators.cpp"))
