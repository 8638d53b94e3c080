"""Engines of one plugin node, for tests and benchmarks of the operators.

`PluginEngine` runs on Torch tensors. `trt_plugin.EngineRunner` runs the engines of detectors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

import trt_plugin
from benchmarks.problems import AttentionInputs, FusedInputs
from trt_plugin.engine_error import EngineError
from trt_plugin.library import ATTENTION, FUSED_ATTENTION

if TYPE_CHECKING:
    import tensorrt as trt

NVIDIA = "MultiscaleDeformableAttnPlugin_TRT"
"""TensorRT's own plugin, version "1". Value, locations and weights have one type, fp32 or fp16. The index
tensors are int32."""

INPUT_NAMES = {
    ATTENTION: AttentionInputs._fields[:-1],
    FUSED_ATTENTION: FusedInputs._fields[:-1],
    NVIDIA: AttentionInputs._fields[:-1],
}


@dataclass(frozen=True)
class EngineKey:
    """Operator and types of an engine.

    Attributes:
        operator: ATTENTION, FUSED_ATTENTION or NVIDIA.
        dtype: type of the value.
        location_dtype: type of locations and weights (offsets and logits).
        index_dtype: int32 or int64, type of spatial_shapes and level_start_index.
        points_per_level: the plugin's field; None if every level has the same number.
        packed: offsets and logits of FUSED_ATTENTION are one input, `projection`.
    """

    operator: str
    dtype: torch.dtype
    location_dtype: torch.dtype
    index_dtype: torch.dtype = torch.int64
    points_per_level: tuple[int, ...] | None = None
    packed: bool = False

    @property
    def input_names(self) -> tuple[str, ...]:
        """Names of the inputs, in the plugin's order."""
        names = INPUT_NAMES[self.operator]
        return (*names[:-2], "projection") if self.packed else names

    def dtype_of(self, name: str) -> torch.dtype:
        """Returns the type of an input."""
        known = {"value": self.dtype, "reference_points": torch.float32}
        known |= {"spatial_shapes": self.index_dtype, "level_start_index": self.index_dtype}
        return known.get(name, self.location_dtype)


@dataclass(frozen=True)
class Limits:
    """Smallest, tuned and largest value of each shape letter. B is the last size of reference_points."""

    N: tuple[int, int, int] = (0, 1, 4)
    S: tuple[int, int, int] = (1, 64, 4096)
    M: tuple[int, int, int] = (1, 8, 8)
    D: tuple[int, int, int] = (1, 32, 256)
    L: tuple[int, int, int] = (1, 3, 6)
    Q: tuple[int, int, int] = (0, 16, 512)
    P: tuple[int, int, int] = (1, 4, 8)
    B: tuple[int, int, int] = (2, 4, 4)


def input_dimensions(key: EngineKey, limits: Limits) -> dict[str, list[tuple[int, int, int]]]:
    """Returns (smallest, tuned, largest) of every dimension of every input, by input name."""
    fixed = {number: (number,) * 3 for number in (1, 2)}
    levels, total = limits.L, tuple(a * b for a, b in zip(limits.L, limits.P, strict=True))
    if key.points_per_level is not None:
        levels, total = (len(key.points_per_level),) * 3, (sum(key.points_per_level),) * 3
    rows = [limits.N, limits.Q, limits.M]
    points = [total] if key.points_per_level is not None else [levels, limits.P]
    dimensions = {
        "value": [limits.N, limits.S, limits.M, limits.D],
        "spatial_shapes": [levels, fixed[2]],
        "level_start_index": [levels],
        "sampling_locations": [*rows, *points, fixed[2]],
        "attention_weights": [*rows, *points],
        "reference_points": [limits.N, limits.Q, levels, limits.B],
        "sampling_offsets": [*rows, *points, fixed[2]],
        "attention_logits": [*rows, total],
        "projection": [*rows[:2], tuple(3 * a * b for a, b in zip(limits.M, total, strict=True))],
    }
    return {name: dimensions[name] for name in key.input_names}


