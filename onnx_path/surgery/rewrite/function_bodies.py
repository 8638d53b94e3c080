"""Function bodies of the nodes that the surgery and builds write, in the opset of the model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import onnx
import onnxscript
from onnxscript import opset20 as op

from onnx_path.nodes import attention
from onnx_path.nodes.attention import MAP_OPERATORS, NVIDIA_DOMAIN, msda_op
from onnx_path.nodes.window_attention import QuantizedWindowAttention

NVIDIA = "MultiscaleDeformableAttnPlugin_TRT"
NVIDIA_ATTRIBUTES = {"plugin_namespace": "", "plugin_version": "1"}
"""NVIDIA's plugin: inputs as of `msda.attention`, sizes in int32, result [N, Q, M, D]; equal points only."""

LOWEST_OPSET = 16
"""The oldest version of the standard operators that has all that the bodies use."""

_nvidia = onnxscript.values.Opset(NVIDIA_DOMAIN, 1)


@onnxscript.script(_nvidia, default_opset=op)
def MultiscaleDeformableAttnPlugin_TRT(
    value, spatial_shapes, level_start_index, sampling_locations, attention_weights
):
    """NVIDIA's plugin as MultiScaleDeformableAttention, which joins heads and channels."""
    joined = msda_op.MultiScaleDeformableAttention(
        value, spatial_shapes, level_start_index, sampling_locations, attention_weights
    )
    heads = op.Shape(value, start=2, end=4)
    outer = op.Shape(joined, start=0, end=2)
    return op.Reshape(joined, op.Concat(outer, heads, axis=0), allowzero=1)


@onnxscript.script(msda_op, default_opset=op)
def PackedMultiScaleDeformableAttention(
    value,
    spatial_shapes,
    level_start_index,
    reference_points,
    projection,
    points_per_level: Sequence[int] = (),
):
    """A packed node in standard operators: the first two thirds of the projection's columns are offsets."""
    columns = op.Shape(projection, start=2, end=3)
    border = columns / 3 * 2
    offsets = op.Slice(projection, [0], border, [-1])
    samples = op.Concat(op.Shape(projection, start=0, end=2), op.Shape(value, start=2, end=3), [-1], axis=0)
    logits = op.Reshape(op.Slice(projection, border, columns, [-1]), samples)
    return msda_op.FusedMultiScaleDeformableAttention(
        value,
        spatial_shapes,
        level_start_index,
        reference_points,
        offsets,
        logits,
        points_per_level=points_per_level,
    )


def functions(opset: int, target: str = "msda", op_types: Iterable[str] = ()) -> list[onnx.FunctionProto]:
    """Returns the bodies that a target's nodes need, in the opset of their model, as ONNX demands.

    Args:
        opset: the model's version of the standard operators, at least `LOWEST_OPSET`.
        target: "msda" or "nvidia"; "onnxruntime" for the nodes of both, of builds and `MAP_OPERATORS`.
        op_types: operators of the nodes; the bodies of those of `MAP_OPERATORS` are added.
    """
    bodies = attention.function_bodies(MAP_OPERATORS if target == "onnxruntime" else op_types)
    if target == "nvidia":
        bodies = [body for body in bodies if body.name != attention.FUSED_ATTENTION]
    if target != "msda":
        bodies.insert(0, MultiscaleDeformableAttnPlugin_TRT.to_function_proto())
    if target == "onnxruntime":
        forms = PackedMultiScaleDeformableAttention, QuantizedWindowAttention
        bodies += [form.to_function_proto() for form in forms]
    for body in bodies:
        for imported in body.opset_import:
            if imported.domain == "":
                imported.version = opset
    return bodies
