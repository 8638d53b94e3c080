"""`codetr_detect`: detections, document, table and annotated pictures equal those of Python. Needs no GPU."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from PIL import Image

from codetr.coco_classes import COCO_CLASSES
from codetr.detector.preprocess import load_image
from tests.cpp.detect_program import Network, crowd, needs_program, options_of, read_document, run

pytestmark = needs_program


@given(
    st.integers(0, 40),
    st.just((70, 80)) | st.tuples(st.integers(1, 90), st.integers(1, 90)),
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
    """Compares the whole document. Method None is a network with the suppression inside."""
    boxes, scores, labels = crowd(count, np.random.default_rng(seed))
    nms = None if method is None else {"method": "soft", "iou_threshold": 0.8, "decay": decay, "sigma": 0.5}
    network = Network(70, 80, (boxes[None], scores[None], labels[None]), nms=nms)
    image = np.zeros((*size, 3), np.uint8)
    options = {"threshold": threshold, "top": top}
    if method is not None:
        options |= {"nms": method, "nms_iou": iou}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        Image.fromarray(image).save(folder / "a.png")
        written = ["--json", folder / "out.json"]
        run(*network.save(folder), *options_of(options), *written, folder / "a.png")
        document, info = read_document(folder / "out.json")
    expected = network.expected(["a.png"], [image], **options)
    if decay == "gaussian" and method == "soft":  # the last bit of exp differs between NumPy and C
        for row, other in zip(document["annotations"], expected["annotations"], strict=True):
            assert row.pop("score") == pytest.approx(other.pop("score"), abs=1e-6)
    assert document == expected
    assert info["threshold"] == threshold and info["top"] == top


def cups() -> Network:
    """Makes a network that finds two cups and a spoon in every picture."""
    boxes = np.tile(np.float32([[4, 4, 30, 40], [5, 4, 31, 40], [20, 10, 45, 28]]), (3, 1, 1))
    scores = np.tile(np.float32([0.9, 0.6, 0.4]), (3, 1))
    labels = np.tile([COCO_CLASSES.index("cup")] * 2 + [COCO_CLASSES.index("spoon")], (3, 1))
    return Network(48, 64, (boxes, scores, labels), COCO_CLASSES, {"method": "none", "iou_threshold": 0.8})


@pytest.fixture
def photos(tmp_path) -> list[Path]:
    rng = np.random.default_rng(0)
    files = [tmp_path / "in" / name for name in ("a.jpg", "deep/a.png", "deep/grüß.webp")]
    for index, file in enumerate(files):
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (96 + index, 128, 3), dtype=np.uint8)).save(file)
    return files


def test_many_pictures(photos, tmp_path):
    """Gives a file twice, and a folder with a file that is no picture."""
    (photos[1].parent / "notes.txt").write_text("no picture")
    network, out = cups(), tmp_path / "new/out"
    done = run(*network.save(tmp_path / "net"), "--out", out, photos[0], photos[1].parent, photos[0])
    assert done.stderr == ""
    assert {file.name for file in out.iterdir()} == {"a.jpg", "a_2.jpg", "grüß.jpg", "detections.json"}
    document, info = read_document(out / "detections.json")
    names = ["a.jpg", "deep/a.png", "deep/grüß.webp"]
    assert document == network.expected(names, [load_image(file) for file in photos])
    assert {row["category_id"] for row in document["annotations"]} == {47, 50}
    assert info["network"] == network.description
    assert done.stdout.splitlines()[:3] == [
        f"{name}, 128x{96 + i}: 3 detections" for i, name in enumerate(names)
    ]
    assert done.stdout.endswith(f"wrote {out}\nwrote {out / 'detections.json'}\n")


def test_table_of_a_single_picture(photos, tmp_path):
    done = run(*cups().save(tmp_path / "net"), photos[0])
    heading, _, row, *_ = done.stdout.splitlines()
    assert heading == "a.jpg, 128x96: 3 detections"
    assert row.split() == ["cup", "0.900", "8.0", "8.0", "52.0", "72.0"]


def test_numbers_as_names_become_ids(photos, tmp_path):
    files = [photos[0].rename(tmp_path / "000000000139.jpg"), photos[1].rename(tmp_path / "7.png")]
    run(*cups().save(tmp_path / "net"), "--json", tmp_path / "out.json", *files)
    document, _ = read_document(tmp_path / "out.json")
    assert [image["id"] for image in document["images"]] == [139, 7]


def test_annotated_picture(tmp_path):
    """Frames are drawn around boxes, even a point, with a filled label above; the inside stays."""
    boxes = np.float32([[[100, 60, 300, 260], [399, 399, 399, 399]]])
    network = Network(400, 400, (boxes, np.float32([[0.9, 0.8]]), np.array([[1, 2]])))
    Image.new("RGB", (400, 400), (200, 200, 200)).save(tmp_path / "a.png")
    run(*network.save(tmp_path), "--out", tmp_path / "out", tmp_path / "a.png")
    changed = np.abs(load_image(tmp_path / "out/a.jpg").astype(int) - 200).max(axis=-1) > 30
    assert changed[60:260, [100, 300]].all() and changed[[60, 260], 100:300].all()
    assert changed[45:58, 102:140].mean() > 0.9
    assert not changed[70:250, 110:290].any() and not changed[275:380].any() and not changed[:, :90].any()
