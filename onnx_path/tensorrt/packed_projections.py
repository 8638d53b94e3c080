"""Offsets and logits of a fused attention from one linear layer, for TensorRT.

Two linear layers compute them from the same queries. TensorRT fuses the two products by itself, and then
copies both results out of the product. The plugin with the attribute `packed` reads them in place. The names
of the merged weights follow from the names in the file, so a file with other weights refits an engine.

The queries of an encoder are the sum of its features and positions, which nothing else reads. Where a kernel
is fast, a node `LinearOfSum` computes the layer, and no kernel writes the sum.
"""

from __future__ import annotations

import itertools
import posixpath
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from onnx_path.nodes.attention import DOMAIN, FUSED_ATTENTION, PACKED
from onnx_path.nodes.domain import PLUGIN_ATTRIBUTES
from onnx_path.opset import opset_of
from onnx_path.quantization.qdq_nodes import SIXTEEN_BITS
from onnx_path.surgery.graph.element_types import Types
from onnx_path.surgery.graph.traversal import add_constant, attribute, constant, is_op
from trt_plugin import library
from trt_plugin.engine_error import EngineError
from trt_plugin.library import LINEAR_OF_SUM

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
    nodes = [node for node in model.graph if _is_fused(node)]
    if opset_of(model) < _OLDEST_OPSET or not nodes:
        return 0
    types = Types(model.graph, opset_of(model))
    names = {x.name or "" for node in model.graph for x in (node, *node.outputs)}
    names.update(model.graph.initializers)
    count = sum(_pack(node, names, types) for node in nodes)
    if count:
        ir.passes.common.RemoveUnusedNodesPass()(model)
    return count


def _is_fused(node: ir.Node) -> bool:
    return (node.domain, node.op_type) == (DOMAIN, FUSED_ATTENTION)


def _pack(node: ir.Node, names: set[str], types: Types) -> bool:
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

    def add(op_type: str, *inputs: ir.Value, domain: str = "", **attributes: int | str) -> ir.Value:
        made = ir.node(op_type, inputs, attributes, domain=domain, name=f"{scope}/{op_type}")
        made.outputs[0].name = made.name
        graph.insert_before(node, made)
        return made.outputs[0]

    kernel = np.concatenate([offsets.weight, logits.weight], 1)
    bias = weight("bias", np.concatenate([offsets.bias, logits.bias]))
    if terms := _terms_of_sum(offsets.x, kernel.shape, types):
        rows = weight("weight", np.ascontiguousarray(kernel.T))
        projection = add(LINEAR_OF_SUM, *terms, rows, bias, domain=DOMAIN, **PLUGIN_ATTRIBUTES)
    else:
        projection = add("Add", add("MatMul", offsets.x, weight("weight", kernel)), bias)
    if not _same_rows(offsets.x.shape, reference.shape):
        last = weight("columns", np.array([kernel.shape[1]], np.int64))
        shape = add("Concat", add("Shape", reference, start=0, end=2), last, axis=0)
        projection = add("Reshape", projection, shape, allowzero=1)
    projection.type = ir.TensorType(bias.dtype)
    node.replace_input_with(_OFFSETS, projection)
    node.resize_inputs(_LOGITS)
    node.attributes.add(ir.AttrInt64(PACKED, 1))
    return True


def _terms_of_sum(x: ir.Value, kernel: tuple[int, int], types: Types) -> tuple[ir.Value, ir.Value] | None:
    """Returns the terms of the sum that both linear layers read, if the plugin is fast on the current GPU."""
    node = x.producer()
    if not is_op(node, "Add") or len(x.uses()) > 2 or x.is_graph_output():
        return None
    terms = one, other = node.inputs
    if types.of[one] not in SIXTEEN_BITS or types.of[other] != types.of[one] or one.shape is None:
        return None
    if one.shape != other.shape or not _are_known(one.shape):
        return None
    try:
        fast = library.has_fast_linear_of_sum(library.rows_of_layer(one.shape[:-1]), *kernel)
    except EngineError:
        return None  # no TensorRT, so no build follows
    return terms if fast else None


def _are_known(sizes: Iterable[int | ir.SymbolicDim]) -> bool:
    """Returns whether equal entries are equal sizes."""
    return all(isinstance(size, int) or size.value is not None for size in sizes)


def _same_rows(x: ir.Shape | None, reference: ir.Shape | None) -> bool:
    """Returns whether x is [N, Q, C] with the N and Q of the reference points."""
    if x is None or reference is None or len(x) != 3:
        return False
    return _are_known(x[:2]) and x[:2] == reference[:2]


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
