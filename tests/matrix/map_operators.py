"""What the tests of operators on maps share: rows of backends, checks in PyTorch, and wrong arguments.

The inputs of an operator are a named tuple of its arguments, the map first. `map(change)` changes every
tensor, `truth()` is the reference's result in float64, `floor()` a norm for `relative_error`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from benchmarks.operator_errors import TOLERANCE, relative_error
from tests.matrix import backends


@dataclass(frozen=True)
class Backend:
    """One way to compute an operator. The environment's `variable` forces its `kernel`."""

    name: str
    run: Callable[..., Tensor]
    device: str = "cpu"
    dtypes: tuple[torch.dtype, ...] = tuple(backends.DTYPES.values())
    missing: Callable[[torch.dtype], str | None] = lambda dtype: None
    variable: str = ""
    kernel: str | None = None

    @property
    def emulated(self) -> bool:
        return self.name.startswith("emulator")

    def compute(self, inputs: Any, order: int = 0) -> Tensor:
        with pytest.MonkeyPatch.context() as patch:
            if self.kernel:
                patch.setenv(self.variable, self.kernel)
            return self.run(*inputs, *((order,) if self.emulated else ()))

    def check(self, inputs: Any, order: int = 0) -> None:
        """Fails unless the result is as near to the truth as its type allows."""
        output, expected = self.compute(inputs, order), inputs.truth()
        assert output.dtype == inputs[0].dtype
        error, allowed = relative_error(output, expected, inputs.floor()), TOLERANCE[output.dtype]
        assert error <= allowed, f"relative error {error:.2e}, allowed {allowed:.0e}"


def matrix(rows: tuple[Backend, ...]) -> pytest.MarkDecorator:
    """Parametrises a test by backend and type."""
    short = {dtype: name for name, dtype in backends.DTYPES.items()}
    return pytest.mark.parametrize(
        ("backend", "dtype"),
        [
            pytest.param(
                backend,
                dtype,
                id=f"{backend.name}-{short.get(dtype, str(dtype))}",
                marks=[pytest.mark.gpu] if backend.device == "cuda" else [],
            )
            for backend in rows
            for dtype in backend.dtypes
        ],
    )


def skip_unless_ready(backend: Backend, dtype: torch.dtype) -> None:
    if reason := backend.missing(dtype):
        pytest.skip(reason)


def with_gradients(inputs: Any) -> tuple[Any, list[Tensor]]:
    """Inputs whose tensors are leaves, and these."""
    inputs = inputs.map(lambda x: x.detach().requires_grad_())
    return inputs, [x for x in inputs if isinstance(x, Tensor)]


def check_gradients(operator: Callable[..., Tensor], rounded: Any) -> None:
    """Fails unless the gradients are as near to those of the truth as their type allows."""
    inputs, tensors = with_gradients(rounded)
    wide, wide_tensors = with_gradients(rounded.map(Tensor.double))
    output = operator(*inputs)
    grad_output = torch.randn(output.shape, device=output.device).to(output.dtype)
    found = torch.autograd.grad(output, tensors, grad_output)
    expected = torch.autograd.grad(wide.truth(), wide_tensors, grad_output.double())
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == output.dtype
        assert relative_error(one, other) <= TOLERANCE[output.dtype]


def check_registration(operator: torch._ops.OpOverload, rounded: Any) -> None:
    """Runs `torch.library.opcheck` on a registered operator."""
    inputs, tensors = with_gradients(rounded)
    tolerance = 1e-2 if tensors[0].dtype == torch.float16 else 1e-4
    torch.library.opcheck(operator, (), inputs._asdict(), rtol=tolerance, atol=tolerance)


def check_compile(operator: Callable[..., Tensor], samples: Sequence[Any]) -> None:
    """torch.compile without a graph break, forward and backward, with sizes that change."""
    backend = "inductor" if samples[0][0].is_cuda else "aot_eager"
    compiled = torch.compile(operator, fullgraph=True, backend=backend, dynamic=True)
    for sample in samples:
        inputs, tensors = with_gradients(sample)
        found, expected = compiled(*inputs), operator(*inputs)
        torch.testing.assert_close(found, expected)
        gradients = [torch.autograd.grad(x.square().sum(), tensors) for x in (found, expected)]
        torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-5)


def check_autocast(operator: Callable[..., Tensor], single: Any, dtype: torch.dtype) -> None:
    """All tensors are cast, except float64; gradients have the inputs' types.

    Args:
        operator: the operator.
        single: inputs in float32.
        dtype: the type to cast to.
    """
    inputs, tensors = with_gradients(single)
    mixed = inputs._replace(**{inputs._fields[0]: inputs[0].to(dtype)})
    with torch.autocast(inputs[0].device.type, dtype):
        output = operator(*mixed)
        assert operator(*single.map(Tensor.double)).dtype == torch.float64
    assert torch.equal(output, operator(*inputs.map(lambda x: x.to(dtype))))
    for leaf, gradient in zip(tensors, torch.autograd.grad(output.float().sum(), tensors), strict=True):
        assert gradient.dtype == leaf.dtype and gradient.isfinite().all()


def check_replays(operator: Callable[..., Tensor], inputs: Any) -> Tensor:
    """A replay reads the present values of the inputs, and every run gives the same bits.

    The graph is captured on another stream. Halves the map, and returns the result.
    """
    operator(*inputs)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = operator(*inputs)
    inputs[0].mul_(0.5)
    for _ in range(20):
        graph.replay()
        assert torch.equal(output, operator(*inputs))
    return output


class Row(NamedTuple):
    """One wrong argument: its name, the change that makes it wrong, and parts of the message."""

    argument: str
    change: Callable[[Any], Any]
    says: tuple[str, ...]
    error: type[Exception] = ValueError

    def __str__(self) -> str:
        return f"{self.argument}-{self.says[-1]}".replace(" ", "_")

    def wrong(self, inputs: Any) -> dict[str, Any]:
        """The arguments, one of them wrong."""
        arguments = inputs._asdict()
        return arguments | {self.argument: self.change(arguments[self.argument])}

    def check(self, function: Callable, inputs: Any) -> None:
        """Fails unless the function's error names the argument."""
        with pytest.raises(self.error) as caught:
            function(**self.wrong(inputs))
        assert str(caught.value).startswith(f"{self.argument}: "), str(caught.value)
        assert all(part in str(caught.value) for part in self.says), str(caught.value)
