"""Inputs of a comparison: arrays from files, and random ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir

from codetr.errors import ArgumentError, UsageError, one_line
from onnx_path.surgery.verify.random_inputs import random_inputs
from onnx_path.tensorrt.optimization_profiles import Shapes, check_shapes, inputs_of
from trt_plugin.engine_tensors import format_range, format_shape, to_storage
from trt_plugin.inspection.engine_summary import TensorReport
from trt_plugin.run import read_arrays


@dataclass(frozen=True)
class InputArray:
    """An input of both sides.

    Attributes:
        array: of the type that the ONNX file has.
        source: option and file, such as "--input images=x.npy", or the seed of random numbers.
    """

    array: np.ndarray
    source: str


def read_inputs(
    model: onnx.ModelProto, options: Sequence[str], archive: Path | None
) -> dict[str, InputArray]:
    """Reads the arrays of --input (NAME=FILE.npy each) and --inputs (an .npz file), by name.

    Raises:
        ArgumentError, UsageError: a name is unknown, a file cannot be read, or an array does not fit.
    """
    found = []
    for option in options:
        name, _, file = option.partition("=")
        found.append(("input", option, name, _load(file)))
    if archive is not None:
        try:
            arrays = read_arrays(archive)
        except ValueError as error:
            raise UsageError(str(error)) from error
        found += [("inputs", archive, name, array) for name, array in arrays.items()]
    inputs = inputs_of(model)
    types = {value.name: value.dtype for value in ir.from_proto(model).graph.inputs}
    given = {}
    for argument, file, name, array in found:
        check_shapes(argument, inputs, {name: array.shape})
        narrow = types[name] == ir.DataType.BFLOAT16
        try:
            array = to_storage(array, "float32" if narrow else types[name].numpy().name, name)
        except (TypeError, ValueError) as error:
            raise ArgumentError(argument, str(error)) from error
        array = array.astype(ml_dtypes.bfloat16) if narrow else array
        given[name] = InputArray(array, f"--{argument} {file}")
    return given


def with_random_inputs(
    model: onnx.ModelProto,
    given: Mapping[str, InputArray],
    asked: Shapes,
    engine: Mapping[str, TensorReport],
    seed: int,
) -> dict[str, InputArray]:
    """Returns all inputs of a model: the given ones, and random ones of the shapes asked for or the engine's.

    The engine's shape is fixed, or the best one of its profile 0.

    Raises:
        UsageError: the engine has other inputs than the ONNX file, or does not take a shape.
    """
    names = [one.name for one in inputs_of(model)]
    if set(engine) != set(names):
        raise UsageError(
            f"expected an engine with the inputs of the ONNX file ({', '.join(names)}), got one with "
            f"{', '.join(engine) or 'none'}"
        )
    shapes = {}
    for name in names:
        takes = engine[name]
        low, high, own = takes.min or takes.shape, takes.max or takes.shape, takes.opt or takes.shape
        shapes[name] = given[name].array.shape if name in given else asked.get(name, own)
        if not all(a <= b <= c for a, b, c in zip(low, shapes[name], high)):
            source = given[name].source if name in given else "--shapes"
            raise UsageError(
                f"{source}: expected {name} as the engine takes it, {format_range(low, high)}, "
                f"got {format_shape(shapes[name])}"
            )
    arrays = random_inputs(ir.from_proto(model), shapes, seed)
    random = {name: InputArray(array, f"random, seed {seed}") for name, array in arrays.items()}
    return random | dict(given)


def _load(file: str) -> np.ndarray:
    try:
        array = np.load(file)
        if not isinstance(array, np.ndarray):
            raise ValueError("an archive of arrays, see --inputs")
        return array
    except Exception as error:  # NumPy raises many types: EOFError, UnpicklingError, its own advice
        text = f"expected NAME=FILE.npy, got {file!r} ({one_line(error, 120)})"
        raise ArgumentError("input", text) from error
