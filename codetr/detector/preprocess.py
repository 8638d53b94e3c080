"""Turns pictures into the network's input, and boxes back into each picture's pixels. Imports no Torch.

The arithmetic is upstream's test pipeline (MMDetection: Resize with keep_ratio, DetDataPreprocessor). OpenCV
resizes the 8-bit image bilinearly, without antialiasing. It is then normalised in float32 and padded with
zeros.
"""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np
from PIL import ExifTags, Image, UnidentifiedImageError

from codetr.config import Config
from codetr.detector.sizes import SIZE_DIVISOR, ChosenSize, InputSizes
from codetr.errors import ArgumentError, one_line

IMAGE_SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff"})
_UNLIMITED = (math.inf, math.inf)
_UPRIGHT = {  # by EXIF orientation
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}

# Pillow's warnings do not name the file. It warns of damaged EXIF data, and from 89 megapixels on.
warnings.filterwarnings("ignore", module=r"PIL\.", append=True)


class ImageError(ValueError):
    """A file is no image, is damaged, or has pixels that 8-bit RGB cannot show. The message is one line."""


class ImageFile(NamedTuple):
    """An image file in memory. Functions that read a picture take it in place of a path."""

    name: str
    data: bytes | memoryview

    def __str__(self) -> str:
        return self.name


def load_image(path: str | Path | ImageFile) -> np.ndarray:
    """Reads a picture as a viewer shows it, with its EXIF rotation and in RGB.

    Pillow decodes the same pixels as OpenCV, and unlike OpenCV it refuses truncated JPEG files. Transparent
    pixels are laid on white, 16-bit gray is scaled to 8 bits, and an animation gives its first frame.

    Args:
        path: a JPEG, PNG, WebP, BMP, TIFF or other file that Pillow reads.

    Returns:
        uint8 [H, W, 3], RGB.

    Raises:
        FileNotFoundError: there is no such file.
        ImageError: the file is no image, is truncated or damaged, or has pixels of an unsupported type.
    """
    with open_image(path) as image:
        try:
            image.load()
            return _to_rgb(image)
        except ImageError as error:
            raise ImageError(f"{path}: {error}") from None
        except Exception as error:  # Pillow's decoders raise errors of many classes
            raise ImageError(f"{path}: the image is truncated or damaged ({one_line(error)})") from error


def check_image(path: str | Path) -> None:
    """Reads only the header of a picture. Raises as `load_image` for a file that is missing or no image."""
    with open_image(path):
        pass


def split_images(images: Any) -> list[Any]:
    """Returns the single pictures of the argument `images` of `codetr.Detector.detect`."""
    if isinstance(images, (str, Path, Image.Image)) or getattr(images, "ndim", None) == 3:
        return [images]
    return list(images)


def to_rgb(image: Any) -> np.ndarray:
    """Turns one picture into an array.

    Args:
        image: a path, a PIL image, an RGB uint8 array [H, W, 3], or an RGB tensor [3, H, W], uint8 or
            floating from 0 to 1.

    Returns:
        uint8 [H, W, 3], RGB.

    Raises:
        ArgumentError: a picture of another type or shape.
        FileNotFoundError, ImageError: as `load_image`.
    """
    if isinstance(image, (str, Path)):
        return load_image(image)
    if isinstance(image, Image.Image):
        return _to_rgb(image)
    if hasattr(image, "detach"):
        pixels = image.detach().cpu()
        if pixels.is_floating_point() and pixels.min() >= 0 and pixels.max() <= 1:
            pixels = (pixels * 255).round().byte()
        array = pixels.numpy()
        if array.dtype == np.uint8 and array.ndim == 3 and len(array) == 3:
            return np.ascontiguousarray(array.transpose(1, 2, 0))
        raise ArgumentError(
            "images",
            "expected a tensor [3, H, W], RGB, uint8 or floating from 0 to 1, "
            f"got {image.dtype} {list(image.shape)}",
        )
    return _check_rgb(image)


def rescale_size(
    height: int, width: int, scale: tuple[float, float], limits: tuple[float, float] = _UNLIMITED
) -> tuple[int, int]:
    """Returns the size of an image resized with its ratio kept, as large as fits into `scale` and `limits`.

    Source: mmcv.image.rescale_size: factor = min(long / longer side, short / shorter side), rounded half up.
    `limits` is ours, for inputs with a largest size.

    Args:
        height, width: size of the image in pixels.
        scale: limits of the longer and the shorter side in pixels, in any order.
        limits: limits of height and width in pixels.

    Returns:
        (height, width), each at least 1.
    """
    kept = (max(scale) / max(height, width), min(scale) / min(height, width))
    factor = min(*kept, limits[0] / height, limits[1] / width)
    return max(1, int(height * factor + 0.5)), max(1, int(width * factor + 0.5))


