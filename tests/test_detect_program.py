"""`codetr_detect`, the C++ program: the same numbers as Python's detector, without a GPU."""

from __future__ import annotations

import json
import re
import sys
import tempfile
from pathlib import Path

import cv2
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from PIL import Image, PngImagePlugin

import trt_plugin
from codetr.cli.console import print_results
from codetr.coco_classes import COCO_CLASSES
from codetr.detector.detector import Detector
from codetr.detector.preprocess import load_image
from codetr.detector.sizes import Range
from codetr.draw import color_of, draw_detections
from codetr.results import Detections
from tests.detect_program import ROOT, Network, find_program, no_outputs, read_document, run
from tests.golden_models import arguments, save_weights, without

pytestmark = pytest.mark.skipif(
    find_program() is None,
    reason="codetr_detect is not built: it needs TensorRT, CUDA, libjpeg-turbo, libpng and nlohmann_json",
)


def dumped(
    folder: Path, files: list[Path], height: int, width: int, **options
) -> tuple[np.ndarray, np.ndarray]:
    """What the program feeds the network with: images, image_shapes."""
    network = Network(height, width, no_outputs(len(files)), **options)
    done = run(*network.save(folder / "net"), "--dump", folder / "dump", *files)
    assert done.returncode == 0, done.stderr
    return np.load(folder / "dump/images.npy"), np.load(folder / "dump/image_shapes.npy")


sizes = st.tuples(st.integers(1, 90), st.integers(1, 90))


@given(st.data(), sizes, st.integers(0, 2**32 - 1))
def test_preprocessing_equals_python(data, size, seed):
    """Bit for bit: shrunk, enlarged, halved exactly, kept."""
    height, width = size
    picture = sizes | st.just((2 * height, 2 * width)) | st.just(size) | st.just((2 * height + 1, 2 * width))
    rng = np.random.default_rng(seed)
    shapes = data.draw(st.lists(picture, min_size=1, max_size=6))
    images = [rng.integers(0, 256, (*shape, 3), dtype=np.uint8) for shape in shapes]
    with tempfile.TemporaryDirectory() as name:
        files = [Path(name, f"{index}.png") for index in range(len(images))]
        for file, image in zip(files, images, strict=True):
            cv2.imwrite(str(file), image[..., ::-1])
        found, image_shapes = dumped(Path(name), files, height, width)
    expected = Network(height, width, no_outputs(len(images))).input(images)
    np.testing.assert_array_equal(image_shapes, expected.image_shapes)
    np.testing.assert_array_equal(found, expected.images)


def test_photos_equal_python(tmp_path):
    files = [ROOT / "assets/coffee.jpg", *sorted(ROOT.glob("tests/scenes/val/*.jpg"))]
    images = [load_image(file) for file in files]
    found, image_shapes = dumped(tmp_path, files, 384, 512)
    expected = Network(384, 512, no_outputs(len(files))).input(images)
    np.testing.assert_array_equal(image_shapes, expected.image_shapes)
    np.testing.assert_array_equal(found, expected.images)


ranges = st.lists(st.integers(1, 4), min_size=3, max_size=3).map(
    lambda sides: Range(*(32 * side for side in sorted(sides)))
)
batches = st.integers(1, 3) | st.lists(st.integers(1, 4), min_size=3, max_size=3).map(
    lambda counts: Range(*sorted(counts))
)
scales = st.none() | st.tuples(st.integers(1, 300), st.integers(1, 300)).map(
    lambda sides: tuple(sorted(sides, reverse=True))
)


