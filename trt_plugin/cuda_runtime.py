"""Wraps cuda-python: streams, graphs, events, and buffers on the device and in pinned memory."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from typing import Any

import numpy as np

from trt_plugin.engine_error import EngineError, import_cudart


def call(name: str, *arguments: Any) -> Any:
    """Calls a function of the CUDA runtime.

    Args:
        name: name of the function, such as "cudaMalloc".
        arguments: arguments of the function in cuda-python.

    Returns:
        The function's results without its status: None, one value, or a tuple.

    Raises:
        EngineError: the function fails.
    """
    cudart = import_cudart()
    status, *values = getattr(cudart, name)(*arguments)
    if int(status) != 0:
        raise EngineError(f"{name} failed: {error_string(status)}")
    return (values[0] if len(values) == 1 else tuple(values)) if values else None


def error_string(status: Any) -> str:
    """Returns CUDA's message for a status."""
    _, text = import_cudart().cudaGetErrorString(status)
    return text.decode() if isinstance(text, bytes) else str(text)


def require_gpu(device: int = 0) -> None:
    """Checks that there is a GPU. Without one, creating a TensorRT runtime or builder ends the process.

    Raises:
        EngineError: there is no GPU of that number, or no driver, or the driver is too old.
    """
    cudart = import_cudart()
    status, count = cudart.cudaGetDeviceCount()
    if int(status) != 0:
        raise EngineError(f"TensorRT needs an NVIDIA GPU, and CUDA finds none: {error_string(status)}")
    if not 0 <= device < count:
        raise EngineError(f"there is no GPU {device}: CUDA finds {count}")


def gpu_name(device: int = 0) -> str:
    """Returns the name of the GPU, such as "NVIDIA H200".

    Raises:
        EngineError: there is no such GPU.
    """
    require_gpu(device)
    name = call("cudaGetDeviceProperties", device).name
    return (name.decode() if isinstance(name, bytes) else str(name)).rstrip("\0")


class CudaStream:
    """A CUDA stream, with copies, events and graph capture."""

    def __init__(self) -> None:
        self._cudart = import_cudart()
        self._stream = call("cudaStreamCreateWithFlags", self._cudart.cudaStreamNonBlocking)

    @property
    def handle(self) -> int:
        """The stream as TensorRT takes it."""
        return int(self._stream)

    def synchronize(self) -> None:
        """Waits until the stream has finished its work."""
        call("cudaStreamSynchronize", self._stream)

    def copy_to_device(self, buffer: CudaBuffer, num_bytes: int) -> None:
        """Enqueues the copy of a buffer's first bytes between host and device."""
        self._copy(buffer.device, buffer.host, num_bytes, self._cudart.cudaMemcpyKind.cudaMemcpyHostToDevice)

    def copy_to_host(self, buffer: CudaBuffer, num_bytes: int) -> None:
        """Enqueues the copy of a buffer's first bytes between host and device."""
        self._copy(buffer.host, buffer.device, num_bytes, self._cudart.cudaMemcpyKind.cudaMemcpyDeviceToHost)

    def _copy(self, target: int, source: int, num_bytes: int, kind: Any) -> None:
        if num_bytes:
            call("cudaMemcpyAsync", target, source, num_bytes, kind, self._stream)

    @contextlib.contextmanager
    def capture(self) -> Iterator[CudaGraph]:
        """Captures the work that the block enqueues into the yielded graph, without running it.

        Raises:
            EngineError: some work of the block cannot be captured.
        """
        graph = CudaGraph()
        mode = self._cudart.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal
        call("cudaStreamBeginCapture", self._stream, mode)
        try:
            yield graph
        except BaseException:
            self._cudart.cudaStreamEndCapture(self._stream)
            self._cudart.cudaGetLastError()  # clears the error for later calls
            raise
        status, template = self._cudart.cudaStreamEndCapture(self._stream)
        if int(status) != 0:
            self._cudart.cudaGetLastError()
            raise EngineError(f"cudaStreamEndCapture failed: {error_string(status)}")
        try:
            graph.executable = call("cudaGraphInstantiate", template, 0)
        finally:
            call("cudaGraphDestroy", template)

    def launch(self, graph: CudaGraph) -> None:
        """Enqueues a captured graph."""
        call("cudaGraphLaunch", graph.executable, self._stream)

    def record(self, event: CudaEvent) -> None:
        """Enqueues an event."""
        call("cudaEventRecord", event.event, self._stream)

    def close(self) -> None:
        """Frees the stream."""
        if self._stream is not None:
            call("cudaStreamDestroy", self._stream)
            self._stream = None


class CudaGraph:
    """A captured graph, see `CudaStream.capture`."""

    def __init__(self) -> None:
        self.executable: Any = None

    def close(self) -> None:
        """Frees the graph."""
        if self.executable is not None:
            call("cudaGraphExecDestroy", self.executable)
            self.executable = None


class CudaEvent:
    """A CUDA event, which marks a point of a stream's work."""

    def __init__(self) -> None:
        self.event = call("cudaEventCreate")

    def milliseconds_since(self, start: CudaEvent) -> float:
        """Waits for this event and returns the milliseconds of GPU time since another."""
        call("cudaEventSynchronize", self.event)
        return float(call("cudaEventElapsedTime", start.event, self.event))

    def close(self) -> None:
        """Frees the event."""
        if self.event is not None:
            call("cudaEventDestroy", self.event)
            self.event = None


class CudaBuffer:
    """Memory on the device and, if wanted, as much pinned memory on the host.

    Args:
        num_bytes: size. At least 256 bytes are allocated: TensorRT needs a valid address for an empty tensor.
        pinned: whether to allocate memory on the host.
    """

    def __init__(self, num_bytes: int, pinned: bool = True) -> None:
        self.num_bytes = max(num_bytes, 256)
        self.host = 0
        self.device = int(call("cudaMalloc", self.num_bytes))
        if pinned:
            try:
                self.host = int(call("cudaHostAlloc", self.num_bytes, import_cudart().cudaHostAllocDefault))
            except BaseException:
                self.close()
                raise

    def view(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """Returns the beginning of the host's memory as an array, valid until `close`."""
        count = int(np.prod(shape, dtype=np.int64))
        memory = (ctypes.c_char * self.num_bytes).from_address(self.host)
        return np.frombuffer(memory, dtype, count).reshape(shape)

    def close(self) -> None:
        """Frees the memory."""
        if self.device:
            call("cudaFree", self.device)
            self.device = 0
        if self.host:
            call("cudaFreeHost", self.host)
            self.host = 0
