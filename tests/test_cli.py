"""The command line: what it writes, what it prints, and one clear line for everything that goes wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import codetr.detect
from codetr.classes import COCO_CATEGORY_IDS, COCO_CLASSES, category_ids_for, class_names_for
from codetr.cli import main
from codetr.detect import Detector, make_preprocessor
from codetr.draw import color_of, draw_detections, sizes_for
from codetr.files import atomic_write
from codetr.preprocess import Preprocessor, load_image
from codetr.results import Detections, coco_document, image_ids_for

ROOT = Path(__file__).resolve().parents[1]
GOLDEN = ROOT / "tests/golden"
CUP, SPOON = COCO_CLASSES.index("cup"), COCO_CLASSES.index("spoon")


class FakeBackend:
    """Finds in every image a cup (its left half), a weaker cup almost there, and a spoon."""

    class_names = COCO_CLASSES
    description = "fake"

    def __init__(self, *_args, batch: int | None = None, fixed: bool = False) -> None:
        self.preprocessor = Preprocessor(height=64, width=96) if fixed else Preprocessor(scale=(128, 96))
        self.nms = {"method": "hard", "iou_threshold": 0.8}
        self.batch = batch
        self.shapes: list[tuple[int, ...]] = []
        self.closed = False

    def __call__(self, images, image_shapes):
        self.shapes.append(images.shape)
        unit = np.array([[0, 0, 0.5, 1], [0, 0, 0.5, 0.95], [0.25, 0.25, 0.75, 0.75]])
        boxes = unit * np.tile(image_shapes[:, None, ::-1], (1, 1, 2))
        scores = np.tile(np.float32([0.9, 0.6, 0.4]), (len(images), 1))
        labels = np.tile([CUP, CUP, SPOON], (len(images), 1))
        return boxes.astype(np.float32), scores, labels

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def fake(monkeypatch):
    """Replaces the torch backend; the command line is the real one."""
    monkeypatch.setattr(codetr.detect, "TorchBackend", FakeBackend)


@pytest.fixture
def photos(tmp_path) -> Path:
    folder = tmp_path / "photos"
    (folder / "deep").mkdir(parents=True)
    rng = np.random.default_rng(0)
    for name, size in (("a.jpg", (60, 90)), ("b.png", (90, 60)), ("deep/a.png", (50, 50))):
        Image.fromarray(rng.integers(0, 256, (*size, 3), dtype=np.uint8)).save(folder / name)
    (folder / "notes.txt").write_text("no picture")
    return folder


def run(*arguments: object) -> int:
    weights = GOLDEN / "codino_swin_tiny.safetensors"
    return main(["detect", *map(str, arguments), "--model", "co_dino_r50", "--weights", str(weights)])


def load(out: Path) -> dict:
    return json.loads((out / "detections.json").read_text(encoding="utf-8"))


def error_line(capsys) -> str:
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and lines[0].startswith("codetr: error: "), lines
    return lines[0]


# What is written


def test_one_picture(fake, photos, tmp_path, capsys):
    out = tmp_path / "new/out"
    assert run(photos / "a.jpg", "--out", out) == 0
    assert sorted(path.name for path in out.iterdir()) == ["a.jpg", "detections.json"]
    document = load(out)
    assert document["images"] == [{"id": 1, "file_name": "a.jpg", "width": 90, "height": 60}]
    first, second = document["annotations"]  # hard NMS drops the second cup
    assert (first["category_id"], first["category_name"], first["score"]) == (47, "cup", 0.9)
    np.testing.assert_allclose(first["bbox"], [0, 0, 45, 60], atol=0.01)
    np.testing.assert_allclose(second["bbox"], [22.5, 15, 45, 30], atol=0.01)
    with Image.open(out / "a.jpg") as drawn:
        assert drawn.size == (90, 60) and drawn.format == "JPEG"
    captured = capsys.readouterr()
    assert "cup" in captured.out and "0.900" in captured.out
    for stage in ("read", "preprocess", "inference", "postprocess", "draw"):
        assert stage in captured.out
    assert str(out / "detections.json") in captured.out and captured.err == ""


def test_folders_globs_and_repeats(fake, photos, tmp_path, capsys):
    out = tmp_path / "out"
    assert run(photos, photos / "**/*.png", photos / "a.jpg", "--out", out, "--batch", 2) == 0
    assert [image["file_name"] for image in load(out)["images"]] == ["a.jpg", "b.png", "deep/a.png"]
    assert sorted(path.name for path in out.iterdir()) == ["a.jpg", "a_2.jpg", "b.jpg", "detections.json"]
    assert "3 pictures: 6 detections" in capsys.readouterr().out


def test_odd_file_names(fake, tmp_path, capsys):
    """Characters that rich would take for markup, a glob for a pattern, and bytes that are no UTF-8."""
    folder = tmp_path / "[bold]in"
    folder.mkdir()
    names = ["[red]a*.png", "gr\u00fc\u00df.png", os.fsdecode(b"\xff.png")]
    for name in names:
        Image.new("RGB", (40, 30)).save(folder / name)
    assert run(*(folder / name for name in names), "--out", tmp_path / "out") == 0
    assert [image["file_name"] for image in load(tmp_path / "out")["images"]] == [*names[:2], "\ufffd.png"]
    printed = capsys.readouterr().out
    assert "[red]a*.png" in printed and "gr\u00fc\u00df.png" in printed and "\ufffd.png" in printed
    assert (tmp_path / "out" / os.fsdecode(b"\xff.jpg")).is_file()


def test_threshold_top_and_nms(fake, photos, tmp_path):
    def scores(*arguments: object) -> list[float]:
        assert run(photos / "a.jpg", "--out", tmp_path / "out", *arguments) == 0
        return [row["score"] for row in load(tmp_path / "out")["annotations"]]

    assert scores() == [0.9, 0.4]
    assert scores("--threshold", 0.5) == [0.9]
    assert scores("--nms", "none") == [0.9, 0.6, 0.4]
    assert scores("--nms", "none", "--top", 2) == [0.9, 0.6]
    assert scores("--nms", "hard", "--nms-iou", 1.0) == [0.9, 0.6, 0.4]
    assert scores("--threshold", 1) == []
    soft = scores("--nms", "soft", "--threshold", 0.01)
    assert len(soft) == 3 and soft[-1] < 0.4


def test_rotated_photo_is_detected_upright(fake, tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (80, 40)).save(tmp_path / "phone.jpg", exif=exif)
    assert run(tmp_path / "phone.jpg", "--out", tmp_path / "out") == 0
    assert load(tmp_path / "out")["images"][0] == {
        "id": 1,
        "file_name": "phone.jpg",
        "width": 40,
        "height": 80,
    }
    with Image.open(tmp_path / "out/phone.jpg") as drawn:
        assert drawn.size == (40, 80) and 0x0112 not in drawn.getexif()


def test_plain_output_without_rich(fake, photos, tmp_path, capsys, monkeypatch):
    for name in ("rich", "rich.console", "rich.table", "rich.markup", "rich.progress"):
        monkeypatch.setitem(sys.modules, name, None)
    assert run(photos / "a.jpg", "--out", tmp_path / "one") == 0
    assert "cup    0.900   0.0   0.0   45.0    60.0" in capsys.readouterr().out
    assert run(photos, "--out", tmp_path / "two") == 0
    assert "a.jpg    90x60      2  1 cup, 1 spoon" in capsys.readouterr().out


def test_select_sorts_and_keeps_the_threshold_itself():
    scores = np.float32([0.25, 0.75, 0.5])
    boxes = np.arange(12, dtype=np.float32).reshape(3, 4)
    detections = Detections(boxes, scores, np.array([3, 1, 2]), COCO_CLASSES, 30, 40)
    assert detections.select().labels.tolist() == [1, 2, 3]
    kept = detections.select(threshold=0.5)
    assert kept.labels.tolist() == [1, 2] and kept.boxes_xyxy_px[:, 0].tolist() == [4, 8]
    assert detections.select(top=1).names() == ["bicycle"] and len(detections.select(threshold=0.8)) == 0


def test_document_is_coco():
    detections = Detections(
        np.float32([[1, 2, 11, 22]]), np.float32([0.5]), np.array([79]), COCO_CLASSES, 30, 40
    )
    document = coco_document([("000000000139.jpg", detections), ("285.jpg", detections)], COCO_CLASSES)
    assert [image["id"] for image in document["images"]] == [139, 285]
    assert document["annotations"][1] == {
        "id": 2,
        "image_id": 285,
        "file_name": "285.jpg",
        "category_id": 90,
        "category_name": "toothbrush",
        "bbox": [1.0, 2.0, 10.0, 20.0],
        "score": 0.5,
        "area": 200.0,
        "iscrowd": 0,
    }
    assert len(document["categories"]) == 80 and document["categories"][-1] == {
        "id": 90,
        "name": "toothbrush",
    }


def test_image_ids():
    assert image_ids_for(["a.jpg", "7.jpg"]) == [1, 2]
    assert image_ids_for(["x/7.jpg", "y/007.png"]) == [1, 2]
    assert image_ids_for(["x/0012.jpg", "7.jpg"]) == [12, 7]


def test_classes():
    assert len(COCO_CLASSES) == len(set(COCO_CLASSES)) == 80
    assert len(set(COCO_CATEGORY_IDS)) == 80 and list(COCO_CATEGORY_IDS) == sorted(COCO_CATEGORY_IDS)
    missing = set(range(1, 91)) - set(COCO_CATEGORY_IDS)
    assert missing == {12, 26, 29, 30, 45, 66, 68, 69, 71, 83}
    assert class_names_for(80) == COCO_CLASSES and class_names_for(2) == ("class 0", "class 1")
    assert category_ids_for(("a", "b")) == (0, 1)


# What goes wrong


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["absent.jpg"], "absent.jpg: no such file"),
        (["a.jpg", "absent.jpg"], "absent.jpg: no such file"),
        (["notes.txt"], "notes.txt: not an image"),
        (["empty"], "empty: the folder holds no picture"),
        (["*.gif"], "no picture matches"),
        (["short.jpg"], "short.jpg: the image is truncated or damaged"),
        (["a.jpg", "--out", "."], "would replace an input"),
        (["a.jpg", "--out", "notes.txt"], "notes.txt: cannot write there (is a file, not a folder)"),
        (["a.jpg", "--out", "notes.txt/out"], "cannot write there"),
        (
            ["a.jpg", "--model", "co_dino_x"],
            "--model: model 'co_dino_x': expected one of co_dino_demo, co_dino_r50, co_dino_swin_l",
        ),
        (["a.jpg", "--model", "notes.txt"], "not a JSON file"),
        (
            ["a.jpg", "--weights", "absent.pth"],
            "--weights absent.pth: no such file; expected a file, a URL, or one of co_",
        ),
        (["a.jpg", "--threshold", "1.5"], "--threshold: expected a number from 0 to 1, got '1.5'"),
        (["a.jpg", "--batch", "0"], "--batch: expected a whole number above 0, got '0'"),
        (["a.jpg", "--nms", "maybe"], "--nms: invalid choice"),
        (["a.jpg", "--height", "64"], "--height and --width: give both or neither"),
        (["a.jpg", "--height", "64", "--width", "64", "--max-size", "64"], "--max-size: does not go with"),
        (["a.jpg", "--backend", "torch", "--engine", "e.engine"], "--engine: goes with --backend tensorrt"),
        (["a.jpg", "--engine", "e.engine"], "--model: is fixed in the engine"),
        (["a.jpg", "--backend", "tensorrt"], "--backend tensorrt: needs --engine"),
        (["a.jpg", "--unknown"], "unrecognized arguments: --unknown"),
        ([""], "IMAGE: expected a path, got ''"),
        (["a.jpg", "--out", ""], "--out: expected a path, got ''"),
        (["a.jpg", "--weights", ""], "--weights: expected a path, got ''"),
        (["a.jpg", "--weights", "empty"], "--weights empty: is a folder, not a file"),
        (
            ["a.jpg", "--weights", "ftp://host/w.pth"],
            "--weights ftp://host/w.pth: no such file; expected a file",
        ),
        (["a.jpg", "--weights", "/dev/null"], "--weights /dev/null: not a file"),
        (["a.jpg", "--device", "gpu"], "--device: expected auto, cpu, cuda or cuda:<number>, got 'gpu'"),
        (["a.jpg", "--model", "deep.json"], "--model: deep.json: not a JSON file"),
        ([], "IMAGE"),
    ],
)
def test_usage_errors(fake, photos, monkeypatch, capsys, arguments, message):
    """Exit status 2, one line, nothing written."""
    monkeypatch.chdir(photos)
    (photos / "empty").mkdir()
    (photos / "short.jpg").write_bytes((photos / "a.jpg").read_bytes()[:900])
    (photos / "deep.json").write_text("[" * 100_000)
    before = {path: path.read_bytes() for path in photos.rglob("*") if path.is_file()}
    weights = str(GOLDEN / "codino_swin_tiny.safetensors")
    defaults = ["--model", "co_dino_r50", "--weights", weights, "--out", str(photos.parent / "out")]
    assert main(["detect", *defaults, *arguments]) == 2
    assert message in error_line(capsys)
    assert {path: path.read_bytes() for path in photos.rglob("*") if path.is_file()} == before
    assert not (photos.parent / "out").exists()


@pytest.mark.parametrize("arguments", [[], ["fly"], ["detect", "a.jpg"]])
def test_command_is_needed(capsys, arguments):
    assert main(arguments) == 2
    assert "--help)" in error_line(capsys)


def test_weights_are_needed_for_an_own_model(photos, tmp_path, capsys):
    model = GOLDEN / "codino_swin_tiny.json"
    assert main(["detect", str(photos), "--model", str(model), "--out", str(tmp_path / "out")]) == 2
    assert "--weights: needed" in error_line(capsys)


def test_one_bad_picture_among_many(fake, photos, tmp_path, capsys):
    """The others are done; the bad ones are named; exit status 1."""
    (photos / "bad.jpg").write_bytes(b"text")
    (photos / "cut.jpg").write_bytes((photos / "a.jpg").read_bytes()[:900])
    assert run(photos, "--out", tmp_path / "out", "--batch", 3) == 1
    assert [image["file_name"] for image in load(tmp_path / "out")["images"]] == ["a.jpg", "b.png"]
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(": ")[1] for line in lines] == ["warning", "warning", "error"]
    assert "bad.jpg: not an image" in lines[0] and "cut.jpg: the image is truncated" in lines[1]
    assert "2 of 4 pictures could not be processed" in lines[2]


def test_all_pictures_bad(fake, tmp_path, capsys):
    for name in ("a.jpg", "b.jpg"):
        (tmp_path / name).write_bytes(b"text")
    assert run(tmp_path / "a.jpg", tmp_path / "b.jpg", "--out", tmp_path / "out") == 2
    assert "none of the 2 pictures" in capsys.readouterr().err.splitlines()[-1]
    assert not (tmp_path / "out").exists()


def test_failing_network_leaves_nothing(monkeypatch, photos, tmp_path, capsys):
    class Failing(FakeBackend):
        def __call__(self, images, image_shapes):
            raise RuntimeError("out of\nmemory")

    monkeypatch.setattr(codetr.detect, "TorchBackend", Failing)
    assert run(photos / "a.jpg", "--out", tmp_path / "x/out") == 1
    assert error_line(capsys) == "codetr: error: out of memory"
    assert not (tmp_path / "x").exists()


def test_full_disk_leaves_no_half_picture(fake, monkeypatch, photos, tmp_path, capsys):
    def save(self, path, **options):
        Path(path).write_bytes(b"half")
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(Image.Image, "save", save)
    assert run(photos / "a.jpg", "--out", tmp_path / "out") == 1
    assert "No space left on device" in error_line(capsys)
    assert not (tmp_path / "out").exists()


def test_no_gpu(photos, tmp_path, capsys, monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    weights = GOLDEN / "codino_swin_tiny.safetensors"
    arguments = [photos / "a.jpg", "--model", GOLDEN / "codino_swin_tiny.json", "--weights", weights]
    arguments += ["--device", "cuda:1", "--out", tmp_path / "out"]
    assert main(["detect", *map(str, arguments)]) == 1
    assert "device cuda:1: PyTorch finds no GPU here" in error_line(capsys)


@pytest.mark.parametrize(
    ("model", "weights", "cut"),
    [("codino_swin_tiny", "codino_swin_tiny", 100_000), ("codino_swin_tiny", "codino_resnet_tiny", None)],
)
def test_wrong_checkpoints(photos, tmp_path, capsys, model, weights, cut):
    """A truncated checkpoint, and the weights of another model."""
    path = tmp_path / "weights.safetensors"
    path.write_bytes((GOLDEN / f"{weights}.safetensors").read_bytes()[:cut])
    arguments = [
        photos / "a.jpg",
        "--model",
        GOLDEN / f"{model}.json",
        "--weights",
        path,
        "--out",
        tmp_path / "out",
    ]
    assert main(["detect", *map(str, arguments)]) == 1
    line = error_line(capsys)
    assert "weights.safetensors" in line and not line.endswith("…")
    assert not (tmp_path / "out").exists()


def test_misfit_is_a_short_line(photos, tmp_path, capsys):
    """The verdict and examples, where the Python API lists all."""
    torch = pytest.importorskip("torch")
    torch.save({"a": torch.ones(2)}, tmp_path / "w.pth")
    arguments = ["--model", GOLDEN / "codino_swin_tiny.json", "--weights", tmp_path / "w.pth"]
    assert main(["detect", *map(str, [photos / "a.jpg", *arguments, "--out", tmp_path / "out"])]) == 1
    line = error_line(capsys)
    assert "w.pth: the weights are not those of model codino_swin_tiny (" in line
    assert line.endswith(
        "1 unexpected tensors): missing backbone.patch_embed.projection.weight, unexpected a"
    )


def test_full_disk_is_named(fake, monkeypatch, photos, tmp_path, capsys):
    """Errors without a file name get it, and the temporary one's name is not shown."""
    for error in (OSError(28, "No space left on device"), OSError(5, "Input/output error", "temporary")):

        def save(self, path, error=error, **options):
            raise OSError(error.errno, error.strerror, error.filename and str(path))

        monkeypatch.setattr(Image.Image, "save", save)
        assert run(photos / "a.jpg", "--out", tmp_path / "out") == 1
        assert error_line(capsys) == f"codetr: error: {tmp_path / 'out/a.jpg'}: {error.strerror}"


