"""Tells which matrix products and convolutions of an engine run in 8 bits, and which fell back to 16 bits.

A quantised model has Q/DQ nodes (QuantizeLinear, DequantizeLinear) before its products. TensorRT fuses them
into a product's kernel, which then reads 8-bit numbers, or runs them before it. Types of tensors tell the two
apart. Names tell the rest: TensorRT folds weights, but keeps "dequantize" in the names of tensors.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from trt_plugin.inspection.engine_layers import EIGHT_BITS, Layer, LayerTensor
from trt_plugin.inspection.layer_kinds import GEMM, IDLE_TYPES, MOVEMENT
from trt_plugin.inspection.module_names import QDQ_NODE

_DEQUANTIZED = re.compile("dequantize", re.I)
_CONVERTING_TYPES = ("Reformat", "Scale", "Quantize", "Dequantize")
# A generated kernel that scales, clips, rounds, casts and copies, and does nothing else.
_CONVERTING_STEPS = re.compile(r"__myl_(?:bb\d+_\d+_)?(?:Mul|Div|Min|Max|Rou|Cas|Mov)+(?:_|$)")


@dataclass(frozen=True)
class FallenProduct:
    """A product with Q/DQ nodes that runs in 16 or 32 bits.

    Attributes:
        layer: the product.
        why: the tensors that it reads after their dequantisation, and the place where that happens.
    """

    layer: Layer
    why: str


@dataclass(frozen=True)
class EightBitReport:
    """The layers of a quantised engine.

    Attributes:
        narrow: products in 8 bits.
        fallen: products with Q/DQ nodes in 16 or 32 bits.
        wide: products without Q/DQ nodes.
        conversions: layers that quantise or dequantise a tensor and do nothing else.
    """

    narrow: tuple[Layer, ...]
    fallen: tuple[FallenProduct, ...]
    wide: tuple[Layer, ...]
    conversions: tuple[Layer, ...]

    @property
    def groups(self) -> dict[str, Sequence[Layer]]:
        """The layers by a name for reports."""
        return {
            "products in 8 bits": self.narrow,
            "products that fell back": [product.layer for product in self.fallen],
            "products without Q/DQ nodes": self.wide,
            "kernels that only quantise or dequantise": self.conversions,
        }


def find_eight_bits(layers: Sequence[Layer]) -> EightBitReport | None:
    """Sorts the layers of an engine, given in execution order. Returns None if nothing in them is 8 bits."""
    narrow, fallen, wide, conversions = [], [], [], []
    writers: dict[str, Layer] = {}  # the latest: TensorRT's subgraphs use the same names
    for layer in layers:
        if layer.kind == GEMM:
            if layer.eight_bits:
                narrow.append(layer)
            elif reasons := _reasons(layer, writers):
                fallen.append(FallenProduct(layer, "; ".join(reasons)))
            else:
                wide.append(layer)
        elif _only_converts(layer):
            conversions.append(layer)
        writers.update((tensor.name, layer) for tensor in layer.outputs)
    if not (narrow or fallen or conversions):
        return None
    return EightBitReport(tuple(narrow), tuple(fallen), tuple(wide), tuple(conversions))


def _reasons(product: Layer, writers: Mapping[str, Layer]) -> list[str]:
    """Returns a text for each input of a product that is behind DequantizeLinear, weights first."""
    found = (_dequantization(tensor, writers) for tensor in (*product.inputs, *product.constants))
    return sorted({text for text in found if text}, reverse=True)


def _dequantization(tensor: LayerTensor, writers: Mapping[str, Layer]) -> str:
    """Tells where a product's input is dequantised; "" if it is not. Copies may lie between."""
    named, converter = bool(_DEQUANTIZED.search(tensor.name)), None
    writer = writers.get(tensor.name)
    while writer and len(writer.inputs) == 1 and (writer.kind == MOVEMENT or writer.type == "Scale"):
        if _has_eight_bits(writer.inputs) and not _has_eight_bits(writer.outputs):
            converter = writer
        (tensor,) = writer.inputs
        named = named or bool(_DEQUANTIZED.search(tensor.name))
        writer = writers.get(tensor.name)
    if not named and not converter:
        return ""
    if writer and writer.inputs:
        return f"input dequantised by {(converter or writer).place}"
    # Nothing but constants gives the tensor.
    when = f"in every run by {converter.name}" if converter else "in the build"
    return f"weights dequantised {when}"


def _only_converts(layer: Layer) -> bool:
    if layer.type.lower() in IDLE_TYPES:
        return False
    if layer.nodes and all(QDQ_NODE.search(node) for node in layer.nodes):
        return True
    converts = layer.type in _CONVERTING_TYPES or _CONVERTING_STEPS.match(layer.name)
    return bool(converts) and _has_eight_bits(layer.inputs) != _has_eight_bits(layer.outputs)


def _has_eight_bits(tensors: Iterable[LayerTensor]) -> bool:
    return any(tensor.dtype in EIGHT_BITS for tensor in tensors)
