"""Writes images into a network's input on the GPU, by the kernel of the plugin library. Imports no Torch."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trt_plugin.cuda_runtime import CudaBuffer, CudaStream
from trt_plugin.engine_error import EngineError
from trt_plugin.library import load
from trt_plugin.runner import DeviceInput

TYPES = ("float32", "float16", "bfloat16")
"""Types of a network's input, in the order of msda::DataType."""


class ImageInputProblem(ctypes.Structure):
    """msda::ImageInputProblem of kernels/include/msda/image_input_params.h."""

    _fields_ = (
        ("image_height", ctypes.c_int64),
        ("image_width", ctypes.c_int64),
        ("row_bytes", ctypes.c_int64),
        ("height", ctypes.c_int64),
        ("width", ctypes.c_int64),
        ("target_height", ctypes.c_int64),
        ("target_width", ctypes.c_int64),
        ("mean", ctypes.c_float * 3),
        ("std", ctypes.c_float * 3),
        ("bgr", ctypes.c_bool),
        ("type", ctypes.c_int32),
    )


@dataclass(frozen=True)
class DeviceImage:
    """A decoded image in the memory of the GPU: uint8 [H, W, 3], RGB.

    Attributes:
        address: of the first pixel.
        shape: (H, W, 3).
        row_bytes: from a row to the next.
        owner: the `nvidia.nvimgcodec.Image` that keeps the memory.
    """

    address: int
    shape: tuple[int, int, int]
    row_bytes: int
    owner: Any

    def to_host(self) -> np.ndarray:
        """Returns a copy in the host's memory, uint8 [H, W, 3]."""
        return np.array(self.owner.cpu())


def launcher() -> Callable[..., None]:
    """Returns the function that launches the kernel.

    Its arguments are an `ImageInputProblem`, the addresses of image and target, and a stream's handle. It
    raises `EngineError` if the problem is wrong or the launch fails.

    Raises:
        EngineError: TensorRT or the plugin library is missing, or the library is an older one.
    """
    path = load()
    try:
        function = ctypes.CDLL(str(path)).msda_image_input
    except AttributeError as error:
        raise EngineError(f"{path} is not this version's plugin library: it has no image input") from error
    function.argtypes = (ctypes.POINTER(ImageInputProblem), *[ctypes.c_void_p] * 3)
    function.restype = ctypes.c_char_p

    def launch(problem: ImageInputProblem, image: int, target: int, stream: int) -> None:
        wrong = function(ctypes.byref(problem), image, target, stream)
        if wrong is not None:
            raise EngineError(f"image input: {wrong.decode()}")

    return launch


class ImageWriter:
    """Writes batches of images into an engine's input. Only one thread may use it at a time.

    Args:
        mean, std: three numbers each, of red, green and blue, 0 to 255.

    Raises:
        EngineError: as `launcher`.
    """

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        self._launch = launcher()
        self._mean, self._std = tuple(mean), tuple(std)
        self._pixels: CudaBuffer | None = None  # images on their way to the GPU

    def input(
        self, images: Sequence[np.ndarray | DeviceImage], sizes: np.ndarray, padded: tuple[int, int]
    ) -> DeviceInput:
        """Returns the input of an engine that holds the images, resized, normalised and padded.

        Args:
            images: uint8 [H_i, W_i, 3], RGB.
            sizes: [N, 2], (h, w) of each resized image.
            padded: (H, W) of the input.
        """

        def write(address: int, dtype: str, stream: CudaStream) -> None:
            step = 3 * padded[0] * padded[1] * (4 if dtype == "float32" else 2)
            addresses = self._upload(images, stream)
            for n, (image, pixels, size) in enumerate(zip(images, addresses, sizes.tolist(), strict=True)):
                height, width, _ = image.shape
                row_bytes = image.row_bytes if isinstance(image, DeviceImage) else 3 * width
                sizes_of_image = height, width, row_bytes, *size, *padded
                colours = self._mean, self._std, False  # RGB
                problem = ImageInputProblem(*sizes_of_image, *colours, TYPES.index(dtype))
                self._launch(problem, pixels, address + n * step, stream.handle)

        return DeviceInput((len(images), 3, *padded), TYPES, write)

    def _upload(self, images: Sequence[np.ndarray | DeviceImage], stream: CudaStream) -> list[int]:
        """Enqueues the copies of images in the host's memory. Returns the address of each on the GPU.

        The last call's copies have ended: the runner waits for the results of a batch.
        """
        sizes = [image.nbytes if isinstance(image, np.ndarray) else 0 for image in images]
        if self._pixels is None or self._pixels.num_bytes < sum(sizes):
            self.close()
            self._pixels = CudaBuffer(sum(sizes))
        host = self._pixels.view((self._pixels.num_bytes,), np.dtype(np.uint8))
        addresses, start = [], 0
        for image, size in zip(images, sizes, strict=True):
            if isinstance(image, DeviceImage):
                addresses.append(image.address)
                continue
            np.copyto(host[start : start + size].reshape(image.shape), image)
            addresses.append(self._pixels.device + start)
            stream.copy(addresses[-1], self._pixels.host + start, size)
            start += size
        return addresses

    def close(self) -> None:
        """Frees the memory."""
        if self._pixels is not None:
            self._pixels.close()
            self._pixels = None
