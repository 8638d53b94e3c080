"""Group normalisation as ONNX: name, attributes, translation from Torch, body in standard operators.

A node `GroupNorm` of domain `msda` has the tensors of `msda.group_norm` as inputs, in the same order, and its
numbers as attributes. `onnx_path.nodes.attention` says how TensorRT and other runtimes run such nodes. The
body fixes no size.

A node `GroupNormLevels` has x, weight and bias of each level of `msda.group_norm_levels` as inputs, level by
level, and the numbers as attributes beside `num_levels`; a `next_scale` of 0 stands for none. No file has
these nodes. Builds make them, see `onnx_path.tensorrt.joined_group_norms`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import onnx
import onnxscript
from onnxscript import opset20 as op

from onnx_path.nodes.domain import DOMAIN, PLUGIN_ATTRIBUTES, msda_op, one_type_node
from trt_plugin.library import GROUP_NORM

_FLOAT = onnx.TensorProto.FLOAT


def translation() -> Callable:
    """Returns the function by which `torch.onnx.export` writes a call of the operator as a node."""
    kinds = onnx.defs.OpSchema.AttrType
    node = one_type_node(GROUP_NORM, ("x", "weight", "bias"), {"num_groups": kinds.INT, "eps": kinds.FLOAT})

    def group_norm(x, weight, bias, num_groups, eps):
        return node(x, weight, bias, num_groups=num_groups, eps=eps, **PLUGIN_ATTRIBUTES)

    return group_norm


# The body follows msda.group_norm_reference. Letters: N images, S cells of a map, G groups, C channels.


@onnxscript.script(msda_op, default_opset=op)
def GroupNorm(x, weight, bias, num_groups: int, eps: float):
    """msda.group_norm: each group of channels normalised over the cells of its image, in x's type."""
    groups = op.Unsqueeze(op.Constant(value_int=num_groups), [0])
    group_size = op.Shape(x, start=-1) / groups
    # A width of 1 where x is [N, S, C].
    map_sizes = op.Slice(op.Concat(op.Shape(x, start=0, end=-1), [1], axis=0), [0], [3])
    sizes = op.Concat(map_sizes, groups, group_size, axis=0)
    wide = op.Reshape(op.Cast(x, to=_FLOAT), sizes, allowzero=1)  # [N, H, W, G, C / G]
    cells = op.ReduceProd(op.Slice(map_sizes, [1], [3]), keepdims=1)
    numbers = op.Cast(cells * group_size, to=_FLOAT)
    # ReduceMean has its axes as an attribute up to opset 17, as an input later. Onnxruntime adds one number
    # after the other. With sums of rows first, the error on a map of 100x167 cells is 2e-7, without 1e-5.
    row_sums = op.ReduceSum(wide, [2, 4], keepdims=1)
    mean = op.ReduceSum(row_sums, [1], keepdims=1) / numbers
    differences = wide - mean
    row_squares = op.ReduceSum(differences * differences, [2, 4], keepdims=1)
    variance = op.ReduceSum(row_squares, [1], keepdims=1) / numbers
    root = op.Sqrt(variance + op.Constant(value_float=eps))
    normalised = op.Reshape(differences / root, op.Shape(x), allowzero=1)
    return op.CastLike(normalised * op.Cast(weight, to=_FLOAT) + op.Cast(bias, to=_FLOAT), x)


def written_out_levels(node: onnx.NodeProto, ranks: Mapping[str, int]) -> list[onnx.NodeProto]:
    """Returns a GroupNorm for each level and standard operators, which compute a node `GroupNormLevels`.

    Args:
        node: its results keep their names.
        ranks: by tensor. An input of rank 4 is a map.
    """
    numbers = {x.name: onnx.helper.get_attribute_value(x) for x in node.attribute}
    shared = {name: numbers[name] for name in ("num_groups", "eps")}
    made: list[onnx.NodeProto] = []

    def add(op_type: str, *inputs: str, output: str | None = None, **attributes) -> str:
        name = output or f"{node.output[0]}/{len(made)}"
        made.append(onnx.helper.make_node(op_type, inputs, [name], name, **attributes))
        return name

    results = []
    for x, weight, bias in zip(node.input[::3], node.input[1::3], node.input[2::3], strict=True):
        if ranks[x] == 4:
            rows = add("Reshape", x, add("Constant", value_ints=[0, 0, -1]))
            x = add("Transpose", rows, perm=[0, 2, 1])
        results.append(add(GROUP_NORM, x, weight, bias, domain=DOMAIN, **shared))
    add("Concat", *results, output=node.output[0], axis=1)
    if len(node.output) == 2:
        zero = add("Constant", value=onnx.helper.make_tensor("zero", onnx.TensorProto.INT8, [], [0]))
        scale = add("Constant", value_float=numbers["next_scale"])
        add("QuantizeLinear", node.output[0], scale, zero, output=node.output[1])
    return made
