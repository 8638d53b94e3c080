"""The matrix of the operator, gradients: every backend x type against `msda.reference` in float64; the
backward operators in Torch, and the deterministic mode."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import operator_errors
from benchmarks.problems import BY_NAME, SMALL, AttentionInputs, FusedInputs, Problem
from tests.matrix import backends, drawn_cases, outside_levels
from tests.matrix.against_reference import (
    TOLERANCE,
    assert_gradients,
    autograd_gradients,
    floats,
    normal_grad_output,
    reference,
    run_msda,
)
from tests.matrix.backends import DTYPES, Backend, matrix, operators
from tests.matrix.drawn_cases import smooth_inputs as make

ORDERS = (1, 2)
EQUAL = Problem("equal", 2, ((6, 8), (3, 4)), 10, num_heads=4, head_dim=16, num_points=3)
RAGGED = Problem("ragged", 1, ((6, 8), (3, 4), (2, 2)), 10, 4, 5, points_per_level=(2, 0, 3), reference_dim=4)
TILED = Problem("tiled", 1, ((5, 9), (3, 4), (2, 3)), 63, num_heads=3)
LINEAR = Problem("linear", 2, ((5, 9), (3, 4), (2, 3)), 11)
ENCODER = Problem("encoder", 2, ((9, 13), (5, 7), (2, 3)), 9 * 13 + 5 * 7 + 2 * 3, 8, 32)

MISSES = Problem("misses", 1, ((4, 5), (2, 2)), 6, 2, 16)


def has_gradients(backend: Backend) -> bool:
    return backend.gradients is not None


def is_kernel(backend: Backend) -> bool:
    """Whether its gradients come from a kernel, on the CPU, a GPU or the emulator, not from formulas."""
    return has_gradients(backend) and backend.unchecked is not None


@matrix(has_gradients)
def test_drawn_cases(backend: Backend, operator: str, dtype: torch.dtype) -> None:
    backend.skip_unless_ready(dtype)

    @backend.examples()
    @given(data=st.data())
    def check(data: st.DataObject) -> None:
        case = data.draw(backend.cases(operator, smooth=True))
        general = backend.emulated and backend.backward in (None, "general")
        deterministic = general and data.draw(st.booleans(), "deterministic")
        inputs = case.inputs(dtype, backend.device)
        grad_output = normal_grad_output(inputs, case.seed)
        found = backend.differentiate(inputs, grad_output, case.seed, deterministic)
        assert_gradients(found, case.problem, inputs, grad_output)

    check()


@matrix(has_gradients, SMALL)
def test_small(backend: Backend, operator: str, dtype: torch.dtype, problem: Problem) -> None:
    backend.skip_unless_ready(dtype)
    if problem.name == "pyramid":
        problem = replace(problem, batch=1, num_heads=2)  # the largest by far
    inputs = make(problem, operator, dtype, backend.device, seed=4)
    grad_output = normal_grad_output(inputs, 4)
    assert_gradients(backend.differentiate(inputs, grad_output), problem, inputs, grad_output)


@matrix(is_kernel, [MISSES, replace(MISSES, name="misses_boxes", reference_dim=4)])
def test_samples_that_miss(backend: Backend, operator: str, dtype: torch.dtype, problem: Problem) -> None:
    """Samples that touch no cell have zero gradients, not NaN; of "outside", some touch a cell."""
    backend.skip_unless_ready(dtype)
    grad_output = torch.ones((1, 6, 32), dtype=dtype, device=backend.device)
    for position in ("outside", "huge", "nan", "infinite"):
        case = drawn_cases.Case(problem, operator == "fused_attention", (position,), seed=1)
        found = backend.differentiate(case.inputs(dtype, backend.device), grad_output)
        for name, gradient in found.items():
            right = gradient.isfinite().all() if position == "outside" else not gradient.any()
            assert right, (position, name)


@matrix(is_kernel, [outside_levels.PROBLEM])
def test_level_outside_of_value(
    backend: Backend, operator: str, dtype: torch.dtype, problem: Problem
) -> None:
    """Such a level has the gradients of a level of zeros, and its cells get no gradient."""
    backend.skip_unless_ready(dtype)
    if not backend.emulated:
        backend = replace(
            backend,
            gradients=lambda *arguments: autograd_gradients(*arguments, run=backends.run_unchecked),
        )
    for level in outside_levels.LEVELS:
        inputs, meaning = outside_levels.inputs(operator, dtype, backend.device, level)
        grad_output = normal_grad_output(inputs, 7)
        expected = autograd_gradients(operator_errors.in_float64(meaning), grad_output.double(), reference)
        expected["value"][:, outside_levels.CELLS] = 0
        found = backend.differentiate(inputs, grad_output)
        assert_gradients(found, problem, meaning, grad_output, expected)


@matrix(lambda backend: backend.gradients and backend.emulated, [TILED, LINEAR])
def test_order(backend: Backend, operator: str, dtype: torch.dtype, problem: Problem) -> None:
    """No gradient depends on the order of threads and blocks, except that of value, by rounding: atomics sum
    it, unless the general kernel is deterministic."""
    backend.skip_unless_ready(dtype)
    inputs = make(problem, operator, dtype, seed=8)
    grad_output = normal_grad_output(inputs, 8)
    for deterministic in (False, True)[: 2 if backend.name == "emulator" else 1]:
        expected = backend.differentiate(inputs, grad_output, deterministic=deterministic)
        assert_gradients(expected, problem, inputs, grad_output)
        for order in ORDERS:
            found = backend.differentiate(inputs, grad_output, order, deterministic)
            if not deterministic:
                value = found.pop("value")
                assert operator_errors.relative_error(value, expected["value"].double()) <= TOLERANCE[dtype]
            assert all(torch.equal(gradient, expected[name]) for name, gradient in found.items()), order


@operators
@pytest.mark.parametrize("reference_dim", [2, 4])
@pytest.mark.parametrize("ragged", [None, (2, 0, 3)], ids=["equal", "ragged"])
def test_gradcheck(operator: str, reference_dim: int, ragged: tuple[int, ...] | None, device: str) -> None:
    """First and second derivatives in both modes, alone and under vmap, against finite differences."""
    problem = Problem("gradcheck", 2, ((3, 4), (1, 1), (2, 3)), 2, 2, 3, 2, ragged, reference_dim)
    inputs = make(problem, operator, torch.float64, device, seed=7)
    leaves = {name: tensor.requires_grad_() for name, tensor in floats(inputs).items()}

    def run(*tensors: torch.Tensor) -> torch.Tensor:
        return run_msda(inputs._replace(**dict(zip(leaves, tensors, strict=True))))

    # CUDA sums gradients by atomics, so two runs differ by rounding.
    options = {"nondet_tol": 1e-12 if device == "cuda" else 0.0}
    assert torch.autograd.gradcheck(
        run,
        tuple(leaves.values()),
        check_forward_ad=True,
        check_batched_grad=True,
        check_batched_forward_grad=True,
        **options,
    )
    # Projections on random vectors: the Jacobian of all gradients would take a minute.
    assert torch.autograd.gradgradcheck(
        run, tuple(leaves.values()), check_fwd_over_rev=True, fast_mode=True, **options
    )


# ---- The backward operators in Torch ---------------------------------------------------------------------


def backward(operator: str, inputs: AttentionInputs | FusedInputs, **options) -> tuple[torch.Tensor, ...]:
    """The registered backward operator of the inputs with a random grad_output."""
    run = getattr(torch.ops.msda, f"{operator}_backward")
    return run(normal_grad_output(inputs, 22), *inputs, **options)


@pytest.mark.parametrize("reference_dim", [2, 4])
def test_reference_gradient_only_where_wanted(reference_dim: int, device: str) -> None:
    """It is empty if the caller does not want it; the other gradients stay the same."""
    inputs = make(replace(EQUAL, reference_dim=reference_dim), "fused_attention", device=device)
    with_it = backward("fused_attention", inputs, deterministic=True)
    without = backward("fused_attention", inputs, reference_gradient=False, deterministic=True)
    assert with_it[1].shape == inputs.reference_points.shape and with_it[1].any()
    assert without[1].shape == (0,)
    for i in (0, 2, 3):
        assert torch.equal(with_it[i], without[i])


# ---- The deterministic mode ------------------------------------------------------------------------------


@pytest.fixture
def deterministic() -> Iterator[None]:
    """PyTorch's deterministic mode, for one test."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def assert_same_bits(inputs: AttentionInputs | FusedInputs, grad_output: torch.Tensor) -> dict:
    """Fails unless ten runs give the same gradients, which it returns."""
    first = autograd_gradients(inputs, grad_output)
    for _ in range(9):
        for name, gradient in autograd_gradients(inputs, grad_output).items():
            assert torch.equal(gradient, first[name]), name
    return first


