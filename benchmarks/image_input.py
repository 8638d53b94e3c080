"""`python -m benchmarks.image_input`: times and errors of image input on the GPU."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

import msda
from benchmarks.map_operators import MapOperator
from codetr.detector.preprocess import Preprocessor, fit_size

METHODS = {
    "image_input": "msda.image_input",
    "eager": "F.interpolate, subtraction, division and F.pad in eager PyTorch, without rounding pixels to "
    "8 bits: another result",
}
MEAN, STD = Preprocessor.mean, Preprocessor.std


class Inputs(NamedTuple):
    """The arguments of `msda.image_input`."""

    image: Tensor
    target: Tensor
    size: tuple[int, int]
    mean: tuple[float, ...] = MEAN
    std: tuple[float, ...] = STD


@dataclass(frozen=True)
class ImageProblem:
    """Sizes of one call of the operator: the image, and the network's input."""

    name: str
    image_height: int
    image_width: int
    height: int = 768
    width: int = 1152

    @property
    def size(self) -> tuple[int, int]:
        """(h, w) of the resized image."""
        return fit_size(self.image_height, self.image_width, self.height, self.width)

    def bytes_moved(self, dtype: torch.dtype) -> int:
        """Returns the bytes of image and target, each once."""
        return 3 * (self.image_height * self.image_width + dtype.itemsize * self.height * self.width)

    def inputs(self, dtype: torch.dtype, device: str = "cuda", seed: int = 0) -> Inputs:
        """Draws random pixels."""
        generator = torch.Generator(device).manual_seed(seed)
        sizes = (self.image_height, self.image_width, 3), (3, self.height, self.width)
        image = torch.randint(256, sizes[0], generator=generator, dtype=torch.uint8, device=device)
        return Inputs(image, torch.empty(sizes[1], dtype=dtype, device=device), self.size)


PROBLEMS = (
    ImageProblem("480x640_to_768x1152", 480, 640),
    ImageProblem("1080x1920_to_768x1152", 1080, 1920),
    ImageProblem("2160x3840_to_768x1152", 2160, 3840),
    ImageProblem("1080x1920_to_640x640", 1080, 1920, 640, 640),
)


def make_call(method: str, inputs: Inputs) -> Callable[[], Tensor]:
    """Returns a call of a method. Its result is [3, H, W]."""
    if method == "image_input":

        def call() -> Tensor:
            msda.image_input(*inputs)
            return inputs.target

        return call
    image, target, size, *colours = inputs
    mean, std = (torch.tensor(x, device=image.device).reshape(3, 1, 1) for x in colours)
    margins = 0, target.shape[2] - size[1], 0, target.shape[1] - size[0]

    def eager() -> Tensor:
        pixels = F.interpolate(image.permute(2, 0, 1)[None].float(), size, mode="bilinear")[0]
        return F.pad((pixels - mean) / std, margins).to(target.dtype)

    return eager


def truth(inputs: Inputs) -> Tensor:
    """Returns the reference's result in float64; its normalisation is float32."""
    wide = torch.empty_like(inputs.target, dtype=torch.float32)
    msda.image_input_reference.image_input(inputs.image, wide, *inputs[2:])
    return wide.double()


OPERATOR = MapOperator(
    "benchmarks.image_input", METHODS, PROBLEMS, make_call, truth, other_results=("eager",)
)

main = OPERATOR.program(
    """Time image input at usual sizes of pictures, and compare it with the reference.

    The L2 cache is cold. Problems that fit into it are timed with a warm cache too.
    """,
    dtypes=("fp32", "fp16"),
)

if __name__ == "__main__":
    sys.exit(main())
