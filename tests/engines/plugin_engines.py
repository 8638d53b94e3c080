"""Builds engines of one plugin node with TensorRT's network API, for the tests of plugin and runner."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch

import trt_plugin
from benchmarks.trt_engines import INPUT_NAMES, EngineKey, create_plugin
from trt_plugin.engine_error import EngineError
from trt_plugin.tensorrt_log import collect_errors, describe, tensorrt_logger

ATTENTION, FUSED_ATTENTION = trt_plugin.OPERATORS
ShapeRange = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
"""(smallest, usual, largest) shape of an input."""


def build(
    define: Callable,
    ranges: Mapping[str, ShapeRange] | None = None,
    *,
    strongly_typed: bool = True,
    verbosity: str = "DETAILED",
) -> bytes:
    """Builds an engine of a network that a function adds layers to. Weakly typed, it may get FP16 layers.

    Raises:
        EngineError: with TensorRT's messages.
    """
    import tensorrt as trt

    flags = 1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED) if strongly_typed else 0
    with collect_errors() as messages:
        builder = trt.Builder(tensorrt_logger())
        network = builder.create_network(flags)
        config = builder.create_builder_config()
        config.profiling_verbosity = getattr(trt.ProfilingVerbosity, verbosity)
        config.clear_flag(trt.BuilderFlag.TF32)
        if not strongly_typed:
            config.set_flag(trt.BuilderFlag.FP16)
        define(network)
        if ranges:
            profile = builder.create_optimization_profile()
            for name, (smallest, usual, largest) in ranges.items():
                profile.set_shape(name, smallest, usual, largest)
            config.add_optimization_profile(profile)
        plan = builder.build_serialized_network(network, config)
    if plan is None:
        raise EngineError(f"the engine could not be built: {describe(messages)}")
    return bytes(plan)


def define_plugin(
    operator: str,
    shapes: Mapping[str, tuple[int, ...]],
    dtypes: Mapping[str, str],
    points_per_level: list[int] | None = None,
) -> Callable:
    """Returns a function for `build`: it adds one plugin node, its inputs and the output "output".

    Sizes of -1 are dynamic. Types have TensorRT's names, such as "bfloat16".
    """

    def define(network) -> None:
        import tensorrt as trt

        tensors = [
            network.add_input(name, getattr(trt, dtypes[name]), shapes[name])
            for name in INPUT_NAMES[operator]
        ]
        points = None if points_per_level is None else tuple(points_per_level)
        # The creator reads only the operator and its fields.
        key = EngineKey(operator, torch.float32, torch.float32, points_per_level=points)
        layer = network.add_plugin_v3(tensors, [], create_plugin(key))
        if layer is None:
            return  # the errors say why, and an empty network does not build
        layer.name = "attention"
        layer.get_output(0).name = "output"
        network.mark_output(layer.get_output(0))

    return define


def save(folder: Path, plan: bytes) -> Path:
    """Writes an engine file."""
    path = folder / "test.engine"
    path.write_bytes(plan)
    return path


def plugin_or_skip() -> None:
    """Loads the plugin library; skips the test where that is impossible."""
    try:
        trt_plugin.load()
    except EngineError as error:
        pytest.skip(str(error))