def test_interrupt(fake, photos, tmp_path, capsys, monkeypatch):
    def interrupt(*_args, **_options):
        raise KeyboardInterrupt

    monkeypatch.setattr(FakeBackend, "__call__", interrupt)
    assert run(photos, "--out", tmp_path / "out") == 130
    assert error_line(capsys) == "codetr: error: interrupted"


def test_atomic_write(tmp_path):
    path = tmp_path / "file.txt"
    path.write_text("before")
    with pytest.raises(RuntimeError), atomic_write(path) as temporary:
        temporary.write_text("half")
        assert temporary.parent == tmp_path and temporary.suffix == ".txt"
        raise RuntimeError
    assert path.read_text() == "before" and list(tmp_path.iterdir()) == [path]
    with atomic_write(path) as temporary:
        temporary.write_text("after")
    assert path.read_text() == "after" and list(tmp_path.iterdir()) == [path]


# The engine, without Torch

ENGINE_SCRIPT = """
import sys, types
import numpy as np
import trt_plugin
from trt_plugin import TensorInfo

class Runner:
    inputs = {"images": TensorInfo((2, 3, 64, 96), "float32"), "image_shapes": TensorInfo((2, 2), "int64")}
    outputs = {"boxes": TensorInfo((2, -1, 4), "float32"), "scores": TensorInfo((2, -1), "float32"),
               "labels": TensorInfo((2, -1), "int32")}
    def __init__(self, path, device): assert device == 0
    def close(self): print("closed")
    def __call__(self, inputs):
        images, shapes = inputs["images"], inputs["image_shapes"]
        assert images.shape == (2, 3, 64, 96) and images.dtype == np.float32 and images.flags.c_contiguous
        assert shapes.shape == (2, 2) and shapes.dtype == np.int64
        boxes = np.zeros((2, 3, 4), np.float32)
        boxes[:, 0] = np.tile(shapes[:, ::-1], 2) * (0, 0, 1, 1)
        boxes[:, 1], boxes[:, 2] = np.nan, boxes[:, 0]  # what is not finite neither counts nor suppresses
        scores = np.float32([[0.8, 0.9, np.nan]] * 2)
        return {"boxes": boxes, "scores": scores, "labels": np.int32([[1, 0, 1]] * 2)}

trt_plugin.EngineRunner = Runner
from codetr.cli import main
status = main(sys.argv[1:])
assert "torch" not in sys.modules and "tensorrt" not in sys.modules, "imported"
sys.exit(status)
"""


