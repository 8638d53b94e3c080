"""The two MSDA operators as ONNX: names, attributes, translation from Torch, bodies in standard operators.

A node of domain `msda` has the inputs of `msda.attention` (or `msda.fused_attention`) in the same order.
TensorRT replaces it by the plugin of the same name. Its body, a function of standard operators in the file,
lets every other ONNX runtime run the file. `onnx_path.nodes.window_attention`, `onnx_path.nodes.group_norm`,
`onnx_path.nodes.linear`, `onnx_path.nodes.linear_of_sum`, `onnx_path.nodes.feed_forward`,
`onnx_path.nodes.linear_max` and `onnx_path.nodes.top_k_indices` describe the other operators. The bodies here
read no attribute but `points_per_level` and fix no shape: levels, points and queries may all be dynamic.

TensorRT's parser up to 10.6 prefers a function in the file to a plugin of the same name. Programs therefore
remove the bodies before they hand it the file, as `onnx_path.build` does. Later parsers prefer the plugin.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import onnx
import onnxscript
from onnxscript import opset20 as op

from onnx_path.nodes import (
    feed_forward,
    group_norm,
    linear,
    linear_max,
    linear_of_sum,
    quantized_feed_forward,
    quantized_layer_norm,
    quantized_linear,
    top_k_indices,
    window_attention,
)
from onnx_path.nodes.domain import DOMAIN, FLOAT_TYPES, PLUGIN_ATTRIBUTES, msda_op, plugin_node
from trt_plugin.library import (
    ATTENTION,
    FUSED_ATTENTION,
    QUANTIZED_FEED_FORWARD,
    QUANTIZED_LAYER_NORM,
    QUANTIZED_LINEAR,
)

NVIDIA_DOMAIN = "trt.plugins"  # nodes for TensorRT's own plugin, which `onnx_path.surgeon` can write
OPSET_VERSION = 20  # standard operators in the bodies and in the exported file
OPERATORS = (ATTENTION, FUSED_ATTENTION)
MAP_OPERATORS = {
    window_attention.WINDOW_ATTENTION: window_attention.WindowAttention,
    group_norm.GROUP_NORM: group_norm.GroupNorm,
    linear.LINEAR: linear.Linear,
    feed_forward.FEED_FORWARD: feed_forward.FeedForward,
    linear_max.LINEAR_MAX: linear_max.LinearMax,
    linear_of_sum.LINEAR_OF_SUM: linear_of_sum.LinearOfSum,
    QUANTIZED_LINEAR: quantized_linear.QuantizedLinear,
    QUANTIZED_LAYER_NORM: quantized_layer_norm.QuantizedLayerNorm,
    QUANTIZED_FEED_FORWARD: quantized_feed_forward.QuantizedFeedForward,
    top_k_indices.TOP_K_INDICES: top_k_indices.TopKIndices,
}
"""Bodies of the operators beside MSDA, which a file has if it has such nodes."""
# Attributes of fused nodes that only TensorRT gets.
PACKED = "packed"  # see `tensorrt.packed_projections`
VALUE_SCALE = "value_scale"  # see `tensorrt.fused_quantized_values`

_FLOAT = onnx.TensorProto.FLOAT
_INT64 = onnx.TensorProto.INT64


def translation_table() -> dict[Callable, Callable]:
    """Returns the `custom_translation_table` by which `torch.onnx.export` writes the operators as nodes."""
    import torch

    import msda.ops  # noqa: F401  (registers torch.ops.msda)

    node = _node(ATTENTION, ("sampling_locations", "attention_weights"))
    fused_node = _node(FUSED_ATTENTION, ("reference_points", "sampling_offsets", "attention_logits"))

    def attention(value, shapes, starts, locations, weights, points_per_level=None):
        return node(value, shapes, starts, locations, weights, **_attributes(points_per_level))

    def fused_attention(value, shapes, starts, references, offsets, logits, points_per_level=None):
        return fused_node(value, shapes, starts, references, offsets, logits, **_attributes(points_per_level))

    return {
        torch.ops.msda.attention.default: attention,
        torch.ops.msda.fused_attention.default: fused_attention,
        torch.ops.msda.window_attention.default: window_attention.translation(),
        torch.ops.msda.group_norm.default: group_norm.translation(),
        torch.ops.msda.linear.default: linear.translation(),
        torch.ops.msda.feed_forward.default: feed_forward.translation(),
        torch.ops.msda.linear_max.default: linear_max.translation(),
        torch.ops.msda.linear_of_sum.default: linear_of_sum.translation(),
        torch.ops.msda.top_k_indices.default: top_k_indices.translation(),
    }


def function_bodies(op_types: Iterable[str] = ()) -> list[onnx.FunctionProto]:
    """Returns the bodies of both MSDA operators and of the two helper functions that they call.

    Args:
        op_types: operators of a model's nodes. The bodies of those of `MAP_OPERATORS` follow.
    """
    operators = (MultiScaleDeformableAttention, FusedMultiScaleDeformableAttention)
    functions = [*operators, PointsOfLevels, SampledCorner]
    present = set(op_types)
    functions += [function for name, function in MAP_OPERATORS.items() if name in present]
    return [function.to_function_proto() for function in functions]


def add_function_bodies(model: onnx.ModelProto) -> None:
    """Adds the bodies to a model in place, so that a runtime without the operators can run it."""
    remove_function_bodies(model)
    model.functions.extend(function_bodies(node.op_type for node in model.graph.node))


def remove_function_bodies(model: onnx.ModelProto) -> None:
    """Removes the bodies from a model in place, so that TensorRT's parser turns the nodes into plugins."""
    others = [function for function in model.functions if function.domain not in (DOMAIN, NVIDIA_DOMAIN)]
    del model.functions[:]
    model.functions.extend(others)


