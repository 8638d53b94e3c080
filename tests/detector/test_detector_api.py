"""`codetr.Detector` as a caller of the library uses it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

import codetr
from codetr.detector.detector import Detector
from codetr.detector.file_backend import FileBackend
from codetr.detector.preprocess import load_image
from codetr.detector.sizes import SizeRange
from codetr.detector.torch_backend import allow_tf32
from tests.detector.detect_runs import GOLDEN, FakeBackend
from tests.golden_models import parameters_of


def test_public_names():
    assert set(codetr.__all__) <= set(dir(codetr))
    assert all(getattr(codetr, name) is not None for name in codetr.__all__)
    with pytest.raises(AttributeError, match="nothing"):
        _ = codetr.nothing


def test_one_picture_and_many(photos):
    backend = FakeBackend()
    with Detector(backend=backend) as detector:
        pair = detector.detect([photos / "b.png", load_image(photos / "b.png")], batch=2)
        single = detector.detect(str(photos / "b.png"))
        assert detector.detect([]) == []
    assert backend.closed and backend.shapes == [(2, 3, 128, 85), (1, 3, 128, 85)]
    for found in (*pair, *single):
        assert (found.height, found.width) == (90, 60) and found.names() == ["cup", "spoon"]
        np.testing.assert_allclose(found.boxes_xyxy_px[0], [0, 0, 30, 90], atol=0.01)
        assert set(found.times_ms) == {"preprocess", "inference", "postprocess"}


def test_kinds_of_pictures(photos):
    """All kinds of pictures give the network the same pixels."""
    backend = FakeBackend()
    detector = Detector(backend=backend)
    image = load_image(photos / "b.png")
    tensor = torch.from_numpy(image).permute(2, 0, 1)
    batch = backend.preprocessor.batch([image])
    with Image.open(photos / "b.png") as opened:
        kinds = [
            opened,
            opened.convert("RGBA"),
            tensor,
            tensor / 255,
            tensor[None].double() / 255,
            image[None],
        ]
        for kind in kinds:
            (found,) = detector.detect(kind)
            np.testing.assert_array_equal(backend.images, batch.images)
            assert (found.height, found.width) == (90, 60)
        assert len(detector.detect(kinds[:4], batch=3)) == 4
    for wrong, got in (
        (tensor * 1.0, r"torch.float32 \[3, 90, 60\]"),
        (tensor.permute(2, 1, 0), r"torch.uint8 \[60, 90, 3\]"),
    ):
        with pytest.raises(ValueError, match=f"images: expected a tensor .*, got {got}"):
            detector.detect(wrong)


@pytest.mark.parametrize(
    ("batch", "count", "runs"),
    [
        (SizeRange(1, 1, 4), 6, [4, 2]),
        (SizeRange(3, 3, 4), 5, [4, 3]),
        (SizeRange(2, 2, 4), 1, [2]),
        (4, 6, [4, 4]),
        (None, 6, [6]),
    ],
)
def test_batches_of_a_network_with_limits(batch, count, runs):
    """A run that is not full is filled up, and the pictures keep their order."""
    backend = FakeBackend(batch=batch, fixed=True)
    images = [np.zeros((30 + index, 40, 3), np.uint8) for index in range(count)]
    found = Detector(backend=backend).detect_batch(images)
    assert backend.shapes == [(size, 3, 64, 96) for size in runs]
    for image, item in zip(images, found, strict=True):
        assert (item.height, item.width) == image.shape[:2]
        np.testing.assert_allclose(item.boxes_xyxy_px[0], [0, 0, item.width / 2, item.height], atol=0.01)


def test_note_on_images_that_shrink(photos):
    """A landscape input of an exported file shrinks portrait images."""

    class File(FakeBackend, FileBackend):
        pass

    detector = Detector(backend=File(fixed=True))
    detector.detect([photos / "a.jpg"])
    assert detector.shrunk_note is None
    detector.detect([photos / "a.jpg", photos / "b.png"])
    assert detector.shrunk_note.startswith("1 images shrank to fit the fixed input of 64x96")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"backend": "onnx"}, "backend: expected torch, onnxruntime or tensorrt, got 'onnx'"),
        ({"engine": "e", "onnx": "o"}, "onnx: expected none with the backend tensorrt, got o"),
        ({"precision": "int8"}, "precision: expected one of fp32, tf32, fp16, bf16, got 'int8'"),
        ({"labels": ["a", "b"]}, "labels: expected 20 names, one for each class, got 2"),
    ],
)
def test_wrong_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        Detector(**arguments)


@pytest.mark.parametrize("allowed", [False, True])
def test_tf32_is_set_while_the_model_runs(allowed):
    switches = torch.backends.cuda.matmul, torch.backends.cudnn
    before = [switch.allow_tf32 for switch in switches]
    with pytest.raises(RuntimeError), allow_tf32(torch, allowed):
        assert [switch.allow_tf32 for switch in switches] == [allowed] * 2
        raise RuntimeError
    assert [switch.allow_tf32 for switch in switches] == before


@pytest.mark.parametrize("precision", ["tf32", "fp16"])
def test_torch_backend(photos, precision):
    """The real model: sizes mixed in one batch; each picture's boxes lie in it."""
    weights = parameters_of(load_file(GOLDEN / "codino_swin_tiny.safetensors"))
    options = {"device": "cpu", "precision": precision, "max_size": 128}
    with Detector(GOLDEN / "codino_swin_tiny.json", weights, **options) as detector:
        assert detector.backend.description.endswith(f"CPU, {precision}")
        results = detector.detect([photos / "a.jpg", photos / "b.png"], threshold=0.0, top=5, batch=2)
    for found in results:
        assert len(found) == 5 and np.isfinite(found.scores).all()
        limits = (found.width, found.height, found.width, found.height)
        assert (found.boxes_xyxy_px >= 0).all() and (found.boxes_xyxy_px <= limits).all()
