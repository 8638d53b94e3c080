"""The CUDA kernels on the CPU: the real sources, compiled for the emulator of tests/cuda_emulator.

    emulator.forward(inputs)                     # as msda.attention(*inputs) on a GPU
    emulator.forward(inputs, "many", order=3)    # one of the kernels, threads and blocks in another order
    emulator.backward(inputs, grad_output)       # the gradients of value and the others

`emulator` is a fixture of tests/cuda_emulator/fixtures.py. A kernel that does what a GPU would not forgive
raises `EmulatorError`.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from benchmarks.problems import AttentionInputs, FusedInputs

NOT_SUPPORTED = 801
"""cudaErrorNotSupported: the kernel that was asked for cannot run the problem."""

TYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
"""In the order of msda::DataType."""

GIVEN, REFERENCE_POINTS, REFERENCE_BOXES = range(3)

TENSORS = (
    "value",
    "spatial_shapes",
    "level_start_index",
    "reference_points",
    "sampling_locations",
    "attention_weights",
    "output",
    "grad_output",
    "grad_value",
    "grad_sampling_locations",
    "grad_attention_weights",
    "grad_reference_points",
)

STRIDED = TENSORS[4:6]
"""The tensors whose queries may lie apart in the forward."""


class EmulatorError(RuntimeError):
    """A launch failed; the message says which kernel, block, thread and line, and why."""


class NotSupported(Exception):
    """The kernel that was asked for cannot run the problem."""


class _Problem(ctypes.Structure):
    """EmulatedProblem of cuda_emulator/operators.cpp."""

    _fields_ = (
        *(
            (name, ctypes.c_int64)
            for name in (
                "batch_size",
                "num_cells",
                "num_heads",
                "head_dim",
                "num_levels",
                "num_queries",
                "total_points",
                "location_stride",
                "weight_stride",
            )
        ),
        ("points_per_level", ctypes.POINTER(ctypes.c_int32)),
        *(
            (name, ctypes.c_int32)
            for name in ("locations", "value_type", "location_type", "weight_type", "int64_shapes")
        ),
    )


class _Tensor(ctypes.Structure):
    _fields_ = (("data", ctypes.c_void_p), ("bytes", ctypes.c_int64))


class _Tensors(ctypes.Structure):
    """EmulatedTensors of cuda_emulator/operators.cpp."""

    _fields_ = tuple((name, _Tensor) for name in TENSORS)


def _problem(inputs: AttentionInputs | FusedInputs, strides: Sequence[int]) -> _Problem:
    """Sizes and types of valid inputs; strides of locations and weights as they are handed on."""
    value, shapes, _, *rest, points = inputs
    fused = isinstance(inputs, FusedInputs)
    locations = GIVEN
    if fused:
        locations = REFERENCE_POINTS if rest[0].shape[-1] == 2 else REFERENCE_BOXES
    num_levels = shapes.shape[0]
    counts = points if points is not None else [rest[-2].shape[4]] * num_levels
    return _Problem(
        *(value.shape[0], value.shape[1], value.shape[2], value.shape[3], num_levels, rest[-2].shape[1]),
        sum(counts),
        *strides,
        (ctypes.c_int32 * num_levels)(*counts),
        locations,
        *(TYPES.index(tensor.dtype) for tensor in (value, rest[-2], rest[-1])),
        shapes.dtype == torch.int64,
    )


def _names(inputs: AttentionInputs | FusedInputs) -> dict[str, str]:
    """The C name of each tensor of the inputs."""
    names = [name for name in TENSORS[:6] if isinstance(inputs, FusedInputs) or name != "reference_points"]
    return dict(zip(inputs._fields[:-1], names, strict=True))


def _tensors(inputs: AttentionInputs | FusedInputs, **others: torch.Tensor) -> dict[str, torch.Tensor]:
    """Every tensor of a call by its C name, contiguous."""
    tensors = {c_name: getattr(inputs, name) for name, c_name in _names(inputs).items()} | others
    return {name: tensor.detach().contiguous() for name, tensor in tensors.items()}


def _rows(tensor: torch.Tensor) -> torch.Tensor:
    """[N, Q, ...] as a row for each query: without a copy where the kernels need none."""
    shape = (tensor.shape[0] * tensor.shape[1], math.prod(tensor.shape[2:]))
    try:
        rows = tensor.detach().view(shape)
    except RuntimeError:
        rows = tensor.detach().reshape(shape)
    return rows if rows.stride(1) == 1 and rows.stride(0) >= shape[1] else rows.contiguous()


def _stride(tensor: torch.Tensor) -> int:
    """Elements from a query to the next, of `_rows` or of a contiguous [N, Q, ...]."""
    rows = tensor if tensor.dim() == 2 else _rows(tensor)
    return rows.stride(0) if len(rows) > 1 else rows.shape[1]


def _bytes(tensor: torch.Tensor) -> int:
    """From the first element to the last."""
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (last + 1) * tensor.itemsize if tensor.numel() else 0


class Emulator:
    """The launchers of kernels/src in a library that `build` made."""

    def __init__(self, library: Path) -> None:
        self._library = ctypes.CDLL(str(library))
        self._library.emulated_message.restype = ctypes.c_char_p

    def forward(
        self, inputs: AttentionInputs | FusedInputs, kernel: str | None = None, order: int = 0
    ) -> torch.Tensor:
        """The operator of the inputs.

        Args:
            inputs: on the CPU, in any layout.
            kernel: what MSDA_FORWARD is set to; None leaves the choice to the library.
            order: of threads and blocks; 0 is ascending, other numbers draw one.

        Returns:
            [N, Q, M * D] in value's type; NaN where the kernel wrote nothing.

        Raises:
            EmulatorError: where a GPU would fail, hang, or read or write what it should not.
            NotSupported: when the kernel cannot run the problem.
        """
        batch, _, num_heads, head_dim = inputs.value.shape
        shape = (batch, inputs[-2].shape[1], num_heads * head_dim)
        output = torch.full(shape, torch.nan, dtype=inputs.value.dtype)
        with _forced("MSDA_FORWARD", kernel):
            tensors = _tensors(inputs, output=output)
            tensors |= {c_name: _rows(tensor) for c_name, tensor in zip(STRIDED, inputs[-3:-1], strict=True)}
            self._call("emulated_forward", inputs, tensors, ctypes.c_uint64(order))
        return output

    def backward(
        self,
        inputs: AttentionInputs | FusedInputs,
        grad_output: torch.Tensor,
        kernel: str | None = None,
        order: int = 0,
        deterministic: bool = False,
    ) -> dict[str, torch.Tensor]:
        """The gradients of the inputs' operator by the inputs' names, in their types.

        Args:
            inputs: as for `forward`.
            grad_output: [N, Q, M * D] in value's type.
            kernel: what MSDA_BACKWARD is set to; None leaves the choice to the library.
            order: as for `forward`.
            deterministic: whether value's gradient has to be the same in every order.

        Raises:
            EmulatorError, NotSupported: as `forward`.
        """
        sums = torch.float64 if inputs.value.dtype == torch.float64 else torch.float32
        written = {}
        for name in _names(inputs):
            tensor = getattr(inputs, name)
            if name == "value":
                written[name] = torch.zeros(tensor.shape, dtype=sums)
            elif tensor.is_floating_point():
                written[name] = torch.full(tensor.shape, torch.nan, dtype=tensor.dtype)
        gradients = {f"grad_{_names(inputs)[name]}": tensor for name, tensor in written.items()}
        tensors = _tensors(inputs, grad_output=grad_output, **gradients)
        with _forced("MSDA_BACKWARD", kernel):
            flag = ctypes.c_int(deterministic)
            self._call("emulated_backward", inputs, tensors, flag, ctypes.c_uint64(order))
        return written | {"value": written["value"].to(inputs.value.dtype)}

    def _call(
        self,
        function: str,
        inputs: AttentionInputs | FusedInputs,
        tensors: dict[str, torch.Tensor],
        *options: ctypes._SimpleCData,
    ) -> None:
        problem = _problem(inputs, [_stride(tensors[name]) for name in STRIDED])
        pointers = _Tensors(
            **{name: _Tensor(tensor.data_ptr(), _bytes(tensor)) for name, tensor in tensors.items()}
        )
        status = getattr(self._library, function)(ctypes.byref(problem), ctypes.byref(pointers), *options)
        message = self._library.emulated_message().decode()
        if status == NOT_SUPPORTED:
            raise NotSupported(message or f"{function}: cudaErrorNotSupported")
        if status:
            raise EmulatorError(with_lines(message) or f"{function}: cudaError_t {status}")


@contextlib.contextmanager
def _forced(variable: str, kernel: str | None) -> Iterator[None]:
    before = os.environ.pop(variable, None)
    if kernel is not None:
        os.environ[variable] = kernel
    try:
        yield
    finally:
        os.environ.pop(variable, None)
        if before is not None:
            os.environ[variable] = before


def with_lines(message: str) -> str:
    """A message with the places [library+0xoffset] in it replaced by source lines, where addr2line is."""

    def lines(match: re.Match) -> str:
        if not shutil.which("addr2line"):
            return match[0]
        command = ["addr2line", "-Cfpis", "-e", match[1], match[2]]
        found = subprocess.run(command, capture_output=True, text=True).stdout.strip()
        return f"\n{found}" if found else match[0]

    return re.sub(r" \[(\S+)\+(0x[0-9a-f]+)\]", lines, message)
