"""Strongly typed 16-bit networks: float32 ONNX files of DETR-family detectors in float16 or bfloat16.

TensorRT builds such a file with the types that stand in it, so what must stay float32 is decided here, by
what nodes compute (see `convert_precision`). Own code, because the public converters (onnxconverter-common's
and onnxruntime's `float16`, modelopt's AutoCast) go by operator types, node names or ranges measured on data,
and know neither the types of our nodes nor the paths that coordinates take.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir

from onnx_path.operator import ATTENTION, NVIDIA_DOMAIN
from onnx_path.surgery.graph.element_types import ATTENTIONS, Types
from onnx_path.surgery.graph.traversal import (
    STANDARD_DOMAINS,
    attribute,
    constant,
    has_subgraph,
    is_op,
    static_values,
)
from onnx_path.surgery.rewrite.recast import Recast, drop_idle_casts, is_constant, is_weight

PRECISIONS = {"fp32": None, "fp16": ir.DataType.FLOAT16, "bf16": ir.DataType.BFLOAT16}
OLDEST_OPSET = {"fp16": 11, "bf16": 13}

COORDINATES = "coordinates"
SCORES = "top-k scores"
OUTPUTS = "paths to outputs"
RANGE = "sums and functions of a wide range"
CONSTANTS = "constants out of range"
FOLLOWS = "float32 inputs"
SUBGRAPH = "subgraphs"
QUANTIZED = "quantized"
UNKNOWN = "operators or types not known"
ASKED = "asked for"
"""Reasons to stay float32; one more names an operator that does not have the type in the model's opset."""

_FLOAT = ir.DataType.FLOAT


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# What operators do with numbers decides. One that is in no set stays float32.
#
# 16 bits: TensorRT sums matrix products, convolutions and normalisations in float32, the tensors between are
# what costs. Paths of coordinates and scores begin behind these.
_HEAVY = _words(
    "Conv ConvTranspose MatMul Gemm Einsum LayerNormalization InstanceNormalization GroupNormalization "
    "RMSNormalization BatchNormalization AveragePool Attention"
)
# One that gives top-k scores stays float32: of tens of thousands in 16 bits many are equal where the
# selection ends, and then their order decides. TensorRT 10.6 also aborts on such a product in float16 whose
# maximum goes through a Where to TopK.
_PRODUCTS = _words("MatMul Gemm Einsum")
_MOVES = _words(
    "Identity Reshape Flatten Transpose Slice Gather GatherElements GatherND Concat Split Squeeze Unsqueeze "
    "Expand Tile Pad ScatterND ScatterElements DepthToSpace SpaceToDepth Trilu Compress Dropout"
)
# 16 bits unless all that they read is float32, which a cast before them would round for nothing. What they
# give is about as large as what they read, and TensorRT's Softmax is float32 inside.
_FOLLOWS = _MOVES | _words(
    "Add Sub Mul Div Neg Abs Sum Mean Max Min Where Clip Floor Ceil Round Sign Mod Relu LeakyRelu PRelu Elu "
    "Selu Celu ThresholdedRelu Sigmoid HardSigmoid HardSwish Swish Gelu Erf Tanh Softmax ReduceMax ReduceMin "
    "MaxPool GlobalMaxPool Resize"
)
# 16 bits unless one of what they read is float32.
_COMPARES = _words("Equal Greater GreaterOrEqual Less LessOrEqual ArgMax ArgMin")
# float32: sums over maps, squares, exponentials and inverses leave float16's range, and a sum has too few
# digits in either type; sines of large arguments and logarithms near 0 magnify rounding. So a normalisation
# of single nodes (mean, difference, square, mean, root, quotient) is float32 whole.
_WIDE = _words(
    "ReduceSum ReduceMean ReduceL1 ReduceL2 ReduceSumSquare ReduceProd ReduceLogSum ReduceLogSumExp "
    "GlobalAveragePool CumSum Exp Log Pow Sqrt Reciprocal Sin Cos Tan Asin Acos Atan Sinh Cosh Asinh Acosh "
    "Atanh Softplus Softsign Mish LogSoftmax LpNormalization MeanVarianceNormalization LRN"
)
_PLACES = _words("GridSample RoiAlign NonMaxSuppression Range")  # float32 too: they take coordinates
_ANY_TYPE = _words("Shape Size Cast")  # of their input
# TensorRT 10.6 builds no engine with these in bfloat16, though its parser lists the type for them.
_NOT_IN_BFLOAT16 = _words("InstanceNormalization Resize")
_MASKS = _MOVES | _words("Add Sub Sum Where Softmax")  # a very large number means infinity there
_CARRIES = _MASKS | _words("Mul Neg Max Min ConstantOfShape Cast")  # a very large number stays one


