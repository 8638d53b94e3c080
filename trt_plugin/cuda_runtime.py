"""The GPU through cuda-python: streams, graphs, events, and buffers on the device and in pinned memory."""

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
        name: such as "cudaMalloc".
        arguments: as cuda-python takes them.

    Returns:
        What the function gives beside its status: None, one value, or a tuple.

    Raises:
        EngineError: the status is an error.
    """
    cudart = import_cudart()
    status, *values = getattr(cudart, name)(*arguments)
    if int(status) != 0:
        raise EngineError(f"{name} failed: {error_string(status)}")
    return (values[0] if len(values) == 1 else tuple(values)) if values else None


def error_string(status: Any) -> str:
    """CUDA's words for a status."""
    _, text = import_cudart().cudaGetErrorString(status)
    return text.decode() if isinstance(text, bytes) else str(text)


def require_gpu(device: int = 0) -> None:
    """Checks that there is a GPU: without one, creating a TensorRT runtime or builder ends the process.

    Raises:
        EngineError: there is no GPU of that number, no driver, or one too old; the message says which.
    """
    cudart = import_cudart()
    status, count = cudart.cudaGetDeviceCount()
    if int(status) != 0:
        raise EngineError(f"TensorRT needs an NVIDIA GPU, and CUDA finds none: {error_string(status)}")
    if not 0 <= device < count:
        raise EngineError(f"there is no GPU {device}: CUDA finds {count}")


def gpu_name(device: int = 0) -> str:
    """Name of the GPU, such as "NVIDIA H200".

    Raises:
        EngineError: there is no such GPU.
    """
    require_gpu(device)
    name = call("cudaGetDeviceProperties", device).name
    return (name.decode() if isinstance(name, bytes) else str(name)).rstrip("\0")


class Stream:
    """A CUDA stream of its own, and what is recorded or captured on it."""

    def __init__(self) -> None:
        self._cudart = import_cudart()
        self._stream = call("cudaStreamCreateWithFlags", self._cudart.cudaStreamNonBlocking)

    @property
    def handle(self) -> int:
        """For TensorRT."""
        return int(self._stream)

    def synchronize(self) -> None:
        """Waits for all work of the stream."""
        call("cudaStreamSynchronize", self._stream)

    def copy_to_device(self, buffer: Buffer, num_bytes: int) -> None:
        """Enqueues the copy of a buffer's first bytes."""
        self._copy(buffer.device, buffer.host, num_bytes, self._cudart.cudaMemcpyKind.cudaMemcpyHostToDevice)

    def copy_to_host(self, buffer: Buffer, num_bytes: int) -> None:
        """Enqueues the copy of a buffer's first bytes."""
        self._copy(buffer.host, buffer.device, num_bytes, self._cudart.cudaMemcpyKind.cudaMemcpyDeviceToHost)

    def _copy(self, target: int, source: int, num_bytes: int, kind: Any) -> None:
        if num_bytes:
            call("cudaMemcpyAsync", target, source, num_bytes, kind, self._stream)

    @contextlib.contextmanager
    def capture(self) -> Iterator[Graph]:
        """Captures what is enqueued in the block, without running it, into the graph that it yields.

        Raises:
            EngineError: something in the block cannot be captured.
        """
        graph = Graph()
        mode = self._cudart.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal
        call("cudaStreamBeginCapture", self._stream, mode)
        try:
            yield graph
        except BaseException:
            self._cudart.cudaStreamEndCapture(self._stream)
            self._cudart.cudaGetLastError()  # the failed capture is no error of what follows
            raise
        status, template = self._cudart.cudaStreamEndCapture(self._stream)
        if int(status) != 0:
            self._cudart.cudaGetLastError()
            raise EngineError(f"cudaStreamEndCapture failed: {error_string(status)}")
        try:
            graph.executable = call("cudaGraphInstantiate", template, 0)
        finally:
            call("cudaGraphDestroy", template)

    def launch(self, graph: Graph) -> None:
        """Enqueues a captured graph."""
        call("cudaGraphLaunch", graph.executable, self._stream)

    def record(self, event: Event) -> None:
        """Enqueues an event."""
        call("cudaEventRecord", event.event, self._stream)

    def close(self) -> None:
        """Frees the stream."""
        if self._stream is not None:
            call("cudaStreamDestroy", self._stream)
            self._stream = None


class Graph:
    """A captured graph, see `Stream.capture`."""

    def __init__(self) -> None:
        self.executable: Any = None

    def close(self) -> None:
        """Frees the graph."""
        if self.executable is not None:
            call("cudaGraphExecDestroy", self.executable)
            self.executable = None


class Event:
    """A point in a stream's time."""

    def __init__(self) -> None:
        self.event = call("cudaEventCreate")

    def milliseconds_since(self, start: Event) -> float:
        """Waits for this event and returns the GPU time between the two."""
        call("cudaEventSynchronize", self.event)
        return float(call("cudaEventElapsedTime", start.event, self.event))

    def close(self) -> None:
        """Frees the event."""
        if self.event is not None:
            call("cudaEventDestroy", self.event)
            self.event = None


class Buffer:
    """The same number of bytes on the device and, if wanted, in pinned host memory.

    Args:
        num_bytes: size; at least 256 are taken, since TensorRT wants a valid address of an empty tensor too.
        pinned: whether there is a host side.
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
        """The beginning of the host side as an array, valid until `close`."""
        count = int(np.prod(shape, dtype=np.int64))
        memory = (ctypes.c_char * self.num_bytes).from_address(self.host)
        return np.frombuffer(memory, dtype, count).reshape(shape)

    def close(self) -> None:
        """Frees both sides."""
        if self.device:
            call("cudaFree", self.device)
            self.device = 0
        if self.host:
            call("cudaFreeHost", self.host)
            self.host = 0
