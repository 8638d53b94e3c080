"""Training in its parts: samples, their order, schedule, average, log, state, weights, steps."""

from __future__ import annotations

import csv
import itertools
import re
import shutil

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

import codetr
from codetr.checkpoint import UPSTREAM_LABEL_EMBEDDING
from codetr.cli.command import UsageError
from codetr.dataset.coco_files import DatasetError, load_coco
from codetr.detector.preprocess import Preprocessor
from codetr.training import loader as training_loader
from codetr.training.augment import Augmentation, augment, change_colours, crop_boxes, draw_window
from codetr.training.data import (
    PAD_DIVISOR,
    BatchOrder,
    HostBatch,
    PlainSet,
    StepSampler,
    TrainingSet,
    collate,
)
from codetr.training.ema import MovingAverage
from codetr.training.loader import Loader
from codetr.training.log import Table, read_table, sum_layers
from codetr.training.network import normalise, parameter_groups, targets_of
from codetr.training.schedule import Schedule
from codetr.training.start import save_config, save_weights
from codetr.training.state import StateError, find_states, load_state, save_state
from tests.coco_folders import write_dataset
from tests.training_runs import tiny_network, write_boxes

pytest_plugins = ("tests.training_fixtures",)
pytestmark = pytest.mark.usefixtures("one_thread")

STILL = Augmentation(flip=0.0, crop=0.0, colour=0.0)
# Samples.


def test_validation_sees_what_detection_sees(dataset):
    """Read, resized, normalised and padded by the trainer as by `codetr.detector.preprocess`, bit for bit."""
    scale = (150, 90)
    batch = collate([PlainSet(dataset, scale)[index] for index in range(6)])
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
    """A bright rectangle is where its box says, to a pixel or two of resizing, whatever was done to it."""
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


def test_crops_drop_what_is_hardly_left():
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


def test_colours_change_gray_into_gray():
    gray = np.full((4, 4, 3), 100, np.uint8)
    changed = [change_colours(gray, 0.5, np.random.default_rng(seed)) for seed in range(20)]
    assert all(int(np.ptp(pixels.astype(int), axis=2).max()) <= 1 for pixels in changed)
    assert len({int(pixels[0, 0, 0]) for pixels in changed}) > 10
    red = np.full((2, 2, 3), (200, 20, 20), np.uint8)
    assert np.array_equal(change_colours(red, 0.0, np.random.default_rng(0)), red)


def test_a_sample_depends_on_its_place_only(dataset):
    order = BatchOrder(dataset.pictures, 4, [(96, 64), (120, 80)], seed=5)
    samples = TrainingSet(dataset, Augmentation())
    first, again = (collate([samples[request] for request in order.requests(7)]) for _ in range(2))
    other = collate([samples[request] for request in order.requests(7 + order.batches_per_epoch)])
    assert torch.equal(first.pixels, again.pixels) and torch.equal(first.boxes_cxcywh, again.boxes_cxcywh)
    assert first.pixels.shape != other.pixels.shape or not torch.equal(first.pixels, other.pixels)
    assert sum(first.counts) == len(first.labels) == len(first.boxes_cxcywh)
    assert all(side % PAD_DIVISOR == 0 for side in first.pixels.shape[1:3])


def test_crowds_and_empty_pictures(tmp_path):
    """A crowd is no target; a picture without objects is a sample all the same."""
    data = load_coco(write_dataset(tmp_path), "val")
    samples = [PlainSet(data, (64, 64))[index] for index in range(3)]
    assert [len(sample.labels) for sample in samples] == [2, 0, 0]
    targets = targets_of(collate(samples))
    assert targets.counts == (2, 0, 0)
    assert targets.boxes_cxcywh[0][0].tolist() == pytest.approx([20 / 64, 23.5 / 48, 20 / 64, 30 / 48])


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


def test_a_batch_larger_than_the_data(dataset):
    order = BatchOrder(dataset.pictures[:3], 8, [(96, 64)], seed=1)
    assert [len(order.requests(step)) for step in range(2)] == [8, 8]