@dataclass(frozen=True)
class Report:
    """What `convert_precision` did.

    Attributes:
        converted: number of nodes that are 16-bit now and were not before.
        kept: number of nodes that stay float32, by reason; those not counted that depend on constants alone.
        casts: number of Cast nodes inserted.
    """

    converted: int = 0
    kept: Mapping[str, int] = field(default_factory=dict)
    casts: int = 0

    def __str__(self) -> str:
        kept = ", ".join(f"{count} ({reason})" for reason, count in self.kept.items()) or "none"
        return f"{self.converted} nodes to 16 bits, {self.casts} casts; nodes kept in float32: {kept}"


def convert_precision(model: onnx.ModelProto, precision: str, keep: Sequence[str] = ()) -> Report:
    """Makes a float32 model compute in 16 bits, in place; its inputs and outputs keep their types.

    These stay float32: what leads from the last matrix product, convolution or normalisation to reference
    points, sampling locations (with the weights beside them, whose type must be theirs), sampling grids,
    sines of positions, indices, top-k scores and outputs; matrix products that give top-k scores; operators
    whose results leave float16's range or lose too many digits; what reads float32 only; nodes with constants
    that a 16-bit type cannot hold; subgraphs; NVIDIA's attention nodes, whose locations must have the value's
    type; operators that are unknown, or that do not have the type in TensorRT, or in the model's opset by
    ONNX's own schemas. So Conv can be bfloat16 from opset 22 on only.

    Very large numbers in additive masks become half of the type's largest: adding scores to them does not
    give an infinity. Weights are converted once; those outside of the model (`load_external_data=False`) get
    a Cast.

    Args:
        model: opset 11 or later, for bf16 13 or later; stays as it is where an error is raised.
        precision: "fp32" (nothing is done), "fp16" or "bf16".
        keep: regular expressions; a node stays float32 if one matches anywhere in its name.

    Raises:
        ValueError: the precision is unknown, `keep` holds no regular expression, or the opset is too old.
    """
    if precision not in PRECISIONS:
        raise ValueError(f"precision: expected one of {', '.join(PRECISIONS)}, got {precision!r}")
    patterns = [_compiled(pattern) for pattern in keep]
    narrow = PRECISIONS[precision]
    if narrow is None:
        return Report()
    changed = ir.from_proto(model)
    opset = max(changed.opset_imports.get(domain, 0) for domain in STANDARD_DOMAINS)
    if opset < OLDEST_OPSET[precision]:
        raise ValueError(
            f"precision: {precision} needs opset {OLDEST_OPSET[precision]} or later, the model has {opset}"
        )
    plan = _Plan(changed.graph, narrow, opset, patterns)
    converted = plan.decide()
    kept = Counter({ASKED: 0} if patterns else {})
    kept.update(reason for node, reason in plan.reasons.items() if reason and plan.is_counted(node))
    recast = Recast(changed.graph, plan.types.of, narrow, float(plan.limits.max), plan.beyond)
    if converted:
        recast.run(plan.is_narrow, plan.wish)
        model.CopyFrom(ir.to_proto(changed))
    return Report(converted, dict(kept.most_common()), recast.casts)


