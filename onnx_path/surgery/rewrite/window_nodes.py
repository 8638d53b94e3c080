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
    prefix = f"{first.end.name}/msda"
    draft = DraftBuilder(prefix)
    start = draft.source(first.map, "normal")
    dtype = start.dtype.numpy()

    def weight(name: str, array: np.ndarray) -> ir.Value:
        return draft.initializer(f"{prefix}/{name}", np.ascontiguousarray(array, dtype))

    def linear(value: ir.Value, layer: Linear, name: str) -> ir.Value:
        value = draft.add("MatMul", [value, weight(f"{name}_weight", layer.weight)])
        return draft.add("Add", [value, weight(f"{name}_bias", layer.bias)]) if layer.bias.any() else value

    maps = [(*x.size, 3 * x.heads * x.head_dim) for x in windows]
    given = [(*probe.shape(x.map)[:-1], sizes[3]) for x, probe, sizes in zip(windows, probes, maps)]
    qkv = draft.reshape(linear(start, first.qkv, "qkv"), given, maps)
    inputs = [qkv, weight("bias", first.bias)]
    if first.qkv.bias.any():
        inputs.append(weight("qkv_bias", first.qkv.bias))
    sizes = {"window_size": first.window_size, "shift": first.shift}
    result = draft.add(WINDOW_ATTENTION, inputs, DOMAIN, **sizes, **PLUGIN_ATTRIBUTES)
    if first.projection is not None:
        result = linear(result, first.projection, "projection")
    ends = [probe.shape(x.end) for x, probe in zip(windows, probes)]
    result = draft.reshape(result, [(*x.size, end[-1]) for x, end in zip(windows, ends)], ends)
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
