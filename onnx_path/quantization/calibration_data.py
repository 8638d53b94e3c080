"""Inputs of a model for calibration: pictures of a folder or a COCO dataset, or arrays of an .npz file."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar
from zipfile import BadZipFile

import numpy as np
import onnx_ir as ir

from codetr.dataset.coco_files import ONE_SPLIT_FILES, load_coco
from codetr.detector.preprocess import IMAGE_SUFFIXES, Batch, Preprocessor, load_image, resize
from codetr.errors import ArgumentError, one_line
from trt_plugin.metadata import ArtifactMetadata

Sample = dict[str, np.ndarray]
T = TypeVar("T")


@dataclass(frozen=True)
class CalibrationData:
    """Inputs of the runs of a model.

    Attributes:
        key: hash of the pictures or arrays, and of their normalisation.
        images: number of images.
        runs: number of runs.
        read: run -> its inputs by name.
        files: the pictures; none for arrays.
    """

    key: str
    images: int
    runs: int
    read: Callable[[int], Sample]
    files: Sequence[Path] = ()

    def __len__(self) -> int:
        return self.runs

    def __iter__(self) -> Iterator[Sample]:
        return map(self.read, range(self.runs))


@dataclass(frozen=True)
class Stretch:
    """Turns pictures into the input of a file without metadata: stretched to one size, and normalised.

    Attributes:
        mean, std: of R, G, B in 0..1. An image is normalised as (image - mean) / std.
        size: height and width.
    """

    mean: Sequence[float]
    std: Sequence[float]
    size: tuple[int, int]

    def batch(self, images: Sequence[np.ndarray]) -> Batch:
        """Makes one `Batch` of images, uint8 [H_i, W_i, 3]."""
        pixels = np.stack([resize(image, self.size) for image in images]).astype(np.float32)
        pixels = (pixels / np.float32(255.0) - np.float32(self.mean)) / np.float32(self.std)
        sizes = np.tile(self.size, (len(images), 1))
        originals = np.array([image.shape[:2] for image in images])
        images = np.ascontiguousarray(pixels.transpose(0, 3, 1, 2))
        return Batch(images.shape[2:], sizes, originals, images)


def find_pictures(folder: Path, split: str, limit: int, *, argument: str = "data") -> list[Path]:
    """Returns up to `limit` pictures, evenly spread over a COCO dataset's split or a folder of photographs.

    Args:
        argument: name of the parameter that errors name.

    Raises:
        ArgumentError: there are none.
    """
    if (folder / "annotations").is_dir() or any(
        (folder / split / name).is_file() for name in ONE_SPLIT_FILES
    ):
        files = [picture.path for picture in load_coco(folder, split).pictures if picture.path.is_file()]
    else:
        files = sorted(x for x in folder.rglob("*") if x.suffix.lower() in IMAGE_SUFFIXES and x.is_file())
    if not files:
        raise ArgumentError(
            argument, f"expected pictures ({', '.join(sorted(IMAGE_SUFFIXES))}), got none in {folder}"
        )
    return [*spread(files, limit)]


def spread(items: Sequence[T], count: int | None) -> Sequence[T]:
    """Returns up to `count` items at equal distances, so some of each class in sorted items. None: all."""
    total = len(items)
    if count is None or count >= total:
        return items
    return [items[i * total // count] for i in range(count)]


def picture_data(
    model: ir.Model, files: Sequence[Path], preprocessor: Preprocessor | Stretch
) -> CalibrationData:
    """Makes the inputs of a model from pictures.

    The model has one input of images. Another one may be a mask of the pixels inside, which becomes ones, or
    the images' sizes [N, 2].

    Raises:
        ArgumentError: the model has another input.
    """
    inputs = [x for x in model.graph.inputs if not x.is_initializer()]
    images = [x for x in inputs if x.dtype.is_floating_point() and len(x.shape or ()) == 4]
    others = [x for x in inputs if x not in images]
    unknown = [x for x in others if not _is_mask(x) and not _is_size(x)]
    if len(images) != 1 or unknown:
        names = ", ".join(x.name for x in unknown or inputs)
        raise ArgumentError("data", f"expected an .npz file with arrays for the inputs {names}, got pictures")
    size = images[0].shape[0]
    batch = size if isinstance(size, int) else 1
    count = -(-len(files) // batch)

    def read(run: int) -> Sample:
        chosen = [files[(run * batch + i) % len(files)] for i in range(batch)]  # a last batch is filled up
        made = preprocessor.batch([load_image(file) for file in chosen])
        sample = {images[0].name: made.images.astype(images[0].dtype.numpy())}
        for value in others:
            array = np.ones((batch, *made.images.shape[2:])) if _is_mask(value) else made.image_shapes
            sample[value.name] = array.astype(value.dtype.numpy())
        return sample

    colours = type(preprocessor).__name__, list(preprocessor.mean), list(preprocessor.std)
    key = hashlib.sha256(repr(colours).encode())
    for file in files:
        key.update(hashlib.sha256(file.read_bytes()).digest())
    return CalibrationData(key.hexdigest()[:32], len(files), count, read, files)


def array_data(model: ir.Model, file: Path, limit: int) -> CalibrationData:
    """Makes the inputs of a model from an .npz file with an array for each input.

    The arrays of several runs follow each other along the first axis: 64 images of an input [1, 3, H, W] are
    an array [64, 3, H, W].

    Args:
        limit: largest number of runs, evenly spread over the arrays.

    Raises:
        ArgumentError: the file is none, or an array is missing or has another shape or type.
    """
    try:
        with np.load(file, allow_pickle=False) as content:
            arrays = dict(content)
    except (OSError, ValueError, BadZipFile) as error:
        raise ArgumentError("data", f"{file}: expected an .npz file ({one_line(error)})") from error
    inputs = {x.name: x for x in model.graph.inputs if not x.is_initializer()}
    if set(arrays) != set(inputs):
        names = ", ".join(arrays) or "none"
        raise ArgumentError("data", f"{file}: expected arrays {', '.join(inputs)}, got {names}")
    steps, counts = {}, {}
    for name, array in arrays.items():
        shape = [size if isinstance(size, int) else None for size in inputs[name].shape or ()]
        fits = len(shape) == array.ndim and all(
            size in (None, given) for size, given in zip(shape[1:], array.shape[1:], strict=True)
        )
        if not fits or not np.can_cast(array.dtype, inputs[name].dtype.numpy(), "same_kind"):
            expected = f"{name} of {inputs[name].dtype} {inputs[name].shape}"
            raise ArgumentError("data", f"{file}: expected {expected}, got {array.dtype} {array.shape}")
        if shape:
            steps[name] = shape[0] or 1
            counts[name] = len(array) / steps[name]
    runs = min(counts.values(), default=0)
    if len(set(counts.values())) != 1 or runs < 1 or runs % 1:
        raise ArgumentError("data", f"{file}: expected as many runs in every array, got {counts}")

    chosen = spread(range(int(runs)), limit)

    def read(run: int) -> Sample:
        parts = {
            name: array[chosen[run] * steps[name] :][: steps[name]]
            for name, array in arrays.items()
            if array.ndim
        }
        return {name: array.astype(inputs[name].dtype.numpy()) for name, array in {**arrays, **parts}.items()}

    key = hashlib.sha256(file.read_bytes())
    key.update(str(len(chosen)).encode())
    return CalibrationData(key.hexdigest()[:32], len(chosen), len(chosen), read)


def choose_preprocessor(
    model: ir.Model,
    metadata_file: Path,
    mean: Sequence[float] | None,
    std: Sequence[float] | None,
    size: tuple[int, int] | None,
) -> Preprocessor | Stretch:
    """Chooses how pictures become the model's input: by its metadata, or as the caller says.

    Args:
        metadata_file: metadata of one of our exports; the file need not exist.
        mean, std: of R, G, B in 0..1; None with metadata.
        size: height and width; needed where the model has none.

    Raises:
        ArgumentError: an argument is missing, or contradicts the file.
    """
    if metadata_file.is_file():
        for name, value in (("mean", mean), ("std", std), ("size", size)):
            if value is not None:
                raise ArgumentError(name, f"expected none, {metadata_file} has it")
        return Preprocessor.of_artifact(ArtifactMetadata.load(metadata_file))
    for name, value in (("mean", mean), ("std", std)):
        if value is None:
            raise ArgumentError(name, "expected three numbers in 0..1 for a file without metadata, got none")
    shapes = (x.shape for x in model.graph.inputs if x.shape is not None and len(x.shape) == 4)
    own = next((shape[2:] for shape in shapes), (None, None))
    for i, side in enumerate(own):
        if not isinstance(side, int) and size is None:
            raise ArgumentError("size", "expected HEIGHTxWIDTH for a file of dynamic sizes, got none")
        if isinstance(side, int) and size is not None and size[i] != side:
            raise ArgumentError(
                "size", f"expected {own[0]}x{own[1]}, the file's own, got {size[0]}x{size[1]}"
            )
    return Stretch(mean, std, size or tuple(own))


def _is_mask(value: ir.Value) -> bool:
    return not value.dtype.is_floating_point() and len(value.shape or ()) == 3


def _is_size(value: ir.Value) -> bool:
    return len(value.shape or ()) == 2 and value.shape[1] == 2
