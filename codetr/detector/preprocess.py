"""Images to network input: reading, resizing, normalising, padding into a batch; boxes back to each image.

Free of Torch, so that an engine runs without it. The arithmetic is upstream's test pipeline (MMDetection:
Resize with keep_ratio, DetDataPreprocessor): the 8-bit image is resized (OpenCV, bilinear, no antialiasing),
then normalised in float32, then padded right and bottom with zeros.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from codetr.detector.sizes import SIZE_DIVISOR, InputSizes

IMAGENET_MEAN = (123.675, 116.28, 103.53)  # RGB, 0..255
IMAGENET_STD = (58.395, 57.12, 57.375)
IMAGE_SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff"})
_UNLIMITED = (math.inf, math.inf)


class ImageError(ValueError):
    """A file that is no image, is damaged, or holds pixels that cannot be shown as 8-bit RGB. One line."""


def load_image(path: str | Path) -> np.ndarray:
    """Reads a picture as a viewer shows it: EXIF rotation applied, any colour type turned into RGB.

    Transparent pixels are laid on white; 16-bit gray is scaled to 8 bits; an animation gives its first frame.

    Args:
        path: a JPEG, PNG, WebP, BMP, TIFF or other file that Pillow reads.

    Returns:
        uint8 [H, W, 3], RGB.

    Raises:
        FileNotFoundError: there is no such file.
        ImageError: the file is not an image, is truncated or damaged, or has pixels of an unsupported type.
    """
    from PIL import ImageOps

    with _open(path) as image:
        try:
            image.load()
            return np.array(_to_rgb(ImageOps.exif_transpose(image)), dtype=np.uint8)
        except ImageError as error:
            raise ImageError(f"{path}: {error}") from None
        except (OSError, SyntaxError, ValueError, EOFError, TypeError, IndexError, MemoryError) as error:
            raise ImageError(f"{path}: the image is truncated or damaged ({_one_line(error)})") from error


def split_images(images: Any) -> list[Any]:
    """Returns the single pictures of what `codetr.Detector.detect` takes."""
    from PIL import Image

    if isinstance(images, (str, Path, Image.Image)):
        return [images]
    if hasattr(images, "ndim") and images.ndim == 3:
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
        ValueError: naming the type and shape of a picture of another kind.
        FileNotFoundError, ImageError: as `load_image`.
    """
    from PIL import Image, ImageOps

    if isinstance(image, (str, Path)):
        return load_image(image)
    if isinstance(image, Image.Image):
        return np.array(_to_rgb(ImageOps.exif_transpose(image)), dtype=np.uint8)
    if hasattr(image, "detach"):
        pixels = image.detach().cpu()
        if pixels.ndim == 3 and pixels.shape[0] == 3:
            if pixels.is_floating_point() and pixels.min() >= 0 and pixels.max() <= 1:
                pixels = (pixels * 255).round().byte()
            array = pixels.numpy()
            if array.dtype == np.uint8:
                return np.ascontiguousarray(array.transpose(1, 2, 0))
        raise ValueError(
            f"image: expected a tensor [3, H, W], RGB, uint8 or floating from 0 to 1, got {image.dtype} "
            f"{list(image.shape)}"
        )
    return _check_rgb(image)


def check_image(path: str | Path) -> None:
    """Reads only the header of a picture. Raises as `load_image` for a file that is missing or no image."""
    with _open(path):
        pass


def rescale_size(
    height: int, width: int, scale: tuple[float, float], limits: tuple[float, float] = _UNLIMITED
) -> tuple[int, int]:
    """Size of an image resized with its ratio kept, as large as fits into `scale` and `limits`.

    Source: mmcv.image.rescale_size: factor = min(long / longer side, short / shorter side), rounded half up.
    `limits` is ours, for inputs with a largest size.

    Args:
        height: rows of the image.
        width: columns of the image.
        scale: (limit of the longer side, limit of the shorter side), in any order, pixels.
        limits: (limit of the height, limit of the width), pixels.

    Returns:
        (height, width), each at least 1.
    """
    factor = min(
        max(scale) / max(height, width),
        min(scale) / min(height, width),
        limits[0] / height,
        limits[1] / width,
    )
    return max(1, int(height * factor + 0.5)), max(1, int(width * factor + 0.5))


