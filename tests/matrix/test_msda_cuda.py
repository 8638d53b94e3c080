"""The CUDA operator: streams, devices, graph capture, huge tensors, real sizes, names of kernels."""

from __future__ import annotations

import pytest
import torch

from benchmarks import operator_errors
from benchmarks.problems import BY_NAME, Problem
from tests.matrix import backends, drawn_cases
from tests.matrix.against_reference import (
    assert_gradients,
    assert_result,
    autograd_gradients,
    make,
    normal_grad_output,
    run_msda,
)

pytestmark = pytest.mark.gpu

PYRAMID = BY_NAME["pyramid"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ["codino_encoder_608x608", "codino_decoder_1280x1920"])
def test_gradient_of_real_size(name: str, dtype: torch.dtype) -> None:
    problem = BY_NAME[name]
    inputs = drawn_cases.smooth_inputs(problem, "attention", dtype, "cuda")
    grad_output = normal_grad_output(inputs, 0)
    assert_gradients(autograd_gradients(inputs, grad_output), problem, inputs, grad_output)


def test_gradient_on_another_stream() -> None:
    """The backward pass runs on the forward's stream."""
    case = drawn_cases.Case(PYRAMID, fused=True, seed=14, smooth=True)
    with torch.cuda.stream(torch.cuda.Stream()):
        inputs = case.inputs(torch.float32, "cuda")
        grad_output = normal_grad_output(inputs, 0)
        assert_gradients(autograd_gradients(inputs, grad_output), PYRAMID, inputs, grad_output)


@backends.operators
def test_second_device(operator: str) -> None:
    """Inputs on a GPU that is not the current one: the operator switches by itself, and back."""
    if torch.cuda.device_count() < 2:
        pytest.skip("no second GPU")
    inputs = make(PYRAMID, operator, torch.float32, "cuda:1", seed=15)
    result = run_msda(inputs)
    assert result.device == torch.device("cuda", 1)
    assert torch.cuda.current_device() == 0
    assert_result(result, operator_errors.truth(inputs), inputs, torch.float32)


@backends.operators
def test_cuda_graph(operator: str) -> None:
    """A replay of the captured operator reads the current values of its inputs."""
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


def test_more_than_2_to_31_elements() -> None:
    """Offsets into value, also within an image, and into the output are 64 bits wide: the end of a batch."""
    torch.cuda.empty_cache()
    if torch.cuda.mem_get_info()[0] < 40 * 2**30:
        pytest.skip("no GPU with 40 GiB of free memory")
    problem = Problem("huge", 2, ((2900, 2900),), 2900 * 2900, num_points=1)
    inputs = problem.attention_inputs(torch.float16, "cuda", seed=17)
    assert inputs.value[0].numel() > 2**31
    result = run_msda(inputs)[-1:, -2000:, -32:]
    # The last head alone is small enough for the reference.
    locations, weights = (tensor[-1:, -2000:, -1:] for tensor in inputs[3:5])
    last = inputs._replace(
        value=inputs.value[-1:, :, -1:], sampling_locations=locations, attention_weights=weights
    )
    assert_result(result, operator_errors.truth(last), last, torch.float16)


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
