"""Engines of one plugin node for the tests of plugin, runner and inspector."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

import trt_plugin
from benchmarks.problems import AttentionInputs, FusedInputs
from benchmarks.trt_engines import ATTENTION, FUSED_ATTENTION, EngineKey, build


def build_plan(
    inputs: AttentionInputs | FusedInputs,
    smallest: Mapping[str, Sequence[int]] | None = None,
    strongly_typed: bool = True,
    verbosity: str = "DETAILED",
) -> bytes:
    """Builds an engine for the shapes and types of an operator's inputs.

    Args:
        inputs: the inputs.
        smallest: smallest shapes by name, of inputs whose sizes have a range up to their own.
        strongly_typed, verbosity: as for `trt_engines.build`.

    Raises:
        EngineError: with TensorRT's messages.
    """
    points = inputs.points_per_level
    key = EngineKey(
        FUSED_ATTENTION if isinstance(inputs, FusedInputs) else ATTENTION,
        dtype=inputs.value.dtype,
        location_dtype=inputs[-2].dtype,
        index_dtype=inputs.spatial_shapes.dtype,
        points_per_level=None if points is None else tuple(points),
    )
    shapes = {name: tuple(getattr(inputs, name).shape) for name in key.input_names}
    lowest = shapes | dict(smallest or {})
    ranges = {name: [(low, size, size) for low, size in zip(lowest[name], shapes[name])] for name in shapes}
    return build(key, ranges, strongly_typed, verbosity)


def arrays_of(inputs: AttentionInputs | FusedInputs) -> dict[str, np.ndarray]:
    """The inputs for `EngineRunner`, in float32."""
    tensors = zip(inputs._fields[:-1], inputs[:-1], strict=True)
    return {name: (x.float() if torch.is_floating_point(x) else x).numpy() for name, x in tensors}


def save(folder: Path, plan: bytes) -> Path:
    """Writes an engine file."""
    path = folder / "test.engine"
    path.write_bytes(plan)
    return path


@functools.cache
def no_plugin() -> str | None:
    """Returns the reason why the plugin library cannot be loaded, or None."""
    try:
        trt_plugin.load()
    except Exception as error:
        return f"no TensorRT plugin: {error}".splitlines()[0]
    return None


def plugin_or_skip() -> None:
    """Loads the plugin library; skips the test where that is impossible."""
    if reason := no_plugin():
        pytest.skip(reason)