@pytest.mark.parametrize("world", [1, 2, 4])
def test_processes_share_the_same_batches(dataset, world):
    """A run on several processes sees at each step what one process with their batch sees."""
    order = BatchOrder(dataset.pictures, 4, [(96, 64), (120, 80)], seed=1)
    samplers = [iter(StepSampler(order, 3, rank, world)) for rank in range(world)]
    for step in range(3, 12):
        assert [request for sampler in samplers for request in next(sampler)] == order.requests(step)


def test_workers_hand_over_the_same_by_pipe(dataset, monkeypatch):
    """Where shared memory is scarce, batches come through pipes; workers do not change what is in them."""
    order = BatchOrder(dataset.pictures, 4, [(96, 64)], seed=1)

    def batches(workers: int) -> list[HostBatch]:
        sampler = StepSampler(order)
        with Loader(
            TrainingSet(dataset, Augmentation()), workers, False, 10**5, batch_sampler=sampler
        ) as loader:
            return [next(loader) for _ in range(8)]

    expected, shared = batches(0), batches(2)
    monkeypatch.setattr(training_loader, "_free_shared_memory", lambda: 0)
    for others in (shared, batches(2)):
        for batch, wanted in zip(others, expected, strict=True):
            assert batch.counts == wanted.counts
            assert all(torch.equal(a, b) for a, b in zip(batch[:4], wanted[:4]))


def seen(data, order, steps: int, bad=()) -> list[tuple]:
    """(request, sample) of all samples of some steps."""
    samples = TrainingSet(data, STILL, bad)
    requests = [request for step in range(steps) for request in order.requests(step)]
    return [(request, samples[request]) for request in requests]


def test_a_bad_picture_is_replaced(tmp_path):
    """By one of its kind, always the same, whether it was known to be bad or not; others stay as they are."""
    write_boxes(tmp_path, "train", 20, 0)
    data = load_coco(tmp_path, "train")
    order = BatchOrder(data.pictures, 4, [(96, 64)], seed=3)
    whole = seen(data, order, 12)
    bad = (4, 7, 15)  # wide, wide, upright
    for index in bad:
        data.pictures[index].path.write_bytes(data.pictures[index].path.read_bytes()[:200])
    found, again, known = (seen(data, order, 12, known) for known in ((), (4,), bad))
    shapes = set()
    for (request, before), *samples in zip(whole, found, again, known, strict=True):
        pixels = [sample.pixels for _, sample in samples]
        assert all(np.array_equal(pixels[0], others) for others in pixels[1:])
        assert before.pixels.shape == pixels[0].shape
        assert np.array_equal(before.pixels, pixels[0]) == (request.index not in bad)
        assert before.unreadable == samples[2][1].unreadable == ()
        named = [index for index, _ in samples[0][1].unreadable]
        assert (request.index in named) == (request.index in bad) and set(named) <= set(bad)
        shapes |= {before.pixels.shape[:2]} if named else set()
    assert shapes == {(64, 96), (96, 64)}
    batch = collate([samples for _, samples in found[:8]])
    assert batch.to("cpu").unreadable == batch.unreadable and len(batch.counts) == 8


def test_a_disk_that_is_gone_is_an_error(tmp_path):
    """No picture can stand in for the one that is requested, and not all of them are tried."""
    write_boxes(tmp_path, "train", 40, 0)
    data = load_coco(tmp_path, "train")
    order = BatchOrder(data.pictures, 4, [(96, 64)], seed=3)
    shutil.rmtree(tmp_path / "train")
    error = collate([TrainingSet(data, STILL)[request] for request in order.requests(0)])
    assert isinstance(error, DatasetError)
    assert re.search(r"\d\.png: no such file; 20 others in its place cannot be read either$", str(error))


# Schedule, average, log, state.


