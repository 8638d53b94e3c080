"""A training step: repeatable, clipped, and careful with numbers that are not finite."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from codetr.training.criterion import Criterion
from codetr.training.data import HostBatch, PlainSet, collate
from codetr.training.ema import MovingAverage
from codetr.training.network import parameter_groups, use_channels_last
from codetr.training.step import Step, TrainingError
from tests.training_runs import tiny_network

pytest_plugins = ("tests.training_fixtures",)
pytestmark = pytest.mark.usefixtures("one_thread")


def make_step(data, **options) -> tuple[Step, HostBatch]:
    network, _ = tiny_network(data)
    use_channels_last(network.model)
    groups = parameter_groups(network.train(), 1e-3, 1.0, 1e-4)
    settings = {"bf16": False, "clip": 0.1, "seed": 3, **options}
    step = Step(network, Criterion(2), groups, MovingAverage(network, 0.9), **settings)
    return step, collate([PlainSet(data, (96, 64))[index] for index in (1, 2)])


def test_a_step_is_repeatable(dataset):
    """The same step from the same weights gives the same weights, whatever was drawn before."""
    runs = []
    for noise in (1, 2):
        step, batch = make_step(dataset)
        for index in range(3):
            torch.rand(noise, generator=step.generator)
            torch.rand(noise)
            step(batch, index, 1.0)
        runs.append((step.network.state_dict(), step.meter.read()[0]["loss"]))
    assert runs[0][1] == runs[1][1]
    assert all(torch.equal(tensor, runs[1][0][name]) for name, tensor in runs[0][0].items())


def test_gradients_that_are_not_finite_are_left_out(dataset):
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
    assert step.meter.read()[1:] == (1, 0)


def test_predictions_that_are_not_finite_name_the_step(dataset):
    step, batch = make_step(dataset)
    with torch.no_grad():
        step.network.model.decoder.class_branches[0].bias.fill_(float("nan"))
    with pytest.raises(TrainingError, match=r"^step 42: .*not finite"):
        step(batch, 41, 1.0)


def test_clipping(dataset):
    """Before AdamW forgets their size, gradients together are as long as --clip says."""
    norms = {}
    for clip in (0.0, 0.1):
        step, batch = make_step(dataset, clip=clip)
        step.optimizer.zero_grad = lambda set_to_none=True: None
        step(batch, 0, 1.0)
        gradients = [parameter.grad for parameter in step.parameters]
        norms[clip] = torch.nn.utils.get_total_norm(gradients).item()
        assert step.meter.read()[0]["gradient_norm"] == pytest.approx(norms[0.0])
    assert norms[0.1] == pytest.approx(0.1, rel=1e-4) and norms[0.0] > 1.0
