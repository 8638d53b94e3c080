"""Inputs of a comparison: arrays from files, random numbers for the rest, and their shapes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir

from codetr.cli.command import one_line
from onnx_path import optimization_profiles as profiles
from onnx_path.engine_report import TensorReport
from onnx_path.optimization_profiles import Shapes
from onnx_path.surgery import check
from trt_plugin.engine_tensors import format_range, format_shape, to_storage


class BadInput(ValueError):
    """An input that does not fit; the message begins with the option, or names the input."""


@dataclass(frozen=True)
class Given:
    """An array from a file.

    Attributes:
        array: of the type that the ONNX file has.
        source: option and file, such as "--input images=x.npy".
    """

    array: np.ndarray
    source: str


def read_inputs(model: onnx.ModelProto, options: Sequence[str], file: Path | None) -> dict[str, Given]:
    """Reads the arrays that --input and --inputs name.

    Args:
        model: whose inputs they are.
        options: NAME=FILE.npy each.
        file: .npz, or None.

    Returns:
        By name of the input; inputs without a file are missing.

    Raises:
        BadInput: not of this form, an unknown or repeated name, a file that cannot be read, or an array of
            another type, rank or fixed size than the input.
        profiles.BadProfile: the file does not say an input's rank.
    """
    inputs = {x.name: x for x in profiles.inputs_of(model)}
    arrays: dict[str, Given] = {}
    for option in options:
        # Names and paths may hold "=" both: the longest name that is an input's decides.
        name = max((x for x in inputs if option.startswith(f"{x}=")), key=len, default=None)
        if name is None or len(option) == len(name) + 1:
            raise BadInput(
                f"--input {option}: expected NAME=FILE.npy with an input's name, one of {', '.join(inputs)}"
            )
        source = f"--input {option}"
        if name in arrays:
            raise BadInput(f"{source}: {name} was given before, by {arrays[name].source}")
        array = _load(source, Path(option[len(name) + 1 :]))
        if not isinstance(array, np.ndarray):
            raise BadInput(f"{source}: expected an .npy file with one array, got an .npz file (see --inputs)")
        arrays[name] = Given(array, source)
    if file is not None:
        source = f"--inputs {file}"
        content = _load(source, file)
        if isinstance(content, np.ndarray):
            raise BadInput(f"{source}: expected an .npz file, got a single array without a name")
        for name, array in content.items():
            if name not in inputs:
                raise BadInput(
                    f"{source}: holds {name}, which is no input of the file; its inputs are "
                    f"{', '.join(inputs)}"
                )
            if name in arrays:
                raise BadInput(f"{source}: {name} was given before, by {arrays[name].source}")
            arrays[name] = Given(array, source)
    types = {x.name: x.dtype for x in ir.from_proto(model).graph.inputs}
    return {
        name: Given(_fitted(inputs[name], types[name], given), given.source) for name, given in arrays.items()
    }


def choose_shapes(
    inputs: Sequence[profiles.Input],
    given: Mapping[str, Given],
    asked: Shapes,
    engine: Mapping[str, TensorReport],
) -> Shapes:
    """Decides the shape of every input: that of its array, the one asked for, or the engine's own.

    The engine's own is its fixed shape, or the optimum of its profile 0.

    Args:
        inputs: of the ONNX file.
        given: arrays from files.
        asked: what --shapes was given.
        engine: the engine's inputs by name.

    Raises:
        BadInput: an input that is not in both, a shape twice, or one that the engine does not take.
    """
    names = [x.name for x in inputs]
    if set(engine) != set(names):
        raise BadInput(
            f"expected an engine with the inputs of the ONNX file ({', '.join(names)}), got one with "
            f"{', '.join(engine) or 'none'}"
        )
    shapes = {}
    for one in inputs:
        takes = engine[one.name]
        if one.name in given and one.name in asked:
            raise BadInput(f"--shapes {one.name}: its shape is that of {given[one.name].source}")
        low, high = takes.min or takes.shape, takes.max or takes.shape
        own = takes.opt or takes.shape
        if len(own) != len(one.shape) or any(isinstance(b, int) and a != b for a, b in zip(own, one.shape)):
            raise BadInput(f"input {one}: the engine's is another, {format_range(low, high)}")
        if one.name in given:
            what, shape = given[one.name].source, given[one.name].array.shape
        elif one.name in asked:
            shape = asked[one.name]
            what = f"--shapes {one.name}:{profiles.format_shape(shape)}"
        else:
            shapes[one.name] = own
            continue
        if not all(a <= b <= c for a, b, c in zip(low, shape, high)):
            raise BadInput(
                f"{what}: expected a shape that the engine takes, {format_range(low, high)}, got "
                f"{format_shape(shape)}"
            )
        shapes[one.name] = shape
    return shapes


def make_inputs(
    model: onnx.ModelProto, shapes: Shapes, given: Mapping[str, Given], seed: int
) -> dict[str, np.ndarray]:
    """Returns an array for every input: the given one, else random numbers as `surgery.check` makes them.

    These are normal for floats, true for booleans, 1 for integers called masks, picture sizes for [N, 2]
    integers beside a picture, and 0 to 99 for other integers.

    Args:
        model: whose inputs.
        shapes: of all inputs.
        given: arrays from files.
        seed: of the random numbers.
    """
    arrays = check.random_inputs(ir.from_proto(model), shapes, seed)
    return {name: given[name].array if name in given else array for name, array in arrays.items()}


def _load(source: str, path: Path) -> np.ndarray | dict[str, np.ndarray]:
    try:
        content = np.load(path)
        if isinstance(content, np.ndarray):
            return content
        with content:
            return dict(content)
    except OSError as error:
        raise BadInput(f"{source}: {error.strerror or one_line(error)}") from error
    except Exception as error:  # NumPy raises whatever it runs into: BadZipFile, EOFError, its own advice
        raise BadInput(
            f"{source}: cut off, or not a NumPy file with arrays ({one_line(error, 120)})"
        ) from error


def _fitted(one: profiles.Input, dtype: ir.DataType, given: Given) -> np.ndarray:
    """The array in the input's type."""
    narrow = dtype == ir.DataType.BFLOAT16
    try:
        array = to_storage(given.array, "float32" if narrow else dtype.numpy().name, one.name)
    except (TypeError, ValueError) as error:
        raise BadInput(f"{given.source}: {error}") from error
    sizes = [(a, b) for a, b in zip(array.shape, one.shape) if isinstance(b, int)]
    if array.ndim != len(one.shape) or any(a != b for a, b in sizes):
        raise BadInput(
            f"{given.source}: expected a shape as the file has it, {one}, got {format_shape(array.shape)}"
        )
    return array.astype(ml_dtypes.bfloat16) if narrow else array