@pytest.fixture
def engine(tmp_path) -> Path:
    """An engine file (its content is never read: the runner is a fake) with its metadata."""
    trt_plugin = pytest.importorskip("trt_plugin")
    path = tmp_path / "model.engine"
    path.write_bytes(b"engine")
    metadata = make_metadata(trt_plugin.ArtifactMetadata)
    metadata.save(path.with_suffix(".json"))
    return path


def make_metadata(kind):
    return kind(
        model="tiny",
        inputs=[
            {"name": "images", "shape": [2, 3, 64, 96], "dtype": "float32"},
            {"name": "image_shapes", "shape": [2, 2], "dtype": "int64"},
        ],
        outputs=[
            {"name": "boxes", "shape": [2, 3, 4], "dtype": "float32"},
            {"name": "scores", "shape": [2, 3], "dtype": "float32"},
            {"name": "labels", "shape": [2, 3], "dtype": "int32"},
        ],
        class_names=["cat", "dog"],
        mean=[0.0, 0.0, 0.0],
        std=[1.0, 1.0, 1.0],
        resize={"height": 64, "width": 96, "mode": "fit_pad"},
        max_per_img=3,
        nms={"method": "soft", "iou_threshold": 0.8},
        precision="fp32",
        batch=2,
        tensorrt_version="10.6.0",
        plugin_version="1",
        gpu="none",
        torch_version="2.11.0",
        source_weights="random",
    )