@operators
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
@pytest.mark.parametrize("problem", [EQUAL, RAGGED, ENCODER], ids=lambda problem: problem.name)
def test_deterministic_mode(
    operator: str, dtype: torch.dtype, problem: Problem, device: str, deterministic: None
) -> None:
    """Ten runs give the same bits, as near to the truth as in any other mode."""
    inputs = make(problem, operator, dtype, device)
    grad_output = normal_grad_output(inputs, 22)
    assert_gradients(assert_same_bits(inputs, grad_output), problem, inputs, grad_output)


@pytest.mark.gpu
@operators
@pytest.mark.parametrize("name", ["codino_encoder_608x608", "codino_decoder_1280x1920"])
def test_deterministic_mode_at_real_sizes(operator: str, name: str, deterministic: None) -> None:
    """Where thousands of samples add to a cell the bits are the same, and as exact as with float atomics."""
    inputs = make(BY_NAME[name], operator, device="cuda")
    grad_output = normal_grad_output(inputs, 22)
    first = assert_same_bits(inputs, grad_output)
    exact = backward(operator, operator_errors.in_float64(inputs))[0]
    torch.use_deterministic_algorithms(False)
    by_atomics = operator_errors.relative_error(autograd_gradients(inputs, grad_output)["value"], exact)
    # Most of either error is that of float32 coordinates; what atomics add to it varies from run to run.
    assert operator_errors.relative_error(first["value"], exact) <= max(by_atomics * 1.01, 1e-7)


