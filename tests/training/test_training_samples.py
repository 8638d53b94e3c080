"""The samples of training and their order."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
import torch
from PIL import Image

import codetr
from codetr.dataset.coco_files import DatasetError, load_coco
from codetr.detector.preprocess import Preprocessor
from codetr.training.augment import Augmentation, augment, crop_boxes, draw_window
from codetr.training.training_batches import (
    BatchOrder,
    Request,
    TrainingSet,
    collate,
)
from codetr.training.training_network import normalise
from tests.evaluation.coco_folders import write_dataset
from tests.training.training_runs import write_boxes

STILL = Augmentation(flip=0.0, crop=0.0, colour=0.0)


def plain(data, scale: tuple[int, int], count: int) -> list:
    """Returns the first samples of a dataset without augmentation."""
    samples = TrainingSet(data, STILL)
    return [samples[Request(index, (0, index), scale)] for index in range(count)]


def test_training_sees_what_detection_sees(dataset):
    """Training reads, resizes, normalises and pads as `codetr.detector.preprocess` does, bit for bit."""
    scale = (150, 90)
    batch = collate(plain(dataset, scale, 6))
    config = codetr.load_config("co_dino_r50")
    images = normalise(batch.pixels, batch.image_shapes, torch.tensor(config.mean), torch.tensor(config.std))
    pictures = [np.array(Image.open(picture.path)) for picture in dataset.pictures[:6]]
    expected = Preprocessor(config.mean, config.std, scale=scale, pad_divisor=32).batch(pictures)
    assert np.array_equal(batch.image_shapes.numpy(), expected.image_shapes)
    assert np.array_equal(images.numpy(), expected.images)


@pytest.mark.parametrize(
    "augmentation", [STILL, Augmentation(1.0, 0.0, colour=0.0), Augmentation(0.5, 1.0, 0.5, 0.0)]
)
def test_boxes_follow_their_pixels(augmentation):
    """A bright rectangle and its box agree to a pixel or two after any augmentation."""
    for seed in range(30):
        draws = np.random.default_rng(seed)
        x, y, w, h = 10 + draws.integers(60), 10 + draws.integers(40), 40, 30
        pixels = np.zeros((100, 140, 3), np.uint8)
        pixels[y : y + h, x : x + w] = 255
        box = np.array([[x, y, x + w, y + h]], np.float32)
        found, boxes, labels = augment(pixels, box, np.array([3]), (150, 210), augmentation, draws)
        assert found.dtype == np.uint8 and boxes.dtype == np.float32 and boxes.shape == (len(labels), 4)
        assert found.shape[0] == 150 or found.shape[1] == 210
        if not len(labels):
            continue
        rows, columns = np.nonzero(found[..., 0] > 127)
        cx, cy, bw, bh = boxes[0] * np.tile((found.shape[1], found.shape[0]), 2)
        drawn = [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]
        corners = [cx - bw / 2, cy - bh / 2, cx + bw / 2, cy + bh / 2]
        assert np.abs(np.subtract(drawn, corners)).max() < 1.5, (seed, drawn, corners)
        assert labels.tolist() == [3]


def test_crops_drop_mostly_hidden_objects():
    boxes = np.array([[0, 0, 10, 10], [0, 0, 20, 10], [16, 0, 26, 10], [40, 40, 50, 50]], np.float32)
    clipped, kept = crop_boxes(boxes, (4, 0, 20, 20))
    assert kept.tolist() == [True, True, True, False]  # shares 0.6, 0.8, 0.8, 0
    assert clipped[kept].tolist() == [[0, 0, 6, 10], [0, 0, 16, 10], [12, 0, 20, 10]]
    _, kept = crop_boxes(boxes, (7, 0, 20, 20))
    assert not kept[0]  # 0.3
    draws = np.random.default_rng(0)
    windows = np.array([draw_window(60, 80, 0.5, draws) for _ in range(500)])
    assert windows.min(axis=0).tolist()[:2] == [0, 0] and (windows[:, 2] >= 40).all()
    assert (windows[:, 0] + windows[:, 2] <= 80).all() and (windows[:, 1] + windows[:, 3] <= 60).all()


def test_crowds_and_empty_pictures(tmp_path):
    """A crowd is no target. A picture without objects is a sample."""
    data = load_coco(write_dataset(tmp_path), "val")
    samples = plain(data, (64, 64), 3)
    assert [len(sample.labels) for sample in samples] == [2, 0, 0]
    batch = collate(samples)
    assert batch.counts == [2, 0, 0]
    assert batch.boxes_cxcywh[0].tolist() == pytest.approx([20 / 64, 23.5 / 48, 20 / 64, 30 / 48])


# The order.


def test_an_epoch_holds_every_picture(dataset):
    order = BatchOrder(dataset.pictures, 4, [(96, 64)], seed=1)
    epochs = []
    for epoch in range(2):
        steps = range(epoch * order.batches_per_epoch, (epoch + 1) * order.batches_per_epoch)
        batches = [[request.index for request in order.requests(step)] for step in steps]
        for batch in batches:
            wide = {dataset.pictures[i].width >= dataset.pictures[i].height for i in batch}
            assert len(batch) == 4 and len(wide) == 1
        epochs.append(batches)
        assert {index for batch in batches for index in batch} == set(range(20))
    assert order.batches_per_epoch == 6  # 13 wide, 7 upright
    assert epochs[0] != epochs[1]
    draws = {request.draw for step in range(12) for request in order.requests(step)}
    assert len(draws) == 48  # no two samples are augmented alike


@pytest.mark.parametrize("world", [1, 2, 4])
def test_processes_share_the_same_batches(dataset, world):
    """Several processes see at each step the batch of one process."""
    order = BatchOrder(dataset.pictures, 4, [(96, 64), (120, 80)], seed=1)
    samplers = [order.steps(3, rank, world) for rank in range(world)]
    for step in range(3, 12):
        assert [request for sampler in samplers for request in next(sampler)] == order.requests(step)


def test_a_bad_picture_is_replaced(tmp_path):
    """By another picture of its kind, the same whether it was known to be bad or not. Others stay."""
    write_boxes(tmp_path, "train", 20, 0)
    data = load_coco(tmp_path, "train")
    order = BatchOrder(data.pictures, 4, [(96, 64)], seed=3)
    requests = [request for step in range(12) for request in order.requests(step)]
    whole = [TrainingSet(data, STILL)[request] for request in requests]
    bad = (4, 7, 15)  # wide, wide, upright
    for index in bad:
        data.pictures[index].path.write_bytes(data.pictures[index].path.read_bytes()[:200])
    sets = [TrainingSet(data, STILL, known) for known in ((), (4,), bad)]
    shapes = set()
    for request, before in zip(requests, whole):
        found, again, known = (samples[request] for samples in sets)
        assert np.array_equal(found.pixels, again.pixels) and np.array_equal(found.pixels, known.pixels)
        assert before.pixels.shape == found.pixels.shape
        assert np.array_equal(before.pixels, found.pixels) == (request.index not in bad)
        assert known.unreadable == ()
        named = {index for index, _ in found.unreadable}
        assert (request.index in named) == (request.index in bad) and named <= set(bad)
        shapes |= {before.pixels.shape[:2]} if named else set()
    assert shapes == {(64, 96), (96, 64)}


def test_a_failed_disk_is_an_error(tmp_path):
    """Not all pictures are tried as replacements."""
    write_boxes(tmp_path, "train", 40, 0)
    data = load_coco(tmp_path, "train")
    order = BatchOrder(data.pictures, 4, [(96, 64)], seed=3)
    shutil.rmtree(tmp_path / "train")
    error = collate([TrainingSet(data, STILL)[request] for request in order.requests(0)])
    assert isinstance(error, DatasetError)
    assert str(error).endswith(".png: no such file; 20 replacements cannot be read either")
