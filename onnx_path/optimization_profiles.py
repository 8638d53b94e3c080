"""Optimization profiles: the smallest, usual and largest shape of each dynamic input of an ONNX file.

They are given as trtexec has them, `images:1x3x640x640`, and checked against the file before a build.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import onnx

OPTIONS = ("--min", "--opt", "--max")
LARGEST_SIZE = 2**31 - 1  # of one dimension: what an engine's 32-bit indices hold

# A name may hold colons and commas itself: it ends before the last colon that only a shape follows.
_SHAPE = re.compile(r"(?P<name>.+?):(?P<sizes>[0-9]+(?:x[0-9]+)*)(?:,|$)")

Shapes = dict[str, tuple[int, ...]]


class BadProfile(ValueError):
    """A profile that the inputs cannot have; the message begins with the option, or names the input."""


class Profile(NamedTuple):
    """Three shapes of one input, each size at least that of the shape before."""

    min: tuple[int, ...]
    opt: tuple[int, ...]
    max: tuple[int, ...]


@dataclass(frozen=True)
class Input:
    """An input of an ONNX file.

    Attributes:
        name: as in the file.
        shape: a number where the size is fixed, else the dynamic size's name, or None where it has none.
    """

    name: str
    shape: tuple[int | str | None, ...]

    @property
    def dynamic(self) -> tuple[int, ...]:
        """Which dimensions have no fixed size."""
        return tuple(axis for axis, size in enumerate(self.shape) if not isinstance(size, int))

    def __str__(self) -> str:
        return f"{self.name} [{', '.join('?' if size is None else str(size) for size in self.shape)}]"


def inputs_of(model: onnx.ModelProto) -> list[Input]:
    """Returns the inputs that whoever runs the model gives it: weights that are listed as inputs are none.

    Raises:
        BadProfile: an input has no shape or is no tensor, which no profile can describe.
    """
    weights = {tensor.name for tensor in model.graph.initializer}
    inputs = []
    for value in model.graph.input:
        if value.name in weights:
            continue
        tensor = value.type.tensor_type
        if not value.type.HasField("tensor_type") or not tensor.HasField("shape"):
            raise BadProfile(
                f"input {value.name}: expected a tensor with a shape, the file does not say how many "
                "dimensions it has"
            )
        shape = tuple(
            dim.dim_value if dim.HasField("dim_value") and dim.dim_value >= 0 else dim.dim_param or None
            for dim in tensor.shape.dim
        )
        inputs.append(Input(value.name, shape))
    return inputs


def parse_shapes(option: str, texts: Iterable[str]) -> Shapes:
    """Reads what an option was given.

    Args:
        option: its name, for errors.
        texts: such as ["images:1x3x640x640,mask:1x640x640"]; one or more inputs in each.

    Returns:
        Shape by name of the input.

    Raises:
        BadProfile: not of this form, a size that is not above 0, or a name twice.
    """
    shapes: Shapes = {}
    for text in texts:
        end = 0
        while end < len(text):
            match = _SHAPE.match(text, end)
            if match is None or (match.end() == len(text) and text.endswith(",")):
                raise BadProfile(f"{option} {text}: expected NAME:SIZExSIZE..., such as images:1x3x640x640")
            name, end = match["name"], match.end()
            sizes = tuple(int(size) for size in match["sizes"].split("x"))
            wrong = next((size for size in sizes if not 1 <= size <= LARGEST_SIZE), None)
            if wrong is not None:
                raise BadProfile(f"{option} {text}: expected sizes of 1 to {LARGEST_SIZE}, got {wrong}")
            if name in shapes:
                raise BadProfile(f"{option} {text}: {name} was given a shape before")
            shapes[name] = sizes
        if not text:
            raise BadProfile(f"{option}: expected NAME:SIZExSIZE..., such as images:1x3x640x640, got ''")
    return shapes


def fit(inputs: Sequence[Input], smallest: Shapes, usual: Shapes, largest: Shapes) -> dict[str, Profile]:
    """Makes the profile of a file's inputs.

    Args:
        inputs: of the file.
        smallest, usual, largest: what --min, --opt and --max were given. An input with --opt alone has this
            one shape.

    Returns:
        By name, for each input with a dynamic size; in the file's order.

    Raises:
        BadProfile: a name that the file does not have, another rank, a size that differs from the file's
            fixed one, min <= opt <= max does not hold, two sizes for one name of a dynamic size, or a dynamic
            input without shapes.
    """
    given = dict(zip(OPTIONS, (smallest, usual, largest)))
    for option, shapes in given.items():
        check_shapes(option, inputs, shapes)
    known = {x.name: x for x in inputs}
    profiles = {}
    for name, one in known.items():
        missing = [option for option in OPTIONS if name not in given[option]]
        if missing == list(OPTIONS):
            continue
        if missing and missing != ["--min", "--max"]:
            raise BadProfile(
                f"{missing[0]}: expected a shape of {name} too; --min, --opt and --max go together, --opt "
                "alone fixes the shape"
            )
        profile = Profile(*(given[option].get(name, usual[name]) for option in OPTIONS))
        _check_order(one, profile)
        profiles[name] = profile
    _check_described(inputs, profiles)
    _check_names(inputs, profiles)
    return {x.name: profiles[x.name] for x in inputs if x.dynamic}


def check_shapes(option: str, inputs: Sequence[Input], shapes: Shapes) -> None:
    """Checks shapes that an option was given against a file's inputs.

    Raises:
        BadProfile: a name that the file does not have, another rank, or a size that differs from the file's
            fixed one.
    """
    known = {x.name: x for x in inputs}
    for name, shape in shapes.items():
        if name not in known:
            names = ", ".join(known) or "none"
            raise BadProfile(f"{option} {name}: the file has no such input; its inputs are {names}")
        _check_shape(option, known[name], shape)


def format_shape(shape: Iterable[int]) -> str:
    """1x3x640x640 for (1, 3, 640, 640)."""
    return "x".join(map(str, shape))


def example(one: Input) -> str:
    """Options that describe a dynamic input, as somebody could type them."""
    by_name: dict[str, tuple[int, int, int]] = {}
    sizes = []
    for axis, size in enumerate(one.shape):
        three = _example_sizes(axis, size, len(one.shape))
        sizes.append(by_name.setdefault(size, three) if isinstance(size, str) else three)
    shapes = {option: f"{one.name}:{format_shape(shape)}" for option, shape in zip(OPTIONS, zip(*sizes))}
    return " ".join(f"{option} {shlex.quote(shape)}" for option, shape in shapes.items())


def _example_sizes(axis: int, size: int | str | None, rank: int) -> tuple[int, int, int]:
    if isinstance(size, int):
        return size, size, size
    if axis == 0:
        return 1, 1, 8  # the batch
    return (320, 640, 1280) if rank >= 3 else (1, 16, 256)


def _check_shape(option: str, one: Input, shape: tuple[int, ...]) -> None:
    what = f"{option} {one.name}:{format_shape(shape)}"
    if len(shape) != len(one.shape):
        raise BadProfile(f"{what}: expected {len(one.shape)} sizes, as the file has {one}, got {len(shape)}")
    for axis, (size, fixed) in enumerate(zip(shape, one.shape)):
        if isinstance(fixed, int) and size != fixed:
            raise BadProfile(f"{what}: expected {fixed} in dimension {axis}, as in the file, got {size}")


def _check_order(one: Input, profile: Profile) -> None:
    for axis, (low, usual, high) in enumerate(zip(*profile)):
        if low > high:
            raise BadProfile(
                f"--min {one.name}:{format_shape(profile.min)}: expected at most {high}, the size of --max, "
                f"in dimension {axis}, got {low}"
            )
        if not low <= usual <= high:
            raise BadProfile(
                f"--opt {one.name}:{format_shape(profile.opt)}: expected {low} to {high}, as --min and --max "
                f"say, in dimension {axis}, got {usual}"
            )


def _check_described(inputs: Sequence[Input], profiles: Mapping[str, Profile]) -> None:
    missing = [one for one in inputs if one.dynamic and one.name not in profiles]
    if missing:
        first, axis = missing[0], missing[0].dynamic[0]
        name = f" ({first.shape[axis]})" if first.shape[axis] else ""
        others = f", and the same for {', '.join(one.name for one in missing[1:])}" if missing[1:] else ""
        raise BadProfile(
            f"input {first}: dimension {axis}{name} is dynamic; say which sizes it has, such as "
            f"{example(first)}{others}"
        )


def _check_names(inputs: Sequence[Input], profiles: Mapping[str, Profile]) -> None:
    """Dynamic sizes of one name are one size, in whatever inputs they are."""
    for which in ("opt", "min", "max"):  # --opt may be the only one that was given
        sizes: dict[str, tuple[int, str]] = {}
        for one in inputs:
            if not one.dynamic:
                continue
            for name, size in zip(one.shape, getattr(profiles[one.name], which)):
                if not isinstance(name, str):
                    continue
                first, where = sizes.setdefault(name, (size, one.name))
                if first != size:
                    raise BadProfile(
                        f"--{which} {one.name}: expected {first} for {name}, as in {where}, got {size}"
                    )
