"""Image input: every backend against OpenCV and the pipeline's own arithmetic, to the last bit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import cv2
import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor

import msda
from codetr.detector.preprocess import Preprocessor
from tests.matrix import emulated_kernels, operator_checks
from tests.matrix.map_operators import Backend, Row, emulator, emulator_or_skip, matrix, on_gpu

TYPES = (torch.float32, torch.float16, torch.bfloat16)
MEAN, STD = Preprocessor.mean, Preprocessor.std


class Inputs(NamedTuple):
    """The arguments of the operator."""

    image: Tensor
    target: Tensor
    size: tuple[int, int]
    mean: Any = MEAN
    std: Any = STD
    bgr: bool = False


@dataclass(frozen=True)
class Case:
    """Sizes of a call: height and width of image, resized image and target."""

    image: tuple[int, int]
    size: tuple[int, int]
    padding: tuple[int, int] = (0, 0)
    bgr: bool = False
    seed: int = 0

    def inputs(self, dtype: torch.dtype, device: str = "cpu") -> Inputs:
        """Random pixels, and a target full of NaN."""
        pixels = np.random.default_rng(self.seed).integers(0, 256, (*self.image, 3), dtype=np.uint8)
        target = torch.full((3, *np.add(self.size, self.padding)), torch.nan, dtype=dtype, device=device)
        return Inputs(torch.from_numpy(pixels).to(device), target, self.size, bgr=self.bgr)

    def expected(self, dtype: torch.dtype) -> Tensor:
        """The target by OpenCV and NumPy, as `Preprocessor.batch` computes it."""
        pixels = self.inputs(dtype).image.numpy()
        if self.image != self.size:
            pixels = cv2.resize(pixels, self.size[::-1], interpolation=cv2.INTER_LINEAR)
        pixels = pixels[..., ::-1] if self.bgr else pixels
        normalised = (pixels.astype(np.float32) - np.float32(MEAN)) / np.float32(STD)
        target = torch.zeros(3, *np.add(self.size, self.padding))
        target[:, : self.size[0], : self.size[1]] = torch.from_numpy(normalised).permute(2, 0, 1)
        return target.to(dtype)


sides = st.integers(1, 70)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    size = draw(sides), draw(sides)
    image = draw(
        st.one_of(
            st.tuples(sides, sides),
            st.just(size),
            st.just((2 * size[0], 2 * size[1])),  # OpenCV averages here
            st.just((3 * size[0], size[1])),
        )
    )
    padding = draw(st.integers(0, 40)), draw(st.integers(0, 140))
    return Case(image, size, padding, draw(st.booleans()), draw(st.integers(0, 2**16)))


ALL = (
    Backend("torch-cpu", msda.image_input, dtypes=TYPES),
    emulator(msda.image_input, dtypes=TYPES),
    on_gpu(msda.image_input, dtypes=TYPES),
)


def check(backend: Backend, case: Case, dtype: torch.dtype) -> None:
    inputs = case.inputs(dtype, backend.device)
    backend.compute(inputs, order=case.seed)
    assert torch.equal(inputs.target.cpu(), case.expected(dtype))


@matrix(ALL)
def test_drawn_cases(backend: Backend, dtype: torch.dtype) -> None:
    backend.skip_unless_ready(dtype)
    operator_checks.drawn_cases(backend, cases(), lambda case: check(backend, case, dtype), part=4)


FORMS = [
    Case((1080, 1920), (648, 1152), (120, 0)),
    Case((480, 640), (768, 1024), (0, 128), bgr=True),
    Case((1, 1), (64, 64)),
    Case((3000, 2), (30, 1), (2, 31)),
]


@matrix(tuple(backend for backend in ALL if not backend.emulated))
@pytest.mark.parametrize("case", FORMS, ids=str)
def test_forms(backend: Backend, dtype: torch.dtype, case: Case) -> None:
    backend.skip_unless_ready(dtype)
    check(backend, case, dtype)


@matrix(ALL)
def test_rows_that_lie_apart(backend: Backend, dtype: torch.dtype) -> None:
    """The image is a window of a larger one: the kernel reads it in place, and nothing beside it."""
    backend.skip_unless_ready(dtype)
    case = Case((20, 30), (32, 48))
    inputs = case.inputs(dtype, backend.device)
    larger = torch.zeros(25, 41, 3, dtype=torch.uint8, device=backend.device)
    larger[3:23, 5:35] = inputs.image
    backend.compute(inputs._replace(image=larger[3:23, 5:35]))
    assert torch.equal(inputs.target.cpu(), case.expected(dtype))


def test_equals_the_pipeline(device: str) -> None:
    """A batch of two pictures, as `Preprocessor.batch` makes it."""
    preprocessor = Preprocessor(height=96, width=160)
    images = [Case(size, (1, 1)).inputs(torch.float32).image for size in ((50, 90), (301, 200))]
    batch = preprocessor.batch([image.numpy() for image in images])
    found = torch.full(batch.images.shape, torch.nan, device=device)
    for image, target, size in zip(images, found, batch.image_shapes.tolist(), strict=True):
        msda.image_input(image.to(device), target, tuple(size), MEAN, STD)
    assert torch.equal(found.cpu(), torch.from_numpy(batch.images))


# In PyTorch.


def test_opcheck(device: str) -> None:
    image, target, size, *rest = Case((9, 7), (5, 6), (1, 2)).inputs(torch.float32, device)
    torch.library.opcheck(torch.ops.msda.image_input.default, (image, target.zero_(), *size, *rest))


def test_compile(device: str) -> None:
    def run(inputs: Inputs) -> Tensor:
        target = inputs.target.clone()
        msda.image_input(inputs.image, target, *inputs[2:])
        return target * 2

    backend = "inductor" if device == "cuda" else "aot_eager"
    inputs = Case((9, 7), (5, 6), (1, 2)).inputs(torch.float32, device)
    torch.testing.assert_close(torch.compile(run, fullgraph=True, backend=backend)(inputs), run(inputs))


# Wrong arguments.

SMALL = Case((9, 7), (5, 6), (1, 2))
WRONG = (
    Row("image", lambda x: x.tolist(), ("torch.Tensor", "list"), TypeError),
    Row("image", lambda x: x.int(), ("uint8", "torch.int32"), TypeError),
    Row("image", lambda x: x[..., :2], ("[H, W, 3]", "[9, 7, 2]")),
    Row("image", lambda x: x[:0], ("[H, W, 3]", "[0, 7, 3]")),
    Row("target", lambda x: x.double(), ("float32, float16 or bfloat16", "torch.float64"), TypeError),
    Row("target", lambda x: x[:2], ("[3, H, W]", "[2, 6, 8]")),
    Row("target", lambda x: x.mT, ("contiguous", "strides [48, 1, 8]")),
    Row("size", lambda x: (5, 9), ("[3, 6, 8]", "(5, 9)")),
    Row("size", lambda x: (0, 6), ("[3, 6, 8]", "(0, 6)")),
    Row("size", lambda x: (5.0, 6), ("two ints", "(5.0, 6)"), TypeError),
    Row("mean", lambda x: (1.0, 2.0), ("3 finite numbers", "(1.0, 2.0)")),
    Row("std", lambda x: (1.0, 0.0, 1.0), ("above 0", "(1.0, 0.0, 1.0)")),
    Row("bgr", lambda x: "bgr", ("bool", "'bgr'"), TypeError),
)


@pytest.mark.parametrize("row", WRONG, ids=str)
@pytest.mark.parametrize("function", [msda.image_input, msda.image_input_reference.image_input])
def test_wrong_argument(function: Callable, row: Row) -> None:
    inputs = SMALL.inputs(torch.float32)
    row.check(function, inputs)
    assert inputs.target.isnan().all()


@pytest.mark.parametrize("size", [(7, 6), (5, 9), (0, 6)])
def test_launcher_refuses_a_wrong_size(size: tuple[int, int]) -> None:
    """The check of the plain C++ contract, which guards the callers without Torch."""
    emulator_or_skip()
    inputs = SMALL.inputs(torch.float32)
    with pytest.raises(emulated_kernels.EmulatorError, match="size: should lie within the target of 6 x 8"):
        emulated_kernels.image_input(*inputs._replace(size=size))


@pytest.mark.gpu
def test_cuda_graph() -> None:
    """A replay reads the present pixels."""
    case = Case((270, 480), (162, 288), (30, 0))
    inputs = case.inputs(torch.float16, "cuda")
    msda.image_input(*inputs)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        msda.image_input(*inputs)
    inputs.image.copy_(inputs.image.flip(0))
    inputs.target.fill_(torch.nan)
    graph.replay()
    expected = torch.zeros_like(inputs.target)
    msda.image_input(inputs.image, expected, *inputs[2:])
    assert torch.equal(inputs.target, expected)
