"""Non-maximum suppression in the graph, in PyTorch and in onnxruntime, against the reference in NumPy."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from codetr.detector.postprocess import apply_nms_to_batch
from codetr.export.graph_nms import BLOCK, HardNms

Arrays = tuple[np.ndarray, ...]


@dataclasses.dataclass(frozen=True)
class Crowd:
    """Drawn detections.

    Attributes:
        images, count: N and K.
        grid: number of places on a grid for corners and sizes, which makes equal overlaps, equal boxes, and
            boxes that are empty or inside out; 0: any numbers.
        classes, levels: number of labels and of scores.
        bad: some coordinates are non-finite.
    """

    images: int
    count: int
    grid: int
    classes: int
    levels: int
    bad: bool
    seed: int

    def draw(self) -> Arrays:
        """Returns boxes [N, K, 4], scores [N, K], labels [N, K]."""
        random = np.random.default_rng(self.seed)
        size = (self.images, self.count)
        if self.grid:
            corners = random.integers(0, self.grid, (*size, 2))
            sizes = random.integers(-1, self.grid + 1, (*size, 2))
        else:
            corners, sizes = random.normal(0, 1, (*size, 2)), random.normal(3, 2, (*size, 2))
        boxes = np.concatenate([corners, corners + sizes], axis=-1).astype(np.float32)
        if self.bad:
            where = random.random(boxes.shape) < 0.05
            boxes[where] = random.choice(np.float32([np.nan, np.inf, -np.inf, 1e30]), where.sum())
        scores = -np.sort(-random.integers(0, self.levels, size).astype(np.float32) / self.levels, axis=1)
        return boxes, np.abs(scores), random.integers(0, self.classes, size)


CROWDS = st.builds(
    Crowd,
    images=st.integers(1, 3),
    count=st.integers(1, 5 * BLOCK),
    grid=st.sampled_from([0, 2, 5, 11]),
    classes=st.integers(1, 4),
    levels=st.sampled_from([1, 3, 1000]),
    bad=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
THRESHOLDS = st.sampled_from([0.0, 0.1, 0.2, 1 / 3, 0.5, 2 / 3, 0.7, 0.8, 0.9, 1.0]) | st.floats(0, 1)


def assert_greedy(found: Arrays, detections: Arrays, iou_threshold: float) -> None:
    """Requires final detections to be the reference's, bit for bit."""
    expected = apply_nms_to_batch(*detections, method="hard", iou_threshold=iou_threshold)
    for got, wanted in zip(found, expected):
        assert got.dtype == wanted.dtype
        np.testing.assert_array_equal(got, wanted)
    assert found[3].tolist() == (expected[2] >= 0).sum(axis=1).tolist()


def run_module(detections: Arrays, iou_threshold: float, device: str = "cpu") -> Arrays:
    tensors = (torch.from_numpy(array).to(device) for array in detections)
    return tuple(output.cpu().numpy() for output in HardNms(iou_threshold).to(device)(*tensors))


@given(CROWDS, THRESHOLDS)
@example(Crowd(2, 300, 11, 2, 1000, False, 0), 0.5)
@example(Crowd(1, 300, 0, 1, 1000, True, 1), 0.2)
def test_equals_the_reference(crowd, iou_threshold):
    detections = crowd.draw()
    assert_greedy(run_module(detections, iou_threshold), detections, iou_threshold)


def chain(count: int, step: float) -> Arrays:
    """Returns boxes in a row that overlap their neighbours. Each result depends on all boxes before it."""
    x = np.arange(count, dtype=np.float32) * np.float32(step)
    boxes = np.stack([x, 0 * x, x + 10, 0 * x + 10], axis=-1)[None]
    return boxes, np.linspace(1, 0.1, count, dtype=np.float32)[None], np.zeros((1, count), np.int64)


@pytest.mark.parametrize("step", [0.0, 2.0, 2.5, 5.0, 9.9])
@pytest.mark.parametrize("count", [1, BLOCK - 1, BLOCK, BLOCK + 1, 300])
def test_the_longest_chains(count, step):
    for iou_threshold in (0.0, 0.3, 0.5, 0.6):
        detections = chain(count, step)
        assert_greedy(run_module(detections, iou_threshold), detections, iou_threshold)
    if step == 2.0:  # neighbours have IoU 2 / 3, the next but one 3 / 7
        assert run_module(chain(count, step), 0.5)[3].tolist() == [(count + 1) // 2]


@pytest.fixture(scope="module", params=["fp32", "fp16"])
def nms_graph(request) -> Callable[[Arrays], Arrays]:
    """The module in onnxruntime, 3 images of 23 boxes, IoU 0.3; also as `onnx_path.build` converts it."""
    pytest.importorskip("onnxscript", reason="onnxscript is not installed")
    ort = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    from onnx_path.precision import convert_precision

    sizes = torch.zeros(3, 23, 4), torch.zeros(3, 23), torch.zeros(3, 23, dtype=torch.int64)
    program = torch.export.export(HardNms(0.3).eval(), sizes, strict=True)
    model = torch.onnx.export(program, dynamo=True, opset_version=20, verbose=False).model_proto
    operators = {node.op_type for node in model.graph.node}
    assert not {"NonMaxSuppression", "NonZero", "Loop", "Scan", "If", "ScatterND", "CumSum"} & operators
    assert request.param == "fp32" or convert_precision(model, request.param).converted > 0
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [tensor.name for tensor in session.get_inputs()]
    return lambda arrays: session.run(None, dict(zip(names, arrays, strict=True)))


@given(CROWDS)
def test_onnxruntime_equals_the_reference(nms_graph, crowd):
    detections = dataclasses.replace(crowd, images=3, count=23, bad=False).draw()
    assert_greedy(nms_graph(detections), detections, 0.3)


@pytest.mark.gpu
@given(CROWDS, THRESHOLDS)
@example(Crowd(2, 300, 11, 2, 1000, False, 0), 0.5)
def test_equals_the_reference_on_a_gpu(crowd, iou_threshold):
    detections = crowd.draw()
    assert_greedy(run_module(detections, iou_threshold, "cuda"), detections, iou_threshold)
