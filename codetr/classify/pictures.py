"""The input of a classifier: pictures resized, cropped and normalised as torchvision and timm do.

Imports no Torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np
from PIL import Image

from codetr.classify.class_folders import ClassPicture, read_class_picture
from codetr.dataset.bad_pictures import BadPictures
from codetr.errors import ArgumentError
from codetr.evaluation.detect_dataset import read_ahead

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_FILTERS = {
    "nearest": Image.Resampling.NEAREST,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}


@dataclass(frozen=True)
class ClassifierPreprocessing:
    """Turns pictures into the input of a classifier.

    The shorter side, or each side if `squash`, is resized to `resize` with antialiasing. The centre is
    cropped, and the pixels are normalised. Source: torchvision.transforms.ImageClassification, and timm's
    evaluation with the crop modes "center" and "squash".

    Raises:
        ArgumentError: a field has a wrong value.
    """

    resize: int = 256  # side in pixels, at least crop
    crop: int = 224  # side of the square in pixels
    mean: tuple[float, float, float] = IMAGENET_MEAN  # per RGB channel, 0..1
    std: tuple[float, float, float] = IMAGENET_STD
    interpolation: str = "bilinear"  # or nearest, bicubic, lanczos
    squash: bool = False  # resizes both sides, which changes the picture's proportions

    def __post_init__(self) -> None:
        if not 1 <= self.crop <= self.resize:
            raise ArgumentError("crop", f"expected 1 to resize={self.resize} pixels, got {self.crop}")
        if self.interpolation not in _FILTERS:
            expected = f"one of {', '.join(_FILTERS)}"
            raise ArgumentError("interpolation", f"expected {expected}, got {self.interpolation!r}")
        for name in ("mean", "std"):
            values = tuple(map(float, getattr(self, name)))
            if len(values) != 3 or not np.isfinite(values).all() or (name == "std" and min(values) <= 0):
                raise ArgumentError(name, f"expected three numbers for R, G and B, got {getattr(self, name)}")
            object.__setattr__(self, name, values)

    def as_dict(self) -> dict[str, Any]:
        """Returns the fields for JSON; `ClassifierPreprocessing(**fields)` reads them."""
        return {
            key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()
        }

    def crop_centre(self, image: np.ndarray) -> np.ndarray:
        """Resizes one picture, uint8 [H, W, 3] RGB, and returns its centre, uint8 [crop, crop, 3]."""
        height, width = image.shape[:2]
        # torchvision truncates the longer side, in this order of operations.
        longer = int(self.resize * max(height, width) / min(height, width))
        size = (self.resize, longer) if width <= height else (longer, self.resize)
        size = (self.resize, self.resize) if self.squash else size
        resized = Image.fromarray(image)
        if resized.size != size:
            resized = resized.resize(size, _FILTERS[self.interpolation])
        left, top = (round((side - self.crop) / 2.0) for side in resized.size)
        return np.ascontiguousarray(resized.crop((left, top, left + self.crop, top + self.crop)))

    def normalise(self, pixels: np.ndarray) -> np.ndarray:
        """Turns pixels, uint8 [H, W, 3], into float32 [3, H, W]."""
        channels = [np.take(table, pixels[..., c], mode="clip") for c, table in enumerate(self._tables)]
        return np.stack(channels)

    @cached_property
    def _tables(self) -> np.ndarray:
        # float32 [3, 256]: the number of each channel and byte. A look-up is faster than the arithmetic.
        mean, std = (np.array(colour, np.float32).reshape(3, 1) for colour in (self.mean, self.std))
        return (np.arange(256, dtype=np.float32) / np.float32(255) - mean) / std

    def picture(self, image: np.ndarray) -> np.ndarray:
        """Turns one picture, uint8 [H, W, 3] RGB, into float32 [3, crop, crop]."""
        return self.normalise(self.crop_centre(image))

    def batch(self, images: Sequence[np.ndarray]) -> np.ndarray:
        """Turns pictures, uint8 [H_i, W_i, 3] RGB of any sizes, into float32 [N, 3, crop, crop]."""
        if not len(images):
            raise ArgumentError("images", "expected at least one image, got none")
        return np.stack([self.picture(image) for image in images])


def read_batches(
    pictures: Sequence[ClassPicture],
    preprocessing: ClassifierPreprocessing,
    batch: int,
    bad_pictures: BadPictures | None = None,
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Reads and preprocesses pictures in threads, ahead of the consumer.

    Args:
        bad_pictures: records pictures that cannot be read and leaves them out. Default: they are errors.

    Yields:
        (images, labels) of each batch: float32 [N, 3, crop, crop] and int64 [N]; the last may be smaller.

    Raises:
        DatasetError: a picture cannot be read, and `bad_pictures` is None or strict.
    """

    def read(picture: ClassPicture) -> np.ndarray:
        return preprocessing.picture(read_class_picture(picture))

    for chunk, images in read_ahead(pictures, batch, bad_pictures, read):
        yield np.stack(images), np.array([picture.label for picture in chunk], np.int64)
