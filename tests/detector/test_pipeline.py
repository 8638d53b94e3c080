"""The pipeline of many pictures: order, overlap, bounds, and errors that spoil one picture alone."""

from __future__ import annotations

import io
import shutil
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

import msda
from codetr.detector import decoding
from codetr.detector.decoding import (
    Decoded,
    Decoder,
    GpuDecoder,
    make_decoder,
    read_plain_jpeg,
    ready,
)
from codetr.detector.detector import Detector
from codetr.detector.pipeline import Pipeline, Workers
from codetr.detector.preprocess import ImageError, ImageFile, load_image
from codetr.detector.sizes import SizeRange
from tests.detector.detect_runs import ROOT, FakeBackend
from tests.golden_models import arguments, save_weights
from trt_plugin import cuda_runtime
from trt_plugin.engine_error import EngineError

OPTIONS = {"threshold": 0.0}


class ForkedBackend(FakeBackend):
    """A backend that can be forked. A run waits for one of another context."""

    def __init__(self, **options) -> None:
        super().__init__(**options)
        self.forks: list[ForkedBackend] = []
        self.both = threading.Barrier(2)

    def fork(self) -> ForkedBackend:
        other = type(self)()
        other.both = self.both
        self.forks.append(other)
        return other

    def __call__(self, images, image_shapes):
        self.both.wait(20)  # the other context is here too, or the test fails
        return super().__call__(images, image_shapes)


class DeviceBackend(FakeBackend):
    """Resizes and normalises pictures itself, by the operator that engines use."""

    takes_images = True

    def run_images(self, images, image_shapes, padded):
        batch = torch.full((len(images), 3, *padded), torch.nan)
        for image, target, size in zip(images, batch, image_shapes.tolist(), strict=True):
            colours = self.preprocessor.mean, self.preprocessor.std
            msda.image_input(torch.from_numpy(image), target, tuple(size), *colours)
        return self(batch.numpy(), image_shapes)


@pytest.fixture
def pictures() -> list[np.ndarray]:
    """Nine pictures of different sizes."""
    random = np.random.default_rng(0)
    return [random.integers(0, 256, (20 + index, 60 - index, 3), dtype=np.uint8) for index in range(9)]


def sizes(done) -> list[tuple[int, int]]:
    return [(one.found.height, one.found.width) for one in done]


