"""Finding linear layers with GELU, ReLU or a residual behind them.

Exporters write a MatMul or Gemm, the Add of the bias, and up to five nodes of GELU. The node `Linear`
computes all of it in one kernel. Numbers tell bias and activation: parts of the graph run on zeros and on
samples.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from onnx_path.surgery.find.recognise_windows import Linear
from onnx_path.surgery.find.samplers import NotAttention
from onnx_path.surgery.find.window_paths import linear_weight, moving_inputs, readers, run
from onnx_path.surgery.graph.probe import Probe
from onnx_path.surgery.graph.traversal import is_op
from onnx_path.surgery.layouts.movement import keeps_order

FAST_MULTIPLE = 8
"""The fast kernels run channels in multiples of so many, see kernels/include/msda/linear_choice.h."""

FEWEST_ROWS = 512
"""Layers of fewer rows stay, because any kernel computes them in a few microseconds. No measurement chose the
number."""

_POINTWISE = (
    *("Add", "Sub", "Mul", "Div", "Pow", "Neg", "Max", "Min", "Clip", "Identity"),
    *("Erf", "Tanh", "Sigmoid", "HardSigmoid", "HardSwish", "Elu", "LeakyRelu", "Gelu", "Relu"),
)
_SAMPLES = 16 * (np.arange(4099) * 0.618034 % 1) - 8  # any few successive ones cover the range
_ACTIVATIONS = {
    "gelu": np.array([x * (1 + math.erf(x / math.sqrt(2))) / 2 for x in _SAMPLES]),
    "relu": np.maximum(_SAMPLES, 0),
}
_ROUNDING = 1e-4  # the square root of 2 in 16 bits changes GELU by 3e-5, and GELU by tanh differs by 5e-4


@dataclass(frozen=True, eq=False)
class FusedLinear:
    """A linear layer with an activation or a residual.

    Attributes:
        x: [..., K], the features.
        layer: the linear layer.
        activation: one of `onnx_path.nodes.linear.ACTIVATIONS`.
        residual: added to the result, of as many numbers; None if there is none.
        end: the result, N numbers for each row of x.
    """

    x: ir.Value
    layer: Linear
    activation: str
    residual: ir.Value | None
    end: ir.Value


def matrix_products(graph: ir.Graph, probe: Probe) -> Iterator[ir.Node]:
    """Yields the nodes that multiply by a matrix, if onnxruntime knows the operators in front of them."""
    for node in graph:
        matrix = is_op(node, "MatMul", "Gemm") and len(probe.shape(node.inputs[1]) or ()) == 2
        if matrix and probe.shape(node.outputs[0]) is not None:
            yield node


def recognise_linear(product: ir.Node, probe: Probe) -> FusedLinear | None:
    """Finds the bias of a matrix product, and the activation or residual behind it.

    Args:
        product: the node.
        probe: gives the sizes.

    Returns:
        The layer, None if neither activation nor residual follows.

    Raises:
        NotAttention: the node `Linear` would be no faster, or cannot replace the layer.
        NotClosed, onnx_session.CannotRun: onnxruntime cannot run a part of it.
    """
    biased = _biased(product.outputs[0], probe)
    end, activation = _activated(biased, probe)
    residual = None
    if end is None:
        end, residual = _added(biased, probe)
    if end is None:
        return None
    x, weight = product.inputs[0], linear_weight(product, probe)
    if weight is None:
        raise NotAttention("its weight or bias is no constant")
    if any(size % FAST_MULTIPLE for size in weight.shape):
        inputs, outputs = weight.shape
        raise NotAttention(f"the plugin has no fast kernel for {inputs} -> {outputs} channels")
    if (rows := math.prod(probe.shape(x)[:-1])) < FEWEST_ROWS:
        raise NotAttention(f"it has {rows} rows, fewer than {FEWEST_ROWS}")
    if x.dtype == ir.DataType.DOUBLE:
        raise NotAttention("its numbers are float64, which the plugin does not know")
    if activation == "other":
        raise NotAttention("its activation is neither GELU by erf nor ReLU")
    _check_readers(product, end, residual, probe)
    biases = run(probe, x, np.zeros(1), biased).reshape(rows, -1)
    if np.ptp(biases, axis=0).any():
        raise NotAttention("its rows have biases of their own")
    while keeps_order(x.producer()) and probe.shape(x)[:-1] != probe.shape(end)[:-1]:
        source = x.producer().inputs[0]  # simplifiers flatten the rows for a Gemm
        if probe.shape(source)[-1:] != probe.shape(x)[-1:]:
            break
        x = source
    return FusedLinear(x, Linear(weight, biases[0]), activation, residual, end)


def _biased(value: ir.Value, probe: Probe) -> ir.Value:
    """Follows a product through additions of constants and changes of shape, and returns the last tensor."""
    while len(found := [x for x in _next(value, probe) if keeps_order(x) or _adds_bias(x, probe)]) == 1:
        value = found[0].outputs[0]
    return value


def _adds_bias(node: ir.Node, probe: Probe) -> bool:
    shapes = [probe.shape(x) for x in node.inputs if probe.is_static(x)] if is_op(node, "Add") else []
    return len(shapes) == 1 and probe.shape(node.outputs[0])[-1:] == (math.prod(shapes[0]),)


def _activated(biased: ir.Value, probe: Probe) -> tuple[ir.Value | None, str]:
    """Returns the result of an activation, or None, and its name: "gelu", "relu", "other" or "none"."""
    made = list(_pointwise(biased, probe))
    shape = _sample_shape(biased, made, probe)
    made = [x for x in made if probe.shape(x) == probe.shape(biased)][::-1]  # mostly it is the last
    for value in made:
        found = run(probe, biased, np.resize(_SAMPLES, shape), value, shape)
        for name, expected in _ACTIVATIONS.items():
            if np.allclose(found, np.resize(expected, shape), rtol=0, atol=_ROUNDING):
                return value, name
    for value in made:
        # Scales, offsets, tanh and sigmoid are symmetric about their number at 0: no near misses.
        pair = [run(probe, biased, np.resize(x, shape), value, shape) for x in (_SAMPLES, -_SAMPLES)]
        if not np.allclose(sum(pair), 2 * run(probe, biased, np.zeros(1), value, shape), atol=_ROUNDING):
            return value, "other"
    return None, "none"


def _sample_shape(biased: ir.Value, made: Sequence[ir.Value], probe: Probe) -> tuple[int, ...]:
    """Returns the sizes of a tensor with fewer rows, for which the nodes behind `biased` run as well.

    Axes keep their size if a constant of these nodes differs along them.
    """
    shape = probe.shape(biased)
    constants = {x for value in made for x in value.producer().inputs if x is not None and probe.is_static(x)}
    fixed = {len(shape) - 1}
    for sizes in map(probe.shape, constants):
        if sizes is None:
            return shape
        fixed |= {len(shape) - 1 - i for i, size in enumerate(reversed(sizes)) if size != 1}
    few = [size if axis in fixed else 1 for axis, size in enumerate(shape)]
    for axis in set(range(len(shape))) - fixed:
        few[axis] = min(shape[axis], -(-len(_SAMPLES) // math.prod(few)))
    return tuple(few)


def _pointwise(start: ir.Value, probe: Probe) -> Iterator[ir.Value]:
    """Yields the tensors that nodes compute number by number from one tensor, in the graph's order."""
    inside, pending = {start}, set(_next(start, probe))
    while pending:
        node = min(pending, key=probe.order.get)
        pending.remove(node)
        if is_op(node, *_POINTWISE) and inside.issuperset(moving_inputs(node, probe)):
            inside.add(node.outputs[0])
            pending.update(_next(node.outputs[0], probe))
            yield node.outputs[0]


