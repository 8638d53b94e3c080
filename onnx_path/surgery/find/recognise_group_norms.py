"""Finding group normalisation of maps whose result gets its channels innermost, as linear layers read it.

Exporters write an InstanceNormalization of [N, groups, ...] between Reshape nodes, and weight and bias behind
it, or one GroupNormalization. The node `GroupNorm` has channels innermost. The projections in front of a
transformer transpose their result to that layout. The transposition then moves in front of the node, and the
graph has as many as before. Elsewhere the node would need two more.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from onnx_path.surgery.find.samplers import NotAttention
from onnx_path.surgery.find.window_paths import results, run, scales
from onnx_path.surgery.graph.probe import Probe
from onnx_path.surgery.graph.traversal import attribute, is_op

FAST_GROUP_CHANNELS = 8
"""The fast kernel runs groups of a multiple of so many channels in 16 bits, see
kernels/include/msda/group_norm_choice.h."""


@dataclass(frozen=True, eq=False)
class GroupNorm:
    """A group normalisation.

    Attributes:
        map: [N, C, H, W].
        end: the result, [N, H · W, C] or [N, H, W, C].
        num_groups, eps: as of `msda.group_norm`.
        weight, bias: [C].
    """

    map: ir.Value
    end: ir.Value
    num_groups: int
    eps: float
    weight: np.ndarray
    bias: np.ndarray


def group_norms(graph: ir.Graph, probe: Probe) -> Iterator[tuple[ir.Node, ir.Value]]:
    """Yields the nodes that normalise groups of a map's channels, and the maps [N, C, H, W]."""
    for node in graph:
        x = node.inputs[0] if is_op(node, "GroupNormalization", "InstanceNormalization") else None
        if is_op(node, "InstanceNormalization"):
            x = x.producer().inputs[0] if is_op(x.producer(), "Reshape") else None
        if x is not None and len(probe.shape(x) or ()) == 4:
            yield node, x


def recognise_group_norm(node: ir.Node, x: ir.Value, probe: Probe) -> GroupNorm:
    """Finds weight, bias and result of a group normalisation.

    Args:
        node: normalises groups.
        x: the map.
        probe: gives the sizes.

    Raises:
        NotAttention: our node would need one more transposition, or the node has other weights.
        NotClosed, onnx_session.CannotRun: onnxruntime cannot run a part of it.
    """
    normalised, (images, channels, *sides) = node.outputs[0], probe.shape(x)
    groups = attribute(node, "num_groups", probe.shape(node.inputs[0])[1])
    if channels % groups or channels // groups % FAST_GROUP_CHANNELS:
        raise NotAttention(f"the plugin has no fast kernel for {channels} channels in {groups} groups")
    if x.dtype == ir.DataType.DOUBLE:
        raise NotAttention("its numbers are float64, which the plugin does not know")
    shapes = ((images, sides[0] * sides[1], channels), (images, *sides, channels))
    ends = (value for value in results(normalised, probe, scales) if probe.shape(value) in shapes)
    if (end := next(ends, None)) is None:
        raise NotAttention("its result stays [N, C, H, W]: two transpositions would be left over")
    own = [probe.value(value) for value in node.inputs[1:]]
    if any(array is None or channels % array.size for array in own):
        raise NotAttention("its weights follow from the model's inputs")
    scale, shift = (np.repeat(array, channels // array.size) for array in own)
    added = run(probe, normalised, np.zeros(1), end).reshape(-1, channels)
    factors = run(probe, normalised, np.ones(1), end).reshape(-1, channels) - added
    if np.ptp(added, axis=0).any() or np.ptp(factors, axis=0).any():
        raise NotAttention("its cells have weights of their own")
    eps = attribute(node, "epsilon", 1e-5)
    return GroupNorm(x, end, groups, eps, scale * factors[0], shift * factors[0] + added[0])
