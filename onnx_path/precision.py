"""Converts float32 ONNX files of DETR-family detectors to strongly typed float16 or bfloat16 networks.

TensorRT builds an engine with the types in the file. `onnx_path.fp16_exceptions` lists the operators and
paths that stay float32. The public converters (`float16` of onnxconverter-common and onnxruntime, AutoCast of
modelopt) go by operator types, node names or measured ranges. They know neither the types of our nodes nor
the paths of coordinates.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir

from codetr.errors import ArgumentError
from onnx_path import fp16_exceptions as rules
from onnx_path.nodes.attention import NVIDIA_DOMAIN
from onnx_path.opset import opset_of, raise_opset
from onnx_path.surgery.graph.element_types import OWN_NODES, Types, is_top_k
from onnx_path.surgery.graph.traversal import (
    attribute,
    constant,
    has_subgraph,
    is_op,
    static_values,
)
from onnx_path.surgery.rewrite.recast import Recast, drop_idle_casts, is_constant, is_weight

NARROW_TYPES = {"fp16": ir.DataType.FLOAT16, "bf16": ir.DataType.BFLOAT16}
OLDEST_OPSET = {"fp16": 11, "bf16": 13}
OPSET_OF_BFLOAT16 = 22
"""Opset from which convolutions and pools have bfloat16. A conversion raises older files to it."""
OPSET_OF_NARROW_SCALES = 19
"""Opset from which QuantizeLinear and DequantizeLinear have 16-bit types."""

_FLOAT = ir.DataType.FLOAT
_ANY_TYPE = ("Shape", "Size", "Cast")  # operators that read every type


@dataclass(frozen=True)
class PrecisionReport:
    """The result of `convert_precision`.

    Attributes:
        converted: number of nodes that became 16-bit.
        kept: number of nodes that stay float32, by reason, without nodes that depend on constants alone.
        casts: number of Cast nodes inserted.
    """

    converted: int
    kept: Mapping[str, int]
    casts: int

    def __str__(self) -> str:
        kept = ", ".join(f"{count} ({reason})" for reason, count in self.kept.items()) or "none"
        return f"{self.converted} nodes to 16 bits, {self.casts} casts; nodes kept in float32: {kept}"


def convert_precision(model: onnx.ModelProto, precision: str, keep: Sequence[str] = ()) -> PrecisionReport:
    """Converts a float32 model to 16 bits, in place. Its inputs and outputs keep their types.

    See `fp16_exceptions` for the nodes that stay float32. These stay float32 too: nodes that read float32
    only, nodes with constants that a 16-bit type cannot hold, subgraphs, NVIDIA's attention nodes (their
    locations have the value's type), and operators that lack the type in TensorRT or in the model's opset. A
    conversion to bfloat16 raises the opset to 22, from which convolutions have it.

    Very large numbers in additive masks become half of the type's largest, so that adding scores gives no
    infinity. Each weight is converted once. A weight outside of the model (`load_external_data=False`) gets a
    Cast.

    Args:
        model: opset 11 or later, for bf16 13 or later. An error leaves it unchanged.
        precision: "fp16" or "bf16".
        keep: regular expressions. A node stays float32 if one matches anywhere in its name.

    Raises:
        ArgumentError: the opset is too old.
        UsageError: ONNX's converter cannot raise the opset.
    """
    patterns = [re.compile(pattern) for pattern in keep]
    narrow = NARROW_TYPES[precision]
    opset = opset_of(model)
    if opset < OLDEST_OPSET[precision]:
        least = OLDEST_OPSET[precision]
        raise ArgumentError("precision", f"expected opset {least} or later for {precision}, got {opset}")
    if precision == "bf16":
        raise_opset(model, OPSET_OF_BFLOAT16)
        opset = opset_of(model)
    changed = ir.from_proto(model)
    plan = _Plan(changed.graph, narrow, opset, patterns)
    converted = plan.decide()
    kept = Counter({rules.ASKED: 0} if patterns else {})
    kept.update(reason for node, reason in plan.reasons.items() if reason and plan.is_counted(node))
    recast = Recast(changed.graph, plan.types.of, narrow, float(plan.limits.max), plan.beyond)
    if converted:
        recast.run(plan.is_narrow, plan.wish)
        model.CopyFrom(ir.to_proto(changed))
    return PrecisionReport(converted, dict(kept.most_common()), recast.casts)


class _Plan:
    """The nodes of a main graph that compute in 16 bits.

    Attributes:
        types: types of all values.
        reasons: reason of each node with float32 tensors to stay float32, None if it is converted.
        beyond: float32 values that may have finite numbers beyond the 16-bit type, from constants.
        limits: smallest and largest numbers of the 16-bit type.
    """

    def __init__(self, graph: ir.Graph, narrow: ir.DataType, opset: int, keep: Sequence[re.Pattern]) -> None:
        self.types = Types(graph, opset)
        drop_idle_casts(graph, self.types.of)
        self.reasons: dict[ir.Node, str | None] = {}
        self.beyond: set[ir.Value] = set()
        self.limits = ml_dtypes.finfo(narrow.numpy())
        self._graph, self._narrow, self._opset, self._keep = graph, narrow, opset, keep
        self._static = static_values(graph)
        self._extremes: dict[ir.Value, tuple[bool, bool]] = {}

    def decide(self) -> int:
        """Fills `reasons` and returns the number of nodes to convert."""
        nodes = [node for node in self._graph if self._has_floats(node)]
        for node in nodes:
            if reason := self._reason_by_itself(node):
                self.reasons[node] = reason
        for value, reason in rules.float32_paths(self._graph):
            if self.types.floats([value]):
                self._keep_path(value, reason)
        for node in self._graph:
            if node not in self.reasons and self._has_floats(node):
                self.reasons[node] = self._reason_by_inputs(node) or self._reason_by_constants(node)
            self._note_beyond(node)
        for node in reversed(nodes):
            if self._moves_before_cast(node):
                self.reasons[node] = self._reason_by_constants(node)
        return sum(reason is None for reason in self.reasons.values())

    def is_counted(self, node: ir.Node) -> bool:
        """Returns whether a node depends on more than constants and sizes."""
        return any(x not in self._static for x in node.outputs)

    def is_narrow(self, value: ir.Value) -> bool:
        """Returns whether the producer of a float32 value gives it in 16 bits."""
        node = value.producer()
        return self._is_converted(node) and value.index() in self.types.narrow_places(node, self._narrow)[1]

    def wish(self, node: ir.Node, place: int) -> ir.DataType | None:
        """Returns the type that a node needs for a float32 input; None if it reads every type."""
        if is_op(node, *_ANY_TYPE) and node.graph is self._graph:
            return None
        converted = self._is_converted(node) and place in self.types.narrow_places(node, self._narrow)[0]
        return self._narrow if converted else _FLOAT

    def _is_converted(self, node: ir.Node | None) -> bool:
        return node in self.reasons and self.reasons[node] is None

    def _has_floats(self, node: ir.Node) -> bool:
        if is_op(node, "Constant", *_ANY_TYPE):
            return False
        known = is_op(node, node.op_type) and not has_subgraph(node)
        return not known or bool(self.types.floats((*node.inputs, *node.outputs)))

    def _reason_by_itself(self, node: ir.Node) -> str | None:
        floats = self.types.floats(node.inputs)
        if any(pattern.search(node.name or "") for pattern in self._keep):
            return rules.ASKED
        if has_subgraph(node):
            return rules.SUBGRAPH
        if node.domain == NVIDIA_DOMAIN:
            return rules.COORDINATES
        for reason, operators in rules.FLOAT32_OPERATORS.items():
            if is_op(node, *operators):
                return reason
        if is_top_k(node):
            return rules.SCORES
        if is_op(node, "Mul") and node.inputs[0] is node.inputs[1]:  # a square
            return rules.RANGE
        if any(x is not None and self.types.of.get(x) is None for x in node.inputs):
            return rules.UNKNOWN
        known = is_op(node, *rules.HEAVY, *rules.FOLLOWING, *rules.COMPARES, *rules.QUANTISES)
        if not known and (node.domain, node.op_type) not in OWN_NODES:
            return rules.UNKNOWN if floats or not is_op(node, node.op_type) else rules.FOLLOWS
        dequantised = any(is_op(x.producer(), "DequantizeLinear") for x in floats)
        if dequantised and self._opset < OPSET_OF_NARROW_SCALES:
            return rules.QUANTIZED
        if self._narrow == ir.DataType.BFLOAT16 and is_op(node, *rules.NOT_IN_BFLOAT16):
            return f"{node.op_type}: TensorRT has no bfloat16"
        if not self.types.narrow_places(node, self._narrow)[0]:
            return f"{node.op_type} of opset {self._opset} has no {self._narrow.name.lower()}"
        return None

    def _keep_path(self, root: ir.Value, reason: str) -> None:
        """Keeps the nodes that compute a value, back to heavy nodes, and the products of scores."""
        pending, seen = [root], {root}
        while pending:
            value = pending.pop()
            node = value.producer()
            if self._computes_places(node):
                pass
            elif reason != rules.COORDINATES and any(is_op(use.node, *rules.HEAVY) for use in value.uses()):
                continue  # features, not boxes or scores
            elif reason == rules.SCORES and is_op(node, *rules.PRODUCTS):
                self.reasons.setdefault(node, reason)
                continue  # features before it
            elif not is_op(node, *rules.ON_PATHS) or _ends_normalisation(node):
                continue
            self.reasons.setdefault(node, reason)
            sources = [x for x in self.types.floats(node.inputs) if x not in seen]
            seen.update(sources)
            pending += sources

    def _computes_places(self, node: ir.Node | None) -> bool:
        """Returns whether a matrix product gives coordinates, and is no projection of features.

        These are products of positions and frequencies, which are constants or sizes. Another is the mean of
        a distribution over constant places, by which D-FINE computes its boxes.
        """
        if not is_op(node, *rules.PRODUCTS) or node.inputs[-1] not in self._static:
            return False
        if node.outputs[0] in self._static:
            return True
        producer = node.inputs[0].producer()
        while is_op(producer, *rules.MOVES):
            producer = producer.inputs[0].producer()
        return is_op(producer, "Softmax")

    def _reason_by_inputs(self, node: ir.Node) -> str | None:
        if not is_op(node, "QuantizeLinear", *rules.FOLLOWING, *rules.COMPARES):
            return None
        inputs = [x for x in self.types.floats(node.inputs) if not is_constant(x)]
        wide = [x for x in inputs if not self.is_narrow(x)]
        if is_op(node, *rules.COMPARES):
            return rules.FOLLOWS if wide else None
        if len(wide) == len(inputs):
            return rules.FOLLOWS
        # x - mean(x) before its square, and the like: one step in 16 bits would lose the digits.
        before = any(self.reasons.get(x.producer()) == rules.RANGE for x in wide)
        after = any(self.reasons.get(use.node) == rules.RANGE for x in node.outputs for use in x.uses())
        return rules.RANGE if before and after else None

    def _reason_by_constants(self, node: ir.Node) -> str | None:
        if is_op(node, *rules.QUANTISES):
            return None  # small scales stay numbers of the 16-bit type
        for place in self.types.narrow_places(node, self._narrow)[0]:
            value = node.inputs[place]
            large, small = self._extremes_of(value)
            if small or ((large or value in self.beyond) and not is_op(node, *rules.MASKS)):
                return rules.CONSTANTS
        return None

    def _extremes_of(self, value: ir.Value) -> tuple[bool, bool]:
        """Returns whether a constant has numbers too large for the 16-bit type, or only too small ones."""
        if value not in self._extremes:
            array = constant(value) if is_weight(value) else None
            self._extremes[value] = (False, False) if array is None else self._compared(array)
        return self._extremes[value]

    def _compared(self, array: np.ndarray) -> tuple[bool, bool]:
        sizes = np.abs(array)
        largest = sizes.max(initial=0, where=np.isfinite(sizes))
        only_small = 0 < largest < float(self.limits.smallest_normal) and bool(np.isfinite(sizes).all())
        return bool(largest > float(self.limits.max)), only_small

    def _note_beyond(self, node: ir.Node) -> None:
        if self._is_converted(node) or not is_op(node, *rules.CARRIES_LARGE):
            return
        if is_op(node, "ConstantOfShape"):
            fill = attribute(node, "value", None)
            large = fill is not None and self._compared(fill.numpy())[0]
        else:
            inputs = node.inputs if is_op(node, "Cast") else self.types.floats(node.inputs)
            large = any(x in self.beyond or self._extremes_of(x)[0] for x in inputs)
        if large:
            self.beyond.update(self.types.floats(node.outputs))

    def _moves_before_cast(self, node: ir.Node) -> bool:
        """Returns whether a node only moves float32 to 16-bit nodes. A cast before it halves the traffic."""
        if self.reasons[node] != rules.FOLLOWS or not is_op(node, *rules.MOVES):
            return False
        if self.is_counted(node) and len(self.types.floats(node.inputs)) > 1:
            return False  # several casts instead of one
        if any(x.is_graph_output() for x in node.outputs):
            return False
        if not self.types.narrow_places(node, self._narrow)[0]:
            return False
        uses = [use for output in node.outputs for use in output.uses()]
        return all(self.wish(use.node, use.idx) == self._narrow for use in uses)


def _ends_normalisation(node: ir.Node) -> bool:
    """Returns whether a node is x / sqrt(...) or x * (1 / sqrt(...)), which stands behind features."""
    if not is_op(node, "Div", "Mul"):
        return False
    scale = node.inputs[1].producer()
    if is_op(node, "Mul"):
        scale = scale.inputs[0].producer() if is_op(scale, "Reciprocal") else None
    return is_op(scale, "Sqrt")