def _compiled(pattern: str) -> re.Pattern:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise ValueError(f"keep: {pattern!r} is no regular expression: {error}") from error


class _Plan:
    """Which nodes of a main graph compute in 16 bits.

    Attributes:
        types: of all values.
        reasons: why a node that has float32 tensors stays so, None if it is converted.
        beyond: float32 values that may hold finite numbers beyond the 16-bit type, by way of constants.
        limits: of the 16-bit type.
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
        for root, reason in self._roots():
            self._keep_path(root, reason)
        for node in self._graph:
            if node not in self.reasons and self._has_floats(node):
                self.reasons[node] = self._reason_by_inputs(node) or self._reason_by_constants(node)
            self._note_beyond(node)
        for node in reversed(nodes):
            if self._moves_before_cast(node):
                self.reasons[node] = self._reason_by_constants(node)
        return sum(reason is None for reason in self.reasons.values())

    def is_counted(self, node: ir.Node) -> bool:
        """True for nodes that do not depend on constants and sizes alone."""
        return any(x not in self._static for x in node.outputs)

    def is_narrow(self, value: ir.Value) -> bool:
        """True if the producer of a float32 value gives it in 16 bits."""
        node = value.producer()
        return self._is_converted(node) and value.index() in self.types.narrow_places(node, self._narrow)[1]

    def wish(self, node: ir.Node, place: int) -> ir.DataType | None:
        """The type that a node's float32 input shall get; None if any will do."""
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
            return ASKED
        if has_subgraph(node):
            return SUBGRAPH
        if is_op(node, *_PLACES) or node.domain == NVIDIA_DOMAIN:  # NVIDIA's locations have the value's type
            return COORDINATES
        if is_op(node, "TopK"):
            return SCORES
        if is_op(node, *_WIDE) or _is_square(node):
            return RANGE
        if any(x is not None and self.types.of.get(x) is None for x in node.inputs):
            return UNKNOWN
        if not is_op(node, *_HEAVY, *_FOLLOWS, *_COMPARES) and (node.domain, node.op_type) not in ATTENTIONS:
            return UNKNOWN if floats or not is_op(node, node.op_type) else FOLLOWS
        if any(is_op(x.producer(), "DequantizeLinear") for x in floats):
            return QUANTIZED
        if self._narrow == ir.DataType.BFLOAT16 and is_op(node, *_NOT_IN_BFLOAT16):
            return f"{node.op_type}: TensorRT has no bfloat16"
        if not self.types.narrow_places(node, self._narrow)[0]:
            return f"{node.op_type} of opset {self._opset} has no {self._narrow.name.lower()}"
        return None

    def _roots(self) -> Iterator[tuple[ir.Value, str]]:
        """Values that shall be computed in float32."""
        for node in self._graph:
            inputs: Sequence[ir.Value | None] = ()
            if node.domain == NVIDIA_DOMAIN:
                inputs = node.inputs[3:]
            elif (node.domain, node.op_type) in ATTENTIONS:  # locations and weights, or references
                inputs = node.inputs[3 : 5 if node.op_type == ATTENTION else 4]
            elif is_op(node, "GridSample", "RoiAlign"):
                inputs = node.inputs[1:]
            elif is_op(node, "NonMaxSuppression", "Range", "CumSum", "Sin", "Cos") or _makes_indices(node):
                inputs = node.inputs
            elif is_op(node, "TopK"):
                yield node.inputs[0], SCORES
            yield from ((value, COORDINATES) for value in self.types.floats(inputs))
        yield from ((value, OUTPUTS) for value in self.types.floats(self._graph.outputs))

    def _keep_path(self, root: ir.Value, reason: str) -> None:
        """Keeps what computes a value, back to heavy nodes; scores' own products too."""
        pending, seen = [root], {root}
        while pending:
            value = pending.pop()
            node = value.producer()
            if self._computes_places(node):
                pass
            elif reason != COORDINATES and any(is_op(use.node, *_HEAVY) for use in value.uses()):
                continue  # features, not boxes or scores
            elif reason == SCORES and is_op(node, *_PRODUCTS):
                self.reasons.setdefault(node, reason)
                continue  # features before it
            elif not is_op(node, *_FOLLOWS, *_COMPARES, *_WIDE) or _ends_normalisation(node):
                continue
            self.reasons.setdefault(node, reason)
            sources = [x for x in self.types.floats(node.inputs) if x not in seen]
            seen.update(sources)
            pending += sources

    def _computes_places(self, node: ir.Node | None) -> bool:
        """True for matrix products that are coordinates themselves, and no projection of features.

        Those of positions and frequencies, all constants or sizes; and the mean of a distribution over
        constant places, by which D-FINE computes its boxes.
        """
        if not is_op(node, *_PRODUCTS) or node.inputs[-1] not in self._static:
            return False
        if node.outputs[0] in self._static:
            return True
        producer = node.inputs[0].producer()
        while is_op(producer, *_MOVES):
            producer = producer.inputs[0].producer()
        return is_op(producer, "Softmax")

    def _reason_by_inputs(self, node: ir.Node) -> str | None:
        if not is_op(node, *_FOLLOWS, *_COMPARES):
            return None
        inputs = [x for x in self.types.floats(node.inputs) if not is_constant(x)]
        wide = [x for x in inputs if not self.is_narrow(x)]
        if is_op(node, *_COMPARES):
            return FOLLOWS if wide else None
        if len(wide) == len(inputs):
            return FOLLOWS
        # x - mean(x) before its square, and the like: one step in 16 bits would lose the digits.
        before = any(self.reasons.get(x.producer()) == RANGE for x in wide)
        after = any(self.reasons.get(use.node) == RANGE for x in node.outputs for use in x.uses())
        return RANGE if before and after else None

    def _reason_by_constants(self, node: ir.Node) -> str | None:
        for place in self.types.narrow_places(node, self._narrow)[0]:
            value = node.inputs[place]
            large, small = self._extremes_of(value)
            if small or ((large or value in self.beyond) and not is_op(node, *_MASKS)):
                return CONSTANTS
        return None

    def _extremes_of(self, value: ir.Value) -> tuple[bool, bool]:
        """Whether a constant holds finite numbers too large for the 16-bit type, or all are too small."""
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
        if self._is_converted(node) or not is_op(node, *_CARRIES):
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
        """True for nodes that only move float32 to nodes that want 16 bits: a cast before halves the work."""
        if self.reasons[node] != FOLLOWS or not is_op(node, *_MOVES):
            return False
        if self.is_counted(node) and len(self.types.floats(node.inputs)) > 1:
            return False  # several casts instead of one
        if any(x.is_graph_output() for x in node.outputs):
            return False
        if not self.types.narrow_places(node, self._narrow)[0]:
            return False
        uses = [use for output in node.outputs for use in output.uses()]
        return all(self.wish(use.node, use.idx) == self._narrow for use in uses)


def _makes_indices(node: ir.Node) -> bool:
    return is_op(node, "Cast") and ir.DataType(attribute(node, "to", 0)).is_integer()


def _is_square(node: ir.Node) -> bool:
    return is_op(node, "Mul") and node.inputs[0] is node.inputs[1]


def _ends_normalisation(node: ir.Node) -> bool:
    """True for x / sqrt(...) and x * (1 / sqrt(...)): before it are features."""
    if not is_op(node, "Div", "Mul"):
        return False
    scale = node.inputs[1].producer()
    if is_op(node, "Mul"):
        scale = scale.inputs[0].producer() if is_op(scale, "Reciprocal") else None
    return is_op(scale, "Sqrt")
