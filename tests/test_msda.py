"""The matrix of the operator: every backend x type x (forward, gradient) against `msda.reference` in float64.

`pytest -k msda` is the whole picture. HYPOTHESIS_PROFILE=thorough draws more examples.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import errors
from benchmarks.problems import DISTRIBUTIONS, REAL, SMALL, AttentionInputs, FusedInputs, Problem
from tests import backends, strategies
from tests.backends import Backend
from tests.comparison import (
    assert_gradients,
    assert_result,
    gradients,
    make,
    output_floor,
    reference,
    run_msda,
    weights_of,
)

SHORT = {torch.float64: "fp64", torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}
SIXTEEN_BIT = (torch.float16, torch.bfloat16)


def dtype_id(dtype: torch.dtype) -> str:
    """How test ids call a type."""
    return SHORT[dtype]


def matrix(gradients: bool = False):
    """One row for each backend, operator and type."""
    rows = [
        pytest.param(
            backend,
            operator,
            dtype,
            id=f"{backend.name}-{operator}-{SHORT[dtype]}",
            marks=[pytest.mark.gpu] if backend.device == "cuda" else [],
        )
        for backend in backends.ALL
        if backend.gradients or not gradients
        for operator, dtype in itertools.product(("attention", "fused"), backend.dtypes)
    ]
    return pytest.mark.parametrize(("backend", "operator", "dtype"), rows)


def skip_unless(reason: str | None) -> None:
    """Skips the test with a reason, if there is one."""
    if reason:
        pytest.skip(reason)


@matrix()
@given(data=st.data())
def test_forward(backend: Backend, operator: str, dtype: torch.dtype, data: st.DataObject) -> None:
    skip_unless(backend.can_run(dtype))
    case = data.draw(backend.cases(operator))
    inputs = case.inputs(dtype, backend.device)
    with backend.chosen():
        result = backend.run(inputs)
    assert_result(result, errors.truth(inputs), inputs, dtype)


@matrix(gradients=True)
@given(data=st.data())
def test_gradient(backend: Backend, operator: str, dtype: torch.dtype, data: st.DataObject) -> None:
    skip_unless(backend.can_run(dtype))
    case = data.draw(backend.cases(operator, smooth=True))
    with backend.chosen():
        assert_gradients(case.problem, case.inputs(dtype, backend.device), case.seed)


@matrix(gradients=True)
@pytest.mark.parametrize("place", ["outside", "huge", "nan", "infinite"])
@pytest.mark.parametrize("reference_dim", [2, 4])
def test_gradient_of_samples_that_miss(
    backend: Backend, operator: str, dtype: torch.dtype, place: str, reference_dim: int
) -> None:
    """Samples far outside ("outside": some of them are not) give zero gradients, not NaN."""
    skip_unless(backend.can_run(dtype))
    problem = Problem("misses", 1, ((4, 5), (2, 2)), 6, 2, 16, reference_dim=reference_dim)
    case = strategies.Case(problem, operator == "fused", (place,), seed=1)
    inputs = case.inputs(dtype, backend.device)
    with backend.chosen():
        found = gradients(inputs, torch.ones((1, 6, 32), dtype=dtype, device=backend.device))
    for name, gradient in found.items():
        if place == "outside":
            assert gradient.isfinite().all(), name
        else:
            assert not gradient.any(), name


@matrix()
@pytest.mark.parametrize("problem", SMALL, ids=lambda problem: problem.name)
@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_small(
    backend: Backend, operator: str, dtype: torch.dtype, problem: Problem, distribution: str
) -> None:
    skip_unless(backend.can_run(dtype))
    if not backend.takes(problem):
        pytest.skip(
            f"{backend.name} takes the form {backend.form!r} and the ragged lists {backend.ragged} "
            "(an engine is built for one list)"
        )
    inputs = make(problem, operator, dtype, backend.device, distribution=distribution, seed=3)
    with backend.chosen():
        result = backend.run(inputs)
    assert_result(result, errors.truth(inputs), inputs, dtype)


@matrix()
@pytest.mark.parametrize("problem", strategies.COLUMNS, ids=lambda problem: problem.name)
@pytest.mark.parametrize("reference_dim", [2, 4])
def test_columns_of_one_tensor(
    backend: Backend, operator: str, dtype: torch.dtype, problem: Problem, reference_dim: int
) -> None:
    """Offsets and logits (locations and weights) as one layer gives both."""
    skip_unless(backend.can_run(dtype))
    problem = replace(problem, reference_dim=reference_dim)
    if not backend.takes(problem):
        pytest.skip(f"{backend.name} takes the form {backend.form!r}")
    inputs = strategies.Case(problem, operator == "fused", packed=True, seed=12).inputs(dtype, backend.device)
    assert not (inputs[-3].is_contiguous() or inputs[-2].is_contiguous())
    with backend.chosen():
        result = backend.run(inputs)
    assert_result(result, errors.truth(inputs), inputs, dtype)


@matrix()
@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
@pytest.mark.parametrize("problem", REAL, ids=lambda problem: problem.name)
def test_real_size(
    backend: Backend, operator: str, dtype: torch.dtype, problem: Problem, distribution: str
) -> None:
    skip_unless(backend.can_run(dtype))
    if backend.name == "tensorrt":
        pytest.skip(
            "the engines of the tests are built for small sizes; benchmarks.msda checks the plugin at these"
        )
    small = problem.name == "codino_decoder_608x608" and distribution == "near" and dtype == torch.float32
    if backend.name == "formulas-cuda":
        rows = problem.batch * problem.num_queries * problem.num_heads * sum(problem.points)
        gibibytes = 10 * rows * problem.head_dim * max(4, dtype.itemsize) / 2**30
        if torch.cuda.mem_get_info()[0] < gibibytes * 2**30:
            pytest.skip(f"the formulas need {gibibytes:.0f} GiB of free GPU memory")
    if backend.device == "cpu" and not small:
        pytest.skip("too slow on a CPU: one decoder in fp32 stands for the real sizes")
    inputs = make(problem, operator, dtype, backend.device, distribution=distribution, seed=4)
    with backend.chosen():
        result = backend.run(inputs)
    assert_result(result, errors.truth(inputs), inputs, dtype)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("operator", ["attention", "fused"])
@pytest.mark.parametrize("reference_dim", [2, 4])
@pytest.mark.parametrize("ragged", [None, (2, 0, 3)], ids=["equal", "ragged"])
def test_gradcheck(device: str, operator: str, reference_dim: int, ragged: tuple[int, ...] | None) -> None:
    """First and second derivatives in both modes, alone and under vmap, against finite differences."""
    if device == "cuda":
        skip_unless(backends.no_gpu())
    problem = Problem("gradcheck", 2, ((3, 4), (1, 1), (2, 3)), 2, 2, 3, 2, ragged, reference_dim)
    inputs = strategies.Case(problem, operator == "fused", seed=7, smooth=True).inputs(torch.float64, device)
    names = [
        name for name, x in inputs._asdict().items() if isinstance(x, torch.Tensor) and x.is_floating_point()
    ]

    def run(*leaves: torch.Tensor) -> torch.Tensor:
        return run_msda(inputs._replace(**dict(zip(names, leaves, strict=True))))

    leaves = [getattr(inputs, name).requires_grad_() for name in names]
    # CUDA adds up gradients by atomics, so two runs differ by rounding.
    options = {"nondet_tol": 1e-12 if device == "cuda" else 0.0}
    assert torch.autograd.gradcheck(
        run,
        leaves,
        check_forward_ad=True,
        check_batched_grad=True,
        check_batched_forward_grad=True,
        **options,
    )
    # Projections on random vectors: the whole Jacobian of all gradients takes a minute.
    assert torch.autograd.gradgradcheck(run, leaves, check_fwd_over_rev=True, fast_mode=True, **options)


@pytest.mark.parametrize("dtype", [torch.float32, *SIXTEEN_BIT], ids=dtype_id)
def test_tolerance_is_tight(dtype: torch.dtype) -> None:
    """Mistakes that implementations have made fail the tolerance."""
    problem = Problem("wrong", 1, ((96, 144), (48, 72)), 300, num_heads=2, head_dim=8)
    inputs = problem.attention_inputs(dtype, seed=8)
    right = errors.in_float64(inputs)
    expected = reference(right)
    sizes = torch.tensor(problem.spatial_shapes).flip(-1)[:, None].double()  # [L, 1, 2] = (W, H)
    locations, weights = right.sampling_locations, right.attention_weights
    corners_aligned = ((locations * (sizes - 1)) + 0.5) / sizes
    rounded = ((locations * sizes - 0.5).half().double() + 0.5) / sizes
    dropped = weights.clone()
    dropped[:, :, :, 1] = 0
    wrong = {
        "align_corners=True": right._replace(sampling_locations=corners_aligned),
        "coordinates in half": right._replace(sampling_locations=rounded),
        "x and y swapped": right._replace(sampling_locations=locations.flip(-1)),
        "one level dropped": right._replace(attention_weights=dropped),
    }
    assert_result(expected.to(dtype), expected, inputs, dtype)
    for mistake, changed in wrong.items():
        with pytest.raises(AssertionError, match="relative error"):
            assert_result(reference(changed).to(dtype), expected, inputs, dtype)
            pytest.fail(f"{mistake} passes")


def test_tolerance_sees_non_finite_results() -> None:
    """A NaN where a number belongs fails, and so does a number in the place of a NaN."""
    expected = torch.tensor([1.0, float("nan"), float("inf")], dtype=torch.float64)
    assert errors.relative_error(expected.clone(), expected) == 0.0
    for wrong in ([1.0, 0.0, float("inf")], [float("nan")] * 3, [1.0, float("nan"), -float("inf")]):
        assert errors.relative_error(torch.tensor(wrong), expected) == float("inf")


@given(case=st.booleans().flatmap(strategies.cases))
def test_reference_is_the_definition(case: strategies.Case) -> None:
    """The reference against the definition, written as loops over samples and corners."""
    inputs = case.inputs(torch.float64)
    expected = definition(case.problem, inputs)
    assert errors.relative_error(reference(inputs), expected, output_floor(inputs, expected)) <= 1e-12


def definition(problem: Problem, inputs: AttentionInputs | FusedInputs) -> torch.Tensor:
    """design.md's sentences, one level and corner at a time."""
    weights = weights_of(inputs)
    if isinstance(inputs, FusedInputs):
        origin = problem.to_points(inputs.reference_points[..., :2])
        sizes = torch.tensor(problem.spatial_shapes, dtype=torch.float64).flip(-1)  # [L, 2] = (W, H)
        if problem.reference_dim == 2:
            scale = problem.to_points((1 / sizes)[None, None])
        else:
            counts = torch.tensor(problem.points, dtype=torch.float64)[:, None]
            scale = problem.to_points(inputs.reference_points[..., 2:] * 0.5 / counts)
        locations = origin + inputs.sampling_offsets.reshape(*weights.shape, 2) * scale
    else:
        locations = inputs.sampling_locations.reshape(*weights.shape, 2)
    batch, queries, heads, _ = weights.shape
    output = torch.zeros((batch, queries, heads, problem.head_dim), dtype=torch.float64)
    n, m = torch.arange(batch)[:, None, None], torch.arange(heads)
    first = 0
    for (height, width), start, points in zip(
        problem.spatial_shapes, inputs.level_start_index.tolist(), problem.points, strict=True
    ):
        for point in range(first, first + points):
            x = locations[..., point, 0] * width - 0.5
            y = locations[..., point, 1] * height - 0.5
            for row, column in itertools.product(range(height), range(width)):
                share = (1 - (x - column).abs()).clamp(min=0) * (1 - (y - row).abs()).clamp(min=0)
                share = torch.where((x - column).isfinite() & (y - row).isfinite(), share, 0.0)
                value = inputs.value[n, start + row * width + column, m]  # [N, 1, M, D]
                output += (share * weights[..., point])[..., None] * value
        first += points
    return output.flatten(2)