@pytest.mark.parametrize("batch", [1, 2, 4, 20])
def test_results_come_in_order(pictures, batch):
    """Also where a later picture is decoded first."""
    pool = ThreadPoolExecutor(9)

    def decode(index: int) -> Decoded:
        time.sleep(0.02 * ((9 - index) % 4))
        return Decoded(pictures[index], 1.0)

    detector = Detector(backend=FakeBackend())
    with (
        pool,
        Pipeline(
            detector, OPTIONS, lambda chunk: [pool.submit(decode, i) for i in chunk], batch=batch
        ) as pipeline,
    ):
        done = list(pipeline.run(range(9)))
    assert [one.item for one in done] == list(range(9))
    assert sizes(done) == [image.shape[:2] for image in pictures]
    expected = detector.detect(pictures, batch=batch, **OPTIONS)
    for one, other in zip(done, expected, strict=True):
        np.testing.assert_array_equal(one.found.boxes_xyxy_px, other.boxes_xyxy_px)
        assert set(one.times_ms) == {"read", "preprocess", "inference", "postprocess"}
    assert len(pipeline.spans) == -(-9 // batch)
    assert all(span.began_s <= span.decoded_s < span.ended_s for span in pipeline.spans)


def test_two_contexts_run_at_the_same_time(pictures):
    """Each run waits for the other context, so one alone would never end."""
    backend = ForkedBackend()
    with Pipeline(Detector(backend=backend), OPTIONS, ready, contexts=2) as pipeline:
        done = list(pipeline.run(pictures[:8]))
    assert sizes(done) == [image.shape[:2] for image in pictures[:8]]
    (fork,) = backend.forks
    assert len(backend.shapes) == len(fork.shapes) == 4
    assert fork.closed and not backend.closed


def test_engine_without_memory_for_two_contexts(pictures):
    class Small(FakeBackend):
        def fork(self):
            raise EngineError("cudaMalloc failed: out of memory")

    with Pipeline(Detector(backend=Small()), OPTIONS, ready) as pipeline:
        assert pipeline.contexts == 1
        assert sizes(pipeline.run(pictures)) == [image.shape[:2] for image in pictures]


@pytest.mark.parametrize("batch", [1, 3])
def test_few_pictures_are_in_memory(pictures, batch):
    """The pipeline asks for a picture only when an earlier one has been taken."""
    asked = 0

    def endless():
        nonlocal asked
        while True:
            asked += 1
            yield pictures[0]

    with Pipeline(Detector(backend=FakeBackend()), OPTIONS, ready, batch=batch) as pipeline:
        results = pipeline.run(endless())
        for taken in range(1, 20):
            next(results)
            assert asked - taken <= 4 * batch
        results.close()


def test_bad_pictures_spoil_no_other(tmp_path, photos):
    """In one batch: two damaged files, a missing one, and one that the network refuses."""

    class Choosy(FakeBackend):
        def __call__(self, images, image_shapes):
            if (image_shapes[:, 1] > 20 * image_shapes[:, 0]).any():
                raise ValueError("images: expected no strip")
            return super().__call__(images, image_shapes)

    Image.new("RGB", (2000, 20)).save(photos / "strip.png")
    (photos / "bad.jpg").write_bytes(b"text")
    (photos / "cut.jpg").write_bytes((photos / "a.jpg").read_bytes()[:900])
    names = ["bad.jpg", "a.jpg", "strip.png", "absent.jpg", "b.png", "cut.jpg"]
    decoder = Decoder(2)
    with Pipeline(Detector(backend=Choosy()), OPTIONS, decoder.start, batch=6) as pipeline:
        done = list(pipeline.run(photos / name for name in names))
    decoder.close()
    errors = [None if one.error is None else str(one.error) for one in done]
    assert errors[1] is errors[4] is None and sizes([done[1], done[4]]) == [(60, 90), (90, 60)]
    for index, part in ((0, "not an image"), (3, "no such file"), (5, "truncated or damaged")):
        assert names[index] in errors[index] and part in errors[index] and done[index].image is None
    assert "expected no strip" in errors[2] and done[2].image.shape == (20, 2000, 3)


def test_failure_of_the_network_ends_the_run(pictures):
    class Broken(FakeBackend):
        def __call__(self, images, image_shapes):
            raise RuntimeError("out of GPU memory")

    with (
        pytest.raises(RuntimeError, match="out of GPU memory"),
        Pipeline(Detector(backend=Broken()), OPTIONS, ready) as pipeline,
    ):
        list(pipeline.run(pictures))
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("detect")]


@pytest.mark.parametrize("size", [2, SizeRange(2, 2, 4), None])
def test_network_that_resizes_itself(pictures, size):
    """The operator's input is that of the CPU, for batches that are filled up too."""
    host, device = (backend(batch=size) for backend in (FakeBackend, DeviceBackend))
    if size is None:  # networks of any batch size take no pictures
        device.takes_images = False
    results = [Detector(backend=backend).detect_batch(pictures[:5], **OPTIONS) for backend in (host, device)]
    assert host.shapes == device.shapes
    np.testing.assert_array_equal(host.images, device.images)
    for one, other in zip(*results, strict=True):
        np.testing.assert_array_equal(one.boxes_xyxy_px, other.boxes_xyxy_px)


def test_workers_hold_few_jobs_and_raise_their_errors():
    started = []

    def job(index: int) -> None:
        started.append(index)
        time.sleep(0.01)
        if index == 7:
            raise OSError("No space left on device")

    with pytest.raises(OSError, match="No space left"), Workers(2) as workers:
        for index in range(40):
            workers.submit(job, index)
            assert index - len(started) <= 4
    assert len(started) < 20
    with Workers(2) as workers:
        for index in range(6):
            workers.submit(job, index)
    assert sorted(started[-6:]) == list(range(6))


