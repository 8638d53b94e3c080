"""Decides which products become 8 bits, by what the nodes compute; names play no part.

Linear layers and convolutions of backbone and encoder become 8 bits. Everything that is no product stays as
it is, such as MSDA, softmax, normalisations and TopK. These products stay too:

- the layers that give MSDA, or samplers in pieces, its offsets and weights;
- heads: the layers that give outputs and top-k scores, and the layers that feed these alone;
- the decoder: a few hundred rows gain less than quantising them costs;
- the layers that read the image;
- the layers around attention, see `AttentionFinder`, but those that give MSDA its values in int8, and those
  behind a node of window attention in INT8;
- linear layers before a normalisation over cells, but those that a GroupNorm node reads;
- linear layers that merge cells, see `_merges_cells`;
- convolutions that TensorRT does not run faster, see `Policy._is_slow`;
- convolutions before a GELU, of which TensorRT 10.6 cannot build an engine.

The rules of decoder, attention and convolutions come from measured times, see `benchmarks.placements`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container

import onnx_ir as ir

from onnx_path import fp16_exceptions as rules
from onnx_path.quantization.attention_values import attention_values
from onnx_path.quantization.heads import HeadFinder, Leads
from onnx_path.quantization.products import Product, find_products
from onnx_path.quantization.rows import Rows, find_rows, is_attention, selected_indices
from onnx_path.surgery.graph.element_types import GROUP_NORMS, WINDOW_ATTENTIONS, Types
from onnx_path.surgery.graph.traversal import attribute, constant, is_op, static_values

SAMPLING = "sampling offsets and attention weights"
HEADS = "heads and query selection"
DECODER = "decoder"
ATTENTION = "around attention"
IMAGES = "layers that read the image"
NORMALISED = "before a normalisation over cells"
MERGING = "layers that merge cells"
CONVOLUTIONS = "convolutions that 8 bits make no faster"
GELU = "convolutions before a GELU"

FEWEST_CHANNELS = 16
"""Input channels from which a convolution becomes 8 bits."""

WIDE = 256
"""Input channels from which a convolution before a SiLU is wide; twice as many for kernels of 1 x 1 cells."""

_CELL_NORMALISATIONS = ("InstanceNormalization", "GroupNormalization")
_NORMALISATIONS = (*_CELL_NORMALISATIONS, "LayerNormalization", "RMSNormalization", "BatchNormalization")
_ACTIVATIONS = ("Relu", "Gelu", "Erf", "Sigmoid", "HardSwish", "Swish", "Tanh", "Clip", "LeakyRelu", "Elu")


class Policy:
    """The decision for every product of a main graph.

    Attributes:
        products: all products, in the order of the nodes.
        quantized: the products that become 8 bits, in this order.
        kept: the reason of each other product.
    """

    def __init__(self, graph: ir.Graph, opset: int, precision: str, without: Container[str] = ()) -> None:
        """Decides for "int8" or "fp8", without some of the reasons to keep a product."""
        types = Types(graph, opset)
        selected = selected_indices(graph, types)
        self._graph, self._static, self._precision = graph, static_values(graph), precision
        self._products = {product.node: product for product in find_products(graph)}
        self._heads = HeadFinder(graph, types, self._products, self._static, selected)
        self._rows = find_rows(graph, self._products, self._static, selected)
        self._attention = AttentionFinder(self._products, self._static, precision)
        before_silu = [x for x in self._products.values() if x.is_convolution and _precedes_silu(x.output)]
        self._narrow = set() if any(map(_is_wide, before_silu)) else set(before_silu)
        self.products = list(self._products.values())
        reasons = {product: self._reason(product) for product in self.products}
        self.kept = {
            x: reason for x, reason in reasons.items() if reason is not None and reason not in without
        }
        self.quantized = [x for x in self.products if x not in self.kept]

    def _reason(self, product: Product) -> str | None:
        if self._heads.is_head(product):
            leads = self._heads.leads[product.output]
            samples = leads & {Leads.COORDINATES, Leads.SOFTMAX} and not leads & {Leads.SCORES, Leads.OUTPUTS}
            return SAMPLING if samples else HEADS
        if product.is_convolution:
            if self._is_slow(product):
                return CONVOLUTIONS
            return GELU if self._precedes_gelu(product.output) else None
        if self._rows[product.source] != Rows.CELLS:
            return DECODER
        if self._is_input(product.source):
            return IMAGES
        if self._precision == "int8" and attention_values(product) is not None:
            return None
        if self._attention.is_around(product):
            return ATTENTION
        # Others move the cells before they normalise them.
        node_reads = any(_is_group_norm(use.node) for use in product.output.uses())
        moved = not node_reads and _reaches(product.output, _is_group_norm)
        if moved or _is_normalised(product.output, *_CELL_NORMALISATIONS):
            return NORMALISED
        return MERGING if _merges_cells(product) else None

    def _is_slow(self, convolution: Product) -> bool:
        """Returns whether TensorRT 10.6 runs a convolution no faster in 8 bits.

        Its FP8 convolutions fall back to slow kernels: R50 took 16.0 ms, 6.2 ms in fp16 (H200, 768x1152). A
        normalisation that reads the result needs 16 bits in another layout. A GroupNorm node does not: builds
        let it read the map as it is. Grouped convolutions gain: with them, INT8 takes MobileNetV2 0.34 of the
        time at batch 256, ResNeXt50 0.64 at 32 (H200).

        In 8 bits a SiLU is a kernel of its own, between two that change the layout, where a Split, Concat or
        sum reads its result. This costs a network without wide convolutions more than its products gain:
        YOLOv8n-cls takes 2.38 ms in INT8 and 1.39 in fp16 (batch 256, H200;
        benchmarks/results/yolov8n_cls_layers_h200.txt).
        """
        few = convolution.channels[0] < FEWEST_CHANNELS or convolution.weight.ndim != 4
        normalised = _is_normalised(convolution.output, *_NORMALISATIONS)
        return self._precision == "fp8" or few or normalised or convolution in self._narrow

    def _precedes_gelu(self, value: ir.Value) -> bool:
        """Returns whether a GELU, as one node or by Erf, reads a value.

        TensorRT 10.6 fuses a GELU in 16 bits with the INT8 convolution before it, and the build ends with the
        assertion "type() == expectedDataType<T>()" of weightsPtr.h.
        """
        for use in value.uses():
            if is_op(use.node, "Gelu", "Erf"):
                return True
            scales = is_op(use.node, "Cast", "Div", "Mul")
            alone = all(x is value or x in self._static for x in use.node.inputs)
            if scales and alone and self._precedes_gelu(use.node.outputs[0]):
                return True
        return False

    def _is_input(self, value: ir.Value) -> bool:
        """Returns whether a value is an input of the graph, moved and normalised."""
        node = value.producer()
        if not is_op(node, "Cast", "Add", "Sub", "Mul", "Div", *rules.MOVES):
            return value.is_graph_input()
        others = [x for x in node.inputs if x not in self._static]
        return len(others) == 1 and self._is_input(others[0])

    def counts(self) -> tuple[int, dict[str, int]]:
        """Returns the number of products in 8 bits, and of the others by reason, the most frequent first."""
        return len(self.quantized), dict(Counter(self.kept.values()).most_common())

    def groups(self) -> dict[Product, str]:
        """Returns the group of each product, such as "block 12, linear".

        A block ends with a sum of two features. Kinds are "convolution" and "linear".
        """
        block, groups = 0, {}
        for node in self._graph:
            if product := self._products.get(node):
                groups[product] = f"block {block}, {'convolution' if product.is_convolution else 'linear'}"
            elif is_op(node, "Add") and not self._static & set(node.inputs):
                block += all(Leads.FEATURES in self._heads.leads.get(x, ()) for x in node.inputs)
        return groups


class AttentionFinder:
    """Finds the layers around attention that 8 bits make slower.

    TensorRT computes queries, keys and values in one product, in the layout that its attention kernel reads.
    In 8 bits it does so for three layers that read the same tensor, not for one whose result is cut in three.
    A node of window attention reads the result of one layer as it is, and quantises its own to int8. Behind
    other attention and behind MSDA, quantising takes a kernel of its own.
    """

    def __init__(self, products: Container[ir.Node], static: set[ir.Value], precision: str) -> None:
        self._products, self._static, self._precision = products, static, precision

    def is_around(self, product: Product) -> bool:
        """Returns whether a linear layer gives attention or MSDA an input, or reads their result."""
        reads = self._reads(product.source) and not self._reads_int8(product.source)
        if reads or self._gives(product.output, _samples):
            return True
        readers = {use.node for use in product.source.uses() if use.node in self._products}
        givers = [node for node in readers if self._gives(node.outputs[0], self._multiplies)]
        return product.node in givers and len(givers) != 3

    def _gives(self, value: ir.Value, attends: Callable[[ir.Node], bool]) -> bool:
        for use in value.uses():
            if attends(use.node):
                return True
            alone = all(x is None or x is value or x in self._static for x in use.node.inputs)
            joins = is_op(use.node, "Mul", "Where", "Concat")  # masks of the padding, and rolled maps
            passes = is_op(use.node, "Add", "Div", "Cast", *rules.MOVES) and alone
            if (joins or passes) and any(self._gives(output, attends) for output in use.node.outputs):
                return True
        return False

    def _reads_int8(self, value: ir.Value) -> bool:
        """Returns whether a node of window attention gives a value, which it can quantise."""
        node = value.producer()
        while is_op(node, "Reshape"):
            node = node.inputs[0].producer()
        is_window = node is not None and (node.domain, node.op_type) in WINDOW_ATTENTIONS
        return is_window and self._precision == "int8"

    def _reads(self, value: ir.Value) -> bool:
        pending, seen = [value], set()
        while pending:
            value = pending.pop()
            node = value.producer()
            if node is None or value in seen or value in self._static:
                continue
            seen.add(value)
            if _samples(node) or self._multiplies(node) or (node.domain, node.op_type) in WINDOW_ATTENTIONS:
                return True
            ends = is_op(node, *_NORMALISATIONS, *_ACTIVATIONS) or _is_group_norm(node)
            if node not in self._products and not ends:
                pending.extend(x for x in node.inputs if x is not None)
        return False

    def _multiplies(self, node: ir.Node) -> bool:
        """Returns whether a node is attention or a product of two tensors."""
        of_two = is_op(node, *rules.PRODUCTS) and not self._static & set(node.inputs)
        return is_op(node, "Attention") or (of_two and node not in self._products)


def _precedes_silu(value: ir.Value) -> bool:
    """Returns whether a SiLU, as one node or as x * Sigmoid(x), reads a value."""
    uses = {use.node for use in value.uses()}
    gates = {use.node for node in uses if is_op(node, "Sigmoid") for use in node.outputs[0].uses()}
    return any(is_op(node, "Swish") or (is_op(node, "Mul") and node in gates) for node in uses)


def _is_wide(convolution: Product) -> bool:
    one_cell = set(convolution.weight.shape[2:]) == {1}
    return convolution.channels[0] >= (2 * WIDE if one_cell else WIDE)


def _samples(node: ir.Node) -> bool:
    """Returns whether a node is MSDA or a sampler."""
    return is_attention(node) or is_op(node, "GridSample")


def _is_group_norm(node: ir.Node) -> bool:
    return (node.domain, node.op_type) in GROUP_NORMS


def _is_normalised(value: ir.Value, *types: str) -> bool:
    """Returns whether a normalisation of these types, or a mean over cells, reads a value through moves."""
    return _reaches(value, lambda node: is_op(node, *types) or _averages_cells(node))


def _reaches(value: ir.Value, fits: Callable[[ir.Node], bool]) -> bool:
    """Returns whether a node that fits reads a value through moves."""
    for use in value.uses():
        moves = is_op(use.node, "Cast", *rules.MOVES)
        if fits(use.node) or (moves and any(_reaches(output, fits) for output in use.node.outputs)):
            return True
    return False


def _merges_cells(product: Product) -> bool:
    """Returns whether a layer reads a LayerNorm of cells that were moved, and has fewer outputs than inputs.

    Such a layer is between the stages of Swin. In 16 bits TensorRT moves the cells in the kernel of the norm.
    In 8 bits the norm is a plugin, and moving takes kernels of its own: three layers of Swin-L with their
    norms take 0.22 ms in place of 0.17 (H100, 768x1152; benchmarks/results/swin_l_layers_8_bits_h100.txt).
    """
    inputs, outputs = product.channels
    norm = product.source.producer()
    if outputs >= inputs or not is_op(norm, "LayerNormalization"):
        return False
    node = norm.inputs[0].producer()
    while is_op(node, "Reshape", "Cast"):
        node = node.inputs[0].producer()
    return is_op(node, *rules.MOVES)


def _averages_cells(node: ir.Node) -> bool:
    """Returns whether a node is a mean, but not that of a LayerNorm, which is over the last axis."""
    if not is_op(node, "ReduceMean"):
        return False
    axes = constant(node.inputs[1]) if len(node.inputs) > 1 else attribute(node, "axes", None)
    shape = node.inputs[0].shape
    last = {-1} if shape is None else {-1, len(shape) - 1}
    return axes is not None and not (len(axes) == 1 and int(axes[0]) in last)
