"""`codetr.Detector`, as a user of the library calls it."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from codetr.cli.network_options import tell_shrunk_images
from codetr.detector.detector import Detector
from codetr.detector.preprocess import load_image, make_preprocessor
from codetr.detector.torch_backend import allow_tf32
from tests.cli_runs import GOLDEN, FakeBackend
from tests.engines.engine_samples import METADATA
from tests.test_sizes import dynamic_metadata

pytest_plugins = ("tests.cli_fixtures",)


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
    torch = pytest.importorskip("torch")
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
        with pytest.raises(ValueError, match=f"image: expected a tensor .*, got {got}"):
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
    with pytest.raises(ValueError, match="imgsz: does not go with max_size, height and width"):
        Detector(model, imgsz=64, max_size=64)


def test_images_that_shrink_are_told(photos, capsys):
    """A landscape input shrinks portrait images; the commands say how many."""
    detector = Detector(backend=FakeBackend(fixed=True))
    detector.detect([photos / "a.jpg"])
    tell_shrunk_images(detector, "codetr")
    assert capsys.readouterr().err == ""
    detector.detect([photos / "a.jpg", photos / "b.png"])
    tell_shrunk_images(detector, "codetr")
    assert capsys.readouterr().err.startswith("codetr: note: 1 images shrank to fit the fixed input of 64x96")


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
        ({"weights": "w"}, "weights: goes with model"),
        ({"backend": "onnx"}, "backend: expected torch, onnxruntime or tensorrt, got 'onnx'"),
        ({"backend": "tensorrt"}, "engine: expected the path of an engine, got None"),
        ({"backend": "tensorrt", "engine": "e", "model": "m"}, "model: is fixed in the engine e"),
        (
            {"backend": "tensorrt", "engine": "e", "onnx": "o"},
            "onnx: goes with backend='onnxruntime', got backend='tensorrt'",
        ),
        ({"engine": "e"}, "engine: goes with backend='tensorrt', got backend='torch'"),
        ({"backend": "onnxruntime"}, "onnx: expected the path of an ONNX file, got None"),
        ({"backend": "onnxruntime", "onnx": "o", "weights": "w"}, "weights: is fixed in the ONNX file o"),
        (
            {"model": "m", "precision": "int8"},
            "precision: expected one of fp32, tf32, fp16, bf16, got 'int8'",
        ),
    ],
)
def test_detector_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        Detector(**arguments)


@pytest.mark.parametrize(("backend", "name"), [("tensorrt", "engine"), ("onnxruntime", "onnx")])
def test_detector_needs_the_file(tmp_path, backend, name):
    path = tmp_path / "model.file"
    with pytest.raises(FileNotFoundError, match=r"model\.file: no such file"):
        Detector(backend=backend, **{name: path})
    path.write_bytes(b"content")
    with pytest.raises(FileNotFoundError, match=r"model\.json: no such file; .* metadata lies beside it"):
        Detector(backend=backend, **{name: path})


@pytest.mark.parametrize(("backend", "name"), [("tensorrt", "engine"), ("onnxruntime", "onnx")])
def test_sizes_of_a_file(tmp_path, backend, name):
    """What the file cannot follow is said before it is loaded."""
    path = tmp_path / "model.file"
    path.write_bytes(b"content")
    METADATA.save(tmp_path / "model.json")
    kind = {"engine": "engine", "onnx": "ONNX file"}[name]
    for size in ("max_size", "height", "width"):
        with pytest.raises(ValueError, match=f"{size}: is fixed in the {kind} {path}, leave it out"):
            Detector(backend=backend, **{name: path, size: 64})
    dynamic_metadata().save(tmp_path / "model.json")
    message = f"height: expected a multiple of 32 from 512 to 1344, the range of {path}, got 2000"
    with pytest.raises(ValueError, match=message):
        Detector(backend=backend, **{name: path}, height=2000, width=512)


@pytest.mark.parametrize("allowed", [False, True])
def test_tf32_is_set_while_the_model_runs(allowed):
    torch = pytest.importorskip("torch")
    switches = torch.backends.cuda.matmul, torch.backends.cudnn
    before = [switch.allow_tf32 for switch in switches]
    with pytest.raises(RuntimeError), allow_tf32(torch, allowed):
        assert [switch.allow_tf32 for switch in switches] == [allowed] * 2
        raise RuntimeError
    assert [switch.allow_tf32 for switch in switches] == before


@pytest.mark.parametrize("precision", ["tf32", "fp16"])
def test_torch_backend(photos, precision):
    """The real model: sizes mixed in one batch; each picture's boxes lie in it."""
    pytest.importorskip("torch")
    from safetensors.torch import load_file

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


def test_max_size_limits_both_sides():
    class Config:
        mean, std, resize_scale = (0.0,) * 3, (1.0,) * 3, (1333, 800)

    assert make_preprocessor(Config).scale == (1333, 800)
    assert make_preprocessor(Config, max_size=1000).scale == (1000, 800)
    assert make_preprocessor(Config, max_size=600).scale == (600, 600)
    assert make_preprocessor(Config, height=64, width=32).target_size(10, 10) == (32, 32)
