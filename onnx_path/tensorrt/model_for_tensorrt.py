"""ONNX models on their way to TensorRT: read, checked, adapted and written. Needs no GPU."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import onnx

from codetr.errors import UsageError
from onnx_path.nodes.attention import remove_function_bodies
from onnx_path.nodes.custom_operators import custom_operators
from onnx_path.surgery.graph import model_files
from onnx_path.surgery.verify import selections
from onnx_path.tensorrt.cumulative_sums import write_out_cumulative_sums
from onnx_path.tensorrt.fused_feed_forwards import fuse_feed_forwards
from onnx_path.tensorrt.fused_quantized_linears import fuse_quantized_linears
from onnx_path.tensorrt.graph_passes import run_passes
from onnx_path.tensorrt.joined_group_norms import join_group_norms
from onnx_path.tensorrt.optimization_profiles import ShapeRange
from onnx_path.tensorrt.packed_projections import pack_projections
from onnx_path.tensorrt.patch_convolutions import write_out_patch_convolutions
from onnx_path.tensorrt.top_k_searches import replace_top_k
from onnx_path.tensorrt.written_out_linears import write_out_slow_linears

_PASSES = (
    fuse_feed_forwards,  # before the first layers are written out
    write_out_slow_linears,
    pack_projections,
    fuse_quantized_linears,
    join_group_norms,  # with the QuantizeLinear nodes that are left
    write_out_cumulative_sums,
    write_out_patch_convolutions,
    replace_top_k,
)
"""What `fit_to_tensorrt` runs, in this order."""
LARGEST_FILE = 2**31 - 2**27  # bytes of weights; a protobuf holds 2 GiB, and the graph needs some of it


def load_model(path: Path) -> onnx.ModelProto:
    """Reads and checks a model. Weights in files beside it stay there.

    Raises:
        UsageError: the file is no valid ONNX model, or its weights are missing.
        OSError: the file cannot be read.
    """
    try:
        model = model_files.load(path)
        model_files.check_valid(path, model)
    except model_files.BadModel as error:
        # ONNX's checker refuses plugins in ONNX's own domain. Some exporters write them there.
        if "No Op registered for" not in str(error) or not custom_operators(model):
            raise UsageError(str(error)) from error
    return model


def sixteen_bit_tensor(model: onnx.ModelProto) -> str | None:
    """Describes the first 16-bit weight, input or output, as in "weight is float16", or returns None."""
    names = {onnx.TensorProto.FLOAT16: "float16", onnx.TensorProto.BFLOAT16: "bfloat16"}
    types = {x.name: x.data_type for x in model.graph.initializer}
    types |= {x.name: x.type.tensor_type.elem_type for x in (*model.graph.input, *model.graph.output)}
    return next((f"{name} is {names[dtype]}" for name, dtype in types.items() if dtype in names), None)


def fix_sizes(
    model: onnx.ModelProto, profiles: Mapping[str, ShapeRange]
) -> tuple[dict[str, ShapeRange], int]:
    """Writes dynamic sizes whose smallest and largest value are equal into the model, in place.

    TensorRT evaluates shape arithmetic of fixed sizes when it parses. Arithmetic of dynamic sizes stays in
    the network, and a build takes many times longer.

    Args:
        model: gets fixed sizes in its inputs, and in every other dimension of the same name.
        profiles: `optimization_profiles.fit_profiles` of the model.

    Returns:
        The shapes of the inputs that are still dynamic, and the number of sizes written.
    """
    named: dict[str, int] = {}
    inputs = {value.name: value for value in model.graph.input}
    remaining, written = {}, 0
    for name, shapes in profiles.items():
        dims = inputs[name].type.tensor_type.shape.dim
        for dim, smallest, largest in zip(dims, shapes.min, shapes.max, strict=True):
            if smallest == largest and not dim.HasField("dim_value"):
                written += 1
                if dim.dim_param:
                    named[dim.dim_param] = smallest
                dim.dim_value = smallest
        if not all(dim.HasField("dim_value") for dim in dims):
            remaining[name] = shapes
    for value in (*model.graph.input, *model.graph.output, *model.graph.value_info):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param in named:
                dim.dim_value = named[dim.dim_param]
    return remaining, written


def tell_selections(model: onnx.ModelProto) -> onnx.ModelProto:
    """Returns a copy that outputs its selections too, see `selections.telling`."""
    telling = selections.telling(model, selections.of(model))
    # Outputs of a valid file have a shape.
    inferred = onnx.shape_inference.infer_shapes(telling)
    added = slice(len(model.graph.output), None)
    for output, known in zip(telling.graph.output[added], inferred.graph.output[added], strict=True):
        output.CopyFrom(known)
    return telling


def fit_to_tensorrt(model: onnx.ModelProto, folder: Path) -> bool:
    """Brings nodes into the forms that TensorRT runs fastest, in place.

    Args:
        model: in the types that TensorRT gets. Loses the function bodies of these nodes, which TensorRT's
            parser up to 10.6 prefers to plugins.
        folder: location of weights outside of the model.

    Returns:
        Whether the model has changed.
    """
    bodies = len(model.functions)
    remove_function_bodies(model)
    return run_passes(model, folder, *_PASSES) > 0 or len(model.functions) < bodies


def save_model(model: onnx.ModelProto, path: Path, folder: Path) -> None:
    """Writes a model with its weights in the file, or in <path>.data if a protobuf cannot hold them.

    Args:
        model: gets its weights that lie outside, in `folder`.
        path: file in a temporary folder; the write is not atomic.
    """
    onnx.load_external_data_for_model(model, str(folder))
    large = sum(tensor.ByteSize() for tensor in model.graph.initializer) > LARGEST_FILE
    onnx.save(model, path, save_as_external_data=large, location=f"{path.name}.data" if large else None)


@contextmanager
def parsed_file(path: Path) -> Iterator[Path]:
    """Yields the file that TensorRT parses in place of an export: itself, or a temporary one beside it.

    A build and a refit use the same, so that the weights have the same names, see `fit_to_tensorrt`.
    """
    model = onnx.load(path, load_external_data=False)
    if not fit_to_tensorrt(model, path.parent):
        yield path
        return
    # In the same folder, where TensorRT finds external weights.
    with tempfile.NamedTemporaryFile(prefix=f".{path.stem}-", suffix=".onnx", dir=path.parent) as file:
        onnx.save(model, file.name)
        del model  # as large as the weights
        yield Path(file.name)
