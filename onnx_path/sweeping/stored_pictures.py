"""The pictures of a dataset as a sweep's cells read them: decoded, resized and cropped once for all cells."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from codetr.classify.class_folders import ClassFolders, ClassPicture, find_bad_pictures, read_class_picture
from codetr.classify.pictures import ClassifierPreprocessing
from codetr.dataset.coco_files import DatasetError
from codetr.evaluation.detect_dataset import read_ahead
from onnx_path.quantization.calibration_data import spread
from trt_plugin.atomic_files import atomic_write, locked, write_json

_CHUNK = 64  # pictures in memory at a time


@dataclass(frozen=True)
class StoredPictures:
    """Cropped pictures and their labels.

    Attributes:
        pixels: uint8 [N, crop, crop, 3] RGB, mapped from a file.
        labels: int64 [N].
        bad: number of pictures of the dataset that could not be read.
    """

    preprocessing: ClassifierPreprocessing
    pixels: np.ndarray
    labels: np.ndarray
    bad: int

    def batches(self, count: int | None, batch: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Normalises pictures in threads, ahead of the consumer.

        Args:
            count: number of pictures, spread over all. Default: all.

        Yields:
            (images, labels) of each batch: float32 [N, 3, crop, crop] and int64 [N]; the last may be smaller.
        """

        def read(index: int) -> np.ndarray:
            return self.preprocessing.normalise(self.pixels[index])

        for indices, images in read_ahead(spread(range(len(self.labels)), count), batch, read=read):
            yield np.stack(images), self.labels[list(indices)]


def store_pictures(
    dataset: ClassFolders, preprocessing: ClassifierPreprocessing, count: int | None, path: Path
) -> StoredPictures:
    """Reads the pictures of a dataset and keeps them in a file, or opens the file of an earlier call.

    Args:
        count: number of pictures, spread over all that have a readable header. Default: all.
        path: the file, of 3 * crop * crop bytes a picture. Its labels lie beside it.

    Raises:
        DatasetError: no picture can be read.
    """
    side, labels_path = preprocessing.crop, path.with_suffix(".json")

    def read(picture: ClassPicture) -> np.ndarray:
        return preprocessing.crop_centre(read_class_picture(picture))

    with locked(path.parent):  # several cells may load at the same time
        if not labels_path.is_file():
            bad, labels = find_bad_pictures(dataset), []
            pictures = spread(bad.usable().pictures, count)
            with atomic_write(path) as temporary, temporary.open("wb") as file:
                for chunk, images in read_ahead(pictures, _CHUNK, bad, read):
                    file.writelines(images)
                    labels += [picture.label for picture in chunk]
                if not labels:
                    raise DatasetError(f"{dataset.source}: none of its {len(dataset)} pictures can be read")
            write_json(labels_path, {"labels": labels, "bad": len(bad.errors)}, indent=None)
    content = json.loads(labels_path.read_text(encoding="utf-8"))
    labels = np.array(content["labels"], np.int64)
    pixels = np.memmap(path, np.uint8, "r", shape=(len(labels), side, side, 3))
    return StoredPictures(preprocessing, pixels, labels, content["bad"])
