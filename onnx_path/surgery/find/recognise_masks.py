"""Finding padding masks in front of MSDA: rows of a linear layer's result become zero where a mask says so.

Exporters write `masked_fill(value, mask, 0)` as a Where, which TensorRT runs as a kernel of its own. A node
`Linear` multiplies by the mask instead, as in exports of `msda.MultiScaleDeformableAttention`. In a masked
row of NaN or infinity, Where gives 0 and the product gives NaN. A Where therefore stays if weights are not
finite, or if the features come from an operator that makes infinity of finite numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from onnx_path.surgery.find.recognise_windows import Linear, linear_layer, node_name
from onnx_path.surgery.find.samplers import NotAttention
from onnx_path.surgery.find.window_paths import moving_inputs, readers
from onnx_path.surgery.graph.probe import Probe
from onnx_path.surgery.graph.traversal import is_op
from onnx_path.surgery.layouts.movement import source_of

_INFINITE = ("Div", "Exp", "Log", "Pow", "Reciprocal")
"""Operators that can make infinity of finite numbers."""


@dataclass(frozen=True, eq=False)
class MaskedLinear:
    """A linear layer whose result is masked.

    Attributes:
        x: [..., K], the features.
        layer: the linear layer.
        mask: bool, one number for each row of x.
        keeps: whether rows stay where the mask is True; else they become zero there.
        end: the masked result.
    """

    x: ir.Value
    layer: Linear
    mask: ir.Value
    keeps: bool
    end: ir.Value


def masking_nodes(values: Iterable[ir.Value]) -> list[ir.Node]:
    """Returns the Where nodes whose results are moved to some values of MSDA, each once."""
    found: dict[ir.Node, None] = {}
    for value in values:
        while (source := source_of(value)) is not None:
            value = source
        if is_op(value.producer(), "Where"):
            found[value.producer()] = None
    return list(found)


def recognise_mask(where: ir.Node, probe: Probe) -> MaskedLinear:
    """Finds the mask and the linear layer of a Where.

    Raises:
        NotAttention: the Where does not mask whole rows of a linear layer with zeros.
        NotClosed, onnx_session.CannotRun: onnxruntime cannot run a part of it.
    """
    mask, *branches = where.inputs
    zeros = [probe.value(x) is not None and not np.any(probe.value(x)) for x in branches]
    if sum(zeros) != 1:
        raise NotAttention("it selects between other numbers than values and zeros")
    value, keeps = branches[zeros[0]], zeros[1]
    end = where.outputs[0]
    if probe.shape(end) is None:
        raise NotAttention("it follows an operator that onnxruntime does not know")
    rows = math.prod(probe.shape(mask))
    if probe.shape(value) != probe.shape(end) or not _masks_rows(probe.shape(mask), probe.shape(end)):
        raise NotAttention("its mask has not one number for each row of values")
    x, layer, factor = linear_layer(value, "the values", lambda array: array.reshape(rows, -1), probe)
    layer = Linear(layer.weight * factor, layer.bias * factor)
    if not all(np.isfinite(array).all() for array in (layer.weight, layer.bias)):
        raise NotAttention("its weights are not finite, and a product with the mask would give NaN")
    if (source := _infinite_source(x, probe)) is not None:
        raise NotAttention(
            f"its features come from {node_name(source)}, which may give infinity, and a product with the "
            "mask would give NaN"
        )
    if x.dtype == ir.DataType.DOUBLE:
        raise NotAttention("its numbers are float64, which the plugin does not know")
    while value is not x:
        if value.is_graph_output() or len(readers(value, probe)) > 1:
            raise NotAttention(f"{value.name}, which is on the way, is read elsewhere too")
        (value,) = moving_inputs(value.producer(), probe)
    if len(probe.shape(x)) == 2 and is_op(x.producer(), "Reshape"):
        source = x.producer().inputs[0]  # simplifiers flatten the rows for a Gemm
        x = source if probe.shape(source)[-1] == probe.shape(x)[-1] else x
    while is_op(mask.producer(), "Not"):
        mask, keeps = mask.producer().inputs[0], not keeps
    return MaskedLinear(x, layer, mask, keeps, end)


def _infinite_source(x: ir.Value, probe: Probe) -> ir.Node | None:
    """Returns the node that makes a tensor's numbers if finite inputs can make them infinite."""
    while (source := source_of(x)) is not None:
        x = source
    node = x.producer()
    numbers = [probe.value(branch) for branch in node.inputs[1:]] if is_op(node, "Where") else []
    fills = any(array is not None and not np.isfinite(array).all() for array in numbers)
    return node if fills or is_op(node, *_INFINITE) else None


def _masks_rows(mask: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    """Returns whether a mask broadcasts to a tensor along its last axes alone."""
    mask = (1,) * (len(shape) - len(mask)) + mask
    rank = max((i + 1 for i, size in enumerate(mask) if size > 1), default=0)
    return rank < len(shape) and mask[:rank] == shape[:rank]
