"""The backward operators: schema, fake tensors, results, determinism, and every kernel on the GPU."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from benchmarks import errors
from benchmarks.problems import BY_NAME, AttentionInputs, FusedInputs, Problem
from tests import backends, strategies
from tests.comparison import TOLERANCE, assert_gradients, gradient_floors, gradients, reference

EQUAL = Problem("equal", 2, ((6, 8), (3, 4)), 10, num_heads=4, head_dim=16, num_points=3)
RAGGED = Problem("ragged", 1, ((6, 8), (3, 4), (2, 2)), 10, 4, 5, points_per_level=(2, 0, 3), reference_dim=4)
ENCODER = Problem("encoder", 2, ((9, 13), (5, 7), (2, 3)), 9 * 13 + 5 * 7 + 2 * 3, 8, 32)
OPERATORS = ("attention", "fused_attention")
TYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
KERNELS = ("general", "group", "tile")
"""What MSDA_BACKWARD takes (kernels/include/msda/choose_backward.h)."""


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> str:
    """Both devices; "cuda" is skipped with a reason where it cannot run."""
    if request.param == "cuda":
        requires_gpu()
    return request.param


@pytest.fixture
def deterministic() -> Iterator[None]:
    """PyTorch's deterministic mode, for one test."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def requires_gpu(dtype: torch.dtype = torch.float32) -> None:
    """Skips the test where the CUDA operator cannot run."""
    if reason := backends.no_gpu(dtype):
        pytest.skip(reason)


def make(
    operator: str,
    problem: Problem,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    wide_locations: bool = False,
) -> AttentionInputs | FusedInputs:
    """Inputs whose samples keep away from the kinks of bilinear interpolation."""
    fused = operator == "fused_attention"
    return strategies.Case(problem, fused, wide_locations=wide_locations, seed=21, smooth=True).inputs(
        dtype, device
    )


def random_like_output(inputs: AttentionInputs | FusedInputs, seed: int = 22) -> torch.Tensor:
    """A standard normal grad_output."""
    batch, _, heads, channels = inputs.value.shape
    shape = (batch, inputs[-2].shape[1], heads * channels)
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).to(inputs.value.device, inputs.value.dtype)


def backward(operator: str, inputs: AttentionInputs | FusedInputs, **options) -> tuple[torch.Tensor, ...]:
    """A call of the operator's backward with a random grad_output."""
    return getattr(torch.ops.msda, f"{operator}_backward")(random_like_output(inputs), *inputs, **options)


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("problem", [EQUAL, RAGGED], ids=lambda problem: problem.name)
@pytest.mark.parametrize("deterministic_sums", [False, True], ids=["atomics", "deterministic"])
def test_msda_backward_opcheck(
    operator: str, problem: Problem, deterministic_sums: bool, device: str
) -> None:
    """Schema and fake tensors, and tracing with dynamic shapes."""
    inputs = make(operator, problem, device=device)
    call = getattr(torch.ops.msda, f"{operator}_backward").default
    arguments = (random_like_output(inputs), *inputs)
    options = {"deterministic": deterministic_sums}
    # Tracing compares two runs; CUDA's atomics make them differ a little.
    torch.library.opcheck(call, arguments, options, rtol=1e-4, atol=1e-4)
    if operator == "fused_attention":
        options["reference_gradient"] = False
        torch.library.opcheck(call, arguments, options, rtol=1e-4, atol=1e-4)


def test_backward_schemas() -> None:
    """The forward's arguments, in the forward's order, between grad_output and the options."""
    for operator, options in (
        ("attention", ["deterministic"]),
        ("fused_attention", ["reference_gradient", "deterministic"]),
    ):
        forward = getattr(torch.ops.msda, operator).default._schema.arguments
        call = getattr(torch.ops.msda, f"{operator}_backward").default._schema.arguments
        assert [argument.name for argument in call] == [
            "grad_output",
            *(argument.name for argument in forward),
            *options,
        ]


@pytest.mark.parametrize("reference_dim", [2, 4])
def test_reference_gradient_only_where_wanted(reference_dim: int, device: str) -> None:
    """It is empty where nobody asks for it, and the other gradients are what they are with it."""
    inputs = make("fused_attention", replace(EQUAL, reference_dim=reference_dim), device=device)
    whole = backward("fused_attention", inputs, deterministic=True)
    without = backward("fused_attention", inputs, reference_gradient=False, deterministic=True)
    assert whole[1].shape == inputs.reference_points.shape
    assert whole[1].any()
    assert without[1].shape == (0,)
    for i in (0, 2, 3):
        assert torch.equal(whole[i], without[i])


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("reference_dim", [2, 4])
def test_wide_locations(operator: str, dtype: torch.dtype, reference_dim: int, device: str) -> None:
    """16-bit values with float32 locations and weights: what has a wide type has a wide gradient."""
    problem = replace(EQUAL, reference_dim=reference_dim)
    inputs = make(operator, problem, dtype, device, wide_locations=True)
    grad_output = random_like_output(inputs)
    found = gradients(inputs, grad_output)
    expected = gradients(errors.in_float64(inputs), grad_output.double(), reference)
    floors = gradient_floors(problem, inputs)
    for name, gradient in found.items():
        tolerance = TOLERANCE[dtype] if name == "value" else TOLERANCE[torch.float32]
        assert gradient.dtype == getattr(inputs, name).dtype
        assert errors.relative_error(gradient, expected[name], floors[name]) <= tolerance, name


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("problem", [EQUAL, RAGGED, ENCODER], ids=lambda problem: problem.name)
def test_deterministic_mode(
    operator: str, dtype: torch.dtype, problem: Problem, device: str, deterministic: None
) -> None:
    """Ten runs give the same bits, and they are as near to the truth as those of any other mode."""
    inputs = make(operator, problem, dtype, device)
    grad_output = random_like_output(inputs)
    first = gradients(inputs, grad_output)
    for _ in range(9):
        for name, gradient in gradients(inputs, grad_output).items():
            assert torch.equal(gradient, first[name]), name
    assert_gradients(problem, inputs)


