"""ONNX files: read with their weights left in place, written whole or not at all."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError

from codetr.errors import UsageError, one_line
from codetr.export.output_folder import staged_folder
from trt_plugin.atomic_files import atomic_write


class BadModel(UsageError):
    """A file that is no usable ONNX model; the message begins with its path."""


def load(path: Path) -> onnx.ModelProto:
    """Reads a model; weights in other files stay there.

    Raises:
        BadModel: the file is no ONNX model, or its weights are missing or cut off.
        OSError: the file cannot be read.
    """
    try:
        model = onnx.load(path, load_external_data=False)
    except DecodeError:
        model = onnx.ModelProto()
    if not model.ir_version or not model.graph.output:
        raise BadModel(f"{path}: not an ONNX file, or a part of one is missing")
    for tensor in external_tensors(model):
        data = onnx.external_data_helper.ExternalDataInfo(tensor)
        file = path.parent / data.location
        if not file.is_file():
            raise BadModel(f"{path}: its weights are in {data.location}, which is not beside it")
        if file.stat().st_size < (data.offset or 0) + (data.length or 0):
            raise BadModel(
                f"{path}: its weights file {data.location} is cut off, {tensor.name} lies beyond its end"
            )
    return model


def check_valid(path: Path, model: onnx.ModelProto) -> None:
    """Raises `BadModel` if ONNX's checker refuses a model that was read from `path`."""
    try:
        onnx.checker.check_model(path if external_tensors(model) else model)
    except onnx.checker.ValidationError as error:
        raise BadModel(f"{path}: not a valid ONNX model: {one_line(error)}") from error


def save(model: onnx.ModelProto, path: Path, source: Path) -> None:
    """Writes a model after a full check by ONNX's checker, shape inference included.

    Weights outside the model stay in place if `path` lies in their folder. Otherwise they are copied to
    <path>.data.

    Args:
        model: the model to write.
        path: the file to write.
        source: the file that the model was read from.

    Raises:
        onnx.checker.ValidationError, onnx.shape_inference.InferenceError: the model is not valid.
        OSError: the file cannot be written.
    """
    if external_tensors(model) and path.parent.resolve() != source.parent.resolve():
        with staged_folder(path.parent) as folder:
            copy = ir.from_proto(model)
            ir.external_data.set_base_dir(copy.graph, source.parent)
            ir.save(copy, folder / path.name, external_data=f"{path.name}.data")
            onnx.checker.check_model(str(folder / path.name), full_check=True)
    else:
        with atomic_write(path) as temporary:
            temporary.write_bytes(model.SerializeToString())
            onnx.checker.check_model(str(temporary), full_check=True)


def external_tensors(model: onnx.ModelProto) -> list[onnx.TensorProto]:
    """Returns the initializers that lie in other files."""
    return [t for t in model.graph.initializer if t.data_location == onnx.TensorProto.EXTERNAL]
