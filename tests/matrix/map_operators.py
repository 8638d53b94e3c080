"""What the tests of operators on maps share: rows of backends, and wrong arguments.

The inputs of an operator are a named tuple of its arguments, the map first. `map(change)` changes every
tensor, `truth()` is the reference's result in float64, `floor()` a norm for `relative_error`.
"""

from __future__ import annotations

from collections.abc import Callable
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
                id=f"{backend.name}-{short[dtype]}",
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
