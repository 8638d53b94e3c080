"""Runs engines on NumPy arrays with TensorRT and cuda-python alone, through CUDA graphs."""

from __future__ import annotations

import copy
import logging
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from trt_plugin.cuda_runtime import CudaBuffer, CudaStream, TurnTaker, call
from trt_plugin.engine_error import EngineError, import_tensorrt
from trt_plugin.engine_file import load_engine
from trt_plugin.engine_tensors import (
    DTYPE_NAMES,
    TensorInfo,
    format_range,
    format_shape,
    from_storage,
    storage_dtype,
    to_storage,
)
from trt_plugin.metadata import ArtifactMetadata
from trt_plugin.profiler import layer_profiler, nvtx_ranges
from trt_plugin.tensorrt_log import collect_errors, describe

if TYPE_CHECKING:
    import tensorrt as trt

_log = logging.getLogger(__name__)

Shapes = dict[str, tuple[int, ...]]


class DeviceInput(NamedTuple):
    """An input that the caller writes on the GPU itself."""

    shape: tuple[int, ...]
    dtypes: Sequence[str]  # names of the types that it can have
    write: Callable[[int, str, CudaStream], None]  # enqueues it: address, name of the type, stream


@dataclass
class _Session:
    """Execution context and CUDA graph of one set of input shapes.

    A graph may hold addresses of its context's own memory, which changes with the shapes. So each set of
    shapes has a context. All contexts share the memory for intermediate results, since one stream runs them.
    """

    context: trt.IExecutionContext
    shapes: Shapes
    graph: Any = None
    capture_tried: bool = False

    def close(self) -> None:
        """Frees the graph."""
        if self.graph is not None:
            call("cudaGraphExecDestroy", self.graph)
            self.graph = None


