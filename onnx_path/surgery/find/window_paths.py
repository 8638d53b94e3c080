"""Paths of a map's cells: the tensors that windows are cut from, and the map that they are joined to.

A shifted map is cut by Slice and Concat, or by Gather, and its windows are no sum of tables as in
`layouts.layout`. These functions therefore run the nodes on numbers that tell the cells apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from onnx_path.surgery.find.samplers import NotAttention
from onnx_path.surgery.graph.probe import Probe
from onnx_path.surgery.graph.traversal import attribute, is_op
from onnx_path.surgery.layouts.movement import is_movement

_ARITHMETIC = ("Add", "Sub", "Mul", "Div")


def moving_inputs(node: ir.Node | None, probe: Probe) -> list[ir.Value]:
    """Returns the inputs of a node that follow from the model's inputs, not from constants and sizes."""
    return [] if node is None else [x for x in node.inputs if x is not None and not probe.is_static(x)]


def moves(node: ir.Node | None, probe: Probe) -> bool:
    """Returns True for a node that only moves cells, or pads the map with constants."""
    if not is_movement(node) and not is_op(node, "Pad"):
        return False
    found = moving_inputs(node, probe)
    return is_op(node, "Concat") or (len(found) == 1 and found[0] is node.inputs[0])


def scales(node: ir.Node | None, probe: Probe) -> bool:
    """Returns True for a node that moves cells, scales them by constants, or adds constants."""
    arithmetic = is_op(node, *_ARITHMETIC) and len(moving_inputs(node, probe)) == 1
    divides = is_op(node, "Div") and not probe.is_static(node.inputs[1])
    return moves(node, probe) or (arithmetic and not divides)


def linear_weight(node: ir.Node | None, probe: Probe) -> np.ndarray | None:
    """Returns the constant weight [in, out] of a node that is a linear layer, else None.

    A Gemm may add a bias besides.
    """
    if not is_op(node, "MatMul", "Gemm") or moving_inputs(node, probe) != [node.inputs[0]]:
        return None
    options = {name: found.value for name, found in node.attributes.items()}
    weight = probe.value(node.inputs[1])
    if weight.ndim != 2 or options.get("transA") or options.get("alpha", 1) != 1:
        return None
    return weight.T if options.get("transB") else weight


def linear_bias(node: ir.Node, probe: Probe) -> np.ndarray:
    """Returns the bias [out] that the node of a linear layer adds itself, zeros for a MatMul."""
    width = probe.shape(node.outputs[0])[-1]
    if len(node.inputs) < 3 or node.inputs[2] is None:
        return np.zeros(width)
    return np.broadcast_to(probe.value(node.inputs[2]) * attribute(node, "beta", 1.0), width)


def sources(value: ir.Value, probe: Probe) -> Iterator[ir.Value]:
    """Yields the tensors that hold all cells of a tensor, itself first, each one upstream of the last."""
    order = probe.order
    pending = {value}
    while True:
        if len(pending) == 1:
            yield from pending
        last = max(pending, key=lambda x: order.get(x.producer(), -1))
        node = last.producer()
        if not moves(node, probe):
            return
        pending -= set(node.outputs)
        pending.update(moving_inputs(node, probe))


def results(value: ir.Value, probe: Probe, through=moves) -> Iterator[ir.Value]:
    """Yields the tensors that a tensor's cells all go to, itself first, each one downstream of the last.

    Args:
        value: the tensor to start from.
        probe: knows which tensors are constant.
        through: returns whether cells pass through a node.
    """
    order = probe.order
    inside, pending = {value}, {value}
    done: set[ir.Node] = set()
    while True:
        if len(pending) == 1:
            yield from pending
        if any(x.is_graph_output() for x in pending):
            return
        node = min(set().union(*(readers(x, probe) for x in pending)) - done, key=order.get, default=None)
        if node is None or not through(node, probe) or not inside.issuperset(moving_inputs(node, probe)):
            return
        done.add(node)
        made = [x for x in node.outputs if readers(x, probe) or x.is_graph_output()]
        inside.update(made)
        pending = {x for x in (*pending, *made) if x.is_graph_output() or readers(x, probe) - done}


def readers(value: ir.Value, probe: Probe) -> set[ir.Node]:
    """Returns the nodes that read a tensor's numbers, not its sizes only."""
    return {node for node in value.consumers() if not all(map(probe.is_static, node.outputs))}


def run(
    probe: Probe,
    tensor: ir.Value,
    array: np.ndarray,
    result: ir.Value,
    shape: tuple[int, ...] | None = None,
) -> np.ndarray:
    """Returns a tensor as the graph computes it from another one's numbers, in float64.

    Args:
        probe: gives the sizes.
        tensor: the tensor to replace.
        array: its numbers, which are broadcast to its shape.
        result: the tensor to compute.
        shape: sizes for the tensor, by default those of the probe.

    Raises:
        NotClosed: `result` depends on other tensors.
        onnx_session.CannotRun: onnxruntime cannot run the nodes.
    """
    array = np.broadcast_to(array, shape or probe.shape(tensor))
    if tensor is result:
        return array.astype(np.float64)
    dtype = np.float64 if tensor.dtype == ir.DataType.DOUBLE else np.float32
    return probe.run({tensor: np.ascontiguousarray(array, dtype)}, result).astype(np.float64)


def exact(factor: float) -> float:
    """Returns 1 for a factor that is 1 but for roundings."""
    return 1.0 if abs(factor - 1) < 1e-5 else factor


@dataclass(frozen=True, eq=False)
class Columns:
    """How a tensor's columns follow from those of an earlier one, alike in all cells.

    Attributes:
        source: [columns] int64, the earlier tensor's column that each one is.
        factor: by which it is multiplied.
        added: [columns], the numbers that are added then.
    """

    source: np.ndarray
    factor: float
    added: np.ndarray


def columns(
    probe: Probe,
    tensor: ir.Value,
    result: ir.Value,
    rows: Callable[[np.ndarray], np.ndarray],
    name: str,
    numbers: np.ndarray | None = None,
) -> Columns:
    """Tells how the columns of a tensor follow from those of an earlier one.

    Args:
        probe: gives the sizes.
        tensor: the earlier tensor.
        result: the later tensor.
        rows: reshapes it to [cells, columns].
        name: what the later tensor is, for errors.
        numbers: the columns' numbers, as they broadcast to the earlier tensor; by default its last axis has
            the columns.

    Raises:
        NotAttention: cells or channels differ from each other in factor or addition.
        NotClosed, onnx_session.CannotRun: as `run`.
    """

    def row(array: np.ndarray) -> np.ndarray:
        found = rows(run(probe, tensor, array, result))
        if not np.allclose(found, found[:1], rtol=1e-4, atol=1e-6):
            raise NotAttention(f"constants that differ from cell to cell are added to {name}")
        return found[0]

    added = row(np.zeros(1))
    factors = row(np.ones(1)) - added
    factor = exact(float(factors.mean()))
    if abs(factor) < 1e-12 or not np.allclose(factors, factor, rtol=1e-3):
        raise NotAttention(f"the channels of {name} have scales of their own")
    numbers = np.arange(probe.shape(tensor)[-1]) if numbers is None else numbers
    source = (row(numbers) - added) / factor
    return Columns(np.rint(source).astype(np.int64), factor, added)
