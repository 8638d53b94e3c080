"""The pictures of a sweep are read once, and cells get the same batches as from the dataset itself."""

import numpy as np
import pytest
from PIL import Image

from codetr.classify.class_folders import find_bad_pictures, load_class_folders
from codetr.classify.pictures import ClassifierPreprocessing, read_batches
from codetr.dataset.coco_files import DatasetError
from onnx_path.quantization.calibration_data import spread
from onnx_path.sweeping.stored_pictures import store_pictures

PREPROCESSING = ClassifierPreprocessing(36, 32)


@pytest.fixture
def data(tmp_path):
    """Twelve pictures of three classes, one of them cut off."""
    random = np.random.default_rng(0)
    for i in range(12):
        path = tmp_path / "data" / f"class {i // 4}" / f"{i:02}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 255, (50, 60 + i, 3), np.uint8)).save(path)
    path.write_bytes(path.read_bytes()[:-2000])
    return load_class_folders(tmp_path / "data")


@pytest.mark.parametrize(("count", "labels"), [(None, [0] * 4 + [1] * 4 + [2] * 3), (3, [0, 1, 2])])
def test_batches_are_those_of_the_dataset(data, tmp_path, count, labels):
    path = tmp_path / "stored" / "x.rgb"
    stored = store_pictures(data, PREPROCESSING, count, path)
    assert stored.labels.tolist() == labels and stored.bad == (count is None)
    pictures = spread(data.pictures, count)
    expected = list(read_batches(pictures, PREPROCESSING, 4, find_bad_pictures(data)))
    for picture in data.pictures:
        picture.path.unlink()
    again = store_pictures(data, PREPROCESSING, count, path)
    assert again.bad == stored.bad
    for (images, labels), (own, own_labels) in zip(expected, again.batches(None, 4), strict=True):
        np.testing.assert_array_equal(images, own)
        np.testing.assert_array_equal(labels, own_labels)
    (part,) = again.batches(2, 4)
    np.testing.assert_array_equal(part[1], spread(again.labels, 2))


def test_no_readable_picture(data, tmp_path):
    for picture in data.pictures:
        picture.path.write_bytes(picture.path.read_bytes()[:-2000])
    path = tmp_path / "stored" / "x.rgb"
    with pytest.raises(DatasetError, match="none of its 12 pictures can be read"):
        store_pictures(data, PREPROCESSING, None, path)
    assert not path.parent.exists()