def run_engine(*arguments: object) -> subprocess.CompletedProcess:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-c", ENGINE_SCRIPT, "detect", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


def test_engine_without_torch(engine, photos, tmp_path):
    done = run_engine(photos, photos / "deep", "--engine", engine, "--out", tmp_path / "out", "--batch", 3)
    assert done.returncode == 0, done.stderr
    document = load(tmp_path / "out")
    assert document["categories"] == [{"id": 0, "name": "cat"}, {"id": 1, "name": "dog"}]
    found = [(row["category_name"], row["score"]) for row in document["annotations"]]
    assert found == [("dog", 0.8)] * 3
    sizes = [[image["width"], image["height"]] for image in document["images"]]
    assert [row["bbox"][2:] for row in document["annotations"]] == sizes


def test_metadata_of_another_engine(engine, photos, tmp_path):
    """Found before anything is detected, whether the tensors' names differ or their shapes."""
    path = engine.with_suffix(".json")
    for old, new, message in (
        ("96", "128", "images is [2, 3, 64, 128] in it and [2, 3, 64, 96] in the engine"),
        ('"name": "labels"', '"name": "classes"', "classes is [2, 3] in it and missing in the engine"),
    ):
        text = path.read_text()
        path.write_text(text.replace(old, new))
        done = run_engine(photos, "--engine", engine, "--out", tmp_path / "out")
        path.write_text(text)
        assert (done.returncode, done.stdout) == (1, "closed\n")
        assert done.stderr.startswith(
            f"codetr: error: the metadata {path} is that of another engine: {message}"
        )
        assert done.stderr.count("\n") == 1 and not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--weights", "w.pth"], "--weights: is fixed in the engine"),
        (["--precision", "fp16"], "--precision: is fixed in the engine"),
        (["--max-size", "600"], "--max-size: is fixed in the engine"),
        (["--device", "cpu"], "--device cpu: an engine runs on a GPU"),
    ],
)
def test_engine_contradictions(engine, photos, tmp_path, capsys, arguments, message):
    command = ["detect", str(photos), "--engine", str(engine), "--out", str(tmp_path / "out"), *arguments]
    assert main(command) == 2
    assert message in error_line(capsys)