def test_files_for_the_gpu(tmp_path):
    """Whole JPEG files of gray or colour alone: Pillow decodes or refuses the others."""
    pixels = np.random.default_rng(0).integers(0, 256, (40, 50, 3), dtype=np.uint8)
    for name, mode in (("colour.jpg", "RGB"), ("gray.jpg", "L"), ("cmyk.jpg", "CMYK"), ("a.png", "RGB")):
        Image.fromarray(pixels).convert(mode).save(tmp_path / name)
    whole = (tmp_path / "colour.jpg").read_bytes()
    (tmp_path / "cut.jpg").write_bytes(whole[:-20])
    (tmp_path / "text.jpg").write_bytes(b"text\xff\xd9")
    Image.fromarray(pixels).save(tmp_path / "long_header.jpg", icc_profile=bytes(200_000))
    taken = {path.name for path in tmp_path.iterdir() if read_plain_jpeg(path) is not None}
    assert taken == {"colour.jpg", "gray.jpg", "long_header.jpg"}
    assert read_plain_jpeg(tmp_path / "colour.jpg") == whole
    assert read_plain_jpeg(tmp_path / "absent.jpg") is None


def test_pillow_decodes_without_a_gpu(photos):
    decoder = make_decoder(FakeBackend())
    assert type(decoder) is Decoder
    (image, milliseconds), *_ = [future.result() for future in decoder.start([photos / "a.jpg"])]
    decoder.close()
    assert (image == load_image(photos / "a.jpg")).all() and milliseconds > 0


def test_files_in_memory(photos):
    content = (photos / "a.jpg").read_bytes()
    files = [ImageFile("a.jpg", content), ImageFile("cut.jpg", content[:-200]), ImageFile("none", b"")]
    decoder = Decoder()
    whole, cut, empty = decoder.start(files)
    assert (whole.result().image == load_image(photos / "a.jpg")).all()
    with pytest.raises(ImageError, match=r"^cut.jpg: the image is truncated"):
        cut.result()
    with pytest.raises(ImageError, match=r"^none: the file is empty$"):
        empty.result()
    decoder.close()
    assert [read_plain_jpeg(file) for file in files] == [content, None, None]
    view = memoryview(content).cast("b")  # Arrow's view of a binary column
    assert read_plain_jpeg(ImageFile("a.jpg", view)) is view
    assert (load_image(ImageFile("a.jpg", view)) == load_image(photos / "a.jpg")).all()


class DecodedImage:
    """An image of a stand-in for nvImageCodec, in the memory of the host. Its rows lie apart."""

    ndim = 3

    def __init__(self, pixels: np.ndarray) -> None:
        self.shape, self._rows = pixels.shape, np.zeros((len(pixels), pixels.shape[1] + 3, 3), np.uint8)
        self._rows[:, : pixels.shape[1]] = pixels
        self.__cuda_array_interface__ = {
            "shape": self.shape,
            "typestr": "|u1",
            "data": (self._rows.ctypes.data, False),
            "strides": self._rows.strides,
        }

    def cpu(self) -> np.ndarray:
        return self._rows[:, : self.shape[1]]


@pytest.fixture
def codec(monkeypatch) -> SimpleNamespace:
    """Stands in for nvImageCodec: Pillow decodes, but refuses what `refused` holds."""
    nvidia = pytest.importorskip("nvidia", reason="no package of NVIDIA is installed")

    class StandInDecoder:
        def __init__(self, device_id: int, options: str) -> None:
            assert device_id == 1

        def decode(self, streams, cuda_stream):
            if stand_in.broken:
                raise RuntimeError("unspecified launch failure")
            stand_in.batches.append(len(streams))
            pictures = [None if x in stand_in.refused else Image.open(io.BytesIO(x)) for x in streams]
            return [x and DecodedImage(np.array(x.convert("RGB"))) for x in pictures]

    stand_in = SimpleNamespace(Decoder=StandInDecoder, CodeStream=bytes, refused=[], batches=[], broken=False)
    monkeypatch.setitem(sys.modules, "nvidia.nvimgcodec", stand_in)
    monkeypatch.setattr(nvidia, "nvimgcodec", stand_in, raising=False)
    stand_in.free_bytes = 2**30
    memory = {"cudaMemGetInfo": lambda: (stand_in.free_bytes, 2**34)}
    monkeypatch.setattr(cuda_runtime, "call", lambda name, *_: memory.get(name, lambda: None)())
    monkeypatch.setattr(cuda_runtime, "require_gpu", lambda *_: None)
    stream = SimpleNamespace(handle=0, synchronize=lambda: None, close=lambda: None)
    monkeypatch.setattr(cuda_runtime, "CudaStream", lambda: stream)
    return stand_in


