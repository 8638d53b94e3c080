"""Optimization profiles: the smallest, best and largest shape of each dynamic input of an ONNX file.

The caller gives shapes in the notation of trtexec, `images:1x3x640x640`. They are checked against the file
before TensorRT is loaded.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from codetr.errors import ArgumentError, UsageError

if TYPE_CHECKING:
    import onnx

# A name may contain colons and commas. It ends before the last colon that only a shape follows.
_SHAPE = re.compile(r"(?P<name>.+?):(?P<sizes>[1-9][0-9]*(?:x[1-9][0-9]*)*)(?:,|$)")

Shapes = dict[str, tuple[int, ...]]
"""Shape by name of the input."""


class ShapeRange(NamedTuple):
    """Smallest, best and largest shape of one input. TensorRT tunes an engine for the best one."""

    min: tuple[int, ...]
    opt: tuple[int, ...]
    max: tuple[int, ...]


@dataclass(frozen=True)
class OnnxInput:
    """An input of an ONNX file.

    Attributes:
        shape: a number for a fixed size; the name of a dynamic size, or None if it has no name.
    """

    name: str
    shape: tuple[int | str | None, ...]

    @property
    def dynamic(self) -> bool:
        """Whether a size is decided at run time."""
        return any(not isinstance(size, int) for size in self.shape)

    def __str__(self) -> str:
        return f"{self.name} [{', '.join('?' if size is None else str(size) for size in self.shape)}]"


def inputs_of(model: onnx.ModelProto) -> list[OnnxInput]:
    """Returns the inputs of a model, without weights that the file lists among its inputs.

    Raises:
        UsageError: an input is no tensor, or its rank is unknown.
    """
    weights = {tensor.name for tensor in model.graph.initializer}
    inputs = []
    for value in model.graph.input:
        if value.name in weights:
            continue
        if not value.type.tensor_type.HasField("shape"):
            raise UsageError(f"input {value.name}: expected a tensor of known rank")
        dims = value.type.tensor_type.shape.dim
        shape = (
            dim.dim_value if dim.HasField("dim_value") and dim.dim_value >= 0 else dim.dim_param or None
            for dim in dims
        )
        inputs.append(OnnxInput(value.name, tuple(shape)))
    return inputs


def parse_shapes(argument: str, texts: Iterable[str]) -> Shapes:
    """Parses shapes of inputs, such as ["images:1x3x640x640,mask:1x640x640"], one or more in each text.

    Raises:
        ArgumentError: a text has another form; the error names the argument.
    """
    shapes: Shapes = {}
    for text in texts:
        matches = list(_SHAPE.finditer(text))
        if not matches or "".join(match[0] for match in matches) != text or text.endswith(","):
            raise ArgumentError(
                argument, f"expected NAME:SIZExSIZE..., such as images:1x3x640x640, got {text!r}"
            )
        shapes |= {match["name"]: tuple(map(int, match["sizes"].split("x"))) for match in matches}
    return shapes


def fit_profiles(inputs: Sequence[OnnxInput], given: Mapping[str, Shapes]) -> dict[str, ShapeRange]:
    """Makes the optimization profile of a file.

    Args:
        inputs: inputs of the file.
        given: shapes for the keys "min", "opt" and "max". An input with "opt" alone has this one shape.

    Returns:
        The shapes of each dynamic input by name, in the file's order.

    Raises:
        ArgumentError: the shapes contradict the file or each other, or a dynamic input has none.
    """
    for argument, shapes in given.items():
        check_shapes(argument, inputs, shapes)
    profiles = {}
    for one in inputs:
        missing = [argument for argument in ShapeRange._fields if one.name not in given[argument]]
        if len(missing) == 3:
            if one.dynamic:
                raise ArgumentError(
                    "opt", f"expected a shape of {one}, which has dynamic sizes, such as {example(one)}"
                )
            continue
        if missing not in ([], ["min", "max"]):
            raise ArgumentError(missing[0], f"expected a shape of {one.name}; only --opt may stand alone")
        best = given["opt"][one.name]
        shapes = ShapeRange(*(given[argument].get(one.name, best) for argument in ShapeRange._fields))
        if not all(low <= opt <= high for low, opt, high in zip(*shapes)):
            found = " and ".join(map(format_shape, (shapes.min, shapes.max)))
            raise ArgumentError(
                "opt", f"expected {one.name} between --min and --max, {found}, got {format_shape(best)}"
            )
        if one.dynamic:
            profiles[one.name] = shapes
    _check_names(inputs, profiles)
    return profiles


def check_shapes(argument: str, inputs: Sequence[OnnxInput], shapes: Shapes) -> None:
    """Raises `ArgumentError` if a name, a rank or a fixed size is not the file's."""
    known = {one.name: one for one in inputs}
    for name, shape in shapes.items():
        if name not in known:
            raise ArgumentError(argument, f"expected an input of the file ({', '.join(known)}), got {name}")
        expected = known[name].shape
        if len(shape) != len(expected) or any(
            isinstance(fixed, int) and size != fixed for size, fixed in zip(shape, expected)
        ):
            raise ArgumentError(
                argument, f"expected {known[name]}, as in the file, got {format_shape(shape)}"
            )


def format_shape(shape: Iterable[int]) -> str:
    """Formats (1, 3, 640, 640) as 1x3x640x640."""
    return "x".join(map(str, shape))


def example(one: OnnxInput) -> str:
    """Returns options that describe a dynamic input: a batch of 1 to 8, and 320 to 1280 for other sizes."""
    by_name: dict[str, tuple[int, int, int]] = {}
    sizes = []
    for axis, size in enumerate(one.shape):
        three = (size,) * 3 if isinstance(size, int) else (1, 1, 8) if axis == 0 else (320, 640, 1280)
        sizes.append(by_name.setdefault(size, three) if isinstance(size, str) else three)
    shapes = zip(ShapeRange._fields, zip(*sizes))
    return " ".join(f"--{name} {shlex.quote(f'{one.name}:{format_shape(shape)}')}" for name, shape in shapes)


def _check_names(inputs: Sequence[OnnxInput], profiles: Mapping[str, ShapeRange]) -> None:
    """Raises `ArgumentError` if dynamic sizes of one name differ."""
    for argument in ("opt", "min", "max"):  # --opt may be the only one that was given
        sizes: dict[str, int] = {}
        for one in inputs:
            for name, size in zip(one.shape, getattr(profiles.get(one.name), argument, ())):
                if isinstance(name, str) and sizes.setdefault(name, size) != size:
                    raise ArgumentError(
                        argument, f"expected one size {name} in all inputs, got {sizes[name]} and {size}"
                    )