def test_engine_files(engine, photos, tmp_path, capsys):
    command = ["detect", str(photos), "--backend", "tensorrt", "--out", str(tmp_path / "out"), "--engine"]
    assert main([*command, str(tmp_path / "absent.engine")]) == 2
    assert "absent.engine: no such file" in error_line(capsys)
    engine.with_suffix(".json").unlink()
    assert main([*command, str(engine)]) == 2
    assert "its metadata model.json is not beside it" in error_line(capsys)


# The user's API


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
        ({"backend": "onnx"}, "backend: expected torch or tensorrt, got 'onnx'"),
        ({"backend": "tensorrt"}, "engine: expected"),
        ({"backend": "tensorrt", "engine": "e", "model": "m"}, "model: is fixed in the engine e"),
        (
            {"model": "m", "precision": "int8"},
            "precision: expected one of fp32, tf32, fp16, bf16, got 'int8'",
        ),
    ],
)
def test_detector_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        Detector(**arguments)


@pytest.mark.parametrize("allowed", [False, True])
def test_tf32_is_set_while_the_model_runs(allowed):
    torch = pytest.importorskip("torch")
    switches = torch.backends.cuda.matmul, torch.backends.cudnn
    before = [switch.allow_tf32 for switch in switches]
    with pytest.raises(RuntimeError), codetr.detect._tf32(torch, allowed):
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


