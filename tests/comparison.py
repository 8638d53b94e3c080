"""Comparison of results and gradients with the truth: `msda.reference` in float64 on the same inputs."""

from __future__ import annotations

import math

import torch

import msda
from benchmarks import errors
from benchmarks.errors import TOLERANCE
from benchmarks.problems import AttentionInputs, FusedInputs, Problem

FLOOR = 0.05
"""A result smaller than this share of what it would be with every sample inside counts absolutely: a lone
sample that just touches a level has a weight that is all rounding."""


def run_msda(inputs: AttentionInputs | FusedInputs) -> torch.Tensor:
    """The public operator on any device."""
    operator = msda.fused_attention if isinstance(inputs, FusedInputs) else msda.attention
    return operator(*inputs)


def make(
    problem: Problem, operator: str, dtype: torch.dtype, device: str, **options
) -> AttentionInputs | FusedInputs:
    """Inputs of either operator."""
    build = problem.fused_inputs if operator == "fused" else problem.attention_inputs
    return build(dtype, device, **options)


def gradients(
    inputs: AttentionInputs | FusedInputs, grad_output: torch.Tensor, run=run_msda
) -> dict[str, torch.Tensor]:
    """Gradients of every floating input, by name; the reference's also in PyTorch's deterministic mode, which
    its `grid_sample` does not know on a GPU."""
    leaves = {
        name: tensor.detach().requires_grad_()
        for name, tensor in inputs._asdict().items()
        if isinstance(tensor, torch.Tensor) and tensor.is_floating_point()
    }
    deterministic = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(deterministic and run is not reference)
    try:
        output = run(inputs._replace(**leaves))
        found = torch.autograd.grad(output, list(leaves.values()), grad_output)
    finally:
        torch.use_deterministic_algorithms(deterministic)
    return dict(zip(leaves, found, strict=True))


def reference(inputs: AttentionInputs | FusedInputs) -> torch.Tensor:
    """The reference of the inputs' operator, in the inputs' types."""
    operator = msda.reference.fused_attention if isinstance(inputs, FusedInputs) else msda.reference.attention
    return operator(*inputs)


def assert_gradients(problem: Problem, inputs: AttentionInputs | FusedInputs, seed: int = 0) -> None:
    """Fails unless every gradient is as near to the reference's in float64 as its type allows."""
    dtype = inputs.value.dtype
    rows = inputs[-2].shape[:2]
    generator = torch.Generator().manual_seed(seed)
    grad_output = torch.randn(
        (*rows, problem.num_heads * problem.head_dim), generator=generator, dtype=torch.float64
    )
    grad_output = grad_output.to(inputs.value.device, dtype)
    actual = gradients(inputs, grad_output)
    expected = gradients(errors.in_float64(inputs), grad_output.double(), reference)
    floors = gradient_floors(problem, inputs)
    for name, gradient in actual.items():
        assert gradient.dtype == getattr(inputs, name).dtype, name
        error = errors.relative_error(gradient, expected[name], floors[name])
        assert error <= TOLERANCE[dtype], (
            f"{name}: relative error {error:.2e}, allowed {TOLERANCE[dtype]:.0e}"
        )


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
    error = errors.relative_error(actual, expected, output_floor(inputs, expected))
    assert error <= TOLERANCE[dtype], f"relative error {error:.2e}, allowed {TOLERANCE[dtype]:.0e}"