class EngineRunner:
    """Runs an engine. Only one thread may use a runner at a time.

    The first call with a set of input shapes enqueues the engine, then captures it in a CUDA graph. Later
    calls replay the graph.

    Args:
        engine: path of the engine. The file <stem>.json beside it holds its metadata, if it exists.
        device: number of the GPU.
        profile: index of the optimization profile.
        cuda_graph: whether to capture graphs.
        max_sessions: number of sets of input shapes whose contexts and graphs are kept.
        nvtx: name upload, run and download of every call for Nsight Systems; needs the package nvtx. TensorRT
            names the layers itself where no graph is replayed.

    Attributes:
        inputs, outputs: `TensorInfo` (shape with -1 for a dynamic size, type name) by name.
        profiles: shapes {"min", "opt", "max"} of each input with a dynamic size.
        metadata: `ArtifactMetadata`, or None.

    Raises:
        EngineError: the engine, its metadata or the machine has a problem.

    Example:
        with EngineRunner("model.engine") as runner:
            outputs = runner({"images": images, "image_shapes": image_shapes})
    """

    def __init__(
        self,
        engine: str | os.PathLike,
        *,
        device: int = 0,
        profile: int = 0,
        cuda_graph: bool = True,
        max_sessions: int = 8,
        nvtx: bool = False,
    ) -> None:
        path = Path(engine)
        self._forget()
        self._engine = self._runtime = None
        self._make_contexts_alone = threading.Lock()  # shared with forks
        self._path, self._device, self._profile = path, device, profile
        self._cuda_graph, self._max_sessions = cuda_graph, max_sessions
        self._range = nvtx_ranges(nvtx)
        self._runtime, self._engine = load_engine(path, device)
        try:
            self._turns = TurnTaker()  # shared with forks
            metadata_path = path.with_suffix(".json")
            self.metadata = ArtifactMetadata.load(metadata_path) if metadata_path.is_file() else None
            self._read_tensors()
            self._allocate()
        except BaseException:
            self.close()
            raise

    def fork(self) -> EngineRunner:
        """Makes a runner of the same engine for another thread, so that one copies while the other runs.

        The networks take turns: two at the same time divide multiprocessors and L2, and run slower than one
        after the other. The runners share the weights. Each has its own stream, contexts and buffers, and is
        closed alone.

        Raises:
            EngineError: the GPU's memory does not suffice.
        """
        other = copy.copy(self)
        other._forget()
        try:
            other._allocate()
        except BaseException:
            other.close()
            raise
        return other

    def _forget(self) -> None:
        """Sets what is this runner's own to nothing."""
        self._sessions: OrderedDict[tuple, _Session] = OrderedDict()
        self._buffers: dict[str, CudaBuffer] = {}
        self._scratch: CudaBuffer | None = None
        self._stream: CudaStream | None = None

    def _allocate(self) -> None:
        self._stream = CudaStream()
        self._scratch = CudaBuffer(self._engine.device_memory_size_v2, pinned=False)
        self._reserve_largest()

    def __call__(self, inputs: Mapping[str, np.ndarray | DeviceInput]) -> dict[str, np.ndarray]:
        """Runs the engine.

        Args:
            inputs: an array for every input. Floating-point types are converted to the engine's, integer
                types too if the values fit. bfloat16 is given and returned as float32. A `DeviceInput` writes
                itself on the GPU.

        Returns:
            A new array for every output, by name.

        Raises:
            ValueError, TypeError: naming the input, what it was and what it should be.
            EngineError: the engine fails.
        """
        with self._range("upload"):
            session = self._prepare(inputs)
        with self._range("enqueue" if session.graph is None else "graph launch"):
            self._turns.enqueue(self._stream, lambda: self._enqueue(session))
        with self._range("download"):
            outputs = self._read_outputs(session)
        self._capture(session)
        return outputs

    def time(
        self,
        inputs: Mapping[str, np.ndarray],
        iterations: int = 100,
        warmup: int = 20,
        *,
        cuda_graph: bool = True,
    ) -> list[float]:
        """Measures the GPU time of the engine without the copies of inputs and outputs.

        Args:
            inputs: as in a call. Copied once.
            iterations, warmup: number of samples, and of runs before them.
            cuda_graph: whether to replay the graph, if the runner captures graphs.

        Returns:
            Milliseconds between two CUDA events around each run (graph replay, or enqueueing without graphs).
        """
        session = self._prepare(inputs)
        self._enqueue(session)
        self._stream.synchronize()
        if cuda_graph:
            self._capture(session)
        else:
            session = _Session(session.context, session.shapes)
        for _ in range(warmup):
            self._enqueue(session)
        return self._stream.time(lambda: self._enqueue(session), iterations)

    def profile(
        self, inputs: Mapping[str, np.ndarray], iterations: int = 20, warmup: int = 3
    ) -> list[dict[str, float]]:
        """Measures the GPU time of every layer with TensorRT's profiler, which uses no CUDA graph.

        Profiled layers do not overlap, so their sum exceeds the time of a run. The arguments are those of
        `time`.

        Returns:
            For each run, milliseconds by the layer's name.
        """
        shapes = self._prepare(inputs).shapes
        # A new context: a context that had a profiler keeps reporting to it.
        context = self._make_context({name: shapes[name] for name in self.inputs})
        for name in shapes:
            context.set_tensor_address(name, self._buffers[name].device)
        runs: list[dict[str, float]] = []
        context.profiler = profiler = layer_profiler(runs)
        for _ in range(warmup + iterations):
            runs.append({})
            with self._range("profiled run"):
                self._enqueue(_Session(context, shapes))
                self._stream.synchronize()
        del context, profiler  # in this order
        return runs[warmup:]

    def close(self) -> None:
        """Frees all memory. The runner cannot be used afterwards."""
        if self._stream is not None:
            self._stream.synchronize()
        self._drop_sessions()
        for buffer in (*self._buffers.values(), self._scratch):
            if buffer is not None:
                buffer.close()
        self._buffers, self._scratch = {}, None
        if self._stream is not None:
            self._stream.close()
        # The engine must be freed before its runtime.
        self._stream = self._engine = None
        self._runtime = None

    def __enter__(self) -> EngineRunner:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def uses_cuda_graph(self) -> bool:
        """Whether a captured graph exists for the shapes of the last call."""
        return bool(self._sessions) and next(reversed(self._sessions.values())).graph is not None

    def best_shape(self, name: str) -> tuple[int, ...]:
        """Returns the input shape that the optimization profile is tuned for."""
        return self._profile_shape(name, "opt")

    def _profile_shape(self, name: str, which: str) -> tuple[int, ...]:
        """Returns an input's shape, with a dynamic size the profile's "min", "opt" or "max"."""
        profile = self.profiles.get(name)
        return self.inputs[name].shape if profile is None else tuple(profile[which])

    def _read_tensors(self) -> None:
        """Sets inputs, outputs and profiles."""
        trt = import_tensorrt()
        engine = self._engine
        count = engine.num_optimization_profiles
        if not 0 <= self._profile < count:
            raise EngineError(f"{self._path}: expected a profile below {count}, got {self._profile}")
        self.inputs: dict[str, TensorInfo] = {}
        self.outputs: dict[str, TensorInfo] = {}
        self.profiles: dict[str, dict[str, list[int]]] = {}
        for name in map(engine.get_tensor_name, range(engine.num_io_tensors)):
            dtype = engine.get_tensor_dtype(name).name
            if dtype not in DTYPE_NAMES:
                raise EngineError(f"{self._path}: the type {dtype} of tensor {name} is not supported")
            if engine.get_tensor_location(name) != trt.TensorLocation.DEVICE:
                raise EngineError(f"{self._path}: tensor {name} is in host memory, which is not supported")
            info = TensorInfo(tuple(engine.get_tensor_shape(name)), DTYPE_NAMES[dtype])
            if engine.get_tensor_mode(name) == trt.TensorIOMode.INPUT:
                self.inputs[name] = info
                if -1 in info.shape:
                    shapes = engine.get_tensor_profile_shape(name, self._profile)
                    self.profiles[name] = dict(zip(("min", "opt", "max"), map(list, shapes), strict=True))
            else:
                self.outputs[name] = info

    def _prepare(self, inputs: Mapping[str, np.ndarray | DeviceInput]) -> _Session:
        """Checks the inputs, enqueues their copies and returns the session of their shapes."""
        if self._engine is None:
            raise EngineError(f"the runner of {self._path} is closed")
        call("cudaSetDevice", self._device)
        arrays = self._check(inputs)
        session = self._session({name: array.shape for name, array in arrays.items()})
        for name, array in arrays.items():
            buffer = self._buffers[name]
            if isinstance(array, DeviceInput):
                array.write(buffer.device, self.inputs[name].dtype, self._stream)
                continue
            np.copyto(buffer.view(array.shape, array.dtype), array)
            self._stream.copy(buffer.device, buffer.host, array.nbytes)
        return session

    def _check(self, inputs: Mapping[str, np.ndarray | DeviceInput]) -> dict[str, np.ndarray | DeviceInput]:
        missing = [name for name in self.inputs if name not in inputs]
        unknown = [name for name in inputs if name not in self.inputs]
        if missing or unknown:
            raise ValueError(f"inputs: expected {list(self.inputs)}; missing {missing}, unknown {unknown}")
        arrays = {}
        for name, info in self.inputs.items():
            array = inputs[name]
            if not isinstance(array, DeviceInput):
                array = np.asarray(array)
            smallest, largest = (self._profile_shape(name, which) for which in ("min", "max"))
            if len(array.shape) != len(smallest) or not all(
                low <= size <= high for low, size, high in zip(smallest, array.shape, largest, strict=True)
            ):
                expected = format_range(smallest, largest)
                raise ValueError(f"{name}: expected shape {expected}, got {format_shape(array.shape)}")
            if not isinstance(array, DeviceInput):
                array = to_storage(array, info.dtype, name)
            elif info.dtype not in array.dtypes:
                raise TypeError(f"{name}: expected {info.dtype}, got one of {', '.join(array.dtypes)}")
            arrays[name] = array
        return arrays

    def _session(self, input_shapes: Shapes) -> _Session:
        """Returns the session of these shapes as the most recent one, and creates it for new shapes."""
        key = tuple(input_shapes[name] for name in self.inputs)
        if key not in self._sessions:
            while len(self._sessions) >= self._max_sessions:
                self._sessions.popitem(last=False)[1].close()
            context = self._make_context(input_shapes)
            shapes = {name: tuple(context.get_tensor_shape(name)) for name in (*self.inputs, *self.outputs)}
            for name, shape in shapes.items():
                if any(size < 0 for size in shape):
                    raise EngineError(f"{self._path}: the shape of {name} depends on data: not supported")
                self._reserve(name, shape)
                context.set_tensor_address(name, self._buffers[name].device)
            self._sessions[key] = _Session(context, shapes)
        self._sessions.move_to_end(key)
        return self._sessions[key]

    def _make_context(self, input_shapes: Shapes) -> trt.IExecutionContext:
        trt = import_tensorrt()
        with self._make_contexts_alone, collect_errors() as messages:
            strategy = trt.ExecutionContextAllocationStrategy.USER_MANAGED
            context = self._engine.create_execution_context(strategy)
            if context is None:
                raise EngineError(f"{self._path}: no execution context could be made: {describe(messages)}")
            context.set_device_memory(self._scratch.device, self._scratch.num_bytes)
            if context.active_optimization_profile != self._profile:
                if not context.set_optimization_profile_async(self._profile, self._stream.handle):
                    raise EngineError(f"{self._path}: no profile {self._profile}: {describe(messages)}")
                self._stream.synchronize()
            for name, shape in input_shapes.items():
                if not context.set_input_shape(name, shape):
                    raise EngineError(f"{self._path}: {name} refuses {list(shape)}: {describe(messages)}")
            try:
                unknown = context.infer_shapes()
            except RuntimeError as error:
                raise EngineError(f"{self._path}: {error}: {describe(messages)}") from error
            if unknown:
                raise EngineError(f"{self._path}: the shapes of {', '.join(unknown)} are not known")
        return context

    def _reserve(self, name: str, shape: tuple[int, ...]) -> None:
        """Makes a tensor's buffer large enough. Drops the sessions that hold the address of a smaller one."""
        info = self.inputs.get(name) or self.outputs[name]
        num_bytes = int(np.prod(shape, dtype=np.int64)) * storage_dtype(info.dtype).itemsize
        buffer = self._buffers.get(name)
        if buffer is not None and buffer.num_bytes >= num_bytes:
            return
        if buffer is not None:
            self._drop_sessions()
            del self._buffers[name]
            buffer.close()
        self._buffers[name] = CudaBuffer(num_bytes)

    def _reserve_largest(self) -> None:
        """Makes every buffer large enough for the profile, so that no later shape replaces a buffer."""
        try:
            self._session({name: self._profile_shape(name, "max") for name in self.inputs})
        except EngineError as error:
            # The largest shapes of the inputs may not be valid together.
            _log.debug("%s: buffers will grow as needed: %s", self._path, error)

    def _drop_sessions(self) -> None:
        for session in self._sessions.values():
            session.close()
        self._sessions.clear()

    def _enqueue(self, session: _Session) -> None:
        if session.graph is not None:
            self._stream.launch(session.graph)
            return
        with collect_errors() as messages:
            enqueued = session.context.execute_async_v3(self._stream.handle)
        if not enqueued:
            raise EngineError(f"{self._path} does not run: {describe(messages)}")

    def _capture(self, session: _Session) -> None:
        """Captures the engine in a graph. The first run before it has finished TensorRT's lazy set-up."""
        if not self._cuda_graph or session.capture_tried:
            return
        session.capture_tried = True
        try:
            session.graph = self._stream.capture(lambda: self._enqueue(session))
        except EngineError as error:
            _log.warning("%s runs without a CUDA graph: %s", self._path, error)

    def _read_outputs(self, session: _Session) -> dict[str, np.ndarray]:
        views = {}
        for name, info in self.outputs.items():
            buffer = self._buffers[name]
            view = buffer.view(session.shapes[name], storage_dtype(info.dtype))
            self._stream.copy(buffer.host, buffer.device, view.nbytes)
            views[name] = view
        self._stream.synchronize()
        return {name: from_storage(view, self.outputs[name].dtype) for name, view in views.items()}
