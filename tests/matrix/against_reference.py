"""Results and gradients against the truth: `msda.reference` in float64 on the same inputs."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

import msda
from benchmarks import operator_errors
from benchmarks.operator_errors import TOLERANCE
from benchmarks.problems import AttentionInputs, FusedInputs, Problem

FLOOR = 0.05
"""Errors of small results are absolute: below this fraction of the result with every sample inside. A single
sample that just touches a level has a weight that is all rounding."""


def operator_of(module) -> Callable[[AttentionInputs | FusedInputs], torch.Tensor]:
    """Returns a function of the inputs that calls their operator in a module, such as `msda.reference`."""

    def run(inputs: AttentionInputs | FusedInputs) -> torch.Tensor:
        name = "fused_attention" if isinstance(inputs, FusedInputs) else "attention"
        return getattr(module, name)(*inputs)

    return run


run_msda = operator_of(msda)
reference = operator_of(msda.reference)


def make(
    problem: Problem, operator: str, dtype: torch.dtype, device: str, **options
) -> AttentionInputs | FusedInputs:
    """Inputs of either operator."""
    build = problem.attention_inputs if operator == "attention" else problem.fused_inputs
    return build(dtype, device, **options)


def floats(inputs: AttentionInputs | FusedInputs) -> dict[str, torch.Tensor]:
    """The floating-point tensors by name."""
    tensors = inputs._asdict().items()
    return {name: x for name, x in tensors if isinstance(x, torch.Tensor) and x.is_floating_point()}


def autograd_gradients(
    inputs: AttentionInputs | FusedInputs, grad_output: torch.Tensor, run=run_msda
) -> dict[str, torch.Tensor]:
    """Gradients of every floating input, by name. For the reference, PyTorch's deterministic mode is off:
    `grid_sample` does not know it on a GPU."""
    leaves = {name: tensor.detach().requires_grad_() for name, tensor in floats(inputs).items()}
    deterministic = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(deterministic and run is not reference)
    try:
        output = run(inputs._replace(**leaves))
        found = torch.autograd.grad(output, list(leaves.values()), grad_output)
    finally:
        torch.use_deterministic_algorithms(deterministic)
    return dict(zip(leaves, found, strict=True))


def normal_grad_output(inputs: AttentionInputs | FusedInputs, seed: int) -> torch.Tensor:
    """A standard normal [N, Q, M * D] in value's type."""
    batch, _, num_heads, head_dim = inputs.value.shape
    shape = (batch, inputs[-2].shape[1], num_heads * head_dim)
    generator = torch.Generator().manual_seed(seed)
    numbers = torch.randn(shape, generator=generator, dtype=torch.float64)
    return numbers.to(inputs.value.device, inputs.value.dtype)


def assert_gradients(
    found: dict[str, torch.Tensor],
    problem: Problem,
    inputs: AttentionInputs | FusedInputs,
    grad_output: torch.Tensor,
    expected: dict[str, torch.Tensor] | None = None,
) -> None:
    """Fails unless every gradient is as near to the truth as its type allows.

    Args:
        found: the gradients by the inputs' names.
        problem: the inputs' sizes.
        inputs: those of the operator.
        grad_output: [N, Q, M * D].
        expected: the truth, by default the reference's gradients in float64.
    """
    if expected is None:
        expected = autograd_gradients(operator_errors.in_float64(inputs), grad_output.double(), reference)
    floors = gradient_floors(problem, inputs)
    assert set(found) == set(expected)
    for name, gradient in found.items():
        tolerance = TOLERANCE[inputs.value.dtype if name == "value" else gradient.dtype]
        assert gradient.dtype == getattr(inputs, name).dtype, name
        error = operator_errors.relative_error(gradient, expected[name], floors[name])
        assert error <= tolerance, f"{name}: relative error {error:.2e}, allowed {tolerance:.0e}"


def weights_of(inputs: AttentionInputs | FusedInputs) -> torch.Tensor:
    """The attention weights [N, Q, M, K] in float64, after softmax where the operator takes logits."""
    if isinstance(inputs, FusedInputs):
        return inputs.attention_logits.double().softmax(-1)
    return inputs.attention_weights.double().flatten(3)


def output_floor(inputs: AttentionInputs | FusedInputs, expected: torch.Tensor) -> float:
    """FLOOR times the norm that the result would have if every sample hit: see `relative_error`."""
    if not expected.numel():
        return 0.0
    value = inputs.value.double()
    value = value[value.isfinite()]
    if not value.numel():
        return 0.0
    size = value.square().mean().sqrt() * weights_of(inputs).square().sum(-1).mean().sqrt()
    return FLOOR * size.item() * math.sqrt(expected.numel())


def gradient_floors(problem: Problem, inputs: AttentionInputs | FusedInputs) -> dict[str, float]:
    """FLOOR times the norm that each gradient usually has, for a standard normal value and output
    gradient."""
    weight = weights_of(inputs).square().mean().sqrt().item()
    product = math.sqrt(problem.head_dim)
    cells = sum(height + width for height, width in problem.spatial_shapes) / (2 * problem.num_levels)
    sizes = {
        "value": weight,
        "sampling_locations": product * weight * cells,
        "attention_weights": product,
        "reference_points": product * weight * cells * math.sqrt(problem.num_heads),
        "sampling_offsets": product * weight,
        "attention_logits": product * weight,
    }
    tensors = inputs._asdict()
    return {
        name: FLOOR * size * math.sqrt(tensors[name].numel())
        for name, size in sizes.items()
        if name in tensors
    }


def assert_result(
    actual: torch.Tensor, expected: torch.Tensor, inputs: AttentionInputs | FusedInputs, dtype: torch.dtype
) -> None:
    """Fails unless a result has the value's type and is as near to the truth as its type allows."""
    assert actual.dtype == dtype
    assert actual.shape == expected.shape
    error = operator_errors.relative_error(actual, expected, output_floor(inputs, expected))
    assert error <= TOLERANCE[dtype], f"relative error {error:.2e}, allowed {TOLERANCE[dtype]:.0e}"