def fit_size(height: int, width: int, max_height: int, max_width: int) -> tuple[int, int]:
    """Returns the largest (height, width) of the image's ratio in max_height x max_width, rounded half up."""
    return rescale_size(height, width, _UNLIMITED, (max_height, max_width))


@dataclass(frozen=True)
class BatchSizes:
    """Sizes of N images on their way into a network's input."""

    padded: tuple[int, int]  # (H, W) of the input
    image_shapes: np.ndarray  # int64 [N, 2], (h, w) of each resized image inside the padding
    original_shapes: np.ndarray  # int64 [N, 2], (h, w) of each original image

    def restore_boxes(self, index: int, boxes: np.ndarray) -> np.ndarray:
        """Maps boxes of one image back to its original pixels and clips them to it.

        Args:
            index: which image of the batch.
            boxes: [K, 4], x1 y1 x2 y2 in pixels of the resized image.

        Returns:
            float32 [K, 4], x1 y1 x2 y2 in pixels of the original image.
        """
        height, width = self.original_shapes[index]
        sy, sx = self.image_shapes[index] / self.original_shapes[index]
        restored = np.asarray(boxes, dtype=np.float64).reshape(-1, 4) / (sx, sy, sx, sy)
        return np.clip(restored, 0.0, (width, height, width, height)).astype(np.float32)


@dataclass(frozen=True)
class Batch(BatchSizes):
    """Network input of N images."""

    images: np.ndarray  # float32 [N, 3, H, W], normalised RGB, zero to the right of and below each image


