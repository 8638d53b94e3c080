"""Checks that hold for every operator: its derivatives, PyTorch's subsystems, and the choice of its kernel.

Every function fails unless the operator does what the function's docstring says. `inputs` is a named tuple
of the operator's arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import getitem
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from benchmarks.operator_errors import TOLERANCE, relative_error
from tests.matrix import emulated_kernels
from tests.matrix.map_operators import Backend, emulator_or_skip, map_tensors

Operator = Callable[..., Tensor]


def drawn_cases(
    backend: Backend, cases: st.SearchStrategy, check: Callable[[Any], None], part: int = 2
) -> None:
    """The check passes for drawn cases.

    Args:
        part: the emulator, which is slow, draws the usual number of cases divided by this.
    """

    @settings(max_examples=settings.default.max_examples // (part if backend.emulated else 1))
    @given(case=cases)
    def run(case: Any) -> None:
        check(case)

    run()


def unknown_kernel(operator: Operator, inputs: Any, variable: str, kernels: str) -> None:
    """A forced kernel that does not exist is an error, which lists the kernels.

    Args:
        operator: the public function. Inputs on the CPU go to the emulator's function of the same name.
        variable: the environment variable that forces a kernel.
        kernels: pattern of the listed names.
    """
    error: type[Exception] = RuntimeError
    if not inputs[0].is_cuda:
        emulator_or_skip()
        operator, error = getattr(emulated_kernels, operator.__name__), emulated_kernels.EmulatorError
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(variable, "fastest")
        with pytest.raises(error, match=rf"{variable}: expected one of {kernels}, or no value.*'fastest'"):
            operator(*inputs)


def with_gradients(inputs: Any) -> tuple[Any, list[Tensor]]:
    """Inputs whose tensors are leaves, and these."""
    inputs = map_tensors(inputs, lambda x: x.detach().requires_grad_())
    return inputs, [x for x in inputs if isinstance(x, Tensor)]


def derivatives(operator: Operator, inputs: Any) -> None:
    """First derivatives in both modes, second derivatives, torch.func and vmap of inputs in float64."""
    inputs, tensors = with_gradients(inputs)
    names = [name for name, value in inputs._asdict().items() if isinstance(value, Tensor)]

    def run(*tensors: Tensor) -> Tensor:
        return operator(*inputs._replace(**dict(zip(names, tensors, strict=True))))

    assert torch.autograd.gradcheck(run, tensors, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(run, tensors)
    expected = torch.autograd.grad(run(*tensors).square().sum(), tensors)
    every = tuple(range(len(tensors)))
    found = torch.func.grad(lambda *x: run(*x).square().sum(), every)(*(x.detach() for x in tensors))
    torch.testing.assert_close(found, expected)
    samples = [torch.stack((x, 2 * x, -x)).detach() for x in tensors]
    mapped = torch.vmap(run)(*samples)
    torch.testing.assert_close(mapped, torch.stack([run(*(x[i] for x in samples)) for i in range(3)]))
    first_alone = [{0: dim} for dim in range(tensors[0].dim() + 1)]
    for dims in (*first_alone, {0: 1, every[-1]: 1}):
        given = [samples[i].movedim(0, dims[i]) if i in dims else x for i, x in enumerate(tensors)]
        mapped = torch.vmap(run, tuple(dims.get(i) for i in every))(*given)
        torch.testing.assert_close(
            mapped[1], run(*(2 * x if i in dims else x for i, x in enumerate(tensors)))
        )


def gradients(operator: Operator, rounded: Any) -> None:
    """The gradients are as near to those of the truth as their type allows."""
    inputs, tensors = with_gradients(rounded)
    wide, wide_tensors = with_gradients(map_tensors(rounded, Tensor.double))
    output = operator(*inputs)
    grad_output = torch.randn(output.shape, device=output.device).to(output.dtype)
    found = torch.autograd.grad(output, tensors, grad_output)
    expected = torch.autograd.grad(wide.truth(), wide_tensors, grad_output.double())
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == output.dtype
        assert relative_error(one, other) <= TOLERANCE[output.dtype]


def registration(operator: torch._ops.OpOverload, rounded: Any) -> None:
    """`torch.library.opcheck` passes for the registered operator."""
    inputs, tensors = with_gradients(rounded)
    tolerance = 1e-2 if tensors[0].dtype == torch.float16 else 1e-4
    torch.library.opcheck(operator, (), inputs._asdict(), rtol=tolerance, atol=tolerance)


def registration_of_8_bits(operator: torch._ops.OpOverload, inputs: Any, eight_bits: torch.dtype) -> None:
    """`torch.library.opcheck` passes for a registered operator that has no derivatives."""
    # PyTorch cannot compare 8-bit floats, which two of the checks do.
    compared = ("test_schema", "test_aot_dispatch_dynamic") if eight_bits == torch.int8 else ()
    torch.library.opcheck(operator, (), inputs._asdict(), test_utils=("test_faketensor", *compared))


def derivatives_of_formula(operator: Operator, formula: Operator, single: Any) -> None:
    """First derivatives in both modes, second derivatives and torch.func are those of a formula in float64.

    Args:
        operator: has no float64.
        formula: takes the same arguments.
        single: inputs in float32, the tensors first.
    """
    _, tensors = with_gradients(single)
    numbers = [x for x in single if not isinstance(x, Tensor)]
    tangents = [torch.randn_like(x) for x in tensors]

    def found(function: Operator, dtype: torch.dtype) -> list[Tensor]:
        leaves = [x.detach().to(dtype).requires_grad_() for x in tensors]
        along = tuple(x.to(dtype) for x in tangents)

        def loss(*x: Tensor) -> Tensor:
            return function(*x, *numbers).square().sin().sum()

        first = torch.autograd.grad(loss(*leaves), leaves, create_graph=True)
        second = torch.autograd.grad(sum((x * y).sum() for x, y in zip(first, along)), leaves)
        values = tuple(x.detach() for x in leaves)
        mapped = torch.func.grad(loss, tuple(range(len(leaves))))(*values)
        return [*first, *second, *mapped, torch.func.jvp(loss, values, along)[1]]

    pairs = zip(found(operator, torch.float32), found(formula, torch.float64), strict=True)
    assert max(relative_error(one.detach(), other.detach()) for one, other in pairs) < 1e-4


def compiles(operator: Operator, samples: Sequence[Any]) -> None:
    """torch.compile without a graph break, forward and backward, with sizes that change."""
    backend = "inductor" if samples[0][0].is_cuda else "aot_eager"
    compiled = torch.compile(operator, fullgraph=True, backend=backend, dynamic=True)
    for sample in samples:
        inputs, tensors = with_gradients(sample)
        found, expected = compiled(*inputs), operator(*inputs)
        torch.testing.assert_close(found, expected)
        gradients = [torch.autograd.grad(x.square().sum(), tensors) for x in (found, expected)]
        torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-5)


def exports(
    operator: torch._ops.OpOverload,
    call: Operator,
    tensors: Sequence[Tensor],
    others: Sequence[Tensor],
    dynamic: int,
    smallest: int = 1,
) -> None:
    """torch.export, strict, with dynamic sizes; the graph keeps the operator whole.

    Args:
        operator: the registered operator.
        call: calls the public function with tensors.
        tensors: arguments of the exported call.
        others: arguments of other sizes.
        dynamic: the number of leading dimensions of the first tensor, and of others of its shape, whose sizes
            are dynamic.
        smallest: of these sizes.
    """

    class Call(nn.Module):
        def forward(self, *tensors: Tensor) -> Tensor:
            return call(*tensors)

    sizes = {i: torch.export.Dim(f"size{i}", min=smallest, max=4096) for i in range(dynamic)}
    shapes = tuple(sizes if tensor.shape == tensors[0].shape else None for tensor in tensors)
    program = torch.export.export(Call(), tuple(tensors), dynamic_shapes=(shapes,), strict=True)
    targets = [node.target for node in program.graph.nodes if node.op == "call_function"]
    assert [target for target in targets if target is not getitem] == [operator]
    torch.testing.assert_close(program.module()(*others), call(*others), rtol=0, atol=0)


def autocast(operator: Operator, single: Any, dtype: torch.dtype, float64: bool = True) -> None:
    """All tensors are cast, except float64; gradients have the inputs' types.

    Args:
        operator: the operator.
        single: inputs in float32.
        dtype: the type to cast to.
        float64: whether the operator takes float64.
    """
    inputs, tensors = with_gradients(single)
    mixed = inputs._replace(**{inputs._fields[0]: inputs[0].to(dtype)})
    with torch.autocast(inputs[0].device.type, dtype):
        output = operator(*mixed)
        assert not float64 or operator(*map_tensors(single, Tensor.double)).dtype == torch.float64
    assert torch.equal(output, operator(*map_tensors(inputs, lambda x: x.to(dtype))))
    for leaf, gradient in zip(tensors, torch.autograd.grad(output.float().sum(), tensors), strict=True):
        assert gradient.dtype == leaf.dtype and gradient.isfinite().all()


def replays(
    operator: Operator, inputs: Any, change: Callable[[Any], object] = lambda inputs: inputs[0].mul_(0.5)
) -> Tensor:
    """A replay of a CUDA graph reads the present values of the inputs, and every run gives the same bits.

    The graph is captured on another stream.

    Args:
        change: changes the inputs in place after the capture; halves the first by default.

    Returns:
        The result of the changed inputs.
    """
    operator(*inputs)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = operator(*inputs)
    change(inputs)
    for _ in range(20):
        graph.replay()
        assert torch.equal(output, operator(*inputs))
    return output