class PluginEngine:
    """An engine whose sizes are all dynamic, called with the operator's inputs as Torch CUDA tensors.

    Args:
        key: operator and types.
        limits: range of the sizes.

    Raises:
        RuntimeError: the engine cannot be built. The message has TensorRT's errors.
    """

    def __init__(self, key: EngineKey, limits: Limits | None = None) -> None:
        import tensorrt as trt

        from trt_plugin.tensorrt_log import collect_errors, describe, tensorrt_logger

        self.key = key
        plan = build(key, input_dimensions(key, limits or Limits()))
        with collect_errors() as errors:
            self._runtime = trt.Runtime(tensorrt_logger())
            self._engine = self._runtime.deserialize_cuda_engine(plan)
            if self._engine is None:
                raise RuntimeError(f"{key}: TensorRT cannot load the engine it built: {describe(errors)}")
            self._context = self._engine.create_execution_context()
        # TensorRT needs a valid address even for an empty tensor.
        self._nothing = torch.zeros(256, dtype=torch.uint8, device="cuda")

    def prepare(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Copies the inputs as the engine accepts them: its types, contiguous, aligned to 256 bytes."""
        return [
            torch.empty(tensor.shape, dtype=self.key.dtype_of(name), device="cuda").copy_(tensor)
            for name, tensor in zip(self.key.input_names, inputs, strict=True)
        ]

    def __call__(self, prepared: Sequence[torch.Tensor]) -> torch.Tensor:
        """Enqueues the engine on Torch's current stream.

        Args:
            prepared: result of `prepare`.

        Returns:
            [N, Q, M * D], in the value's type.

        Raises:
            RuntimeError: the engine does not run. The message has TensorRT's errors.
        """
        from trt_plugin.tensorrt_log import collect_errors, describe

        context = self._context
        with collect_errors() as errors:
            for name, tensor in zip(self.key.input_names, prepared, strict=True):
                if not context.set_input_shape(name, tuple(tensor.shape)):
                    raise RuntimeError(f"{name}: shape {list(tensor.shape)} refused: {describe(errors)}")
                context.set_tensor_address(name, tensor.data_ptr() or self._nothing.data_ptr())
            missing = context.infer_shapes()
            shape = tuple(context.get_tensor_shape("output"))
            if missing or any(size < 0 for size in shape):
                raise RuntimeError(f"output: shape {list(shape)} is not known: {describe(errors)}")
            output = torch.empty(shape, dtype=self.key.dtype, device="cuda")
            context.set_tensor_address("output", output.data_ptr() or self._nothing.data_ptr())
            if not context.execute_async_v3(torch.cuda.current_stream().cuda_stream):
                raise RuntimeError(f"the engine did not run: {describe(errors)}")
        return output.flatten(2)


def create_plugin(key: EngineKey) -> trt.IPluginV2 | trt.IPluginV3:
    """Creates the plugin of a key, without a GPU.

    Raises:
        RuntimeError: the registry has no such plugin.
    """
    import tensorrt as trt

    from trt_plugin.tensorrt_log import tensorrt_logger

    registry = trt.get_plugin_registry()
    if key.operator == NVIDIA:
        trt.init_libnvinfer_plugins(tensorrt_logger(), "")
        creator = registry.get_creator(NVIDIA, "1", "")
        if creator is None:
            raise RuntimeError(f"TensorRT {trt.__version__} has no plugin {NVIDIA} version 1")
        return creator.create_plugin("nvidia", trt.PluginFieldCollection([]))
    trt_plugin.load()
    creator = registry.get_creator(key.operator, trt_plugin.PLUGIN_VERSION, trt_plugin.NAMESPACE)
    if creator is None:
        raise RuntimeError(f"{trt_plugin.library_path()} has no plugin {key.operator}")
    fields = []
    if key.points_per_level is not None:
        counts = np.asarray(key.points_per_level, np.int32)
        fields = [trt.PluginField("points_per_level", counts, trt.PluginFieldType.INT32)]
    if key.packed:
        fields.append(trt.PluginField("packed", np.ones(1, np.int32), trt.PluginFieldType.INT32))
    return creator.create_plugin("msda", trt.PluginFieldCollection(fields), trt.TensorRTPhase.BUILD)


def build(
    key: EngineKey,
    dimensions: Mapping[str, Sequence[tuple[int, int, int]]],
    strongly_typed: bool = True,
    verbosity: str = "LAYER_NAMES_ONLY",
) -> bytes:
    """Builds an engine of one layer "attention" with the output "output".

    Args:
        key: operator and types.
        dimensions: (smallest, tuned, largest) of every dimension of every input, by input name.
        strongly_typed: False lets TensorRT 10 choose between the inputs' types and fp16.
        verbosity: what the engine tells of its layers, a name of `tensorrt.ProfilingVerbosity`.

    Raises:
        EngineError: the engine cannot be built. The message has TensorRT's errors.
    """
    from trt_plugin.tensorrt_log import collect_errors, describe

    with collect_errors() as errors:
        plan = _build(key, dimensions, strongly_typed, verbosity)
    if plan is None:
        raise EngineError(f"{key}: the engine could not be built: {describe(errors)}")
    return bytes(plan)


def _build(
    key: EngineKey,
    dimensions: Mapping[str, Sequence[tuple[int, int, int]]],
    strongly_typed: bool,
    verbosity: str,
) -> trt.IHostMemory | None:
    import tensorrt as trt

    from trt_plugin.tensorrt_log import tensorrt_logger

    types = {
        torch.float32: trt.float32,
        torch.float16: trt.float16,
        torch.bfloat16: trt.bfloat16,
        torch.int32: trt.int32,
        torch.int64: trt.int64,
    }
    plugin = create_plugin(key)
    if plugin is None:
        return None
    builder = trt.Builder(tensorrt_logger())
    flags = 1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED) if strongly_typed else 0
    network = builder.create_network(flags)
    config = builder.create_builder_config()
    config.profiling_verbosity = getattr(trt.ProfilingVerbosity, verbosity)
    if not strongly_typed:
        config.set_flag(trt.BuilderFlag.FP16)
    profile = builder.create_optimization_profile()
    tensors = []
    for name, sizes in dimensions.items():
        shape = [low if low == high else -1 for low, _, high in sizes]
        tensors.append(network.add_input(name, types[key.dtype_of(name)], shape))
        if -1 in shape:
            profile.set_shape(name, *zip(*sizes, strict=True))
    if key.operator == NVIDIA:
        layer = network.add_plugin_v2(tensors, plugin)
    else:
        layer = network.add_plugin_v3(tensors, [], plugin)
    if layer is None:
        return None
    layer.name = "attention"
    output = layer.get_output(0)
    output.name = "output"
    network.mark_output(output)
    if any(low < high for sizes in dimensions.values() for low, _, high in sizes):
        config.add_optimization_profile(profile)
    return builder.build_serialized_network(network, config)
