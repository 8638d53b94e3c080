"""Drafting the replacement of a window attention: linear layer, node, linear layer, all on the whole map."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from onnx_path.nodes.domain import DOMAIN, PLUGIN_ATTRIBUTES
from onnx_path.nodes.window_attention import WINDOW_ATTENTION
from onnx_path.surgery.find.recognise_windows import Linear, Windows
from onnx_path.surgery.find.samplers import NotAttention
from onnx_path.surgery.graph.probe import Probe
from onnx_path.surgery.rewrite.draft import Draft, DraftBuilder


def draft_windows(windows: Sequence[Windows], probes: Sequence[Probe]) -> Draft:
    """Drafts the node of a window attention, with the linear layers around it.

    Args:
        windows: the attention at every probe.
        probes: give the sizes.

    Raises:
        NotAttention: it differs between the probes.
        LayoutError: sizes that change with the model's inputs cannot be computed.
    """
    first = windows[0]
    if not all(_alike(first, other) for other in windows[1:]):
        raise NotAttention("it depends on the sizes of the model's inputs")
    # TensorRT fuses the bias of a product of rows, but adds that of a map's product by another kernel.
    is_dynamic = len({x.size[1:] for x in windows}) > 1
    prefix = f"{first.end.name}/msda"
    draft = DraftBuilder(prefix)
    start = draft.source(first.map, "normal")
    dtype = start.dtype.numpy()

    def weight(name: str, array: np.ndarray) -> ir.Value:
        return draft.initializer(f"{prefix}/{name}", np.ascontiguousarray(array, dtype))

    def linear(value: ir.Value, layer: Linear, name: str) -> ir.Value:
        value = draft.add("MatMul", [value, weight(f"{name}_weight", layer.weight)])
        return draft.add("Add", [value, weight(f"{name}_bias", layer.bias)]) if layer.bias.any() else value

    given = [probe.shape(x.map) for x, probe in zip(windows, probes)]
    leading = [x.size if is_dynamic else (x.size[0], x.size[1] * x.size[2]) for x in windows]
    if not is_dynamic:
        rows = [(*sizes, shape[-1]) for sizes, shape in zip(leading, given)]
        start, given = draft.reshape(start, given, rows), rows
    channels = 3 * first.heads * first.head_dim
    qkv = linear(start, first.qkv, "qkv")
    qkv = draft.reshape(
        qkv, [(*shape[:-1], channels) for shape in given], [(*x.size, channels) for x in windows]
    )
    inputs = [qkv, weight("bias", first.bias)]
    if first.qkv.bias.any():
        inputs.append(weight("qkv_bias", first.qkv.bias))
    sizes = {"window_size": first.window_size, "shift": first.shift}
    result = draft.add(WINDOW_ATTENTION, inputs, DOMAIN, **sizes, **PLUGIN_ATTRIBUTES)
    ends = [probe.shape(x.end) for x, probe in zip(windows, probes)]
    if first.projection is not None:
        size = first.heads * first.head_dim
        result = draft.reshape(
            result, [(*x.size, size) for x in windows], [(*sizes, size) for sizes in leading]
        )
        result = linear(result, first.projection, "projection")
    else:
        leading = [x.size for x in windows]
    result = draft.reshape(result, [(*sizes, end[-1]) for sizes, end in zip(leading, ends)], ends)
    return draft.finish(result, first.end)


def _alike(one: Windows, other: Windows) -> bool:
    fixed = ("map", "end", "window_size", "shift", "heads", "head_dim")
    same = all(getattr(one, name) == getattr(other, name) for name in fixed)
    return (
        same and len(_arrays(one)) == len(_arrays(other)) and all(map(_close, _arrays(one), _arrays(other)))
    )


def _arrays(windows: Windows) -> list[np.ndarray]:
    layers = [x for x in (windows.qkv, windows.projection) if x is not None]
    return [windows.bias, *(array for layer in layers for array in (layer.weight, layer.bias))]


def _close(one: np.ndarray, other: np.ndarray) -> bool:
    return one.shape == other.shape and np.allclose(one, other, rtol=1e-5, atol=1e-6)
