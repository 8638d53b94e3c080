"""The agreement of detections, and how much of it an export requires of an engine."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from codetr.detector.preprocess import Batch, Preprocessor
from codetr.export.box_agreement import compare_detections
from codetr.export.engine_check import EngineCheck, compare_with_torch
from codetr.export.request import OUTPUT_NAMES, ExportRequest
from tests.export.requests import make_request

COUNT = 40
BOX = (10, 10, 50, 50, 0.9, 3)


def rows(*found: tuple[float, ...]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows (x1, y1, x2, y2, score, label) -> boxes, scores, labels of one image."""
    table = np.array(found, dtype=np.float32).reshape(1, -1, 6)
    return table[..., :4], table[..., 4], table[..., 5].astype(np.int64)


def detections(right: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Makes detections of which the first `right` are in place and the others are moved."""
    corners = [i * 100.0 + (0 if i < right else 50.0) for i in range(COUNT)]
    return rows(*((x, x, x + 40, x + 40, 0.9 - i / 50, 0) for i, x in enumerate(corners)))


@pytest.mark.parametrize(
    ("expected", "found", "matched", "equal"),
    [
        ([BOX], [(10.03, 10, 50, 50, 0.9, 3)], 1, 1),
        ([BOX], [(10.2, 10, 50, 50, 0.9, 3)], 1, 0),
        ([BOX], [(10, 10, 50, 50, 0.91, 3)], 1, 0),
        ([BOX], [(10, 10, 50, 50, 0.9, 4)], 0, 0),
        ([BOX], [(30, 30, 70, 70, 0.9, 3)], 0, 0),
        ([BOX], [(float("nan"), 10, 50, 50, 0.9, 3)], 0, 0),
        # By content, one to one, and without padding.
        ([BOX, (60, 60, 90, 99, 0.9, 3)], [(60, 60, 90, 99, 0.9, 3), BOX], 2, 2),
        ([BOX, BOX], [BOX, (0, 0, 5, 5, 0.9, 3)], 1, 1),
        ([BOX, (0, 0, 0, 0, 0, -1)], [BOX, (0, 0, 0, 0, 0, -1)], 1, 1),
    ],
)
def test_matched_and_equal_detections(expected, found, matched, equal):
    comparison = compare_detections(rows(*expected), rows(*found))
    assert comparison.expected == sum(row[5] >= 0 for row in expected)
    assert (comparison.matched, comparison.equal) == (matched, equal)
    assert comparison.equal_share == equal / comparison.expected


def test_superfluous_detections_count():
    found = compare_detections(detections(COUNT), [np.concatenate([x, x], 1) for x in detections(COUNT)])
    assert (found.expected, found.found, found.matched) == (COUNT, 2 * COUNT, COUNT)
    assert found.equal_share == found.matched_share == 0.5
    assert "with all low scores 40 of 40, 80 found" in str(found)


@pytest.fixture(scope="module")
def batch() -> Batch:
    preprocessor = Preprocessor((0.0,) * 3, (1.0,) * 3, height=32, width=32)
    return preprocessor.batch([np.zeros((32, 32, 3), np.uint8)])


def run(found: int, own: int, batch: Batch, request: ExportRequest, **more: np.ndarray) -> None:
    expected = {"fp32": detections(COUNT), request.precision: detections(own)}
    outputs = dict(zip(OUTPUT_NAMES, detections(found), strict=True)) | more
    compare_with_torch([EngineCheck(batch, expected)], request, "engine", lambda inputs: outputs)


@pytest.mark.parametrize(
    ("precision", "own", "found", "message"),
    [
        ("fp32", 40, 40, None),
        (
            "fp32",
            40,
            39,
            "engine's detections are not PyTorch's: expected 40 or more of 40 equal, got 39",
        ),
        ("fp16", 40, 20, None),
        ("fp16", 40, 19, "expected 20 or more of 40 matched with fp32's, where PyTorch fp16 has 40, got 19"),
        ("bf16", 19, 10, None),
        ("bf16", 19, 9, "expected 10 or more of 40 matched with fp32's, where PyTorch bf16 has 19, got 9"),
        ("tf32", 36, 17, "expected 18 or more of 40 matched with fp32's, where PyTorch tf32 has 36, got 17"),
    ],
)
def test_agreement_that_an_engine_needs(batch, capsys, precision, own, found, message):
    request = make_request(precision=precision)
    if message is None:
        run(found, own, batch, request)
        assert capsys.readouterr().err == ""
        return
    with pytest.raises(RuntimeError) as caught:
        run(found, own, batch, request)
    assert message in str(caught.value) and "--keep-unequal" in str(caught.value)
    run(found, own, batch, replace(request, keep_unequal=True))
    assert message in capsys.readouterr().err


def test_number_of_final_detections_must_be_that_of_the_labels(batch):
    request = make_request(nms=[], nms_iou=0.5)
    run(COUNT, COUNT, batch, request, num_detections=np.array([COUNT]))
    with pytest.raises(RuntimeError, match=r"num_detections: expected .* \[40\], got \[39\]"):
        run(COUNT, COUNT, batch, request, num_detections=np.array([39]))


def test_without_a_gpu_there_is_nothing_to_compare_with(batch):
    outputs = dict(zip(OUTPUT_NAMES, detections(0), strict=True))
    compare_with_torch([EngineCheck(batch, {})], make_request(), "engine", lambda inputs: outputs)