@operators
@pytest.mark.parametrize("scale", [1e-33, 1e-20, 1e20, 1e34], ids=str)
def test_deterministic_mode_finds_its_scale(
    operator: str, scale: float, device: str, deterministic: None
) -> None:
    """Gradients of any size, and heads of very different sizes, keep their precision."""
    inputs = make(ENCODER, operator, device=device)
    grad_output = normal_grad_output(inputs, 22) * scale
    grad_output[..., :32] *= 1e-2
    grad_output[..., 32:64] *= 1e2
    found = autograd_gradients(inputs, grad_output)["value"]
    expected = autograd_gradients(operator_errors.in_float64(inputs), grad_output.double(), reference)[
        "value"
    ]
    for head in range(ENCODER.num_heads):
        error = operator_errors.relative_error(found[:, :, head], expected[:, :, head])
        assert error <= 1e-6, f"head {head}: {error:.1e}"


@operators
def test_deterministic_mode_with_infinite_gradients(operator: str, device: str, deterministic: None) -> None:
    """A non-finite gradient reaches the same cells as with atomics, and no others."""
    inputs = make(ENCODER, operator, device=device)
    grad_output = normal_grad_output(inputs, 22)
    grad_output[0, 3, 40] = float("inf")
    grad_output[0, 9, 41] = float("nan")
    grad_output[1, 60, 0] = float("-inf")
    found, again = (autograd_gradients(inputs, grad_output)["value"] for _ in range(2))
    with_atomics = getattr(torch.ops.msda, f"{operator}_backward")(grad_output, *inputs)[0]
    assert found.isfinite().any() and not found.isfinite().all()
    torch.testing.assert_close(found, with_atomics, rtol=1e-4, atol=1e-5, equal_nan=True)
    assert torch.equal(found.view(torch.int32), again.view(torch.int32))


@pytest.mark.gpu
@pytest.mark.parametrize("kernel", ["group", "tile"])
def test_forced_kernel_that_does_not_fit(kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MSDA_BACKWARD", kernel)
    for problem, options in ((ENCODER, {"deterministic": True}), (replace(ENCODER, head_dim=24), {})):
        with pytest.raises(RuntimeError, match="not supported"):
            backward("attention", make(problem, "attention", device="cuda"), **options)
