"""Wraps cuda-python: streams with graphs and events, and buffers on the device and in pinned memory."""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from trt_plugin.engine_error import EngineError, import_cudart


def call(name: str, *arguments: Any) -> Any:
    """Calls a function of the CUDA runtime, such as "cudaMalloc", with the arguments of cuda-python.

    Returns:
        The function's results without its status: None, one value, or a tuple.

    Raises:
        EngineError: the function fails.
    """
    status, *values = getattr(import_cudart(), name)(*arguments)
    if int(status) != 0:
        raise EngineError(f"{name} failed: {error_string(status)}")
    return (values[0] if len(values) == 1 else tuple(values)) if values else None


def error_string(status: Any) -> str:
    """Returns CUDA's message for a status."""
    return import_cudart().cudaGetErrorString(status)[1].decode()


def require_gpu(device: int = 0) -> None:
    """Checks that there is a GPU. Without one, creating a TensorRT runtime or builder ends the process.

    Raises:
        EngineError: there is no GPU of that number, or no driver, or the driver is too old.
    """
    needed = "TensorRT needs an NVIDIA GPU, and CUDA finds none"
    try:
        status, count = import_cudart().cudaGetDeviceCount()
    except RuntimeError as error:  # without a driver, from cuda-bindings 13.5 on
        raise EngineError(f"{needed}: {error}") from error
    if int(status) != 0:
        raise EngineError(f"{needed}: {error_string(status)}")
    if not 0 <= device < count:
        raise EngineError(f"there is no GPU {device}: CUDA finds {count}")


def keep_freed_memory(device: int) -> None:
    """Lets cudaMallocAsync take memory that cudaFreeAsync has freed.

    CUDA's default is to return such memory to the system whenever a stream is synchronised. The next
    allocation then maps it anew.

    Raises:
        EngineError: the GPU has no memory pools.
    """
    from cuda.bindings.driver import cuuint64_t

    threshold = import_cudart().cudaMemPoolAttr.cudaMemPoolAttrReleaseThreshold
    pool = call("cudaDeviceGetDefaultMemPool", device)
    call("cudaMemPoolSetAttribute", pool, threshold, cuuint64_t(2**64 - 1))


class CudaStream:
    """A CUDA stream, with copies, graph capture and timing."""

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

    def copy(self, target: int, source: int, num_bytes: int) -> None:
        """Enqueues a copy between the two memories of a `CudaBuffer`."""
        if num_bytes:  # CUDA tells the direction from the addresses
            kind = self._cudart.cudaMemcpyKind.cudaMemcpyDefault
            call("cudaMemcpyAsync", target, source, num_bytes, kind, self._stream)

    def capture(self, enqueue: Callable[[], object]) -> Any:
        """Captures the work that a function enqueues, without running it.

        Returns:
            The graph, for `launch`. The caller frees it with cudaGraphExecDestroy.

        Raises:
            EngineError: some of the work cannot be captured.
        """
        mode = self._cudart.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal
        call("cudaStreamBeginCapture", self._stream, mode)
        try:
            enqueue()
        except BaseException:
            self._cudart.cudaStreamEndCapture(self._stream)
            self._cudart.cudaGetLastError()  # clears the error for later calls
            raise
        status, template = self._cudart.cudaStreamEndCapture(self._stream)
        if int(status) != 0:
            self._cudart.cudaGetLastError()
            raise EngineError(f"cudaStreamEndCapture failed: {error_string(status)}")
        try:
            return call("cudaGraphInstantiate", template, 0)
        finally:
            call("cudaGraphDestroy", template)

    def launch(self, graph: Any) -> None:
        """Enqueues a captured graph."""
        call("cudaGraphLaunch", graph, self._stream)

    def record(self, event: Any) -> None:
        """Marks the end of the work that is enqueued."""
        call("cudaEventRecord", event, self._stream)

    def wait(self, event: Any) -> None:
        """Lets later work begin once the work before an event's last mark has ended."""
        call("cudaStreamWaitEvent", self._stream, event, 0)

    def time(self, enqueue: Callable[[], object], iterations: int) -> list[float]:
        """Returns the milliseconds between two events around each of several calls of a function."""
        samples: list[float] = []
        events = [call("cudaEventCreate") for _ in range(2)]
        try:
            for _ in range(iterations):
                call("cudaEventRecord", events[0], self._stream)
                enqueue()
                call("cudaEventRecord", events[1], self._stream)
                call("cudaEventSynchronize", events[1])
                samples.append(float(call("cudaEventElapsedTime", *events)))
        finally:
            for event in events:
                call("cudaEventDestroy", event)
        return samples

    def close(self) -> None:
        """Frees the stream."""
        if self._stream is not None:
            call("cudaStreamDestroy", self._stream)
            self._stream = None


class TurnTaker:
    """Lets work of several streams of the current GPU run one after the other, in the order of the calls."""

    def __init__(self) -> None:
        self._alone = threading.Lock()
        # The end of the last call's work. CUDA does not wait for an event that no stream has recorded.
        self._ended = call("cudaEventCreateWithFlags", import_cudart().cudaEventDisableTiming)
        weakref.finalize(self, call, "cudaEventDestroy", self._ended)

    def enqueue(self, stream: CudaStream, work: Callable[[], object]) -> None:
        """Enqueues work of a stream behind that of the last call. `work` enqueues it."""
        with self._alone:
            stream.wait(self._ended)
            work()
            stream.record(self._ended)


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
