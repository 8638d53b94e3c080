"""What the tests of operators on maps and rows share: rows of backends, and wrong arguments.

The inputs of an operator are a named tuple of its arguments, the map first. `truth()` is the reference's
result in float64, `floor()` a norm for `relative_error`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from benchmarks.operator_errors import TOLERANCE, relative_error
from tests.matrix import backends, emulated_kernels
from tests.matrix.cuda_emulator import compile_for_cpu

ALL_TYPES = tuple(backends.DTYPES.values())


@dataclass(frozen=True)
class Backend:
    """One way to compute an operator. The environment's `variable` forces its `kernel`."""

    name: str
    run: Callable[..., Tensor]
    device: str = "cpu"
    dtypes: tuple[torch.dtype, ...] = ALL_TYPES
    missing: Callable[[torch.dtype], str | None] = lambda dtype: None
    variable: str = ""
    kernel: str | None = None

    @property
    def emulated(self) -> bool:
        return self.name.startswith("emulator")

    def skip_unless_ready(self, dtype: torch.dtype) -> None:
        """Skips the test where the backend cannot run a type here."""
        if reason := self.missing(dtype):
            pytest.skip(reason)

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


def emulator(
    operator: Callable[..., Tensor],
    variable: str = "",
    kernel: str | None = None,
    dtypes: tuple[torch.dtype, ...] = ALL_TYPES,
) -> Backend:
    """The emulator's kernel for a public function; without a name, the kernel that the library chooses."""
    return Backend(
        f"emulator-{kernel or 'chosen'}",
        getattr(emulated_kernels, operator.__name__),
        dtypes=dtypes,
        missing=lambda dtype: compile_for_cpu.missing(),
        variable=variable,
        kernel=kernel,
    )


def on_gpu(
    operator: Callable[..., Tensor],
    variable: str = "",
    kernel: str | None = None,
    dtypes: tuple[torch.dtype, ...] = ALL_TYPES,
    missing: Callable[[torch.dtype], str | None] = backends.no_gpu,
) -> Backend:
    """A public function's kernel on a GPU; without a name, the kernel that the library chooses."""
    return Backend(f"torch-cuda-{kernel or 'chosen'}", operator, "cuda", dtypes, missing, variable, kernel)


def plain_backends(
    operator: Callable[..., Tensor], variable: str, dtypes: tuple[torch.dtype, ...] = ALL_TYPES
) -> tuple[Backend, ...]:
    """A public function on the CPU, and in the emulator and on a GPU the kernel that the library chooses and
    the plain one.
    """
    kernels = itertools.product((emulator, on_gpu), (None, "plain"))
    return (
        Backend("torch-cpu", operator, dtypes=dtypes),
        *(make(operator, variable, kernel, dtypes) for make, kernel in kernels),
    )


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


def emulator_or_skip() -> None:
    """Skips the test where the emulator cannot be compiled."""
    if reason := compile_for_cpu.missing():
        pytest.skip(reason)


def map_tensors(inputs: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The inputs with every tensor changed."""
    return type(inputs)(*(change(x) if isinstance(x, Tensor) else x for x in inputs))


def misaligned(x: Tensor) -> Tensor:
    """A contiguous copy that begins one element behind an aligned address."""
    return torch.empty(x.numel() + 1, dtype=x.dtype, device=x.device)[1:].view_as(x).copy_(x)


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

    def check_raw(self, operator: torch._ops.OpOverloadPacket, inputs: Any) -> None:
        """Fails unless the registered operator, which lacks the public function's checks, raises too."""
        with pytest.raises((RuntimeError, TypeError, ValueError)):
            operator(**self.wrong(inputs))
