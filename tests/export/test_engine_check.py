"""The agreement with PyTorch that an export requires of an engine's detections."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from codetr.detector.preprocess import Batch, Preprocessor
from codetr.export.engine_check import EngineCheck, compare_with_torch
from codetr.export.request import ExportRequest
from tests.export.requests import make_request

COUNT = 40


def detections(right: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Makes detections of which the first `right` are in place and the others are moved."""
    corner = np.arange(COUNT)[None, :, None] * 100.0
    corner = np.where(np.arange(COUNT)[None, :, None] < right, corner, corner + 50.0)
    boxes = np.concatenate((corner, corner, corner + 40.0, corner + 40.0), axis=-1).astype(np.float32)
    return boxes, np.linspace(0.9, 0.1, COUNT, dtype=np.float32)[None], np.zeros((1, COUNT), np.int64)


@pytest.fixture(scope="module")
def batch() -> Batch:
    preprocessor = Preprocessor((0.0,) * 3, (1.0,) * 3, height=32, width=32)
    return preprocessor.batch([np.zeros((32, 32, 3), np.uint8)])


def run(found: int, own: int, batch: Batch, request: ExportRequest) -> None:
    expected = {"fp32": detections(COUNT), request.precision: detections(own)}
    outputs = dict(zip(("boxes", "scores", "labels"), detections(found), strict=True))
    compare_with_torch([EngineCheck(batch, expected)], request, "engine", lambda inputs: outputs)


@pytest.mark.parametrize(
    ("precision", "own", "found", "message"),
    [
        ("fp32", 40, 40, None),
        (
            "fp32",
            40,
            39,
            "the engine's detections are not PyTorch's: expected 40 or more of 40 equal, got 39",
        ),
        ("fp16", 40, 20, None),
        ("fp16", 40, 19, "expected 20 or more of 40 matched with fp32's, where PyTorch fp16 has 40, got 19"),
        ("bf16", 19, 10, None),
        ("bf16", 19, 9, "expected 10 or more of 40 matched with fp32's, where PyTorch bf16 has 19, got 9"),
        ("tf32", 36, 18, None),
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


def test_without_a_gpu_there_is_nothing_to_compare_with(batch):
    outputs = dict(zip(("boxes", "scores", "labels"), detections(0), strict=True))
    compare_with_torch(
        [EngineCheck(batch, {})], make_request(precision="fp16"), "engine", lambda inputs: outputs
    )
