"""Asks TensorRT for an engine's size, memory, inputs, outputs, layers and times. Needs a GPU."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from trt_plugin import library
from trt_plugin.cuda_runtime import call, require_gpu
from trt_plugin.engine_error import EngineError, import_tensorrt
from trt_plugin.engine_file import HEADER_BYTES, built_with, load_engine, read_plan
from trt_plugin.engine_tensors import DTYPE_NAMES, format_range, format_shape
from trt_plugin.inspection import engine_layers
from trt_plugin.inspection.engine_layers import LayerList
from trt_plugin.runner import EngineRunner
from trt_plugin.tensorrt_log import tensorrt_logger

if TYPE_CHECKING:
    import tensorrt as trt


@dataclass(frozen=True)
class TensorReport:
    """An input or output.

    Attributes:
        name: its name.
        shape: -1 for a size decided at run time.
        dtype: NumPy's name of the type, or "bfloat16".
        min, opt, max: shapes of a dynamic input in the first optimization profile, else None.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    min: tuple[int, ...] | None = None
    opt: tuple[int, ...] | None = None
    max: tuple[int, ...] | None = None

    def __str__(self) -> str:
        if self.min is None or self.max is None:
            return f"{format_shape(self.shape)} {self.dtype}"
        return f"{format_range(self.min, self.max)} {self.dtype}, best at {format_shape(self.opt or ())}"


@dataclass(frozen=True)
class EngineSummary:
    """An engine as a whole.

    Attributes:
        engine_bytes: size of its file.
        built_with: TensorRT's version that built it; "" if the file does not tell it.
        tensorrt_version, gpu: TensorRT and GPU that loaded it.
        layers: number of its layers.
        inputs, outputs: in the engine's order.
        profiles: number of its optimization profiles.
        device_memory_bytes: memory of a context for intermediate results, at the largest shapes.
        loaded_bytes: GPU memory that loading it took, mostly for weights.
        auxiliary_streams: number of streams beside the caller's.
    """

    engine_bytes: int
    built_with: str
    tensorrt_version: str
    gpu: str
    layers: int
    inputs: tuple[TensorReport, ...]
    outputs: tuple[TensorReport, ...]
    profiles: int
    device_memory_bytes: int
    loaded_bytes: int
    auxiliary_streams: int


@dataclass(frozen=True)
class EngineTimes:
    """Times of an engine.

    Attributes:
        samples_ms: GPU time of each run in milliseconds.
        cuda_graph: whether the runs replayed a CUDA graph.
        layer_ms: median of each layer in milliseconds, by name. Profiled layers wait for each other, so their
            sum exceeds `gpu_ms`.
    """

    samples_ms: list[float]
    cuda_graph: bool
    layer_ms: dict[str, float]

    @property
    def gpu_ms(self) -> float:
        """Median GPU time of a run in milliseconds."""
        return statistics.median(self.samples_ms)


def read_engine(
    path: Path, device: int = 0, libraries: Sequence[Path] = ()
) -> tuple[EngineSummary, LayerList, str]:
    """Loads an engine and asks TensorRT's inspector.

    Args:
        libraries: of plugins, beside those of this package and TensorRT.

    Returns:
        The summary; the layers, none with profiling verbosity NONE; the JSON of TensorRT's inspector.

    Raises:
        EngineError: a library or the engine cannot be loaded, see `trt_plugin.engine_file.load_engine`.
    """
    version = built_with(read_plan(path, HEADER_BYTES))
    trt = import_tensorrt()
    require_gpu(device)
    call("cudaSetDevice", device)
    trt.init_libnvinfer_plugins(tensorrt_logger(), "")
    library.load_others(libraries)
    free = call("cudaMemGetInfo")[0]
    try:
        runtime, engine = load_engine(path, device)
    except EngineError as error:
        foreign = "plugin that is not registered: TensorRT" in str(error)
        raise EngineError(f"{error}{'; name its library with --plugins FILE' * foreign}") from error
    loaded = free - call("cudaMemGetInfo")[0]
    names = [engine.get_tensor_name(i) for i in range(engine.num_io_tensors)]
    inputs = [name for name in names if engine.get_tensor_mode(name) == trt.TensorIOMode.INPUT]
    summary = EngineSummary(
        engine_bytes=path.stat().st_size,
        built_with=version,
        tensorrt_version=trt.__version__,
        gpu=call("cudaGetDeviceProperties", device).name.decode().rstrip("\0"),
        layers=engine.num_layers,
        inputs=tuple(_describe(engine, name, is_input=True) for name in inputs),
        outputs=tuple(_describe(engine, name, is_input=False) for name in names if name not in inputs),
        profiles=engine.num_optimization_profiles,
        device_memory_bytes=int(engine.device_memory_size_v2),
        loaded_bytes=max(0, int(loaded)),
        auxiliary_streams=int(engine.num_aux_streams),
    )
    found, information = LayerList((), detailed=False), ""
    if engine.profiling_verbosity != trt.ProfilingVerbosity.NONE:
        inspector = engine.create_engine_inspector()
        information = inspector.get_engine_information(trt.LayerInformationFormat.JSON)
        found = engine_layers.parse(information, f"the inspector's answer about {path}")
        del inspector
    del engine, runtime  # in this order
    return summary, found, information


def measure(
    path: Path,
    *,
    device: int = 0,
    runs: int = 50,
    warmup: int = 20,
    inputs: Mapping[str, np.ndarray] | None = None,
    nvtx: bool = False,
) -> EngineTimes:
    """Times an engine and its layers.

    Args:
        path: the engine, whose plugins are registered.
        device, nvtx: see `trt_plugin.EngineRunner`.
        runs, warmup: number of samples, and of runs before them.
        inputs: arrays to run on; default: `example_inputs`.

    Raises:
        EngineError, ValueError, TypeError: the engine does not run on these inputs.
    """
    with EngineRunner(path, device=device, nvtx=nvtx) as runner:
        arrays = example_inputs(runner) if inputs is None else dict(inputs)
        samples = runner.time(arrays, iterations=runs, warmup=warmup)
        graph = runner.uses_cuda_graph
        profiled = runner.profile(arrays, iterations=runs)
    names = dict.fromkeys(name for run in profiled for name in run)
    medians = {name: statistics.median(run.get(name, 0.0) for run in profiled) for name in names}
    return EngineTimes(samples, graph, medians)


def example_inputs(runner: EngineRunner) -> dict[str, np.ndarray]:
    """Returns inputs to time an engine on: seeded normal noise, ones for integers, whole pictures.

    Dynamic sizes are those that the optimization profile is tuned for.
    """
    random = np.random.default_rng(0)
    arrays = {}
    for name, info in runner.inputs.items():
        shape, dtype = runner.best_shape(name), info.dtype
        if dtype in ("float32", "float16", "bfloat16"):
            arrays[name] = random.standard_normal(shape, dtype=np.float32)
        else:
            arrays[name] = np.ones(shape, dtype)
    images = arrays.get("images")
    if "image_shapes" in arrays and images is not None and images.ndim == 4:
        arrays["image_shapes"][:] = images.shape[2:]
    return arrays


def _describe(engine: trt.ICudaEngine, name: str, is_input: bool) -> TensorReport:
    shape = tuple(engine.get_tensor_shape(name))
    dtype = DTYPE_NAMES.get(engine.get_tensor_dtype(name).name, engine.get_tensor_dtype(name).name.lower())
    if not is_input or -1 not in shape:
        return TensorReport(name, shape, dtype)
    return TensorReport(name, shape, dtype, *(tuple(x) for x in engine.get_tensor_profile_shape(name, 0)))
