"""Offsets and logits of a fused attention from one matrix product, for TensorRT. Needs no GPU.

Two linear layers compute them from the same queries. TensorRT fuses the two products by itself, and then
copies both results out of the product. The plugin with the attribute `packed` reads them in place. The names
of the merged weights follow from the names in the file, so a file with other weights refits an engine.
"""

from __future__ import annotations

import itertools
import posixpath
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from onnx_path.nodes.attention import DOMAIN, FUSED_ATTENTION, PACKED
from onnx_path.opset import opset_of
from onnx_path.surgery.graph.traversal import add_constant, attribute, constant, is_op

_OLDEST_OPSET = 15  # Shape has a start and an end since then
_OFFSETS, _LOGITS = 4, 5  # inputs of the node


class _Linear(NamedTuple):
    """A linear layer, y = x weight + bias.

    Attributes:
        name: name of the matrix product.
        x: [..., C].
        weight: [C, O].
        bias: [O].
    """

    name: str
    x: ir.Value
    weight: np.ndarray
    bias: np.ndarray


def pack_projections(model: ir.Model) -> int:
    """Merges the linear layers of offsets and logits that read the same tensor, in place.

    Two layers stay apart if their weights are no constants of one type, or if another node reads a result.

    Args:
        model: MSDA nodes without function bodies, which cannot describe packed nodes. Gets the merged
            weights.

    Returns:
        The number of nodes that were packed.
    """
    if opset_of(model) < _OLDEST_OPSET:
        return 0
    names = {x.name or "" for node in model.graph for x in (node, *node.outputs)}
    names.update(model.graph.initializers)
    count = sum(_pack(node, names) for node in list(model.graph) if _is_fused(node))
    if count:
        ir.passes.common.RemoveUnusedNodesPass()(model)
    return count


def _is_fused(node: ir.Node) -> bool:
    return (node.domain, node.op_type) == (DOMAIN, FUSED_ATTENTION)


def _pack(node: ir.Node, names: set[str]) -> bool:
    if PACKED in node.attributes:
        return False
    offsets, logits = (_linear(node.inputs[i]) for i in (_OFFSETS, _LOGITS))
    if offsets is None or logits is None or offsets.x is not logits.x:
        return False
    if offsets.weight.dtype != logits.weight.dtype:
        return False
    graph, reference = node.graph, node.inputs[3]
    module = posixpath.dirname(posixpath.dirname(offsets.name))  # .../self_attn/sampling_offsets/MatMul
    stem = posixpath.join(module, "projection")
    scopes = itertools.chain([stem], (f"{stem}_{number}" for number in itertools.count(1)))
    scope = next(x for x in scopes if not any(name.startswith(f"{x}/") for name in names))
    names.add(f"{scope}/MatMul")

    def weight(name: str, array: np.ndarray) -> ir.Value:
        return add_constant(graph, f"{scope}/{name}", array)

    def add(op_type: str, *inputs: ir.Value, **attributes: int) -> ir.Value:
        made = ir.node(op_type, inputs, attributes, name=f"{scope}/{op_type}")
        made.outputs[0].name = made.name
        graph.insert_before(node, made)
        return made.outputs[0]

    kernel = weight("weight", np.concatenate([offsets.weight, logits.weight], 1))
    bias = weight("bias", np.concatenate([offsets.bias, logits.bias]))
    projection = add("Add", add("MatMul", offsets.x, kernel), bias)
    if not _same_rows(offsets.x.shape, reference.shape):
        last = weight("columns", np.array([kernel.shape[1]], np.int64))
        shape = add("Concat", add("Shape", reference, start=0, end=2), last, axis=0)
        projection = add("Reshape", projection, shape, allowzero=1)
    projection.type = ir.TensorType(kernel.dtype)
    node.replace_input_with(_OFFSETS, projection)
    node.resize_inputs(_LOGITS)
    node.attributes.add(ir.AttrInt64(PACKED, 1))
    return True


def _same_rows(x: ir.Shape | None, reference: ir.Shape | None) -> bool:
    """Returns whether x is [N, Q, C] with the N and Q of the reference points."""
    if x is None or reference is None or len(x) != 3:
        return False
    return all(isinstance(a, int) or a.value is not None for a in x[:2]) and x[:2] == reference[:2]


def _linear(value: ir.Value) -> _Linear | None:
    """Returns the linear layer that computes a value, if its result is only reshaped and read once."""
    node = value.producer()
    while is_op(node, "Reshape") and _is_own(value):
        value = node.inputs[0]
        node = value.producer()
    if not _is_own(value):
        return None
    if is_op(node, "Gemm") and len(node.inputs) == 3:
        kernel = _constant(node.inputs[1])
        if kernel is not None and attribute(node, "transB", 0):
            kernel = kernel.T
        scaled = attribute(node, "alpha", 1.0) != 1 or attribute(node, "beta", 1.0) != 1
        if scaled or attribute(node, "transA", 0):
            return None
        return _checked(node, kernel, _constant(node.inputs[2]))
    if not is_op(node, "Add"):
        return None
    for product, bias in (node.inputs, node.inputs[::-1]):
        producer = product.producer()
        if is_op(producer, "MatMul") and _is_own(product):
            return _checked(producer, _constant(producer.inputs[1]), _constant(bias))
    return None


def _checked(node: ir.Node, kernel: np.ndarray | None, bias: np.ndarray | None) -> _Linear | None:
    if kernel is None or bias is None or kernel.ndim != 2 or bias.shape != kernel.shape[1:]:
        return None
    return _Linear(node.name or "", node.inputs[0], kernel, bias)


def _is_own(value: ir.Value) -> bool:
    """Returns whether one node alone reads a tensor. Other nodes may read its shape."""
    readers = [use for use in value.uses() if not is_op(use.node, "Shape")]
    return len(readers) == 1 and not value.is_graph_output()


def _constant(value: ir.Value) -> np.ndarray | None:
    """Returns a constant through the nodes that exporters put behind weights."""
    node = value.producer()
    if is_op(node, "Identity"):
        return _constant(node.inputs[0])
    if is_op(node, "Transpose") and attribute(node, "perm", None) in (None, (1, 0), [1, 0]):
        array = _constant(node.inputs[0])
        return None if array is None else array.T
    return constant(value)
