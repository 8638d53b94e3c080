"""Derivatives beyond the gradient: `torch.func`, second order and vmap, as research code uses them.

`test_gradcheck` of test_msda_gradients.py compares them with finite differences.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest
import torch
from torch.autograd import forward_ad

from benchmarks.problems import AttentionInputs, FusedInputs, Problem
from tests.matrix import backends, drawn_cases
from tests.matrix.against_reference import floats, run_msda
from tests.matrix.backends import operators

PROBLEM = Problem("derivatives", 2, ((4, 5), (2, 3)), 6, num_heads=2, head_dim=4, num_points=3)
RAGGED = Problem("ragged", 2, ((4, 5), (2, 3)), 6, 2, 4, 3, (4, 1), reference_dim=4)

make = functools.partial(drawn_cases.smooth_inputs, dtype=torch.float64)


def function_of(
    inputs: AttentionInputs | FusedInputs, name: str, run: Callable = run_msda
) -> tuple[Callable[[torch.Tensor], torch.Tensor], torch.Tensor]:
    """The sum of the squared results as a function of one input, and that input."""
    return lambda tensor: run(inputs._replace(**{name: tensor})).square().sum(), getattr(inputs, name)


@operators
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_dual_numbers(operator: str, dtype: torch.dtype, device: str) -> None:
    """`torch.autograd.forward_ad`, in the types of training, with `torch.no_grad` around."""
    inputs = make(PROBLEM, operator, dtype=dtype, device=device)
    with torch.no_grad(), forward_ad.dual_level():
        value = forward_ad.make_dual(inputs.value, inputs.value)
        result, tangent = forward_ad.unpack_dual(run_msda(inputs._replace(value=value)))
    assert tangent.dtype == dtype
    torch.testing.assert_close(tangent, result)


@operators
def test_second_derivatives_agree(operator: str, device: str) -> None:
    """Every way of PyTorch to a Hessian gives the same one, for every input, and it is not zero."""
    inputs = make(PROBLEM, operator, device=device)
    for name in floats(inputs):
        function, at = function_of(inputs, name)
        expected = torch.func.hessian(function_of(inputs, name, backends.run_formulas)[0])(at)
        assert expected.abs().max() > 1e-3, name
        for way in (
            torch.func.hessian(function)(at),
            torch.func.jacrev(torch.func.jacrev(function))(at),
            torch.autograd.functional.hessian(function, at),
        ):
            torch.testing.assert_close(way, expected, msg=name)


@operators
@pytest.mark.parametrize("problem", [PROBLEM, RAGGED], ids=lambda problem: problem.name)
def test_vmap(operator: str, problem: Problem, device: str) -> None:
    """vmap of the operator and of its gradient is the loop over the samples, wherever the dimension is."""
    inputs = make(problem, operator, device=device)
    for name in floats(inputs):
        function, at = function_of(inputs, name)
        samples = torch.stack([at, at * 0.5, at * 0.9], 1)

        def run(tensor: torch.Tensor, name: str = name) -> torch.Tensor:
            return run_msda(inputs._replace(**{name: tensor}))

        expected = torch.stack([run(sample) for sample in samples.unbind(1)])
        torch.testing.assert_close(torch.vmap(run, in_dims=1)(samples), expected)
        expected = torch.stack([torch.func.grad(function)(sample) for sample in samples.unbind(1)])
        torch.testing.assert_close(torch.vmap(torch.func.grad(function), in_dims=1)(samples), expected)


@operators
@pytest.mark.parametrize("name", ["spatial_shapes", "level_start_index"])
def test_vmap_refuses_levels(operator: str, name: str, device: str) -> None:
    inputs = make(PROBLEM, operator, device=device)
    samples = getattr(inputs, name).expand(2, *getattr(inputs, name).shape)
    with pytest.raises(ValueError, match=f"{name}: expected the same for all samples of torch.vmap, got"):
        torch.vmap(lambda tensor: run_msda(inputs._replace(**{name: tensor})))(samples)


@operators
def test_compiled_jvp(operator: str, device: str) -> None:
    inputs = make(PROBLEM, operator, device=device)

    def tangent(value: torch.Tensor) -> torch.Tensor:
        return torch.func.jvp(lambda value: run_msda(inputs._replace(value=value)), (value,), (value,))[1]

    torch.testing.assert_close(torch.compile(tangent, backend="aot_eager")(inputs.value), run_msda(inputs))
