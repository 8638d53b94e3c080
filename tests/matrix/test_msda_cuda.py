"""The CUDA operator: streams, devices, graph capture, huge tensors, real sizes, names of kernels."""

from __future__ import annotations

import pytest
import torch

import msda
from benchmarks import operator_errors
from benchmarks.problems import BY_NAME, AttentionInputs, Problem
from tests.matrix import backends, drawn_cases
from tests.matrix.against_reference import (
    assert_gradients,
    assert_result,
    autograd_gradients,
    make,
    normal_grad_output,
    reference,
    run_msda,
)

pytestmark = pytest.mark.gpu

PYRAMID = BY_NAME["pyramid"]


def requires_gpu(dtype: torch.dtype = torch.float32) -> None:
    """Skips the test where the CUDA operator cannot run."""
    if reason := backends.no_gpu(dtype):
        pytest.skip(reason)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ["codino_encoder_608x608", "codino_decoder_1280x1920"])
def test_gradient_of_real_size(name: str, dtype: torch.dtype) -> None:
    requires_gpu(dtype)
    problem = BY_NAME[name]
    inputs = problem.attention_inputs(dtype, "cuda", seed=5)
    if dtype == torch.float32:
        # A 16-bit location is exact in cells; an fp32 one may round across a kink, where the gradient jumps.
        inputs = inputs._replace(sampling_locations=away_from_kinks(problem, inputs.sampling_locations))
    grad_output = normal_grad_output(inputs, 0)
    assert_gradients(autograd_gradients(inputs, grad_output), problem, inputs, grad_output)


def away_from_kinks(problem: Problem, locations: torch.Tensor) -> torch.Tensor:
    """Locations [N, Q, M, L, P, 2] moved to at least 0.05 cells from a cell centre."""
    sizes = torch.tensor(problem.spatial_shapes, device=locations.device).flip(-1)[:, None]  # (W, H)
    pixels = locations.double() * sizes - 0.5
    fraction = (pixels - pixels.floor()).clamp(0.05, 0.95)
    return ((pixels.floor() + fraction + 0.5) / sizes).to(locations.dtype)


@pytest.mark.parametrize("operator", ["attention", "fused"])
def test_runs_on_the_current_stream(operator: str) -> None:
    """The operator waits for earlier work on its stream, so it sees values that arrive late."""
    requires_gpu()
    inputs = make(PYRAMID, operator, torch.float32, "cuda", seed=13)
    expected = operator_errors.truth(inputs)
    late = torch.zeros_like(inputs.value)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)
        late.copy_(inputs.value)
        result = run_msda(inputs._replace(value=late))
    stream.synchronize()
    assert_result(result, expected, inputs, torch.float32)


def test_gradient_on_another_stream() -> None:
    """The backward pass runs on the forward's stream."""
    requires_gpu()
    case = drawn_cases.Case(PYRAMID, fused=True, seed=14, smooth=True)
    with torch.cuda.stream(torch.cuda.Stream()):
        inputs = case.inputs(torch.float32, "cuda")
        grad_output = normal_grad_output(inputs, 0)
        assert_gradients(autograd_gradients(inputs, grad_output), PYRAMID, inputs, grad_output)


@pytest.mark.parametrize("operator", ["attention", "fused"])
def test_second_device(operator: str) -> None:
    """Inputs on a GPU that is not the current one: the operator switches by itself, and back."""
    requires_gpu()
    if torch.cuda.device_count() < 2:
        pytest.skip("no second GPU")
    inputs = make(PYRAMID, operator, torch.float32, "cuda:1", seed=15)
    result = run_msda(inputs)
    assert result.device == torch.device("cuda", 1)
    assert torch.cuda.current_device() == 0
    assert_result(result, operator_errors.truth(inputs), inputs, torch.float32)


@pytest.mark.parametrize("operator", ["attention", "fused"])
def test_cuda_graph(operator: str) -> None:
    """A replay of the captured operator reads the current values of its inputs."""
    requires_gpu()
    inputs = make(PYRAMID, operator, torch.float32, "cuda", seed=16)
    graph = torch.cuda.CUDAGraph()
    run_msda(inputs)
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        result = run_msda(inputs)
    inputs.value.normal_()
    graph.replay()
    torch.cuda.synchronize()
    assert_result(result, operator_errors.truth(inputs), inputs, torch.float32)