# Drawing


def draw(image: np.ndarray, box: list[float], name: str = "cup", score: float = 0.5) -> np.ndarray:
    return draw_detections(image, np.array([box]), np.array([score]), np.array([0]), [name])


def test_box_is_drawn_at_its_edge():
    image = np.full((200, 300, 3), 200, dtype=np.uint8)
    drawn = draw(image, [100, 80, 220, 160])
    assert not np.shares_memory(drawn, image) and (image == 200).all()
    color = np.array(color_of(0))
    for y, x in ((120, 100), (120, 219), (159, 150), (80, 219)):
        assert (drawn[y, x] == color).all(), (y, x)
    line = sizes_for(200, 300)[0]
    assert (drawn[80 + line : 160 - line, 100 + line : 220 - line] == 200).all()
    assert (drawn[:, :90] == 200).all() and (drawn[170:] == 200).all()


@pytest.mark.parametrize("box", [[280, 0, 300, 30], [280, 180, 300, 200], [0, 0, 300, 200], [299, 0, 300, 1]])
def test_label_stays_inside(box):
    """The whole width of a long label is there, though its box is at the border."""
    image = np.zeros((200, 300, 3), dtype=np.uint8)
    drawn = draw(image, box, "a rather long class name")
    color = np.array(color_of(0))
    filled = (drawn == color).all(axis=-1)
    wide_rows = filled.sum(axis=1).max()
    free = draw(
        np.zeros((400, 600, 3), dtype=np.uint8)[:200, :300], [50, 80, 60, 90], "a rather long class name"
    )
    assert wide_rows >= (free == color).all(axis=-1).sum(axis=1).max() > 100