@st.composite
def input_shapes(draw) -> tuple:
    """Batch, height, width, scale, and the sizes that the detector is given."""
    sides = {"height": draw(ranges), "width": draw(ranges)}
    chosen = {}
    if any(side.dynamic for side in sides.values()):
        fixed = {name: st.integers(side.min // 32, side.max // 32) for name, side in sides.items()}
        chosen = draw(
            st.just({})
            | st.fixed_dictionaries({"max_size": st.integers(1, 300)})
            | st.fixed_dictionaries({name: count.map(lambda n: 32 * n) for name, count in fixed.items()})
        )
    return draw(batches), *sides.values(), draw(scales), chosen


odd_sizes = (
    sizes
    | st.tuples(st.integers(1, 3), st.integers(100, 3000))  # very wide
    | st.tuples(st.integers(100, 3000), st.integers(1, 3))
    | st.tuples(st.integers(1, 3), st.integers(1, 3))
    | st.tuples(st.integers(100, 300), st.integers(100, 300))  # larger than the largest input
)


def check_dump(folder: Path, network: Network) -> None:
    """What the program dumped is what Python's detector gave to the network: pixels, sizes, N."""
    images, image_shapes, input_shapes = (
        np.load(folder / f"{name}.npy") for name in ("images", "image_shapes", "input_shapes")
    )
    expected = [[one.batch, *one.image.shape[1:]] for one in network.inputs]
    np.testing.assert_array_equal(input_shapes, expected)
    np.testing.assert_array_equal(image_shapes, [one.image_shape for one in network.inputs])
    assert images.shape == (len(expected), 3, *input_shapes[:, 1:].max(axis=0))
    for image, one in zip(images, network.inputs, strict=True):
        _, height, width = one.image.shape
        np.testing.assert_array_equal(image[:, :height, :width], one.image)
        assert not image[:, height:].any() and not image[:, :, width:].any()


@given(
    input_shapes(),
    st.lists(odd_sizes, min_size=1, max_size=7),
    st.none() | st.integers(1, 6),
    st.integers(0, 2**32 - 1),
)
@example((Range(2, 2, 3), Range(32, 32, 96), Range(64, 64, 64), None, {}), [(40, 40)] * 5, 5, 0)
@example((2, Range(32, 64, 96), Range(32, 64, 128), None, {}), [(1, 3000), (3000, 1), (1, 1)], None, 0)
@example((Range(1, 1, 4), 96, 100, (50, 40), {}), [(30, 40)] * 3, None, 0)
@example((1, Range(32, 64, 128), Range(32, 64, 128), (80, 50), {}), [(30, 40), (40, 30)], 2, 0)
@example((1, Range(32, 64, 128), Range(32, 64, 128), (80, 50), {"max_size": 60}), [(30, 40)], 1, 0)
@example((1, Range(32, 64, 128), Range(32, 64, 128), None, {"max_size": 60}), [(30, 40)], 1, 0)
@example((1, Range(32, 64, 128), Range(64, 64, 64), (80, 50), {"height": 96, "width": 64}), [(30, 40)], 1, 0)
def test_dynamic_sizes_equal_python(shape, pictures, together, seed):
    """Input bit for bit and the whole document, whatever is padded to one size and run together."""
    rng = np.random.default_rng(seed)
    images = [rng.integers(0, 256, (*size, 3), dtype=np.uint8) for size in pictures]
    outputs = [crowd(12, rng) for _ in images]
    batch, height, width, scale, chosen = shape
    outputs = tuple(map(np.stack, zip(*outputs, strict=True)))
    network = Network(height, width, outputs, batch=batch, scale=scale, chosen=chosen)
    options = [] if together is None else ["--batch", together]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        files = [folder / f"{index}.png" for index in range(len(images))]
        for file, image in zip(files, images, strict=True):
            cv2.imwrite(str(file), image[..., ::-1])
        written = ["--dump", folder / "dump", "--json", folder / "out.json"]
        done = run(*network.save(folder / "net"), *written, *options, *files)
        assert done.returncode == 0, done.stderr
        document, _ = read_document(folder / "out.json")
        assert document == network.expected([file.name for file in files], images, batch=together)
        check_dump(folder / "dump", network)


@pytest.mark.parametrize(
    ("scale", "chosen"),
    [
        (None, {}),
        ((1333, 800), {}),
        ((1333, 800), {"max_size": 1000}),
        ((1333, 800), {"height": 544, "width": 1344}),
    ],
    ids=str,
)
def test_photos_of_a_large_range_equal_python(tmp_path, scale, chosen):
    """README's range: photos, a strip, a pole, one pixel, and one larger than the largest input."""
    rng = np.random.default_rng(0)
    files = [ROOT / "assets/coffee.jpg"]
    for size in [(20, 2000), (500, 900), (2500, 30), (1, 1), (1500, 1400)]:
        files.append(tmp_path / f"{len(files)}.png")
        Image.fromarray(rng.integers(0, 256, (*size, 3), dtype=np.uint8)).save(files[-1])
    files += sorted(ROOT.glob("tests/scenes/val/*.jpg"))[:1]
    height, width = Range(512, 768, 1344), Range(512, 1152, 1344)
    network = Network(height, width, no_outputs(len(files)), batch=Range(1, 1, 8), scale=scale, chosen=chosen)
    images = [load_image(file) for file in files]
    for options, batch in ([], None), (["--batch", "3"], 3):
        done = run(*network.save(tmp_path / "net"), "--dump", tmp_path / "dump", *options, *files)
        assert done.returncode == 0, done.stderr
        network.detect(images, batch)
        assert (len({one.image.shape for one in network.inputs}) > 1) == ("height" not in chosen)
        check_dump(tmp_path / "dump", network)


SIDE = 48


def picture_kinds(folder: Path) -> dict[str, Path]:
    """A picture of every kind that the two file formats have, SIDE x SIDE, by name."""
    rng = np.random.default_rng(1)
    smooth = cv2.resize(rng.integers(0, 256, (6, 6, 4), dtype=np.uint8), (SIDE, SIDE))
    rgba = Image.fromarray(smooth, "RGBA")
    rgb, gray = rgba.convert("RGB"), rgba.convert("L")
    files = {}

    def save(image: Image.Image, name: str, **options) -> None:
        files[name] = folder / name
        image.save(files[name], **options)

    for sampling in (0, 1, 2):
        save(rgb, f"sampling{sampling}.jpg", subsampling=sampling, quality=80)
    save(rgb, "progressive.jpg", progressive=True)
    save(gray, "gray.jpg")
    save(Image.frombytes("CMYK", (SIDE, SIDE), smooth.tobytes()), "cmyk.jpg", quality=95)
    save(rgb, "rgb.png")
    save(rgb, "transparent_colour.png", transparency=rgb.getpixel((3, 3)))
    save(rgba, "rgba.png")
    save(gray, "gray.png")
    save(gray, "transparent_gray.png", transparency=gray.getpixel((5, 5)))
    save(rgba.convert("LA"), "gray_alpha.png")
    save(rgb.convert("1"), "bits.png")
    save(rgb.quantize(200), "palette.png")
    save(rgb.quantize(4), "small_palette.png", bits=2)
    save(rgb.quantize(16), "transparent_palette.png", transparency=bytes(range(0, 256, 16)))
    deep = rng.integers(0, 65536, (SIDE, SIDE), dtype=np.uint16)
    save(Image.fromarray(deep), "deep_gray.png")
    for name, channels in (("deep_rgb.png", 3), ("deep_rgba.png", 4)):
        files[name] = folder / name
        cv2.imwrite(str(files[name]), rng.integers(0, 65536, (SIDE, SIDE, channels), dtype=np.uint16))
    exif = Image.Exif()
    for turn in range(1, 9):
        exif[0x0112] = turn
        save(rgb, f"exif{turn}.jpg", exif=exif)
        save(rgb, f"exif{turn}.png", exif=exif)
    exif[0x0112] = 9
    save(rgb, "exif_unknown.jpg", exif=exif)
    for style in ('tiff:Orientation="6"', "<tiff:Orientation>8</tiff:Orientation>"):
        text = PngImagePlugin.PngInfo()
        text.add_itxt("XML:com.adobe.xmp", f"<x {style}/>")
        save(rgb, f"xmp{len(files)}.png", pnginfo=text)
        save(rgb, f"xmp{len(files)}.jpg", xmp=f"<x {style}/>".encode())
    return files


def test_every_kind_of_picture_is_decoded_as_in_python(tmp_path):
    files = picture_kinds(tmp_path)
    found, _ = dumped(tmp_path, list(files.values()), SIDE, SIDE, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))
    different = [
        name
        for pixels, (name, file) in zip(found, files.items(), strict=True)
        if not np.array_equal(pixels.transpose(1, 2, 0), load_image(file))
    ]
    assert different == []


def crowd(count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Boxes, scores and labels of an image in which most boxes overlap, some with an IoU of exactly 1/2.

    Some are outside of the picture, upside down, not finite or padding, and some scores are equal.
    """
    places = rng.choice([0.0, 20.0, 45.0], (count, 2))
    starts = places + rng.choice([0.0, 0.0, 1.0, 3.3, -30.0], (count, 2))
    ends = places + rng.choice([20.0, 40.0, 16.0, 21.7, 200.0, -5.0], (count, 2))
    boxes = np.concatenate([starts, ends], axis=1).astype(np.float32)
    scores = rng.choice([0.9, 0.5, 0.25, 0.003, 0.001], count) * rng.choice([1.0, rng.random()], count)
    labels = rng.choice([0, 0, 1, 2, -1], count)
    boxes[rng.random((count, 4)) < 0.02] = rng.choice([np.nan, np.inf, -np.inf])
    scores[rng.random(count) < 0.03] = np.nan
    return boxes, scores.astype(np.float32), labels.astype(np.int64)


@given(
    st.integers(0, 40),
    st.just((70, 80)) | sizes,
    st.sampled_from(["soft", "hard", "none", None]),
    st.sampled_from(["linear", "linear", "gaussian"]),
    st.sampled_from([0.0, 0.5, 0.8, 1.0]) | st.floats(0, 1),
    st.sampled_from([0.0, 0.001, 0.25, 0.3]),
    st.none() | st.integers(1, 10),
    st.integers(0, 2**32 - 1),
)
@example(40, (70, 80), "soft", "linear", 0.5, 0.0, None, 24)
@example(40, (70, 80), "hard", "linear", 0.5, 0.0, None, 24)
def test_postprocessing_equals_python(count, size, method, decay, iou, threshold, top, seed):
    """The whole document; method None is a network with the suppression inside."""
    boxes, scores, labels = crowd(count, np.random.default_rng(seed))
    nms = None if method is None else {"method": "soft", "iou_threshold": 0.8, "decay": decay, "sigma": 0.5}
    network = Network(70, 80, (boxes[None], scores[None], labels[None]), nms=nms)
    image = np.zeros((*size, 3), np.uint8)
    options = {"threshold": threshold, "top": top}
    if method is not None:
        options |= {"nms": method, "nms_iou": iou}
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in options.items() if value is not None]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        Image.fromarray(image).save(folder / "a.png")
        done = run(*network.save(folder), *flags, "--json", folder / "out.json", folder / "a.png")
        assert done.returncode == 0, done.stderr
        document, info = read_document(folder / "out.json")
    expected = network.expected(["a.png"], [image], **options)
    if decay == "gaussian" and method == "soft":  # NumPy's exp and C's may differ in the last bit
        for row, other in zip(document["annotations"], expected["annotations"], strict=True):
            assert row.pop("score") == pytest.approx(other.pop("score"), abs=1e-6)
    assert document == expected
    assert info["threshold"] == threshold and info["top"] == top


def cups(count: int = 3) -> Network:
    """Finds two cups and a spoon in every picture."""
    boxes = np.tile(np.float32([[4, 4, 30, 40], [5, 4, 31, 40], [20, 10, 45, 28]]), (count, 1, 1))
    scores = np.tile(np.float32([0.9, 0.6, 0.4]), (count, 1))
    labels = np.tile([COCO_CLASSES.index("cup")] * 2 + [COCO_CLASSES.index("spoon")], (count, 1))
    return Network(48, 64, (boxes, scores, labels), COCO_CLASSES, {"method": "hard", "iou_threshold": 0.8})


@pytest.fixture
def photos(tmp_path) -> list[Path]:
    rng = np.random.default_rng(0)
    files = [tmp_path / "in" / name for name in ("a.jpg", "deep/a.png", "deep/grüß.png")]
    for index, file in enumerate(files):
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (96 + index, 128, 3), dtype=np.uint8)).save(file)
    return files


def test_many_pictures(photos, tmp_path):
    network = cups()
    done = run(*network.save(tmp_path / "net"), "--out", tmp_path / "new/out", *photos, photos[0])
    assert done.returncode == 0 and done.stderr == ""
    written = {file.name for file in (tmp_path / "new/out").iterdir()}
    assert written == {"a.jpg", "a_2.jpg", "grüß.jpg", "detections.json"}
    document, info = read_document(tmp_path / "new/out/detections.json")
    names = ["a.jpg", "deep/a.png", "deep/grüß.png"]
    assert document == network.expected(names, [load_image(file) for file in photos])
    assert {row["category_id"] for row in document["annotations"]} == {47, 50}
    assert info["network"] == network.description and info["nms"] is None
    assert "3 pictures: 6 detections" in done.stdout
    assert done.stdout.endswith(f"wrote 3 pictures and {tmp_path / 'new/out/detections.json'}\n")
    assert "ms per picture: read " in done.stdout and "the first run, with the warm-up" in done.stdout


def test_numbers_as_names_become_ids(photos, tmp_path):
    files = [photos[0].rename(tmp_path / "000000000139.jpg"), photos[1].rename(tmp_path / "7.png")]
    network = cups()
    done = run(*network.save(tmp_path / "net"), "--json", tmp_path / "out.json", *files)
    assert done.returncode == 0, done.stderr
    document, _ = read_document(tmp_path / "out.json")
    assert [image["id"] for image in document["images"]] == [139, 7]
    assert document == network.expected([file.name for file in files], [load_image(file) for file in files])


@pytest.mark.parametrize("count", [1, 3])
def test_table_is_pythons_without_rich(photos, tmp_path, capsys, monkeypatch, count):
    network = cups()
    done = run(*network.save(tmp_path / "net"), "--json", tmp_path / "out.json", *photos[:count])
    document, _ = read_document(tmp_path / "out.json")
    names = [image["file_name"] for image in document["images"]]
    for module in ("rich", "rich.console"):
        monkeypatch.setitem(sys.modules, module, None)
    print_results([(name, as_detections(document, index)) for index, name in enumerate(names)])
    table = capsys.readouterr().out
    assert len(table.splitlines()) > 3
    assert done.stdout.startswith(table)


def as_detections(document: dict, index: int) -> Detections:
    image = document["images"][index]
    rows = [row for row in document["annotations"] if row["image_id"] == image["id"]]
    x, y, width, height = np.array([row["bbox"] for row in rows], np.float32).T
    labels = np.array([COCO_CLASSES.index(row["category_name"]) for row in rows])
    scores = np.array([row["score"] for row in rows], np.float32)
    boxes = np.stack([x, y, x + width, y + height], axis=1)
    return Detections(boxes, scores, labels, COCO_CLASSES, image["height"], image["width"])


def test_annotated_picture_is_pythons_but_for_the_letters(tmp_path):
    """Frames of the classes' colours at the same pixels, with labels of these colours above."""
    image = np.full((600, 800, 3), 200, np.uint8)
    left, top = (
        axis.reshape(-1) for axis in np.meshgrid(np.arange(4) * 200 + 10.4, np.arange(4) * 150 + 40.6)
    )
    boxes = np.stack([left, top, left + 150, top + 90], axis=1).astype(np.float32)
    scores, labels = np.linspace(0.95, 0.4, 16, dtype=np.float32), np.arange(16) * 5
    network = Network(600, 800, (boxes[None], scores[None], labels[None]), COCO_CLASSES)
    Image.fromarray(image).save(tmp_path / "a.png")
    done = run(*network.save(tmp_path), "--out", tmp_path / "out", tmp_path / "a.png")
    assert done.returncode == 0, done.stderr
    drawn = load_image(tmp_path / "out/a.jpg").astype(int)
    expected = draw_detections(image, boxes, scores, labels, COCO_CLASSES).astype(int)
    for label, (x1, y1, x2, y2) in zip(labels, np.rint(boxes).astype(int), strict=True):
        frame = np.s_[y1 : y2 + 4, x1 - 4 : x2 + 4]  # the label is above
        assert np.abs(drawn[frame] - expected[frame]).max() <= 60  # JPEG
        assert (expected[frame] == color_of(label)).all(axis=-1).sum() > 400
        above = np.s_[y1 - 8, x1 + 1]
        np.testing.assert_allclose(drawn[above], color_of(label), atol=30)
        np.testing.assert_array_equal(expected[above], color_of(label))


def test_every_class_has_pythons_colour(tmp_path):
    """The first 96 differ, the next repeats the first."""
    names = [str(label) for label in range(97)]
    boxes = np.tile(np.float32([0, 0, 64, 64]), (97, 1, 1))
    network = Network(
        64,
        64,
        (boxes, np.ones((97, 1), np.float32), np.arange(97)[:, None]),
        names,
        {"method": "none", "iou_threshold": 1},
    )
    files = [tmp_path / f"{name}.png" for name in names]
    for file in files:
        Image.new("RGB", (64, 64)).save(file)
    done = run(*network.save(tmp_path / "net"), "--out", tmp_path / "out", *files)
    assert done.returncode == 0, done.stderr
    for label, file in enumerate(files):
        edge = load_image(tmp_path / "out" / f"{file.stem}.jpg")[40, 0]
        np.testing.assert_allclose(edge, color_of(label), atol=60)


def test_drawing_on_a_tiny_picture(tmp_path):
    """Labels that fit nowhere are left out; a box outside of the picture is drawn at its border."""
    boxes = np.float32([[[-50, -50, 500, 500], [3, 3, 3, 3], [900, 900, 901, 901]]])
    network = Network(8, 8, (boxes, np.float32([[0.9, 0.8, 0.7]]), np.array([[0, 1, 2]])))
    Image.new("RGB", (5, 4)).save(tmp_path / "a.png")
    done = run(*network.save(tmp_path), "--out", tmp_path / "out", tmp_path / "a.png")
    assert done.returncode == 0, done.stderr
    with Image.open(tmp_path / "out/a.jpg") as drawn:
        assert drawn.size == (5, 4)


def check_detections(document: dict, expected: list[Detections]) -> None:
    """The document has what Python's detector found with the same engine."""
    assert len(document["annotations"]) > 5 * len(expected)
    for image, found in zip(document["images"], expected, strict=True):
        rows = [row for row in document["annotations"] if row["image_id"] == image["id"]]
        assert [row["category_id"] for row in rows] == [row["category_id"] for row in found.as_dicts()]
        boxes = np.array([row["bbox"] for row in rows])
        np.testing.assert_allclose(boxes, [row["bbox"] for row in found.as_dicts()], atol=0.1)
        np.testing.assert_allclose([row["score"] for row in rows], found.scores, atol=1e-3)


@pytest.mark.gpu
@pytest.mark.parametrize("nms", ["none", "hard"])
def test_engine_detects_as_in_python(tmp_path, nms):
    """The same engine, pictures of several sizes, with and without a CUDA graph: Python's detections."""
    pytest.importorskip("tensorrt", reason="TensorRT is not installed")
    pytest.importorskip("polygraphy", reason="polygraphy is not installed")
    from onnx_path.export import main

    weights = save_weights(tmp_path)
    options = {"batch": 2, "precision": "fp16", "nms": nms}
    assert main(arguments(weights, tmp_path / "engine", "codino_swin_tiny", **options)) == 0
    engine = tmp_path / "engine/model.engine"
    files = [ROOT / "assets/coffee.jpg", *sorted(ROOT.glob("tests/scenes/val/*.jpg"))[:2]]
    with Detector(backend="tensorrt", engine=engine) as detector:
        expected = detector.detect(files, threshold=0.0, batch=2)
    plugin = ["--plugins", trt_plugin.library_path()]
    for flags in ([], ["--no-cuda-graph"]):
        out = tmp_path / f"out{len(flags)}"
        done = run(
            "--engine", engine, *plugin, *files, "--threshold", 0, "--out", out, "--benchmark", 10, *flags
        )
        assert done.returncode == 0, done.stderr
        document, info = read_document(out / "detections.json")
        ways = [summary["how"] for summary in info["benchmark"]["runs"]]
        assert ways == (["no CUDA graph"] if flags else ["CUDA graph", "no CUDA graph"])
        assert all(0 < summary["p05_ms"] <= summary["p95_ms"] for summary in info["benchmark"]["runs"])
        check_detections(document, expected)


@pytest.mark.gpu
def test_engine_of_dynamic_sizes_detects_as_in_python(tmp_path):
    """Wide and tall pictures, alone and together: Python's detections in every shape, with its graph."""
    pytest.importorskip("tensorrt", reason="TensorRT is not installed")
    pytest.importorskip("polygraphy", reason="polygraphy is not installed")
    from onnx_path.export import main

    given = {"batch": "1-4", "precision": "fp32", "dynamic-size": "96-96x128-256"}
    given = arguments(save_weights(tmp_path), tmp_path / "engine", "codino_swin_tiny", **given)
    assert main(without(given, "--height", "--width")) == 0
    engine = tmp_path / "engine/model.engine"
    thin = (20, 130, 180, 240, 290, 340)  # more shapes than graphs are kept for
    turned = [(400, side) for side in thin] + [(side, 400) for side in thin]
    files = []
    with Image.open(ROOT / "assets/coffee.jpg") as photo:
        for size in (turned[0], *turned, turned[0]):  # once more at once, and when its graph is gone
            files.append(tmp_path / f"{len(files)}.png")
            photo.resize(size).save(files[-1])
    plugin = ["--plugins", trt_plugin.library_path()]
    for batch in (1, 3, 14):
        with Detector(backend="tensorrt", engine=engine) as detector:
            expected = detector.detect(files, threshold=0.0, batch=batch)
        for flags in ([], ["--no-cuda-graph"]):
            out = tmp_path / f"out{batch}{len(flags)}.json"
            options = ["--threshold", 0, "--json", out, "--benchmark", 5, "--batch", batch, *flags]
            done = run("--engine", engine, *plugin, *files, *options)
            assert done.returncode == 0, done.stderr
            document, info = read_document(out)
            check_detections(document, expected)
            benchmark = info["benchmark"]
            shape = [benchmark[name] for name in ("batch", "height", "width")]
            assert shape == {1: [1, 96, 256], 3: [3, 96, 256], 14: [4, 256, 256]}[batch]
            assert len(benchmark["runs"]) == 2 - len(flags)
    for sizes in ({"max_size": 160}, {"height": 128, "width": 224}):
        with Detector(backend="tensorrt", engine=engine, **sizes) as detector:
            expected = detector.detect(files, threshold=0.0)
        chosen = [f"--{name.replace('_', '-')}={size}" for name, size in sizes.items()]
        done = run("--engine", engine, *plugin, *files, "--threshold", 0, "--json", out, *chosen)
        assert done.returncode == 0, done.stderr
        check_detections(read_document(out)[0], expected)


@pytest.mark.gpu
def test_engine_with_another_profile_is_refused(tmp_path):
    """Metadata of another engine of the same model: one line with both profiles."""
    pytest.importorskip("tensorrt", reason="TensorRT is not installed")
    pytest.importorskip("polygraphy", reason="polygraphy is not installed")
    from onnx_path.export import main

    given = arguments(save_weights(tmp_path), tmp_path, **{"batch": "1-4", "dynamic-size": "96-96-128"})
    assert main(without(given, "--height", "--width")) == 0
    path = tmp_path / "model.json"
    fields = json.loads(path.read_text())
    fields["profiles"]["images"]["max"] = [4, 3, 160, 160]
    path.write_text(json.dumps(fields))
    plugin = ["--plugins", trt_plugin.library_path()]
    done = run("--engine", tmp_path / "model.engine", *plugin, ROOT / "assets/coffee.jpg")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (  # TensorRT may warn before
        f"codetr_detect: error: the metadata {path} is that of another engine: the profile of images "
        "(smallest, usual, largest) is [1, 3, 96, 96], [1, 3, 96, 96], [4, 3, 160, 160] in it and "
        "[1, 3, 96, 96], [1, 3, 96, 96], [4, 3, 128, 128] in the engine; it must be the file that was "
        "exported with the engine"
    )
    with pytest.raises(trt_plugin.EngineError, match=re.escape(done.stderr.rpartition("error: ")[2].strip())):
        Detector(backend="tensorrt", engine=tmp_path / "model.engine")
