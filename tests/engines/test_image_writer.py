"""Image input without Torch: the plugin library's launcher, and the writer of an engine's input."""

from __future__ import annotations

import numpy as np
import pytest

from codetr.detector.preprocess import Preprocessor
from tests.engines.plugin_engines import plugin_or_skip
from trt_plugin import EngineError
from trt_plugin.cuda_runtime import CudaBuffer, CudaStream
from trt_plugin.image_input import DeviceImage, ImageInputProblem, ImageWriter, launcher

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


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_writer_equals_the_cpu(dtype):
    """A batch of pictures of several sizes, one of them on the GPU already."""
    plugin_or_skip()
    random = np.random.default_rng(0)
    shapes = (270, 480, 3), (300, 200, 3), (31, 57, 3)
    images = [random.integers(0, 256, shape, dtype=np.uint8) for shape in shapes]
    expected = Preprocessor(height=192, width=288).batch(images)
    stream, target, uploaded = CudaStream(), CudaBuffer(expected.images.nbytes), CudaBuffer(images[1].nbytes)
    uploaded.view(shapes[1], np.dtype(np.uint8))[:] = images[1]
    stream.copy(uploaded.device, uploaded.host, images[1].nbytes)
    given = [images[0], DeviceImage(uploaded.device, shapes[1], 600, None), images[2]]
    writer = ImageWriter(*COLOURS)
    for _ in range(2):  # the second time into memory that is there
        written = writer.input(given, expected.image_shapes, expected.padded)
        assert written.shape == expected.images.shape
        written.write(target.device, dtype, stream)
        stream.copy(target.host, target.device, target.num_bytes)
        stream.synchronize()
        found = target.view(expected.images.shape, np.dtype(dtype))
        assert (found == expected.images.astype(dtype)).all()
    for memory in (target, uploaded, writer, stream):
        memory.close()
