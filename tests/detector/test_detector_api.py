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
from codetr.detector.preprocess import Batch, load_image
from codetr.detector.sizes import SizeRange
from codetr.detector.torch_backend import allow_tf32
from tests.detector.detect_runs import GOLDEN, FakeBackend


def test_public_names():
    assert set(codetr.__all__) <= set(dir(codetr))
    assert all(getattr(codetr, name) is not None for name in codetr.__all__)
    with pytest.raises(AttributeError, match="nothing"):
        _ = codetr.nothing


def test_detector_takes_paths_and_arrays(photos):
    backend = FakeBackend()
    image = load_image(photos / "b.png")
    with Detector(backend=backend) as detector:
        from_path, from_array = detector.detect([photos / "b.png", image], batch=2)
        (single,) = detector.detect(str(photos / "b.png"))
        assert detector.detect([]) == []
    assert backend.closed and backend.shapes == [(2, 3, 128, 85), (1, 3, 128, 85)]
    for found in (from_path, from_array, single):
        assert (found.height, found.width) == (90, 60) and found.names() == ["cup", "spoon"]
        np.testing.assert_allclose(found.boxes_xyxy_px[0], [0, 0, 30, 90], atol=0.01)
        assert set(found.times_ms) == {"preprocess", "inference", "postprocess"}


def test_detector_takes_pil_images_and_tensors(photos):
    """All kinds of pictures give the network the same pixels, EXIF rotation applied."""
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
    exif = Image.Exif()
    exif[0x0112] = 6
    rotated = Image.new("RGB", (80, 40))
    rotated.getexif().update(exif)
    assert detector.detect(rotated)[0].height == 80
    for wrong, got in (
        (tensor * 1.0, r"torch.float32 \[3, 90, 60\]"),
        (tensor.permute(2, 1, 0), r"torch.uint8 \[60, 90, 3\]"),
    ):
        with pytest.raises(ValueError, match=f"images: expected a tensor .*, got {got}"):
            detector.detect(wrong)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"threshold": 2}, "threshold: expected a number from 0 to 1, got 2"),
        ({"threshold": float("nan")}, "threshold: expected a number from 0 to 1, got nan"),
        ({"nms_iou": -0.1}, "nms_iou: expected a number from 0 to 1, got -0.1"),
        ({"top": 0}, "top: expected at least 1, got 0"),
        ({"classes": ["cupp"]}, "classes: expected a number below 80 or one of person, .*, got 'cupp'"),
    ],
)
def test_wrong_options(photos, options, message):
    backend = FakeBackend()
    with pytest.raises(ValueError, match=message):
        Detector(backend=backend).detect(photos / "b.png", **options)
    assert not backend.shapes


def test_imgsz():
    """One number is the longer side, larger than published too; two are the input's height and width."""
    model = "co_dino_demo"
    with Detector(model, device="cpu", imgsz=2000) as detector:
        assert detector.backend.preprocessor.target_size(300, 400) == (1500, 2000)
    with Detector(model, device="cpu", imgsz=(64, 96)) as detector:
        assert detector.backend.preprocessor.batch([np.zeros((30, 40, 3), np.uint8)]).images.shape[2:] == (
            64,
            96,
        )


def test_note_on_images_that_shrink(photos):
    """A landscape input of an exported file shrinks portrait images."""

    class File(FakeBackend, FileBackend):
        pass

    detector = Detector(backend=File(fixed=True))
    detector.detect([photos / "a.jpg"])
    assert detector.shrunk_note is None
    detector.detect([photos / "a.jpg", photos / "b.png"])
    assert detector.shrunk_note.startswith("1 images shrank to fit the fixed input of 64x96")


def test_fixed_batch_is_filled(photos):
    backend = FakeBackend(batch=2, fixed=True)
    images = [load_image(photos / name) for name in ("a.jpg", "b.png", "deep/a.png")]
    found = Detector(backend=backend).detect_batch(images)
    assert backend.shapes == [(2, 3, 64, 96)] * 2
    assert [(item.height, item.width) for item in found] == [(60, 90), (90, 60), (50, 50)]
    for item in found:
        np.testing.assert_allclose(item.boxes_xyxy_px[0], [0, 0, item.width / 2, item.height], atol=0.01)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"weights": "w"}, "weights: expected none without a model, got w"),
        ({"backend": "onnx"}, "backend: expected torch, onnxruntime or tensorrt, got 'onnx'"),
        ({"backend": "tensorrt"}, "engine: expected an engine, got none"),
        ({"backend": "onnxruntime"}, "onnx: expected an ONNX file, got none"),
        ({"backend": "tensorrt", "engine": "e", "model": "m"}, "model: is fixed in the engine e"),
        ({"engine": "e", "onnx": "o"}, "onnx: expected none with the backend tensorrt, got o"),
        ({"precision": "int8"}, "precision: expected one of fp32, tf32, fp16, bf16, got 'int8'"),
        ({"labels": ["a", "b"]}, "labels: expected 20 names, one for each class, got 2"),
    ],
)
def test_detector_arguments(arguments, message):
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
    tensors = load_file(GOLDEN / "codino_swin_tiny.safetensors")
    weights = {name[len("param/") :]: value for name, value in tensors.items() if name.startswith("param/")}
    with Detector(
        GOLDEN / "codino_swin_tiny.json", weights, device="cpu", precision=precision, max_size=128
    ) as detector:
        assert detector.backend.description.endswith(f"CPU, {precision}")
        results = detector.detect([photos / "a.jpg", photos / "b.png"], threshold=0.0, top=5, batch=2)
    for found in results:
        assert len(found) == 5 and np.isfinite(found.scores).all()
        limits = (found.width, found.height, found.width, found.height)
        assert (found.boxes_xyxy_px >= 0).all() and (found.boxes_xyxy_px <= limits).all()


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
def test_runs_of_a_backend_with_limits(batch, count, runs):
    sizes = []

    def backend(images, image_shapes):
        sizes.append(len(images))
        return image_shapes[:, None], image_shapes[:, :1], image_shapes[:, 1:]

    backend.batch = batch
    detector = object.__new__(Detector)
    detector.backend = backend
    shapes = np.arange(2 * count).reshape(count, 2)
    boxes, _, _ = detector._run(Batch(np.zeros((count, 3, 4, 4)), shapes, shapes, shapes))
    assert sizes == runs
    assert np.array_equal(boxes[:, 0], shapes)