def test_schedule():
    schedule = Schedule(steps=100, warmup=10, floor=0.1)
    factors = [schedule.factor(step, schedule.progress(step, 0.0)) for step in range(101)]
    assert factors[0] == pytest.approx(0.1, abs=1e-3) and factors[4] == pytest.approx(0.5, abs=0.01)
    assert max(factors) == factors[9] and factors[50] == pytest.approx(0.55)
    assert factors[100] == pytest.approx(0.1) and all(a > b for a, b in itertools.pairwise(factors[9:]))
    by_clock = Schedule(minutes=2.0)
    assert [by_clock.progress(7, seconds) for seconds in (0.0, 60.0, 120.0, 500.0)] == [0.0, 0.5, 1.0, 1.0]
    with pytest.raises(ValueError, match="either steps or minutes"):
        Schedule()


def test_moving_average():
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm2d(2))
    average = MovingAverage(model, decay=0.9)
    expected = {name: tensor.clone().double() for name, tensor in model.state_dict().items()}
    for step in range(30):
        with torch.no_grad():
            for tensor in model.state_dict().values():
                tensor += 1
        average.update(step)
        decay = min(0.9, (1 + step) / (10 + step))
        for name, tensor in model.state_dict().items():
            expected[name] = decay * expected[name] + (1 - decay) * tensor.double()
    for name, tensor in average.model.state_dict().items():
        if name.endswith("num_batches_tracked"):
            assert tensor == 30
        else:
            torch.testing.assert_close(tensor.double(), expected[name], rtol=1e-6, atol=1e-6)
    newest = MovingAverage(model, decay=0.0)
    with torch.no_grad():
        model[0].weight += 0.1
    newest.update(100)
    assert torch.equal(newest.model[0].weight, model[0].weight)
    with pytest.raises(ValueError, match=r"^decay: expected .* got 1.0"):
        MovingAverage(model, 1.0)


def test_log_drops_what_comes_after_the_state(tmp_path):
    """Rows of steps that are taken again go, and so does what a killed process left of a row."""
    path = tmp_path / "log.csv"
    table = Table(path, ("step", "loss", "AP"))
    for step in (10, 20, 30):
        table.add({"step": step, "loss": step / 7.0})
    with path.open("a") as file:
        file.write("4")
    again = Table(path, ("step", "loss", "AP"), last_step=20)
    again.add({"step": 30, "loss": 1.0, "AP": 0.5})
    with path.open(newline="") as file:
        rows = list(csv.reader(file))
    assert rows == [["step", "loss", "AP"], ["10", "1.42857", ""], ["20", "2.85714", ""], ["30", "1", "0.5"]]
    assert read_table(path) == again.rows
    assert sum_layers({"decoder.0/box": 1.0, "decoder.1/box": 2.0, "encoder/box": 4.0, "loss": 9.0}) == {
        "decoder/box": 3.0,
        "encoder/box": 4.0,
        "loss": 9.0,
    }


def test_states(tmp_path):
    options = {"--lr": 1e-4, "--minutes": None}
    for step in (5, 10, 100):
        save_state(tmp_path, step, options, {"step": step, "weights": {"a": torch.ones(2)}})
    assert [path.name for path in find_states(tmp_path)] == ["state-00000010.pt", "state-00000100.pt"]
    newest = find_states(tmp_path)[-1]
    assert load_state(newest, options)["step"] == 100
    with pytest.raises(StateError, match=r"state-00000100\.pt: .*--lr: 0\.0001 there, 0\.001 now"):
        load_state(newest, {**options, "--lr": 1e-3})
    newest.write_bytes(newest.read_bytes()[:-200])
    with pytest.raises(StateError, match=r"state-00000100\.pt: damaged"):
        load_state(newest, options)
    torch.save([1, 2], newest)
    with pytest.raises(StateError, match="not a training state"):
        load_state(newest, options)


# Weights.