def test_labels_avoid_each_other():
    image = np.zeros((200, 300, 3), dtype=np.uint8)
    boxes = np.array([[100.0, 80, 200, 160], [101.0, 81, 200, 160]])
    both = draw_detections(image, boxes, np.array([0.9, 0.8]), np.array([0, 1]), ["cup", "spoon"])
    for label, name in enumerate(["cup", "spoon"]):
        alone = draw_detections(image, boxes[:1], np.array([0.9]), np.array([label]), ["cup", "spoon"])
        area = [(picture == color_of(label)).all(axis=-1).sum() for picture in (both, alone)]
        assert area[0] > 0.6 * area[1], name


@pytest.mark.parametrize("size", [(1, 1), (3, 200), (8, 8), (20, 40), (64, 64), (3000, 4000)])
def test_any_picture_size(size):
    image = np.zeros((*size, 3), dtype=np.uint8)
    boxes = [0.2 * size[1], 0.2 * size[0], 0.9 * size[1], 0.9 * size[0]]
    drawn = draw(image, boxes, "a rather long class name")
    assert drawn.shape == image.shape and drawn.any()


def test_sizes_grow_with_the_picture():
    assert sizes_for(64, 64) == (1, 9)
    lines, fonts = zip(*(sizes_for(side, side) for side in (64, 450, 900, 1800, 4000)), strict=True)
    assert list(lines) == sorted(set(lines)) and list(fonts) == sorted(set(fonts))