@matrix()
def test_values_that_are_not_finite(backend: Backend, operator: str, dtype: torch.dtype) -> None:
    """A NaN or infinite cell spoils the samples that read it, and no others."""
    skip_unless(backend.can_run(dtype))
    problem = Problem("spoiled", 1, ((5, 6), (3, 2)), 40, num_heads=2, head_dim=8)
    inputs = strategies.Case(problem, operator == "fused", seed=9, smooth=True).inputs(dtype, backend.device)
    for cell, number in ((7, float("nan")), (16, float("inf")), (33, -float("inf"))):
        inputs.value[0, cell, cell % 2] = number
    expected = errors.truth(inputs)
    assert not expected.isfinite().all()
    assert expected.isfinite().any()
    assert_result(backend.run(inputs), expected, inputs, dtype)


@matrix()
def test_large_values(backend: Backend, operator: str, dtype: torch.dtype) -> None:
    """Values near fp16's largest number do not overflow on the way to a result that fits."""
    skip_unless(backend.can_run(dtype))
    problem = Problem("large", 1, ((6, 7), (3, 3)), 20, num_heads=2, head_dim=8, num_points=8)
    inputs = make(problem, operator, dtype, backend.device, seed=10)
    inputs = inputs._replace(value=inputs.value.sign() * 60000)
    assert_result(backend.run(inputs), errors.truth(inputs), inputs, dtype)


@matrix()
def test_deterministic(backend: Backend, operator: str, dtype: torch.dtype) -> None:
    skip_unless(backend.can_run(dtype))
    problem = next(problem for problem in SMALL if problem.name == "pyramid")
    inputs = make(problem, operator, dtype, backend.device, seed=11)
    assert torch.equal(backend.run(inputs), backend.run(inputs))
