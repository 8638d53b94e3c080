"""Decodes pictures in threads: JPEG files by nvImageCodec on the GPU where it can, all others by Pillow.

Both decode the same picture: upright by its EXIF data, in RGB. Pillow refuses damaged files for both, so the
errors are the same with and without a GPU. Imports no Torch.
"""

from __future__ import annotations

import io
import logging
import queue
import threading
import time
import weakref
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from PIL import Image

from codetr.detector.preprocess import ImageFile, load_image
from codetr.usable_cores import usable_cores
from trt_plugin.engine_error import EngineError

if TYPE_CHECKING:
    from trt_plugin.image_input import DeviceImage

_log = logging.getLogger(__name__)
_JPEG_END = b"\xff\xd9"
_HEADER_BYTES = 2**16  # hold the whole header of most JPEG files
_DECODED_TOGETHER = 64  # files in one call of nvImageCodec


class Decoded(NamedTuple):
    """A picture, and how long a thread took for it."""

    image: Any  # uint8 [H, W, 3], RGB, or a `trt_plugin.image_input.DeviceImage`
    milliseconds: float


class _Read(NamedTuple):
    """A JPEG file that waits for the GPU."""

    file: Path | ImageFile
    data: bytes | memoryview
    future: Future[Decoded]


class Decoder:
    """Decodes files by Pillow.

    Args:
        threads: default: one for each usable core, 16 at most.
    """

    description = "Pillow"

    def __init__(self, threads: int | None = None) -> None:
        self._threads = threads or min(usable_cores(), 16)
        self._pool = ThreadPoolExecutor(self._threads, "decode")

    def start(self, files: Sequence[Path | ImageFile]) -> list[Future[Decoded]]:
        """Begins to decode files.

        Returns:
            A future for each. Its `result` raises FileNotFoundError and ImageError as `load_image`.
        """
        return [self._pool.submit(_load, file) for file in files]

    def batches_ahead(self, batch: int) -> int:
        """Returns the number of batches to begin early, so that every thread has work."""
        return max(2, -(-self._threads // batch))

    def close(self) -> None:
        """Drops what has not begun, and waits for the rest."""
        self._pool.shutdown(cancel_futures=True)


class GpuDecoder(Decoder):
    """Decodes baseline and progressive JPEG files of 8 bits on a GPU, and other files by Pillow.

    Pillow also decodes while the pictures that are in use hold more than a quarter of the GPU memory that was
    free at the beginning.

    Args:
        device: number of the GPU.
        threads: as for `Decoder`.

    Raises:
        ImportError: nvImageCodec is not installed.
        EngineError: it does not run here.
    """

    description = "nvImageCodec"

    def __init__(self, device: int = 0, threads: int | None = None) -> None:
        from nvidia import nvimgcodec

        from trt_plugin.cuda_runtime import CudaStream, call, keep_freed_memory, require_gpu

        require_gpu(device)
        call("cudaSetDevice", device)
        keep_freed_memory(device)  # nvImageCodec allocates each picture anew
        self._most_bytes = call("cudaMemGetInfo")[0] // 4
        self._held_bytes, self._count_alone = 0, threading.Lock()
        super().__init__(threads)
        self._stream, self._device = CudaStream(), device
        self._codec = nvimgcodec
        # libjpeg-turbo, which is Pillow's decoder, interpolates the chroma too.
        self._decoder = nvimgcodec.Decoder(device_id=device, options=":fancy_upsampling=1")
        self._waiting: queue.SimpleQueue[_Read | None] = queue.SimpleQueue()  # None ends the thread
        self._thread = threading.Thread(target=self._decode_waiting, name="decode-gpu", daemon=True)
        self._thread.start()
        probe = io.BytesIO()
        Image.new("RGB", (16, 16)).save(probe, "JPEG")
        if self._decode_on_gpu([probe.getvalue()]) == [None]:
            self.close()
            raise EngineError(
                "nvImageCodec decodes no JPEG file here; is the package nvidia-nvjpeg installed?"
            )

    def start(self, files: Sequence[Path | ImageFile]) -> list[Future[Decoded]]:
        """As `Decoder.start`. Files that wait for the GPU are decoded together."""
        futures: list[Future[Decoded]] = [Future() for _ in files]
        # One job for all: threads that change at each file hold up the threads that run the network.
        self._pool.submit(self._read, files, futures)
        return futures

    def batches_ahead(self, batch: int) -> int:
        """As `Decoder.batches_ahead`, and enough files for two calls of nvImageCodec.

        The network works on the pictures of one call while the next call decodes.
        """
        return max(super().batches_ahead(batch), -(-2 * _DECODED_TOGETHER // batch))

    def _read(self, files: Sequence[Path | ImageFile], futures: Sequence[Future[Decoded]]) -> None:
        for file, future in zip(files, futures, strict=True):
            if not future.set_running_or_notify_cancel():
                continue
            data = read_plain_jpeg(file)
            if data is None:
                self._decode_by_pillow(file, future)
            else:
                self._waiting.put(_Read(file, data, future))

    def _decode_waiting(self) -> None:
        while self._decode_next():  # which keeps no picture while it waits for others
            pass

    def _decode_next(self) -> bool:
        """Decodes what waits; returns False once the queue has None."""
        taken = [self._waiting.get()]
        while len(taken) < _DECODED_TOGETHER and not self._waiting.empty():
            taken.append(self._waiting.get())
        if files := [one for one in taken if one is not None]:
            self._decode(files)
        return None not in taken

    def _decode(self, files: Sequence[_Read]) -> None:
        started = time.perf_counter()
        images: list[DeviceImage | None] = [None] * len(files)
        if self._held_bytes <= self._most_bytes:
            try:
                images = self._decode_on_gpu([file.data for file in files])
            except Exception as error:  # nvImageCodec's own errors
                _log.warning("nvImageCodec does not decode, Pillow does: %s", error)
        share = 1000 * (time.perf_counter() - started) / len(files)
        for file, image in zip(files, images, strict=True):
            if image is None:
                self._decode_by_pillow(file.file, file.future)
                continue
            num_bytes = image.shape[0] * image.row_bytes
            self._count(num_bytes)
            weakref.finalize(image, self._count, -num_bytes)
            file.future.set_result(Decoded(image, share))

    def _count(self, num_bytes: int) -> None:
        """Counts the memory of the pictures that are decoded and still in use."""
        with self._count_alone:
            self._held_bytes += num_bytes

    def _decode_by_pillow(self, file: Path | ImageFile, future: Future[Decoded]) -> None:
        try:
            self._pool.submit(_finish, file, future)
        except RuntimeError:  # the decoder is being closed
            _finish(file, future)

    def _decode_on_gpu(self, files: Sequence[bytes | memoryview]) -> list[DeviceImage | None]:
        """Decodes files; None for one that nvImageCodec refuses."""
        from trt_plugin.cuda_runtime import call

        call("cudaSetDevice", self._device)
        streams = [self._codec.CodeStream(np.frombuffer(data, np.uint8)) for data in files]
        images = self._decoder.decode(streams, cuda_stream=self._stream.handle)
        self._stream.synchronize()
        return [_device_image(image) for image in images]

    def close(self) -> None:
        """Drops what has not begun, waits for the rest, and frees the decoder."""
        super().close()
        self._waiting.put(None)
        self._thread.join()
        self._decoder = None
        self._stream.close()


def make_decoder(backend: Any, threads: int | None = None) -> Decoder:
    """Makes the fastest decoder for a loaded `codetr.detector.backend.Backend`.

    That is `GpuDecoder` where the backend takes pictures that are on its GPU, and nvImageCodec runs.
    """
    if getattr(backend, "takes_images", False):
        try:
            return GpuDecoder(backend.device_index, threads)
        except ImportError:
            pass
        except RuntimeError as error:  # nvImageCodec's, or EngineError
            _log.warning("Pillow decodes pictures, not the GPU: %s", error)
    return Decoder(threads)


def read_plain_jpeg(file: Path | ImageFile) -> bytes | memoryview | None:
    """Reads a JPEG file of gray or colour pixels that ends with its end marker; None for any other file.

    A truncated file has no end marker. Decoders on a GPU may show the rest of such a picture as gray; Pillow
    refuses it.
    """
    try:
        data = file.data if isinstance(file, ImageFile) else file.read_bytes()
    except Exception:  # `load_image` names it
        return None
    ends = bytes(data[-2:]) == _JPEG_END
    # A view is copied to be opened. Its beginning is smaller.
    return data if ends and (_has_plain_header(data[:_HEADER_BYTES]) or _has_plain_header(data)) else None


def _has_plain_header(data: bytes | memoryview) -> bool:
    """Whether data begin with the header of a JPEG file of gray or colour pixels."""
    try:
        with Image.open(io.BytesIO(data), formats=("JPEG",)) as image:
            return image.format == "JPEG" and image.mode in ("RGB", "L")
    except Exception:  # Pillow's decoders raise errors of many classes; `load_image` names them
        return False


def _device_image(image: Any) -> DeviceImage | None:
    """Returns an image of nvImageCodec for the kernel of image input; None if the kernel cannot take it."""
    from trt_plugin.image_input import DeviceImage

    if image is None or image.ndim != 3 or image.shape[2] != 3:
        return None
    memory = image.__cuda_array_interface__
    height, width, _ = memory["shape"]
    strides = memory.get("strides") or (3 * width, 3, 1)
    if memory["typestr"] != "|u1" or strides[1:] != (3, 1):
        return None
    return DeviceImage(memory["data"][0], (height, width, 3), strides[0], image)


def _finish(file: Path | ImageFile, future: Future[Decoded]) -> None:
    """Decodes a file by Pillow."""
    try:
        future.set_result(_load(file))
    except Exception as error:
        future.set_exception(error)


def _load(file: Path | ImageFile) -> Decoded:
    started = time.perf_counter()
    image = load_image(file)
    return Decoded(image, 1000 * (time.perf_counter() - started))


def ready(images: Sequence[np.ndarray]) -> list[Future[Decoded]]:
    """Returns the futures of pictures that are decoded already, such as the frames of a video."""
    futures: list[Future[Decoded]] = []
    for image in images:
        futures.append(Future())
        futures[-1].set_result(Decoded(image, 0.0))
    return futures