def test_odd_boxes_do_not_break_drawing():
    image = np.zeros((50, 50, 3), dtype=np.uint8)
    boxes = np.array([[-10, -10, 500, 500], [np.nan, 0, 10, 10], [30, 30, 20, 20], [50, 50, 50, 50]])
    assert draw_detections(image, boxes, np.ones(4), np.zeros(4), ["x"]).shape == image.shape
    assert not draw_detections(image, np.zeros((0, 4)), np.zeros(0), np.zeros(0), []).any()


def test_colors_differ():
    colors = np.array([color_of(label) for label in range(80)])
    distance = np.abs(colors[:, None] - colors[None]).sum(axis=-1) + np.eye(80) * 1000
    assert distance.min() >= 20


# The real thing, with the weights that come along


def test_default_model_finds_what_is_in_a_held_out_scene(tmp_path, capsys):
    assert main(["detect", str(ROOT / "assets/scene.jpg"), "--out", str(tmp_path), "--device", "cpu"]) == 0
    assert "co_dino_demo" in capsys.readouterr().out
    document = load(tmp_path)
    names = {category["id"]: category["name"] for category in document["categories"]}
    found = sorted(names[row["category_id"]] for row in document["annotations"] if row["score"] > 0.8)
    assert found == [
        *("digit 2", "digit 2", "digit 8", "letter E", "letter R", "letter R", "no entry sign"),
        *("no entry sign", "screwdriver", "warning sign", "warning sign", "wrench"),
    ]
    scene, drawn = load_image(ROOT / "assets/scene.jpg"), load_image(tmp_path / "scene.jpg")
    assert scene.shape == drawn.shape and np.abs(scene.astype(int) - drawn).max() > 100


def test_weights_need_their_model(tmp_path, capsys):
    assert main(["detect", "x.jpg", "--weights", "co_dino_r50", "--out", str(tmp_path / "out")]) == 2
    assert "--weights: goes with --model" in error_line(capsys)


def test_module_runs(tmp_path):
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "codetr",
            "detect",
            str(tmp_path / "absent.jpg"),
            "--engine",
            "x",
            "--out",
            "o",
        ],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and done.stderr.startswith("codetr: error: ")
    assert done.stdout == ""