def fit_size(height: int, width: int, max_height: int, max_width: int) -> tuple[int, int]:
    """Largest (height, width) with the image's ratio, rounded half up, inside max_height x max_width."""
    return rescale_size(height, width, _UNLIMITED, (max_height, max_width))


@dataclass(frozen=True)
class Batch:
    """Network input made of N images.

    Attributes:
        images: float32 [N, 3, H, W], normalised RGB, zero right of and below each image.
        image_shapes: int64 [N, 2], (h, w) of each resized image inside the padding.
        scales: float64 [N, 2], (sx, sy) = resized size / original size.
        original_shapes: int64 [N, 2], (h, w) of each image as it was read.
    """

    images: np.ndarray
    image_shapes: np.ndarray
    scales: np.ndarray
    original_shapes: np.ndarray

    def restore_boxes(self, index: int, boxes: np.ndarray) -> np.ndarray:
        """Maps boxes of one image back to its original pixels and clips them to it.

        Args:
            index: which image of the batch.
            boxes: [K, 4], x1 y1 x2 y2 in pixels of the resized image.

        Returns:
            float32 [K, 4], x1 y1 x2 y2 in pixels of the original image.
        """
        height, width = self.original_shapes[index]
        sx, sy = self.scales[index]
        restored = np.asarray(boxes, dtype=np.float64).reshape(-1, 4) / (sx, sy, sx, sy)
        return np.clip(restored, 0.0, (width, height, width, height)).astype(np.float32)


