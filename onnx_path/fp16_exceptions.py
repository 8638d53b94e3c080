"""The exceptions of 16-bit networks: operators and paths that stay float32, and the reasons.

`onnx_path.precision` converts everything else. The lists go by the numbers that an operator computes, so they
hold for fp16 and bf16. An operator in none of the lists stays float32. `codetr build --keep-fp32 REGEX` adds
nodes by name.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import onnx_ir as ir

from onnx_path.nodes.attention import ATTENTION, NVIDIA_DOMAIN
from onnx_path.surgery.graph.element_types import ATTENTIONS, is_top_k
from onnx_path.surgery.graph.traversal import attribute, is_op

# Reasons to stay float32. `precision.convert_precision` counts the nodes of each. One more reason names an
# operator that does not have the type in the model's opset, or in TensorRT.
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


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


FLOAT32_OPERATORS = {
    # They read coordinates. A pixel's place needs more than 11 bits.
    COORDINATES: _words("GridSample RoiAlign NonMaxSuppression Range"),
    # Sums over maps, squares, exponentials and inverses leave float16's range, and a sum has too few digits
    # in either type. Sines of large arguments and logarithms near 0 magnify roundings. So a normalisation of
    # single nodes (mean, difference, square, mean, root, quotient) is float32 whole.
    RANGE: _words(
        "ReduceSum ReduceMean ReduceL1 ReduceL2 ReduceSumSquare ReduceProd ReduceLogSum ReduceLogSumExp "
        "GlobalAveragePool CumSum Exp Log Pow Sqrt Reciprocal Sin Cos Tan Asin Acos Atan Sinh Cosh Asinh "
        "Acosh Atanh Softplus Softsign Mish LogSoftmax LpNormalization MeanVarianceNormalization LRN"
    ),
}
"""Operators that always stay float32, by reason. A Mul of a tensor with itself counts among RANGE.

TopK and `TopKIndices` stay float32 because of their SCORES. Of tens of thousands of scores in 16 bits many
are equal at the end of the selection. Their order then decides.
"""

NOT_IN_BFLOAT16 = _words("InstanceNormalization Resize")
"""TensorRT 10.6 builds no engine with these in bfloat16, though its parser lists the type for them."""


def float32_inputs(node: ir.Node) -> tuple[Sequence[ir.Value | None], str]:
    """Returns the inputs of a node whose whole path stays float32, and the reason.

    A path begins at the last matrix product, convolution or normalisation (`HEAVY`) before the input. Matrix
    products that give top-k scores stay float32 too.
    """
    if node.domain == NVIDIA_DOMAIN:  # locations and weights, which have one type
        return node.inputs[3:], COORDINATES
    if (node.domain, node.op_type) in ATTENTIONS:  # locations and weights, or reference points
        return node.inputs[3 : 5 if node.op_type == ATTENTION else 4], COORDINATES
    if is_op(node, "GridSample", "RoiAlign"):
        return node.inputs[1:], COORDINATES
    if is_op(node, "NonMaxSuppression", "Range", "CumSum", "Sin", "Cos") or _makes_indices(node):
        return node.inputs, COORDINATES
    if is_top_k(node):
        return node.inputs[:1], SCORES
    return (), ""


def float32_paths(graph: ir.Graph) -> Iterator[tuple[ir.Value | None, str]]:
    """Yields the values whose paths stay float32: inputs of nodes, and the outputs of the graph."""
    for node in graph:
        values, reason = float32_inputs(node)
        yield from ((value, reason) for value in values)
    yield from ((value, OUTPUTS) for value in graph.outputs)


# Operators in 16 bits.

HEAVY = _words(
    "Conv ConvTranspose MatMul Gemm Einsum LayerNormalization InstanceNormalization GroupNormalization "
    "RMSNormalization BatchNormalization AveragePool Attention"
)
"""TensorRT accumulates them in float32. The tensors between them cost the time."""

PRODUCTS = _words("MatMul Gemm Einsum")
"""Matrix products. One that gives top-k scores stays float32; `LinearMax` gives them from 16-bit features.

TensorRT 10.6 also aborts on such a product in float16 if a Where lies between its maximum and TopK.
"""

MOVES = _words(
    "Identity Reshape Flatten Transpose Slice Gather GatherElements GatherND Concat Split Squeeze Unsqueeze "
    "Expand Tile Pad ScatterND ScatterElements DepthToSpace SpaceToDepth Trilu Compress Dropout"
)
"""Operators that move numbers and change none."""

FOLLOWING = MOVES | _words(
    "Add Sub Mul Div Neg Abs Sum Mean Max Min Where Clip Floor Ceil Round Sign Mod Relu LeakyRelu PRelu Elu "
    "Selu Celu ThresholdedRelu Sigmoid HardSigmoid HardSwish Swish Gelu Erf Tanh Softmax ReduceMax ReduceMin "
    "MaxPool GlobalMaxPool Resize"
)
"""16 bits unless all inputs are float32, which a cast before them would round for nothing.

Their results are about as large as their inputs. TensorRT computes Softmax in float32 inside.
"""

QUANTISES = _words("QuantizeLinear DequantizeLinear")
"""16 bits from opset 19 on: a tensor is quantised from its own type, and every one dequantised to 16 bits."""

COMPARES = _words("Equal Greater GreaterOrEqual Less LessOrEqual ArgMax ArgMin")
"""16 bits unless one of the inputs is float32."""

ON_PATHS = FOLLOWING | COMPARES | FLOAT32_OPERATORS[RANGE]
"""Operators that a path of float32 goes through."""

# Very large numbers in additive masks stand for infinity. They are clipped, and no reason for float32.
MASKS = MOVES | _words("Add Sub Sum Where Softmax")
"""Operators in which a very large number stands for infinity."""
CARRIES_LARGE = MASKS | _words("Mul Neg Max Min ConstantOfShape Cast")
"""Operators whose result is very large if an input is."""


def _makes_indices(node: ir.Node) -> bool:
    return is_op(node, "Cast") and ir.DataType(attribute(node, "to", 0)).is_integer()
