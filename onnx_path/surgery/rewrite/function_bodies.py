"""Function bodies of the nodes that the surgery writes, in the opset of the model."""

from __future__ import annotations

import onnx
import onnxscript
from onnxscript import opset20 as op

from onnx_path import operator
from onnx_path.operator import NVIDIA_DOMAIN

NVIDIA = "MultiscaleDeformableAttnPlugin_TRT"
NVIDIA_ATTRIBUTES = {"plugin_namespace": "", "plugin_version": "1"}
"""NVIDIA's plugin: inputs as of `msda.attention`, sizes in int32, result [N, Q, M, D]; equal points only."""

LOWEST_OPSET = 16
"""The oldest version of the standard operators that has all that the bodies use."""

_nvidia = onnxscript.values.Opset(NVIDIA_DOMAIN, 1)
_msda = onnxscript.values.Opset(operator.DOMAIN, operator.DOMAIN_VERSION)


@onnxscript.script(_nvidia, default_opset=op)
def MultiscaleDeformableAttnPlugin_TRT(
    value, spatial_shapes, level_start_index, sampling_locations, attention_weights
):
    """NVIDIA's plugin as MultiScaleDeformableAttention, which joins heads and channels."""
    joined = _msda.MultiScaleDeformableAttention(
        value, spatial_shapes, level_start_index, sampling_locations, attention_weights
    )
    heads = op.Shape(value, start=2, end=4)
    outer = op.Shape(joined, start=0, end=2)
    return op.Reshape(joined, op.Concat(outer, heads, axis=0), allowzero=1)


def functions(opset: int, target: str = "msda") -> list[onnx.FunctionProto]:
    """Returns the bodies that a target's nodes need, in the opset of their model, as ONNX demands.

    Args:
        opset: the model's version of the standard operators, at least `LOWEST_OPSET`.
        target: "msda" or "nvidia".
    """
    bodies = operator.function_bodies()
    if target == "nvidia":
        own = [body for body in bodies if body.name != operator.FUSED_ATTENTION]
        bodies = [MultiscaleDeformableAttnPlugin_TRT.to_function_proto(), *own]
    for body in bodies:
        for imported in body.opset_import:
            if imported.domain == "":
                imported.version = opset
    return bodies
