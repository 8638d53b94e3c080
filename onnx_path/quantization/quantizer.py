"""A model that becomes 8 bits, once its ranges are measured, as often and as far as a caller asks."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx
import onnx_ir as ir

from codetr.errors import UsageError
from onnx_path.opset import opset_of, raise_opset
from onnx_path.quantization import ranges
from onnx_path.quantization.batch_norms import fold_batch_norms
from onnx_path.quantization.calibration_data import CalibrationData
from onnx_path.quantization.placement import FORMATS, find_sources, insert_nodes
from onnx_path.quantization.policy import Policy
from onnx_path.quantization.products import Product, find_products
from onnx_path.surgery.graph.onnx_session import CPU
from onnx_path.surgery.graph.traversal import is_op
from onnx_path.tensorrt.written_out_linears import product_name, write_out_linears

DEFAULT_METHODS = {"int8": "percentile", "fp8": "minmax"}
"""Calibrator by precision. FP8 has fine steps near zero, so a few large numbers cost it nothing."""
OPSET = 19
"""Version of the standard operators that has 16-bit scales and FP8."""


@dataclass(frozen=True)
class Layer:
    """A linear layer or convolution that can become 8 bits.

    Attributes:
        name: name of its node.
        group: block and kind, such as "block 12, linear". Blocks end at sums of two features.
        product: node and weights.
    """

    name: str
    group: str
    product: Product


class NoLayerGains(UsageError):
    """8 bits make no layer of a file faster."""


class Quantizer:
    """Quantises a model.

    Attributes:
        precision: "int8" or "fp8".
        model: copy of the model in an opset that has 8 bits, with its weights. Batch norms are folded into
            the convolutions before them. Nodes `Linear` stay; the layers are those of a copy without them.
        layers: the layers that can become 8 bits, in the order of the nodes.
        kept: the number of other layers, by the reason to keep them.
        ranges_file: file with the ranges; None before `calibrate`.
    """

    def __init__(
        self, model: onnx.ModelProto, precision: str, folder: Path = Path(), without: Container[str] = ()
    ) -> None:
        """Copies a model and decides its layers.

        Args:
            model: in float32 or 16 bits; with function bodies, so that onnxruntime runs it.
            precision: "int8" or "fp8".
            folder: folder of weights outside of the model.
            without: reasons of `policy` that keep no layer, for measurements.

        Raises:
            UsageError: the model is quantised already, or its opset is too old.
            NoLayerGains: 8 bits make no layer faster.
        """
        for node in model.graph.node:
            if node.op_type in ("QuantizeLinear", "DequantizeLinear"):
                raise UsageError(
                    f"the file is quantised already: {node.op_type} {node.name or node.output[0]}"
                )
        self.precision = precision
        self.model = onnx.ModelProto()
        self.model.CopyFrom(model)
        onnx.load_external_data_for_model(self.model, str(folder))
        raise_opset(self.model, OPSET)
        copy = ir.from_proto(self.model)
        # PyTorch's older exporter copies equal biases from one; TensorRT's INT8 kernels need constants.
        # IdentityEliminationPass would break branches of If that end with an Identity.
        for node in [node for node in copy.graph if is_op(node, "Identity")]:
            if not node.outputs[0].is_graph_output():
                ir.convenience.replace_all_uses_with(node.outputs[0], node.inputs[0])
                copy.graph.remove(node, safe=True)
        fold_batch_norms(copy.graph)
        self.model = ir.to_proto(copy)
        write_out_linears(copy)
        self._graph = copy.graph
        policy = Policy(self._graph, opset_of(self.model), precision, without)
        _, self.kept = policy.counts()
        if not policy.quantized:
            kept = ", ".join(f"{count} {reason}" for reason, count in self.kept.items())
            raise NoLayerGains(f"the file has no layer that 8 bits make faster; kept: {kept or 'none'}")
        groups = policy.groups()
        self.layers = [Layer(x.node.name or x.output.name, groups[x], x) for x in policy.quantized]
        self.ranges_file: Path | None = None
        self._ranges: dict[str, float] = {}  # by the names of tensors

    def calibrate(
        self,
        data: CalibrationData,
        method: str,
        cache: Path,
        providers: Sequence[str] = CPU,
        advance: Callable[[int], None] = lambda count: None,
    ) -> bool:
        """Reads the ranges from their file, or measures them and writes it.

        Args:
            data: inputs of the model.
            method: "minmax", "entropy" or "percentile".
            cache: folder of the files.
            providers: onnxruntime's execution providers.
            advance: called with 1 after each run.

        Returns:
            Whether the file was there.

        Raises:
            UsageError: the file is damaged.
            CannotRun: onnxruntime does not run the model.
        """
        names = self._stable_names()
        key = ranges.model_key(layer.product for layer in self.layers)
        store = ranges.RangeCache(cache, key, data.key, method)
        known = store.read()
        if known is None:
            found = ranges.measure_ranges(self.model, names.values(), data, method, providers, advance)
            store.write({name: found[tensor] for name, tensor in names.items()})
        else:
            found = {tensor: known[name] for name, tensor in names.items()}
        self._ranges, self.ranges_file = found, store.path
        return known is not None

    def assume_ranges(self, largest: float) -> None:
        """Sets the same range for all layers, in place of `calibrate`: the time of an engine is the same."""
        self._ranges = dict.fromkeys(self._stable_names().values(), largest)

    def ranges_by_weights(self) -> dict[str, float]:
        """Returns the ranges of all layers by `ranges.stable_names`, for a graph that is no ONNX model.

        Raises:
            RangeError: the range of a tensor is zero or not finite.
        """
        ranges.check_ranges(self._ranges)
        return {name: self._ranges[tensor] for name, tensor in self._stable_names().items()}

    def quantize(self, layers: Sequence[Layer]) -> onnx.ModelProto:
        """Returns a copy of the model with Q/DQ nodes before some of its layers.

        The nodes `Linear` of these layers are written out as matrix products; the others stay.

        Args:
            layers: of `layers`.

        Raises:
            RangeError: the range of a tensor is zero or not finite.
        """
        copy = ir.from_proto(self.model)
        names = {layer.product.output.name for layer in layers}
        write_out_linears(copy, keep=lambda node: product_name(node) not in names)
        products = {product.output.name: product for product in find_products(copy.graph)}
        chosen = [products[layer.product.output.name] for layer in layers]
        sources = find_sources(copy.graph, chosen, self.precision)
        ranges.check_ranges({x.name: self._ranges[x.name] for x in sources})
        insert_nodes(copy.graph, chosen, self._ranges, FORMATS[self.precision])
        ir.passes.common.RemoveUnusedNodesPass()(copy)
        return ir.to_proto(copy)

    def _stable_names(self) -> dict[str, str]:
        products = [layer.product for layer in self.layers]
        return ranges.stable_names(products, find_sources(self._graph, products, self.precision))