def test_value_beyond_2_to_31_elements() -> None:
    """Offsets into the value tensor are 64 bits wide: samples of its last rows."""
    requires_gpu(torch.float16)
    side, rows = 2900, 4
    problem = Problem("huge", 1, ((side, side),), 64, head_dim=32, num_heads=8)
    count = problem.num_cells * 256
    assert count > 2**31
    require_memory(2 * count)
    shapes, starts = problem.index_tensors("cuda")
    value = torch.zeros((1, problem.num_cells, 8, 32), dtype=torch.float16, device="cuda")
    last = torch.randn((1, rows * side, 8, 32), device="cuda").half()
    value[:, -rows * side :] = last
    generator = torch.Generator("cuda").manual_seed(17)
    cells = torch.rand((1, 64, 8, 1, 4, 2), generator=generator, device="cuda", dtype=torch.float64)
    # Within the last rows, with no neighbour above them.
    cells = cells * torch.tensor([side - 1, rows - 1], device="cuda")
    weights = torch.full((1, 64, 8, 1, 4), 0.25, device="cuda", dtype=torch.float16)
    offset = torch.tensor([0, side - rows], device="cuda")
    locations = ((cells + offset + 0.5) / side).float()
    result = msda.attention(value, shapes, starts, locations, weights)
    # The same samples of a level that has the last rows only, where the rounded locations put them.
    cells = locations.double() * side - 0.5 - offset
    cropped = torch.tensor([[rows, side]], device="cuda")
    locations = (cells + 0.5) / torch.tensor([side, rows], device="cuda")
    inputs = AttentionInputs(last.double(), cropped, starts, locations, weights.double(), None)
    assert_result(result, reference(inputs), inputs, torch.float16)


def test_output_beyond_2_to_31_elements() -> None:
    """Offsets into locations, weights and output are 64 bits wide."""
    requires_gpu(torch.float16)
    queries = 2**31 // 256 + 1000
    require_memory(queries * (256 * 2 + 8 * 6))
    value = torch.randn((1, 4, 8, 32), device="cuda").half()
    shapes, starts = Problem("tiny", 1, ((2, 2),), 1).index_tensors("cuda")
    locations = torch.full((1, queries, 8, 1, 1, 2), 0.5, device="cuda", dtype=torch.float16)
    weights = torch.rand((1, queries, 8, 1, 1), device="cuda", dtype=torch.float16)
    result = msda.attention(value, shapes, starts, locations, weights)
    for part in (slice(0, 100), slice(queries - 2000, queries)):
        expected = (weights[:, part].double().flatten(3) * value.double().mean(1)).flatten(2)
        inputs = AttentionInputs(value, shapes, starts, locations[:, part], weights[:, part], None)
        assert_result(result[:, part], expected, inputs, torch.float16)


def require_memory(needed: int) -> None:
    """Skips the test where the GPU has less free memory than three times what its tensors take."""
    free, _ = torch.cuda.mem_get_info()
    if free < 3 * needed:
        pytest.skip(f"no GPU with {3 * needed / 2**30:.0f} GiB of free memory")


@pytest.mark.parametrize("variable", ["MSDA_FORWARD", "MSDA_BACKWARD"])
def test_unknown_kernel(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    requires_gpu()
    inputs = make(Problem("typo", 1, ((4, 5), (2, 2)), 6, 2, 16), "attention", torch.float32, "cuda")
    inputs.value.requires_grad_()
    output = run_msda(inputs)
    monkeypatch.setenv(variable, "genral")
    with pytest.raises(RuntimeError, match=f"{variable}: expected one of general, .*, got 'genral'"):
        run_msda(inputs) if variable == "MSDA_FORWARD" else output.sum().backward()


def test_unknown_kernel_in_an_engine(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture) -> None:
    if reason := backends.no_tensorrt():
        pytest.skip(reason)
    inputs = make(Problem("typo", 1, ((4, 5), (2, 2)), 6, 2, 16), "attention", torch.float32, "cuda")
    backends.run_tensorrt(inputs)
    monkeypatch.setenv("MSDA_FORWARD", "genral")
    with pytest.raises(RuntimeError, match="the engine did not run") as error:
        backends.run_tensorrt(inputs)
    # A plugin library built with another major version's headers writes to stderr what it cannot log.
    message = f"{error.value}\n{capfd.readouterr().err}"
    assert "MSDA_FORWARD: expected one of general, many, medium, few, or no value, got 'genral'" in message
