"""ONNX files on their way to TensorRT: checked, converted to 16 bits, fitted, written. Needs no GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import onnx

from onnx_path import custom_operators as plugins
from onnx_path.operator import remove_function_bodies
from onnx_path.optimization_profiles import Profile
from onnx_path.packed_projections import pack_projections
from onnx_path.surgery import files, selections

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


def fix_sizes(model: onnx.ModelProto, profiles: Mapping[str, Profile]) -> tuple[dict[str, Profile], int]:
    """Writes dynamic sizes that a profile leaves no choice of into the model, in place.

    TensorRT works out what follows from a size that it reads in the file when it parses, and carries all
    arithmetic with shapes along otherwise: builds take many times longer.

    Args:
        model: its inputs' sizes are set, and every dynamic size of the same name.
        profiles: of `profiles.fit`, by input.

    Returns:
        The profiles of the inputs that are still dynamic, and how many sizes were written.
    """
    named: dict[str, int] = {}
    inputs = {value.name: value for value in model.graph.input}
    remaining, written = {}, 0
    for name, profile in profiles.items():
        dims = inputs[name].type.tensor_type.shape.dim
        for dim, smallest, largest in zip(dims, profile.min, profile.max, strict=True):
            if smallest == largest and not dim.HasField("dim_value"):
                written += 1
                if dim.dim_param:
                    named[dim.dim_param] = smallest
                dim.dim_value = smallest
        if not all(dim.HasField("dim_value") for dim in dims):
            remaining[name] = profile
    for value in (*model.graph.input, *model.graph.output, *model.graph.value_info):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param in named:
                dim.dim_value = named[dim.dim_param]
    return remaining, written


def tell_selections(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy that also gives what it selects, see `selections.telling`."""
    telling = selections.telling(model, selections.of(model))
    # Outputs of a valid file have a shape.
    inferred = onnx.shape_inference.infer_shapes(telling)
    added = slice(len(model.graph.output), None)
    for output, known in zip(telling.graph.output[added], inferred.graph.output[added], strict=True):
        output.CopyFrom(known)
    return telling


def fit_plugins(model: onnx.ModelProto, folder: Path) -> bool:
    """Gives a model's MSDA nodes the form in which TensorRT builds the fastest plugins, in place.

    Args:
        model: loses their bodies, see `take_out_bodies`; merges what `pack_projections` does.
        folder: where weights outside of the model lie.

    Returns:
        Whether the model has changed.
    """
    had_bodies = take_out_bodies(model)
    return pack_projections(model, folder) > 0 or had_bodies


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