def test_weights_go_round(dataset, tmp_path):
    """What is saved loads into a detector that answers as the network did, and begins another run."""
    network, words = tiny_network(dataset)
    assert words == "weights begin anew"
    for name, tensor in network.state_dict().items():  # statistics that are not those of a new batch norm
        if "running" in name:
            tensor.uniform_(0.5, 1.5)
    config = network.model.config
    save_weights(tmp_path / "model.safetensors", network, "fp32")
    save_config(tmp_path / "model.json", config)
    assert codetr.load_config(tmp_path / "model.json") == config
    assert config.class_names == ("green", "red") and config.num_classes == 2

    model = codetr.CoDino(codetr.load_config(tmp_path / "model.json"))
    codetr.load_checkpoint(model, tmp_path / "model.safetensors")
    images, shapes = torch.rand(2, 3, 64, 96), torch.tensor([[64, 96], [50, 70]])
    with torch.no_grad():
        expected = network.model.eval()(images, shapes)
        for found, wanted in zip(model(images, shapes), expected):
            torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)

    again, words = tiny_network(dataset, tmp_path / "model.safetensors", ("green", "red"), seed=7)
    assert "knows 2 of the 2 classes" in words
    for name, tensor in network.state_dict().items():
        assert name.endswith("num_batches_tracked") or torch.equal(tensor, again.state_dict()[name]), name

    save_weights(tmp_path / "half.safetensors", network, "fp16")
    assert {tensor.dtype for tensor in load_file(tmp_path / "half.safetensors").values()} == {torch.float16}


def test_known_classes_keep_their_weights(dataset, tmp_path):
    """Classes are taken over by name, whatever their labels were; others begin anew."""
    network, _ = tiny_network(dataset)
    weights = tmp_path / "model.safetensors"
    save_weights(weights, network, "fp32")
    bias = network.model.decoder.class_branches[1].bias
    with torch.no_grad():
        bias.copy_(torch.tensor([1.0, 2.0]))
    save_weights(weights, network, "fp32")

    swapped, words = tiny_network(dataset, weights, ("red", "blue"), seed=3)
    assert "knows 1 of the 2 classes" in words
    assert swapped.model.decoder.class_branches[1].bias.tolist() == pytest.approx([-4.59512, 1.0])
    embeddings = [n.denoising.label_embedding.weight for n in (swapped, network)]
    assert torch.equal(embeddings[0][1], embeddings[1][0])
    assert not torch.equal(embeddings[0][0], embeddings[1][1])
    assert torch.equal(swapped.model.encoder.level_embeds, network.model.encoder.level_embeds)

    tensors = load_file(weights)
    for name in [name for name in tensors if "cls_branches" in name]:
        tensors[name] = torch.zeros(80, *tensors[name].shape[1:])
    del tensors[UPSTREAM_LABEL_EMBEDDING]  # upstream publishes checkpoints without it, too
    save_file(tensors, weights)
    others, words = tiny_network(dataset, weights, codetr.load_config("co_dino_r50").label_names)
    assert "knows 0 of the 2 classes" in words
    assert others.model.decoder.class_branches[0].bias.tolist() == pytest.approx([-4.59512] * 2)

    tensors["neck.convs.0.conv.weight"] = torch.zeros(1)
    save_file(tensors, weights)
    with pytest.raises(UsageError, match=r"^--init .*: the weights are not those of model .*neck\.convs\.0"):
        tiny_network(dataset, weights, ("green", "red"))
    with pytest.raises(UsageError, match=r"^--init: .*not a safetensors file"):
        weights.write_text("nothing")
        tiny_network(dataset, weights, ())


def test_parameter_groups(dataset):
    network, _ = tiny_network(dataset)
    groups = {group["factor"]: group for group in parameter_groups(network, 1e-3, 0.1, 1e-4)}
    assert groups[0.1]["lr"] == pytest.approx(1e-4) and groups[1.0]["lr"] == 1e-3
    backbone = {id(parameter) for parameter in network.model.backbone.parameters()}
    assert {id(parameter) for parameter in groups[0.1]["params"]} == backbone
    assert sum(len(group["params"]) for group in groups.values()) == len(list(network.parameters()))
