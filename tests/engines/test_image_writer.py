"""Image input without Torch: the plugin library's launcher, and the writer of an engine's input."""

from __future__ import annotations

import ctypes
import math

import numpy as np
import pytest
import torch

import msda
from codetr.detector.preprocess import Preprocessor
from tests.engines.plugin_engines import plugin_or_skip
from trt_plugin import EngineError, image_input
from trt_plugin.cuda_runtime import CudaBuffer, CudaStream
from trt_plugin.image_input import TYPES, DeviceImage, ImageInputProblem, ImageWriter, launcher

COLOURS = (Preprocessor.mean, Preprocessor.std)
GOOD = (30, 40, 120, 24, 32, 32, 32)  # height, width, row_bytes, resized and target height and width


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ((0, *GOOD[1:]), "image: height and width should be 1 to 131072, got 0 x 40"),
        ((*GOOD[:2], 119, *GOOD[3:]), "image: a row of 40 pixels should have 3 bytes a pixel, got 119"),
        ((*GOOD[:3], 33, *GOOD[4:]), "size: should lie within the target of 32 x 32, got 33 x 32"),
        ((*GOOD[:5], 1 << 18, 32), "target: height and width should be 1 to 131072, got 262144 x 32"),
    ],
)
def test_wrong_problem_is_one_line(sizes, message):
    plugin_or_skip()
    with pytest.raises(EngineError, match=f"^image input: {message}$"):
        launcher()(ImageInputProblem(*sizes, *COLOURS), 0, 0, 0)


class HostBuffer(CudaBuffer):
    """Memory of the host in place of the GPU's."""

    def __init__(self, num_bytes: int) -> None:
        self.num_bytes = num_bytes
        self.memory = np.full(num_bytes, 0xFF, dtype=np.uint8)
        self.device = self.host = self.memory.ctypes.data

    def close(self) -> None:
        self.memory = None


class HostStream:
    handle = 0

    def copy(self, target: int, source: int, num_bytes: int) -> None:
        ctypes.memmove(target, source, num_bytes)

    def synchronize(self) -> None: ...

    def close(self) -> None: ...


def launch_on_host(problem: ImageInputProblem, image: int, target: int, stream: int) -> None:
    """The reference in place of the kernel, on the addresses that the kernel would get."""
    size = problem.image_height, problem.row_bytes
    rows = np.frombuffer((ctypes.c_uint8 * (size[0] * size[1])).from_address(image), np.uint8).reshape(size)
    pixels = rows[:, : 3 * problem.image_width].reshape(problem.image_height, problem.image_width, 3)
    dtype = np.dtype(TYPES[problem.type])
    shape = 3, problem.target_height, problem.target_width
    memory = (ctypes.c_uint8 * (dtype.itemsize * math.prod(shape))).from_address(target)
    written = torch.from_numpy(np.frombuffer(memory, dtype).reshape(shape))
    colours = tuple(problem.mean), tuple(problem.std), problem.bgr
    resized = problem.height, problem.width
    msda.image_input_reference.image_input(torch.from_numpy(pixels.copy()), written, resized, *colours)


@pytest.fixture(params=["host", pytest.param("gpu", marks=pytest.mark.gpu)])
def memory(request, monkeypatch) -> tuple[type, type]:
    """Classes of buffers and streams: the GPU's, or stand-ins without one."""
    if request.param == "gpu":
        plugin_or_skip()
        return CudaBuffer, CudaStream
    monkeypatch.setattr(image_input, "CudaBuffer", HostBuffer)
    monkeypatch.setattr(image_input, "launcher", lambda: launch_on_host)
    return HostBuffer, HostStream


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_writer_equals_the_cpu(memory, dtype):
    """A batch of pictures of several sizes, one of them on the GPU already."""
    buffer, make_stream = memory
    random = np.random.default_rng(0)
    shapes = (270, 480, 3), (300, 200, 3), (31, 57, 3)
    images = [random.integers(0, 256, shape, dtype=np.uint8) for shape in shapes]
    expected = Preprocessor(height=192, width=288).batch(images)
    stream, target, uploaded = make_stream(), buffer(expected.images.nbytes), buffer(images[1].nbytes)
    uploaded.view(shapes[1], np.dtype(np.uint8))[:] = images[1]
    stream.copy(uploaded.device, uploaded.host, images[1].nbytes)
    given = [images[0], DeviceImage(uploaded.device, shapes[1], 600, None), images[2]]
    writer = ImageWriter(*COLOURS)
    for chosen in ([2], [0, 1, 2], [0, 1, 2]):  # memory grows, then suffices
        written = writer.input([given[i] for i in chosen], expected.image_shapes[chosen], expected.padded)
        shape = (len(chosen), 3, *expected.padded)
        assert written.shape == shape
        written.write(target.device, dtype, stream)
        stream.copy(target.host, target.device, target.num_bytes)
        stream.synchronize()
        assert (target.view(shape, np.dtype(dtype)) == expected.images[chosen].astype(dtype)).all()
    for one in (target, uploaded, writer, stream):
        one.close()
