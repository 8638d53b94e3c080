"""Replaces the convolution of an image's patches by a product, for TensorRT. Needs no GPU.

TensorRT 10.6 changes the order of an image's elements before a convolution, with a kernel of its own that
takes longer than the convolution. `codetr.model.backbones.swin.PatchEmbed` has the same product.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnx_path.quantization.qdq_nodes import SIXTEEN_BITS
from onnx_path.surgery.graph.traversal import add_constant, attribute, constant
from onnx_path.tensorrt.graph_passes import replace_nodes, take_place

_MOST_CHANNELS = 4  # of an image


def write_out_patch_convolutions(model: ir.Model) -> int:
    """Replaces 16-bit convolutions of patches that neither overlap nor leave gaps, in place.

    The patches are squares, and fill the image, whose height and width are static. The batch size may be
    dynamic.

    Args:
        model: in the types that TensorRT gets.

    Returns:
        The number of nodes that were replaced.
    """
    return replace_nodes(model, "Conv", _write_out)


def _write_out(node: ir.Node) -> bool:
    x, weight, *rest = node.inputs
    kernel = weight.shape
    if kernel is None or not kernel.is_static() or len(kernel) != 4 or kernel[1] > _MOST_CHANNELS:
        return False
    outputs, channels, side, width = kernel
    if side == 1 or side != width or not _has_patches(node, side):
        return False
    if x.shape is None or len(x.shape) != 4 or x.shape[1] != channels:
        return False
    rows, columns = (
        size // side if isinstance(size, int) and size % side == 0 else 0 for size in x.shape[2:]
    )
    numbers = constant(weight) if rows and columns else None
    if numbers is None or ir.DataType.from_numpy(numbers.dtype) not in SIXTEEN_BITS:
        return False
    output, inserted = node.outputs[0], 0

    def add(op_type: str, *inputs: ir.Value, **attributes: list[int]) -> ir.Value:
        nonlocal inserted
        inserted += 1
        made = ir.node(op_type, inputs, attributes, name=f"{node.name}/{op_type}_{inserted}")
        node.graph.insert_before(node, made)
        made.outputs[0].name = f"{output.name}/{inserted}"
        return made.outputs[0]

    def own(name: str, array: np.ndarray) -> ir.Value:
        return add_constant(node.graph, f"{output.name}/{name}", array)

    def reshape(value: ir.Value, *sizes: int) -> ir.Value:
        return add("Reshape", value, own("x".join(map(str, sizes)), np.array((0, *sizes))))  # 0: the batch's

    cut = reshape(x, channels, rows, side, columns, side)
    ordered = add("Transpose", cut, perm=[0, 2, 4, 1, 3, 5])
    patches = reshape(ordered, rows * columns, channels * side**2)
    product = add("MatMul", patches, own("weight", np.ascontiguousarray(numbers.reshape(outputs, -1).T)))
    if rest and rest[0] is not None:
        product = add("Add", product, rest[0])
    result = reshape(add("Transpose", product, perm=[0, 2, 1]), outputs, rows, columns)
    take_place(result, output)
    return True


def _has_patches(node: ir.Node, side: int) -> bool:
    """Returns whether a convolution takes squares of this side next to each other."""
    fits = list(attribute(node, "strides", [1, 1])) == [side, side]
    plain = not any(attribute(node, "pads", [0])) and attribute(node, "auto_pad", "NOTSET") in (
        "NOTSET",
        "VALID",
    )
    dense = set(attribute(node, "dilations", [1])) == {1} and attribute(node, "group", 1) == 1
    return fits and plain and dense