def test_files_that_the_gpu_refuses_are_pillows(codec, photos):
    """One batch: JPEG files on the GPU, one that it refuses, a PNG, and a damaged file."""
    shutil.copy(ROOT / "assets/scene.jpg", photos / "scene.jpg")
    Image.new("RGB", (30, 20), "red").save(photos / "odd.jpg")
    (photos / "cut.jpg").write_bytes((photos / "a.jpg").read_bytes()[:900])
    codec.refused.append((photos / "odd.jpg").read_bytes())
    names = ["a.jpg", "b.png", "odd.jpg", "cut.jpg", "scene.jpg"]
    decoder = make_decoder(SimpleNamespace(takes_images=True, device_index=1))
    assert decoder.description == "nvImageCodec"
    for codec.broken in (False, True):
        futures = decoder.start([photos / name for name in names])
        for name, future in zip(names, futures):
            if name == "cut.jpg":
                with pytest.raises(ImageError, match="truncated"):
                    future.result()
                continue
            image = future.result().image
            on_gpu = not isinstance(image, np.ndarray)
            assert on_gpu == (name in ("a.jpg", "scene.jpg") and not codec.broken)
            assert ((image.to_host() if on_gpu else image) == load_image(photos / name)).all()
            if on_gpu:
                assert image.row_bytes == 3 * (image.shape[1] + 3)
    decoder.close()
    assert codec.batches[0] == 1 and sum(codec.batches[1:]) == 3  # the probe, and whole JPEG files


def test_files_that_wait_for_the_gpu_are_decoded_together(codec, photos):
    """One call decodes the files that wait, 64 at most, also if each comes alone."""
    decoder = GpuDecoder(1, threads=2)
    free, decode = threading.Event(), codec.Decoder.decode

    def wait_and_decode(self, streams, cuda_stream):
        free.wait(20)
        return decode(self, streams, cuda_stream)

    codec.Decoder.decode = wait_and_decode
    futures = [decoder.start([photos / "a.jpg"])[0] for _ in range(100)]
    while decoder._waiting.qsize() < 35:
        time.sleep(0.001)
    free.set()
    expected = load_image(photos / "a.jpg")
    for future in futures:
        assert (future.result(20).image.to_host() == expected).all()
    decoder.close()
    assert codec.batches[0] == 1 and sum(codec.batches) == 101 and max(codec.batches) in range(18, 65)


def test_pictures_in_use_leave_memory_to_the_network(codec, photos):
    """Pillow decodes while they hold a quarter of the free memory."""
    photo = load_image(photos / "a.jpg")
    codec.free_bytes = 4 * photo.nbytes
    decoder = GpuDecoder(1)
    held = [decoder.start([photos / "a.jpg"])[0].result(20).image for _ in range(3)]
    assert [isinstance(image, np.ndarray) for image in held] == [False, True, True]
    assert all((image == photo).all() for image in held[1:])
    held.clear()
    assert not isinstance(decoder.start([photos / "a.jpg"])[0].result(20).image, np.ndarray)
    decoder.close()


def test_cancelled_files_are_left_out(codec, photos, monkeypatch):
    begun, free = threading.Event(), threading.Event()

    def read(file):
        begun.set()
        free.wait(20)
        return file.read_bytes()

    monkeypatch.setattr(decoding, "read_plain_jpeg", read)
    decoder = GpuDecoder(1, threads=1)
    first, second = decoder.start([photos / "a.jpg"] * 2)
    begun.wait(20)
    assert second.cancel() and not first.cancel()
    free.set()
    assert (first.result(20).image.to_host() == load_image(photos / "a.jpg")).all()
    decoder.close()
    assert codec.batches == [1, 1]