@dataclass(frozen=True)
class Preprocessor:
    """Turns RGB images into a `Batch`.

    Each image keeps its ratio and becomes as large as the limits allow. There are three kinds of input:

    - any size: `scale` limits the image, and the batch is padded to its largest image.
    - fixed: the image fits into `height` x `width`, and the batch is padded to this size.
    - dynamic: `scale` (optional), `height` and `width` limit the image. The batch is padded to multiples of
      `pad_divisor`, and at least to `min_height` x `min_width`.
    """

    mean: Sequence[float] = Config.mean  # per RGB channel, 0..255
    std: Sequence[float] = Config.std  # per RGB channel
    # (long side, short side) limits in pixels: Swin-L (2048, 1280), R50 (1333, 800)
    scale: tuple[int, int] | None = None
    height: int | None = None  # fixed or largest input height
    width: int | None = None  # fixed or largest input width
    min_height: int | None = None  # smallest height of a dynamic input. Default: `height`, for a fixed input
    min_width: int | None = None  # smallest width; given with `min_height`
    pad_divisor: int = 1  # divisor of the height and width of a dynamic input

    @classmethod
    def of_config(cls, config: Config, size: ChosenSize | None = None) -> Preprocessor:
        """Makes the preprocessing of a `codetr.Config`; `size` replaces the size of its rule."""
        size = size or ChosenSize()
        if size.height_width is not None:
            return cls(config.mean, config.std, height=size.height_width[0], width=size.height_width[1])
        return cls(config.mean, config.std, scale=size.scale(config.resize_scale))

    @classmethod
    def of_artifact(
        cls, metadata: Any, size: ChosenSize | None = None, file: str = "exported file"
    ) -> Preprocessor:
        """Makes the preprocessing of an exported file.

        Args:
            metadata: the file's `trt_plugin.ArtifactMetadata`.
            file: kind and path of the file, for messages.

        Raises:
            ArgumentError: the file cannot take the size.
        """
        size, sizes = size or ChosenSize(), InputSizes.of_artifact(metadata)
        size.check_fits(sizes, file)
        colours = tuple(metadata.mean), tuple(metadata.std)
        if size.height_width is not None:
            return cls(*colours, height=size.height_width[0], width=size.height_width[1])
        return cls(
            *colours,
            scale=size.scale(metadata.resize.get("scale")),
            height=sizes.height.max,
            width=sizes.width.max,
            min_height=sizes.height.min,
            min_width=sizes.width.min,
            pad_divisor=SIZE_DIVISOR if sizes.resizable else 1,
        )

    def target_size(self, height: int, width: int) -> tuple[int, int]:
        """Returns (h, w) of an image of height x width after resizing."""
        limits = _UNLIMITED if self.height is None else (self.height, self.width)
        return rescale_size(height, width, self.scale or _UNLIMITED, limits)

    def shrinks_by_turn(self, height: int, width: int) -> bool:
        """Whether an image of height x width becomes much smaller than the same image turned by 90 degrees.

        Portrait images do so in a landscape input, because they have to fit its height.
        """
        return max(self.target_size(height, width)) < 0.8 * max(self.target_size(width, height))

    def batch_sizes(self, shapes: Sequence[tuple[int, ...]]) -> BatchSizes:
        """Returns the sizes of a batch of images, whose shapes begin with (height, width)."""
        if len(shapes) == 0:
            raise ArgumentError("images", "expected at least one image, got none")
        original_shapes = np.array([shape[:2] for shape in shapes], dtype=np.int64)
        image_shapes = np.array([self.target_size(*hw) for hw in original_shapes.tolist()], dtype=np.int64)
        least = self.min_height or self.height or 1, self.min_width or self.width or 1
        padded = -(-image_shapes.max(axis=0) // self.pad_divisor) * self.pad_divisor
        return BatchSizes(tuple(np.maximum(padded, least).tolist()), image_shapes, original_shapes)

    def batch(self, images: Sequence[np.ndarray]) -> Batch:
        """Resizes, normalises and pads images (uint8 [H_i, W_i, 3], RGB, of any sizes) into one `Batch`."""
        images = [_check_rgb(image) for image in images]
        sizes = self.batch_sizes([image.shape for image in images])
        image_shapes = sizes.image_shapes
        pixels = np.zeros((len(images), 3, *sizes.padded), dtype=np.float32)
        mean, std = (
            np.asarray(colour, dtype=np.float32).reshape(3, 1, 1) for colour in (self.mean, self.std)
        )
        for target, image, (height, width) in zip(pixels, images, image_shapes.tolist(), strict=True):
            inside = target[:, :height, :width]
            np.subtract(resize(image, (height, width)).transpose(2, 0, 1), mean, out=inside)
            np.divide(inside, std, out=inside)
        return Batch(**vars(sizes), images=pixels)


def resize(image: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Resizes uint8 [H, W, 3] to size (h, w) as upstream does: OpenCV's bilinear, without antialiasing."""
    if image.shape[:2] == tuple(size):
        return image
    return cv2.resize(np.ascontiguousarray(image), (size[1], size[0]), interpolation=cv2.INTER_LINEAR)


def _check_rgb(image: np.ndarray) -> np.ndarray:
    image = np.asarray(image)
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3 or 0 in image.shape:
        raise ArgumentError("images", f"expected uint8 [H, W, 3] RGB, got {image.dtype} {list(image.shape)}")
    return image


def open_image(path: str | Path | ImageFile, formats: Sequence[str] | None = None) -> Image.Image:
    """Opens a picture without decoding its pixels.

    Args:
        formats: Pillow's names of the formats to accept. Default: all that Pillow reads.

    Raises:
        FileNotFoundError, ImageError: as `load_image`.
    """
    in_memory = isinstance(path, ImageFile)
    try:
        return Image.open(io.BytesIO(path.data) if in_memory else path, formats=formats)
    except FileNotFoundError:
        raise FileNotFoundError(f"{path}: no such file") from None
    except Exception as error:
        # Pillow's message has the path again, and an address for a file in memory.
        unknown = isinstance(error, UnidentifiedImageError)
        reason = "unknown format" if unknown else getattr(error, "strerror", None) or one_line(error)
        empty = not path.data if in_memory else Path(path).is_file() and Path(path).stat().st_size == 0
        problem = "the file is empty" if empty else f"not an image that Pillow can read ({reason})"
        raise ImageError(f"{path}: {problem}") from error


def _to_rgb(image: Image.Image) -> np.ndarray:
    """Turns any Pillow image into an upright array, uint8 [H, W, 3]."""
    # `ImageOps.exif_transpose` also rewrites the EXIF data, and fails on tags of unusual types.
    turn = _UPRIGHT.get(image.getexif().get(ExifTags.Base.Orientation))
    if turn is not None:
        image = image.transpose(turn)
    if image.mode.startswith("I") or image.mode == "F":
        values = np.asarray(image)
        if image.mode == "F" or values.min() < 0 or values.max() > 65535:
            raise ImageError(f"pixels of type {values.dtype} outside 0..65535 cannot be shown as 8-bit RGB")
        # 65535 / 257 = 255 exactly.
        image = Image.fromarray(((values.astype(np.uint32) + 128) // 257).astype(np.uint8))
    elif image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return np.array(image.convert("RGB"), dtype=np.uint8)