def _attributes(points_per_level: Sequence[int] | None) -> dict[str, str | list[int]]:
    """Returns a node's attributes, without `points_per_level` if all levels have equally many points."""
    return PLUGIN_ATTRIBUTES | ({"points_per_level": list(points_per_level)} if points_per_level else {})


def _node(name: str, inputs: tuple[str, ...]) -> onnxscript.values.Op:
    """Describes a node for the exporter: the result has the type of value, later inputs may be wider."""
    wider = {argument: f"T{i}" for i, argument in enumerate(inputs)}
    types = {
        "T": FLOAT_TYPES,
        "I": ("tensor(int64)", "tensor(int32)"),
        **dict.fromkeys(wider.values(), FLOAT_TYPES),
    }
    return plugin_node(
        name,
        {"value": "T", "spatial_shapes": "I", "level_start_index": "I", **wider},
        ("output", "T"),
        {"points_per_level": onnx.defs.OpSchema.AttrType.INTS},
        types,
        optional="points_per_level",
    )


# The bodies follow msda.reference step by step. Letters: N images, S cells, M heads, D channels of a head,
# Q queries, L levels, P points of a level, K points of all levels.


@onnxscript.script(msda_op, default_opset=op)
def PointsOfLevels(level_start_index, num_points, points_per_level: Sequence[int] = ()):
    """Returns the level that each of the K points samples, [K], and the number of its points, [K]."""
    num_levels = op.Shape(level_start_index)
    equal = op.Expand(num_points / num_levels, num_levels)
    # The attribute is empty when all levels have equally many points: then the first L entries are `equal`.
    counts = op.Slice(op.Concat(op.Constant(value_ints=points_per_level), equal, axis=0), [0], num_levels)
    level = op.Range(0, op.Squeeze(num_levels), 1)
    up_to = op.Cast(op.Unsqueeze(level, [0]) <= op.Unsqueeze(level, [1]), to=_INT64)  # [L, L]
    end_of_level = op.ReduceSum(up_to * counts, [1], keepdims=0)  # some runtimes lack an integer CumSum
    passed = op.Unsqueeze(op.Range(0, op.Squeeze(num_points), 1), [1]) >= end_of_level  # [K, L]
    level_of_point = op.ReduceSum(op.Cast(passed, to=_INT64), [1], keepdims=0)
    return level_of_point, op.Gather(counts, level_of_point)


@onnxscript.script(msda_op, default_opset=op)
def SampledCorner(rows, row_of_cell_0, row_step, column, line, width, height, weight):
    """Reads one corner of every sample, and sums over the points.

    rows [R + 1, D], the last one zero; column, line, weight [N, Q, M, K]; the others broadcast to that.
    Returns [N, Q, M, 1, D]. A corner outside its level reads the zero row, so that no 0 * NaN is added.
    """
    inside = op.And(op.And(column >= 0.0, column < width), op.And(line >= 0.0, line < height))
    cell = op.Cast(line, to=_INT64) * op.Cast(width, to=_INT64) + op.Cast(column, to=_INT64)
    zero_row = op.Shape(rows, start=0, end=1) - 1
    corner = op.Gather(rows, op.Where(inside, row_of_cell_0 + cell * row_step, zero_row))
    return op.MatMul(op.Unsqueeze(weight, [-2]), corner)


