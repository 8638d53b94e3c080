"""ONNX files: read with their weights left in place, written whole or not at all."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError

from codetr.errors import one_line
from trt_plugin.atomic_files import atomic_write, errors_about, new_folder


class BadModel(ValueError):
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
        _check_external(path, tensor)
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
    if not external_tensors(model):
        onnx.checker.check_model(model, full_check=True)
        with atomic_write(path) as temporary:
            temporary.write_bytes(model.SerializeToString())
    elif path.parent.resolve() == source.parent.resolve():
        with atomic_write(path) as temporary:
            temporary.write_bytes(model.SerializeToString())
            onnx.checker.check_model(str(temporary), full_check=True)
    else:
        with _staging(path) as folder:
            copy = ir.from_proto(model)
            ir.external_data.set_base_dir(copy.graph, source.parent)
            ir.save(copy, folder / path.name, external_data=f"{path.name}.data")
            onnx.checker.check_model(str(folder / path.name), full_check=True)


def copy(source: Path, path: Path, model: onnx.ModelProto) -> None:
    """Copies a model file byte by byte, and the files of its weights if it goes to another folder."""
    if path.parent.resolve() != source.parent.resolve():
        for location in dict.fromkeys(_external_data(tensor).location for tensor in external_tensors(model)):
            with atomic_write(path.parent / location) as temporary:
                shutil.copyfile(source.parent / location, temporary)
    with atomic_write(path) as temporary:
        shutil.copyfile(source, temporary)


def external_tensors(model: onnx.ModelProto) -> list[onnx.TensorProto]:
    """Returns the initializers that lie in other files."""
    return [t for t in model.graph.initializer if t.data_location == onnx.TensorProto.EXTERNAL]


def _external_data(tensor: onnx.TensorProto) -> onnx.external_data_helper.ExternalDataInfo:
    return onnx.external_data_helper.ExternalDataInfo(tensor)


def _check_external(path: Path, tensor: onnx.TensorProto) -> None:
    data = _external_data(tensor)
    file = path.parent / data.location
    if not file.is_file():
        raise BadModel(f"{path}: its weights are in {data.location}, which is not beside it")
    if file.stat().st_size < (data.offset or 0) + (data.length or 0):
        raise BadModel(
            f"{path}: its weights file {data.location} is cut off, {tensor.name} lies beyond its end"
        )


@contextlib.contextmanager
def _staging(path: Path) -> Iterator[Path]:
    """Yields a folder whose files move beside `path` when the block ends well; the file `path` moves last."""
    prefix = f".{path.name}."
    with (
        new_folder(path.parent),
        errors_about(path, path.parent / prefix),
        tempfile.TemporaryDirectory(dir=path.parent, prefix=prefix) as name,
    ):
        folder = Path(name)
        yield folder
        for file in sorted(folder.iterdir(), key=lambda file: file.name == path.name):
            os.replace(file, path.parent / file.name)
