"""A training step: clipped, safe from non-finite numbers; its learning rate and average."""

from __future__ import annotations

import itertools
import warnings

import numpy as np
import pytest
import torch

from codetr.training.augment import Augmentation
from codetr.training.moving_average import MovingAverage
from codetr.training.trainer import learning_rate_factor
from codetr.training.training_batches import HostBatch, Request, TrainingSet, collate
from codetr.training.training_network import parameter_groups, use_channels_last
from codetr.training.training_step import TrainingStep
from tests.training.training_runs import tiny_network

pytestmark = pytest.mark.usefixtures("one_thread")


def make_step(data, **options) -> tuple[TrainingStep, HostBatch]:
    network, _ = tiny_network(data)
    use_channels_last(network.model)
    groups = parameter_groups(network.train(), 1e-3, 1.0, 1e-4)
    settings = {"bf16": False, "clip": 0.1, "seed": 3, **options}
    step = TrainingStep(network, groups, MovingAverage(network, 0.9), **settings)
    samples = TrainingSet(data, Augmentation(flip=0.0, crop=0.0, colour=0.0))
    return step, collate([samples[Request(index, (0, index), (96, 64))] for index in (1, 2)])


def test_non_finite_gradients_are_skipped(dataset):
    """Such a step changes neither weights nor the optimiser's moments, and is counted."""
    step, batch = make_step(dataset)
    step(batch, 0, 1.0)
    before = {name: tensor.clone() for name, tensor in step.network.named_parameters()}
    moments = [state["exp_avg"].clone() for state in step.optimizer.state.values()]
    weight = step.network.model.neck.convs[0].conv.weight
    hook = weight.register_hook(lambda gradient: gradient * float("nan"))
    step(batch, 1, 1.0)
    assert all(torch.equal(tensor, before[name]) for name, tensor in step.network.named_parameters())
    states = step.optimizer.state.values()
    assert all(torch.equal(state["exp_avg"], old) for state, old in zip(states, moments))
    means, skipped, in_a_row = step.meter.read()
    assert (skipped, in_a_row) == (1, 1) and np.isfinite(means["loss"])
    hook.remove()
    step(batch, 2, 1.0)
    assert not torch.equal(weight, before["model.neck.convs.0.conv.weight"])
    assert step.meter.read()[1:] == (0, 0)


def test_clipping(dataset):
    norms = {}
    for clip in (0.0, 0.1):
        step, batch = make_step(dataset, clip=clip)
        step.optimizer.zero_grad = lambda set_to_none=True: None
        step(batch, 0, 1.0)
        gradients = [parameter.grad for parameter in step.parameters]
        norms[clip] = torch.nn.utils.get_total_norm(gradients).item()
        assert step.meter.read()[0]["gradient_norm"] == pytest.approx(norms[0.0])
    assert norms[0.1] == pytest.approx(0.1, rel=1e-4) and norms[0.0] > 1.0


def test_learning_rate():
    factors = [learning_rate_factor(step, step / 100, 10, 0.1) for step in range(101)]
    assert factors[0] == pytest.approx(0.1, abs=1e-3) and factors[4] == pytest.approx(0.5, abs=0.01)
    assert max(factors) == factors[9] and factors[50] == pytest.approx(0.55)
    assert factors[100] == pytest.approx(0.1) and all(a > b for a, b in itertools.pairwise(factors[9:]))
    assert learning_rate_factor(49, 0.5, 1000, 0.0) == pytest.approx(0.05 * 0.5)  # a run of 100 steps
    # A run of 40 steps in its minutes does not wait for the 1000 steps of the warm-up.
    factors = [learning_rate_factor(step, step / 40, 1000, 0.1, 1 / 20) for step in range(41)]
    assert factors[0] == pytest.approx(0.001) and factors[1] == pytest.approx(0.5, abs=0.01)
    assert max(factors) == factors[2] > 0.99 and factors[40] == pytest.approx(0.1)


def test_moving_average():
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm2d(2))
    average, newest = MovingAverage(model, decay=0.9), MovingAverage(model, decay=0.0)
    expected = {name: tensor.clone().double() for name, tensor in model.state_dict().items()}
    for step in range(30):
        with torch.no_grad():
            for tensor in model.state_dict().values():
                tensor += 1
        average.update(step)
        newest.update(step)
        decay = min(0.9, (1 + step) / (10 + step))
        for name, tensor in model.state_dict().items():
            expected[name] = decay * expected[name] + (1 - decay) * tensor.double()
    assert average.model[1].num_batches_tracked == 30
    for name, tensor in average.model.state_dict().items():
        if not name.endswith("num_batches_tracked"):
            torch.testing.assert_close(tensor.double(), expected[name], rtol=1e-6, atol=1e-6)
    assert torch.equal(newest.model[0].weight, model[0].weight)


def test_the_backbone_has_its_own_learning_rate(dataset):
    network, _ = tiny_network(dataset)
    backbone, others = parameter_groups(network, 1e-3, 0.1, 1e-4)
    assert backbone["lr"] == pytest.approx(1e-4) and others["lr"] == 1e-3
    expected = {id(parameter) for parameter in network.model.backbone.parameters()}
    assert {id(parameter) for parameter in backbone["params"]} == expected


# The benchmark.


def test_benchmark_measures_the_same_with_both_attentions(folder, monkeypatch):
    """With grid_sample instead of the kernels, a step calls it and computes the same loss."""
    import msda.reference
    from benchmarks import training

    calls = []
    reference = msda.reference.fused_attention
    monkeypatch.setattr(
        msda.reference, "fused_attention", lambda *args: calls.append(len(args)) or reference(*args)
    )
    losses = {}
    for name in training.ATTENTIONS:
        problem = training.TrainingProblem(str(folder / "model.json"), 64, 96, 2)
        with training.use_attention(name):
            step, batch = training.prepare(problem, bf16=False, device="cpu")
            step(batch, 0, 1.0)
        losses[name] = step.meter.read()[0]["loss"]
        assert len(calls) == (0 if name == "kernels" else 3)  # encoder and decoder layers
    assert losses["kernels"] == pytest.approx(losses["grid_sample"], rel=1e-4)


@pytest.mark.gpu
def test_a_step_waits_for_the_gpu_once(folder):
    """It waits only for the matching's costs."""
    from benchmarks import training

    step, batch = training.prepare(training.TrainingProblem(str(folder / "model.json"), 64, 96, 2), bf16=True)
    for index in range(3):
        step(batch, index, 1.0)
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            step(batch, 3, 1.0)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    waits = [warning for warning in caught if "synchronizing" in str(warning.message)]
    assert len(waits) == 1, [f"{warning.filename}:{warning.lineno}" for warning in waits]
