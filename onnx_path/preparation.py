"""ONNX files on their way to TensorRT: checked, converted to 16 bits, stripped, written. Needs no GPU."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import onnx

from onnx_path import plugins
from onnx_path.operator import remove_function_bodies
from onnx_path.surgery import files

CONVERTED = ("fp16", "bf16")
"""Precisions that are a conversion of the graph."""

LARGEST_FILE = 2**31 - 2**27  # bytes of weights; protobuf holds 2 GiB, and the graph needs some of it


def load(path: Path) -> onnx.ModelProto:
    """Reads a model and checks it; weights that lie in files beside it stay there.

    Raises:
        files.BadModel: not a valid ONNX file, or its weights are missing.
        OSError: it cannot be read.
    """
    model = files.load(path)
    try:
        files.check_valid(path, model)
    except files.BadModel as error:
        # The checker refuses plugins in ONNX's own domain, where some exporters write them.
        if "No Op registered for" not in str(error) or not plugins.custom_operators(model):
            raise
    return model


def sixteen_bit_tensor(model: onnx.ModelProto) -> str | None:
    """Names a weight, input or output of a 16-bit floating-point type: "weight is float16"; or None."""
    names = {onnx.TensorProto.FLOAT16: "float16", onnx.TensorProto.BFLOAT16: "bfloat16"}
    types = {x.name: x.data_type for x in model.graph.initializer}
    types |= {x.name: x.type.tensor_type.elem_type for x in (*model.graph.input, *model.graph.output)}
    return next((f"{name} is {names[dtype]}" for name, dtype in types.items() if dtype in names), None)


def convert(model: onnx.ModelProto, folder: Path, precision: str, keep: Sequence[str]) -> str:
    """Converts a model in place; weights outside of it come in.

    Args:
        model: in float32.
        folder: where weights outside of the model lie.
        precision: one of `CONVERTED`.
        keep: regular expressions of nodes that stay in float32.

    Returns:
        What was converted, in one line.

    Raises:
        ValueError: it cannot be.
    """
    from onnx_path.precision import convert_precision

    onnx.load_external_data_for_model(model, str(folder))
    return str(convert_precision(model, precision, keep))


def take_out_bodies(model: onnx.ModelProto) -> bool:
    """Takes out bodies of MSDA nodes, which TensorRT's parser would prefer; tells if there were any."""
    before = len(model.functions)
    remove_function_bodies(model)
    return len(model.functions) < before


def save(model: onnx.ModelProto, path: Path, folder: Path) -> None:
    """Writes a model with its weights: in the file, or in <path>.data where protobuf cannot hold them.

    Args:
        model: weights outside of it come in.
        path: to write, in a folder that is not there for good before all is written.
        folder: where weights outside of the model lie.
    """
    onnx.load_external_data_for_model(model, str(folder))
    large = sum(tensor.ByteSize() for tensor in model.graph.initializer) > LARGEST_FILE
    onnx.save(model, path, save_as_external_data=large, location=f"{path.name}.data" if large else None)