@dataclass(frozen=True)
class Preprocessor:
    """Turns RGB images into a `Batch`.

    Each image keeps its ratio and becomes as large as the limits allow. There are three kinds of input:

    - any size: `scale` limits the image, and the batch is padded to its largest image.
    - fixed: the image fits into `height` x `width`, and the batch is padded to this size.
    - dynamic: `scale` (optional), `height` and `width` limit the image. The batch is padded as far as its
      largest image, `min_height` and `min_width` need.

    Attributes:
        mean: per RGB channel, 0..255.
        std: per RGB channel.
        scale: (long side, short side) limits in pixels: Swin-L (2048, 1280), R50 (1333, 800).
        height: fixed input height, or the largest of a dynamic input.
        width: fixed input width, or the largest.
        min_height: the smallest height of a dynamic input.
        min_width: the smallest; given with `min_height`.
        pad_divisor: the batch's height and width become multiples of this (not with a fixed size).
    """

    mean: Sequence[float] = IMAGENET_MEAN
    std: Sequence[float] = IMAGENET_STD
    scale: tuple[int, int] | None = None
    height: int | None = None
    width: int | None = None
    min_height: int | None = None
    min_width: int | None = None
    pad_divisor: int = 1

    @classmethod
    def of_artifact(
        cls,
        metadata: Any,
        kind: str = "file",
        file: str | Path = "",
        max_size: int | None = None,
        height: int | None = None,
        width: int | None = None,
    ) -> Preprocessor:
        """The preprocessing that an exported file was made for.

        Args:
            metadata: the file's `trt_plugin.ArtifactMetadata`.
            kind: "engine" or "ONNX file", for messages.
            file: path of the file, for messages.
            max_size, height, width: as `codetr.Detector` has them; for a file with dynamic sizes only.

        Raises:
            ValueError: the file cannot follow one of the three sizes.
        """
        sizes = InputSizes.of_artifact(metadata)
        refusal = sizes.refusal(kind, file, max_size, height, width)
        if refusal is not None:
            raise ValueError(": ".join(refusal))
        colours = tuple(metadata.mean), tuple(metadata.std)
        if _fixes_size(max_size, height, width):
            return cls(*colours, height=height, width=width)
        return cls(
            *colours,
            scale=_limit_scale(metadata.resize.get("scale"), max_size),
            height=sizes.height.max,
            width=sizes.width.max,
            min_height=sizes.height.min,
            min_width=sizes.width.min,
            pad_divisor=SIZE_DIVISOR if sizes.resizable else 1,
        )

    def __post_init__(self) -> None:
        if (self.height is None) != (self.width is None):
            raise ValueError(f"height and width: give both or neither, got {self.height} and {self.width}")
        if (self.min_height is None) != (self.min_width is None):
            raise ValueError(
                f"min_height and min_width: give both or neither, got {self.min_height} and {self.min_width}"
            )
        if self.min_height is None and (self.scale is None) == (self.height is None):
            raise ValueError("give either scale=(long, short) or height and width")
        for name in ("height", "width", "min_height", "min_width", "pad_divisor"):
            number = getattr(self, name)
            if number is not None and number < 1:
                raise ValueError(f"{name}: expected a positive number of pixels, got {number}")
        if self.min_height is not None:
            for name, most, least in (
                ("height", self.height, self.min_height),
                ("width", self.width, self.min_width),
            ):
                if most is None or most % self.pad_divisor or least > most:
                    raise ValueError(
                        f"{name}: expected a multiple of {self.pad_divisor} from {least} on, got {most}"
                    )
        if self.scale is not None and (len(self.scale) != 2 or min(self.scale) < 1):
            raise ValueError(
                f"scale: expected two positive numbers (long side, short side), got {self.scale}"
            )
        if len(self.mean) != 3 or len(self.std) != 3 or min(self.std) <= 0:
            raise ValueError(
                f"mean and std: expected three numbers each, std positive, got {self.mean}, {self.std}"
            )

    def target_size(self, height: int, width: int) -> tuple[int, int]:
        """Returns the (h, w) to which an image of height x width is resized."""
        limits = _UNLIMITED if self.height is None else (self.height, self.width)
        return rescale_size(height, width, self.scale or _UNLIMITED, limits)

    def shrinks_by_turn(self, height: int, width: int) -> bool:
        """Whether an image of height x width becomes much smaller than it does turned by 90 degrees.

        So do portrait images in a landscape input, whose height they have to fit.
        """
        return max(self.target_size(height, width)) < 0.8 * max(self.target_size(width, height))

    def one(self, image: np.ndarray) -> tuple[np.ndarray, tuple[int, int]]:
        """Resizes and normalises one image.

        Args:
            image: uint8 [H, W, 3], RGB.

        Returns:
            float32 [3, h, w] and (h, w), without padding.
        """
        image = _check_rgb(image)
        size = self.target_size(*image.shape[:2])
        normalised = np.empty((3, *size), dtype=np.float32)
        self._normalise_into(normalised, resize(image, size))
        return normalised, size

    def batch(self, images: Sequence[np.ndarray]) -> Batch:
        """Resizes, normalises and pads images (uint8 [H_i, W_i, 3], RGB, of any sizes) into one `Batch`."""
        if len(images) == 0:
            raise ValueError("images: expected at least one image, got none")
        images = [_check_rgb(image) for image in images]
        original_shapes = np.array([image.shape[:2] for image in images], dtype=np.int64)
        image_shapes = np.array([self.target_size(*image.shape[:2]) for image in images], dtype=np.int64)
        padded = self._padded_size(image_shapes)
        pixels = np.zeros((len(images), 3, *padded), dtype=np.float32)
        for target, image, (height, width) in zip(pixels, images, image_shapes.tolist(), strict=True):
            self._normalise_into(target[:, :height, :width], resize(image, (height, width)))
        return Batch(pixels, image_shapes, image_shapes[:, ::-1] / original_shapes[:, ::-1], original_shapes)

    def _padded_size(self, image_shapes: np.ndarray) -> tuple[int, int]:
        """Height and width of the batch of images of these sizes, [N, 2]."""
        if self.height is not None and self.min_height is None:
            return self.height, self.width
        height, width = (
            -(-int(side) // self.pad_divisor) * self.pad_divisor for side in image_shapes.max(axis=0)
        )
        return max(height, self.min_height or 1), max(width, self.min_width or 1)

    def _normalise_into(self, target: np.ndarray, resized: np.ndarray) -> None:
        """Writes (resized [h, w, 3] - mean) / std into target [3, h, w], in float32 as upstream."""
        mean = np.asarray(self.mean, dtype=np.float32).reshape(3, 1, 1)
        std = np.asarray(self.std, dtype=np.float32).reshape(3, 1, 1)
        np.subtract(resized.transpose(2, 0, 1), mean, out=target)
        np.divide(target, std, out=target)


def make_preprocessor(
    config: Any, max_size: int | None = None, height: int | None = None, width: int | None = None
) -> Preprocessor:
    """Builds the preprocessing of a `codetr.Config`, with the longer side limited or a fixed input size."""
    if _fixes_size(max_size, height, width):
        return Preprocessor(config.mean, config.std, height=height, width=width)
    scale = _limit_scale((max(config.resize_scale), min(config.resize_scale)), max_size)
    return Preprocessor(config.mean, config.std, scale=scale)


def _fixes_size(max_size: int | None, height: int | None, width: int | None) -> bool:
    """Whether a caller asks for a fixed input size."""
    if height is None and width is None:
        return False
    if max_size is not None:
        raise ValueError("max_size: does not go with a fixed height and width")
    return True


def _limit_scale(scale: Sequence[int] | None, max_size: int | None) -> tuple[int, int] | None:
    """A (long side, short side) with both sides limited; None stands for no limit."""
    if max_size is None:
        return None if scale is None else tuple(scale)
    if max_size < 1:
        raise ValueError(f"max_size: expected a positive number of pixels, got {max_size}")
    return tuple(min(side, max_size) for side in scale or (max_size, max_size))


def resize(image: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Resizes uint8 [H, W, 3] to size (h, w) as upstream does: OpenCV's bilinear, without antialiasing."""
    if image.shape[:2] == tuple(size):
        return image
    try:
        import cv2
    except ImportError as error:
        raise ImportError("OpenCV is missing: pip install opencv-python-headless") from error
    return cv2.resize(np.ascontiguousarray(image), (size[1], size[0]), interpolation=cv2.INTER_LINEAR)


def _check_rgb(image: np.ndarray) -> np.ndarray:
    image = np.asarray(image)
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3 or 0 in image.shape:
        raise ValueError(f"image: expected uint8 [H, W, 3] RGB, got {image.dtype} {list(image.shape)}")
    return image


def _open(path: str | Path) -> Any:
    """Opens a picture without decoding its pixels."""
    from PIL import Image

    path = Path(path)
    if path.is_dir():
        raise ImageError(f"{path}: is a folder, not an image")
    try:
        with warnings.catch_warnings():
            # Pillow warns from 89 megapixels on and refuses from 179 on; panoramas between are welcome.
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            return Image.open(path)
    except FileNotFoundError:
        raise FileNotFoundError(f"{path}: no such file") from None
    except PermissionError:
        raise ImageError(f"{path}: no permission to read it") from None
    except Image.DecompressionBombError:
        raise ImageError(f"{path}: the image has more than {2 * Image.MAX_IMAGE_PIXELS} pixels") from None
    except (OSError, SyntaxError, ValueError, EOFError) as error:
        reason = (
            "the file is empty"
            if path.is_file() and path.stat().st_size == 0
            else "not an image Pillow can read"
        )
        raise ImageError(f"{path}: {reason}") from error


def _to_rgb(image: Any) -> Any:
    """Turns any Pillow image into mode RGB."""
    from PIL import Image

    if image.mode.startswith("I") or image.mode == "F":
        values = np.asarray(image)
        if image.mode == "F" or values.min() < 0 or values.max() > 65535:
            raise ImageError(f"pixels of type {values.dtype} outside 0..65535 cannot be shown as 8-bit RGB")
        # 65535 / 257 = 255 exactly.
        return Image.fromarray(((values.astype(np.uint32) + 128) // 257).astype(np.uint8)).convert("RGB")
    if image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image.convert("RGB")


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