def test_codec_without_its_library(codec, caplog):
    """NvImageCodec without nvJPEG decodes nothing, and Pillow does from the beginning."""
    codec.Decoder.decode = lambda self, streams, cuda_stream: [None] * len(streams)
    decoder = make_decoder(SimpleNamespace(takes_images=True, device_index=1))
    decoder.close()
    assert type(decoder) is Decoder and "nvidia-nvjpeg" in caplog.text


# With a GPU and nvImageCodec.


@pytest.fixture
def gpu_decoder():
    pytest.importorskip("nvidia.nvimgcodec", reason="nvImageCodec is not installed", exc_type=ImportError)
    decoder = GpuDecoder()
    yield decoder
    decoder.close()


@pytest.mark.gpu
def test_gpu_decodes_what_pillow_does(tmp_path, gpu_decoder):
    """Colour, gray, a rotated photograph, a PNG, and files that raise."""
    scene = Image.open(ROOT / "assets/scene.jpg")
    exif = Image.Exif()
    exif[0x0112] = 6
    scene.save(tmp_path / "turned.jpg", exif=exif, quality=95)
    scene.convert("L").save(tmp_path / "gray.jpg")
    scene.save(tmp_path / "scene.png")
    (tmp_path / "cut.jpg").write_bytes((ROOT / "assets/scene.jpg").read_bytes()[:-900])
    good = [ROOT / "assets/scene.jpg", *(tmp_path / name for name in ("turned.jpg", "gray.jpg", "scene.png"))]
    futures = gpu_decoder.start([*good, tmp_path / "cut.jpg", tmp_path / "absent.jpg"])
    for path, future in zip(good, futures):
        image = future.result().image
        on_gpu = path.suffix == ".jpg"
        assert isinstance(image, np.ndarray) != on_gpu, path.name
        difference = np.abs((image.to_host() if on_gpu else image).astype(int) - load_image(path))
        assert difference.mean() < 1 and np.percentile(difference, 99.9) <= 8, path.name
    with pytest.raises(ImageError, match=r"cut.jpg: the image is truncated"):
        futures[4].result()
    with pytest.raises(FileNotFoundError, match=r"absent.jpg: no such file"):
        futures[5].result()


@pytest.mark.gpu
def test_boxes_of_pictures_that_the_gpu_decoded(gpu_decoder):
    path = Path(ROOT / "assets/scene.jpg")
    image = gpu_decoder.start([path])[0].result().image.to_host()
    with Detector() as detector:
        one, other = detector.detect([load_image(path), image], threshold=0.5)
    assert one.names() == other.names() and len(one) > 5
    assert np.abs(one.boxes_xyxy_px - other.boxes_xyxy_px).max() < 0.5


@pytest.mark.gpu
def test_engine_takes_pictures(tmp_path):
    """Two contexts with the kernel's input find what one does with the CPU's."""
    for package in ("tensorrt", "polygraphy"):
        pytest.importorskip(package, reason=f"{package} is not installed", exc_type=ImportError)
    from onnx_path.export import main

    options = {"batch": 2, "precision": "fp16", "nms": "none"}
    given = arguments(save_weights(tmp_path), tmp_path / "engine", "codino_swin_tiny", **options)
    assert main(given) == 0
    images = [load_image(path) for path in sorted((ROOT / "tests/scenes/val").glob("*.jpg"))[:5]]
    with Detector(backend="tensorrt", engine=tmp_path / "engine/model.engine") as detector:
        backend = detector.backend
        assert backend.takes_images
        with Pipeline(detector, OPTIONS, ready, batch=2) as pipeline:
            assert pipeline.contexts == 2
            found = [one.found for one in pipeline.run(images * 8)]
        backend._writer.close()
        backend._writer = None
        expected = detector.detect(images, batch=2, **OPTIONS)
    assert len(expected[0]) > 5
    for one, other in zip(found, expected * 8, strict=True):
        np.testing.assert_allclose(one.scores, other.scores, atol=1e-3)
        np.testing.assert_allclose(one.boxes_xyxy_px, other.boxes_xyxy_px, atol=0.1)
