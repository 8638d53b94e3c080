"""Boxes and labels drawn into pictures."""

from __future__ import annotations

import numpy as np
import pytest

from codetr.draw import _shared_pixels, color_of, draw_detections, sizes_for


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

    def widest(box: list[float]) -> int:
        drawn = draw(np.zeros((200, 300, 3), dtype=np.uint8), box, "a rather long class name")
        return (drawn == color_of(0)).all(axis=-1).sum(axis=1).max()

    assert widest(box) >= widest([50, 80, 60, 90]) > 100


def test_labels_avoid_each_other():
    image = np.zeros((200, 300, 3), dtype=np.uint8)
    boxes = np.array([[100.0, 80, 200, 160], [101.0, 81, 200, 160]])
    both = draw_detections(image, boxes, np.array([0.9, 0.8]), np.array([0, 1]), ["cup", "spoon"])
    for label, name in enumerate(["cup", "spoon"]):
        alone = draw_detections(image, boxes[:1], np.array([0.9]), np.array([label]), ["cup", "spoon"])
        area = [(picture == color_of(label)).all(axis=-1).sum() for picture in (both, alone)]
        assert area[0] > 0.6 * area[1], name


@pytest.mark.parametrize("size", [(1, 1), (3, 200), (20, 40), (3000, 4000)])
def test_any_picture_and_odd_boxes(size):
    image = np.zeros((*size, 3), dtype=np.uint8)
    height, width = size
    drawn = draw(image, [0.2 * width, 0.2 * height, 0.9 * width, 0.9 * height], "a rather long class name")
    assert drawn.shape == image.shape and drawn.any()
    boxes = np.array([[-10, -10, 9e3, 9e3], [np.nan, 0, 1, 1], [30, 30, 20, 20], [*size[::-1], *size[::-1]]])
    assert draw_detections(image, boxes, np.ones(4), np.zeros(4), ["x"]).shape == image.shape
    assert not draw_detections(image, np.zeros((0, 4)), np.zeros(0), np.zeros(0), []).any()


def test_shared_pixels():
    """The overlap of rectangles, which places labels, against pixels that are counted."""
    starts = np.random.default_rng(0).integers(0, 12, (40, 2))
    rectangles = np.hstack((starts, starts + np.random.default_rng(1).integers(1, 9, (40, 2))))
    y, x = np.mgrid[:24, :24]
    left, top, right, bottom = rectangles.T[..., None, None]
    masks = ((x >= left) & (x < right) & (y >= top) & (y < bottom)).reshape(40, -1).astype(int)
    assert (_shared_pixels(rectangles, rectangles) == masks @ masks.T).all()
    assert _shared_pixels(rectangles, rectangles[:0]).shape == (40, 0)