@pytest.mark.gpu
@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("name", ["codino_encoder_608x608", "codino_decoder_1280x1920"])
def test_deterministic_mode_at_real_sizes(operator: str, name: str, deterministic: None) -> None:
    """Where thousands of samples add to a cell the bits are still the same, and no less exact than with
    atomics of floats."""
    requires_gpu()
    inputs = make(operator, BY_NAME[name], device="cuda")
    grad_output = random_like_output(inputs)
    first = gradients(inputs, grad_output)
    for _ in range(9):
        for key, gradient in gradients(inputs, grad_output).items():
            assert torch.equal(gradient, first[key]), key
    exact = backward(operator, errors.in_float64(inputs))[0]
    torch.use_deterministic_algorithms(False)
    by_atomics = errors.relative_error(gradients(inputs, grad_output)["value"], exact)
    # Most of either error is that of float32 coordinates; what atomics add to it varies from run to run.
    assert errors.relative_error(first["value"], exact) <= max(by_atomics * 1.01, 1e-7)


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("scale", [1e-33, 1e-20, 1e20, 1e34], ids=str)
def test_deterministic_mode_finds_its_scale(
    operator: str, scale: float, device: str, deterministic: None
) -> None:
    """Gradients of any size, and heads of very different sizes, keep their precision."""
    inputs = make(operator, ENCODER, device=device)
    grad_output = random_like_output(inputs) * scale
    grad_output[..., :32] *= 1e-2
    grad_output[..., 32:64] *= 1e2
    found = gradients(inputs, grad_output)["value"]
    expected = gradients(errors.in_float64(inputs), grad_output.double(), reference)["value"]
    for head in range(ENCODER.num_heads):
        error = errors.relative_error(found[:, :, head], expected[:, :, head])
        assert error <= 1e-6, f"head {head}: {error:.1e}"


@pytest.mark.parametrize("operator", OPERATORS)
def test_deterministic_mode_with_infinite_gradients(operator: str, device: str, deterministic: None) -> None:
    """What is not finite reaches the cells it would reach as floats, and no others."""
    inputs = make(operator, ENCODER, device=device)
    grad_output = random_like_output(inputs)
    grad_output[0, 3, 40] = float("inf")
    grad_output[0, 9, 41] = float("nan")
    grad_output[1, 60, 0] = float("-inf")
    found = gradients(inputs, grad_output)["value"]
    with_atomics = backward_value(operator, inputs, grad_output)
    assert not found.isfinite().all()
    assert found.isfinite().any()
    torch.testing.assert_close(found, with_atomics, rtol=1e-4, atol=1e-5, equal_nan=True)
    again = gradients(inputs, grad_output)["value"]
    assert torch.equal(found.view(torch.int32), again.view(torch.int32))


def backward_value(
    operator: str, inputs: AttentionInputs | FusedInputs, grad_output: torch.Tensor
) -> torch.Tensor:
    """The gradient of value without the deterministic mode."""
    return getattr(torch.ops.msda, f"{operator}_backward")(grad_output, *inputs)[0]


@pytest.mark.gpu
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("head_dim", [16, 32, 64, 24])
def test_forced_kernel(
    kernel: str, operator: str, dtype: torch.dtype, head_dim: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every kernel gives the gradients, or says that it cannot take the problem."""
    requires_gpu(dtype)
    monkeypatch.setenv("MSDA_BACKWARD", kernel)
    takes = kernel == "general" or (head_dim != 24 and dtype != torch.float64)
    problems = [replace(ENCODER, head_dim=head_dim), replace(RAGGED, head_dim=head_dim, num_queries=300)]
    for problem, wide in itertools.product(problems, (False, True)):
        inputs = make(operator, problem, dtype, "cuda", wide_locations=wide)
        if takes:
            assert_gradients(problem, inputs)
        else:
            with pytest.raises(RuntimeError, match="not supported"):
                backward(operator, inputs)


@pytest.mark.gpu
@pytest.mark.parametrize("kernel", KERNELS[1:])
def test_forced_kernel_that_cannot_be_deterministic(kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    requires_gpu()
    monkeypatch.setenv("MSDA_BACKWARD", kernel)
    with pytest.raises(RuntimeError, match="not supported"):
        backward("attention", make("attention", ENCODER, device="cuda"), deterministic=True)