@onnxscript.script(msda_op, default_opset=op)
def MultiScaleDeformableAttention(
    value,
    spatial_shapes,
    level_start_index,
    sampling_locations,
    attention_weights,
    points_per_level: Sequence[int] = (),
):
    """msda.attention: bilinear samples of value, weighted and summed: [N, Q, M * D] of value's type."""
    num_images = op.Shape(value, start=0, end=1)
    num_cells = op.Shape(value, start=1, end=2)
    num_heads = op.Shape(value, start=2, end=3)
    head_dim = op.Shape(value, start=3, end=4)
    num_queries = op.Shape(sampling_locations, start=1, end=2)
    # [L, P] when all levels have equally many points, else [K]
    num_points = op.ReduceProd(op.Shape(sampling_locations, start=3, end=-1), keepdims=1)
    level, _ = msda_op.PointsOfLevels(level_start_index, num_points, points_per_level=points_per_level)

    shapes = op.Gather(op.Cast(spatial_shapes, to=_FLOAT), level)  # [K, 2] = (H, W)
    height = op.Gather(shapes, 0, axis=1)
    width = op.Gather(shapes, 1, axis=1)
    samples = op.Concat(num_images, num_queries, num_heads, num_points, axis=0)
    locations = op.Reshape(
        op.Cast(sampling_locations, to=_FLOAT), op.Concat(samples, [2], axis=0), allowzero=1
    )
    weights = op.Reshape(op.Cast(attention_weights, to=_FLOAT), samples, allowzero=1)
    x = op.Gather(locations, 0, axis=4) * width - 0.5  # pixels, [N, Q, M, K]
    y = op.Gather(locations, 1, axis=4) * height - 0.5
    # False for NaN too. Locations outside become one that an integer can hold and no corner reaches.
    inside = op.And(op.And(x > -1.0, x < width), op.And(y > -1.0, y < height))
    x = op.Where(inside, x, -2.0)
    y = op.Where(inside, y, -2.0)
    left = op.Floor(x)
    top = op.Floor(y)
    right_share = x - left
    bottom_share = y - top

    num_rows = num_images * num_cells * num_heads
    flat = op.Reshape(op.Cast(value, to=_FLOAT), op.Concat(num_rows, head_dim, axis=0), allowzero=1)
    rows = op.Concat(flat, op.Expand(0.0, op.Concat([1], head_dim, axis=0)), axis=0)
    image = op.Unsqueeze(op.Range(0, op.Squeeze(num_images), 1), [1, 2, 3])
    head = op.Unsqueeze(op.Range(0, op.Squeeze(num_heads), 1), [0, 1, 3])
    start = op.Gather(op.Cast(level_start_index, to=_INT64), level)
    row_of_cell_0 = (image * num_cells + start) * num_heads + head  # [N, 1, M, K]

    right = left + 1.0
    bottom = top + 1.0
    left_weights = weights * (1.0 - right_share)
    right_weights = weights * right_share
    top_share = 1.0 - bottom_share
    output = (
        msda_op.SampledCorner(
            rows, row_of_cell_0, num_heads, left, top, width, height, left_weights * top_share
        )
        + msda_op.SampledCorner(
            rows, row_of_cell_0, num_heads, right, top, width, height, right_weights * top_share
        )
        + msda_op.SampledCorner(
            rows, row_of_cell_0, num_heads, left, bottom, width, height, left_weights * bottom_share
        )
        + msda_op.SampledCorner(
            rows, row_of_cell_0, num_heads, right, bottom, width, height, right_weights * bottom_share
        )
    )
    shape = op.Concat(num_images, num_queries, num_heads * head_dim, axis=0)
    return op.CastLike(op.Reshape(output, shape, allowzero=1), value)


@onnxscript.script(msda_op, default_opset=op)
def FusedMultiScaleDeformableAttention(
    value,
    spatial_shapes,
    level_start_index,
    reference_points,
    sampling_offsets,
    attention_logits,
    points_per_level: Sequence[int] = (),
):
    """msda.fused_attention: softmax and locations first, then as above: [N, Q, M * D] of value's type."""
    num_points = op.Shape(attention_logits, start=3, end=4)
    level, counts = msda_op.PointsOfLevels(level_start_index, num_points, points_per_level=points_per_level)
    samples = op.Shape(attention_logits)
    offsets = op.Reshape(
        op.Cast(sampling_offsets, to=_FLOAT), op.Concat(samples, [2], axis=0), allowzero=1
    )  # [N, Q, M, K, 2]
    reference = op.Gather(op.Cast(reference_points, to=_FLOAT), level, axis=2)  # [N, Q, K, 2 or 4]
    reference = op.Unsqueeze(reference, [2])
    centre = op.Slice(reference, [0], [2], [-1])
    box_size = op.Slice(reference, [2], [4], [-1])  # [N, Q, 1, K, 0 or 2]
    # One of two rules without a branch: the first two columns of (by box, by level) are right.
    shapes = op.Cast(op.Gather(spatial_shapes, level), to=_FLOAT)  # [K, 2] = (H, W)
    sizes = op.Gather(shapes, [1, 0], axis=1)
    boxed = op.Slice(offsets, [0], op.Shape(box_size, start=4), [-1])
    by_box = boxed / op.Unsqueeze(op.Cast(counts, to=_FLOAT), [1]) * box_size * 0.5
    by_level = offsets / sizes
    locations = centre + op.Slice(op.Concat(by_box, by_level, axis=-1), [0], [2], [-1])
    weights = op.Softmax(op.Cast(attention_logits, to=_FLOAT), axis=-1)

    return msda_op.MultiScaleDeformableAttention(
        value, spatial_shapes, level_start_index, locations, weights, points_per_level=points_per_level
    )
