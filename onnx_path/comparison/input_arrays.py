"""Inputs of a comparison: arrays from files, random numbers for the rest, and their shapes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir

from codetr.errors import ArgumentError, UsageError, one_line
from onnx_path.optimization_profiles import OnnxInput, Shapes, inputs_of
from onnx_path.surgery.verify.random_inputs import random_inputs
from trt_plugin.engine_tensors import format_range, format_shape, to_storage
from trt_plugin.inspection.engine_summary import TensorReport
from trt_plugin.run import read_arrays


@dataclass(frozen=True)
class GivenArray:
    """An array from a file.

    Attributes:
        array: of the type that the ONNX file has.
        argument: option that named the file.
        source: option and file, such as "--input images=x.npy".
    """

    array: np.ndarray
    argument: str
    source: str


def read_inputs(
    model: onnx.ModelProto, options: Sequence[str], archive: Path | None
) -> dict[str, GivenArray]:
    """Reads the arrays of --input and --inputs.

    Args:
        model: model with these inputs.
        options: NAME=FILE.npy each.
        archive: .npz file with arrays by name.

    Returns:
        The arrays by name, without the inputs that have no file.

    Raises:
        ArgumentError, UsageError: a name is unknown or repeated, a file cannot be read, or an array does not
            fit.
    """
    inputs = {one.name: one for one in inputs_of(model)}
    types = {value.name: value.dtype for value in ir.from_proto(model).graph.inputs}
    found = []
    for option in options:
        name, _, file = option.partition("=")
        found.append((name, _load(file), "input", f"--input {option}"))
    if archive is not None:
        try:
            arrays = read_arrays(archive)
        except ValueError as error:
            raise UsageError(str(error)) from error
        found += [(name, array, "inputs", f"--inputs {archive}") for name, array in arrays.items()]
    given: dict[str, GivenArray] = {}
    for name, array, argument, source in found:
        if name not in inputs:
            raise ArgumentError(argument, f"expected an input of the file ({', '.join(inputs)}), got {name}")
        if name in given:
            raise ArgumentError(argument, f"expected one array of {name}, got {given[name].source} too")
        given[name] = GivenArray(_fitted(inputs[name], types[name], array, argument), argument, source)
    return given


def choose_shapes(
    inputs: Sequence[OnnxInput],
    given: Mapping[str, GivenArray],
    asked: Shapes,
    engine: Mapping[str, TensorReport],
) -> Shapes:
    """Chooses the shape of every input: its array's, the one that the caller asked for, or the engine's.

    The engine's shape is fixed, or the best one of its profile 0.

    Args:
        inputs: inputs of the ONNX file.
        given: arrays from files.
        asked: shapes of --shapes.
        engine: the engine's inputs by name.

    Raises:
        UsageError: the engine has other inputs than the ONNX file.
        ArgumentError: an input has two shapes, or one that the engine does not take.
    """
    names = [one.name for one in inputs]
    if set(engine) != set(names):
        raise UsageError(
            f"expected an engine with the inputs of the ONNX file ({', '.join(names)}), got one with "
            f"{', '.join(engine) or 'none'}"
        )
    shapes = {}
    for one in inputs:
        takes = engine[one.name]
        low, high, own = takes.min or takes.shape, takes.max or takes.shape, takes.opt or takes.shape
        if len(own) != len(one.shape) or any(isinstance(b, int) and a != b for a, b in zip(own, one.shape)):
            raise UsageError(f"expected an engine with the input {one}, got {format_range(low, high)}")
        if one.name in given and one.name in asked:
            raise ArgumentError(
                "shapes", f"expected none of {one.name}, which {given[one.name].source} gives"
            )
        argument, shape = "shapes", asked.get(one.name, own)
        if one.name in given:
            argument, shape = given[one.name].argument, given[one.name].array.shape
        if not all(a <= b <= c for a, b, c in zip(low, shape, high)):
            expected = f"{one.name} as the engine takes it, {format_range(low, high)}"
            raise ArgumentError(argument, f"expected {expected}, got {format_shape(shape)}")
        shapes[one.name] = shape
    return shapes


def make_inputs(
    model: onnx.ModelProto, shapes: Shapes, given: Mapping[str, GivenArray], seed: int
) -> dict[str, np.ndarray]:
    """Returns an array for every input: the given one, or random numbers of `surgery.verify.random_inputs`.

    Args:
        model: model with these inputs.
        shapes: shapes of all inputs.
        given: arrays from files.
        seed: seed of the random numbers.
    """
    arrays = random_inputs(ir.from_proto(model), shapes, seed)
    return {name: given[name].array if name in given else array for name, array in arrays.items()}


def _load(file: str) -> np.ndarray:
    try:
        array = np.load(file)
        if not isinstance(array, np.ndarray):
            raise ValueError("an archive of arrays, see --inputs")
        return array
    except Exception as error:  # NumPy raises many types: EOFError, UnpicklingError, its own advice
        raise ArgumentError(
            "input", f"expected NAME=FILE.npy, got {file!r} ({one_line(error, 120)})"
        ) from error


def _fitted(one: OnnxInput, dtype: ir.DataType, array: np.ndarray, argument: str) -> np.ndarray:
    """Returns an array in the input's type."""
    narrow = dtype == ir.DataType.BFLOAT16
    try:
        array = to_storage(array, "float32" if narrow else dtype.numpy().name, one.name)
    except (TypeError, ValueError) as error:
        raise ArgumentError(argument, str(error)) from error
    sizes = [(a, b) for a, b in zip(array.shape, one.shape) if isinstance(b, int)]
    if array.ndim != len(one.shape) or any(a != b for a, b in sizes):
        raise ArgumentError(argument, f"expected {one}, as in the file, got {format_shape(array.shape)}")
    return array.astype(ml_dtypes.bfloat16) if narrow else array