def _added(biased: ir.Value, probe: Probe) -> tuple[ir.Value, ir.Value] | tuple[None, None]:
    """Returns the sum of a tensor with a residual, and the residual."""
    for node in _next(biased, probe):
        others = [x for x in moving_inputs(node, probe) if x is not biased]
        if is_op(node, "Add") and len(others) == 1 and probe.shape(others[0]) == probe.shape(biased):
            return node.outputs[0], others[0]
    return None, None


def _check_readers(product: ir.Node, end: ir.Value, residual: ir.Value | None, probe: Probe) -> None:
    """Raises NotAttention if a node beside the layer's own reads a tensor between product and result."""
    nodes, values, pending = set(), set(), {end.producer()}
    while pending:
        nodes.add(node := pending.pop())
        read = set(moving_inputs(node, probe)) - {residual} if node is not product else set()
        values |= read
        pending |= {x.producer() for x in read} - nodes
    for value in values:
        if value.is_graph_output() or readers(value, probe) - nodes:
            raise NotAttention(f"{value.name}, which is on the way, is read elsewhere too")


def _next(value: ir.Value, probe: Probe) -> list[ir.Node]:
    """Returns the main graph's nodes that read a tensor, in their order."""
    return sorted((x for x in readers(value, probe) if x in probe.order), key=probe.order.get)
